"""Where history is written: lines of JSON or of text, or a file of envelopes whose format follows from its suffix."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from restante.common.atomic_file import new_file
from restante.common.errors import Misuse, PeerError, StoreError
from restante.common.plural import counted
from restante.common.texts import in_one_line
from restante.waku.archive.records import Archived
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import Opened, SymmetricKey, open_sealed
from restante.waku.files import UnreadableItem, rlp_file

Take = Callable[[list[Envelope]], None]

SUFFIXES: Final = (".jsonl", ".rlp", ".parquet")
TABLE_PAGE_ROWS: Final = 1000


def check(file: Path | None) -> None:
    """Raise Misuse if the suffix of a file names no format, or if the file exists."""
    if file is None:
        return
    if file.suffix not in SUFFIXES:
        raise Misuse(f"{file}: the name must end in .jsonl, .rlp or .parquet, which decides the format (-o)")
    try:
        exists = file.exists()
    except OSError as error:
        raise Misuse(f"cannot write {file}: {error.strerror} (-o)") from error
    if exists:
        raise Misuse(f"{file} exists already: name another file, or move it away (-o)")


@contextmanager
def results(file: Path | None, keys: Sequence[SymmetricKey | Key], *, text: bool = False) -> Iterator[Take]:
    """Yield a function that writes envelopes, to standard output or to a file that appears when it is complete.

    With keys, lines contain the payload of each envelope that one of them decrypts. With `text`, standard output gets
    only times and texts. Raises Misuse, and StoreError if writing fails.
    """
    check(file)
    try:
        if file is None:
            yield lambda envelopes: (_texts if text else _lines)(sys.stdout.buffer, envelopes, keys)
        else:
            with new_file(file) as unfinished, _writing(file.suffix, unfinished, keys) as take:
                yield take
    except OSError as error:
        raise StoreError(f"cannot write {file or 'standard output'}: {error.strerror or error}") from error


@contextmanager
def _writing(suffix: str, unfinished: Path, keys: Sequence[SymmetricKey | Key]) -> Iterator[Take]:
    if suffix == ".parquet":
        with _table(unfinished) as take:
            yield take
        return
    with unfinished.open("wb") as output:
        if suffix == ".rlp":
            yield lambda envelopes: output.writelines(each.raw for each in envelopes)
        else:
            yield lambda envelopes: _lines(output, envelopes, keys)


@contextmanager
def _table(unfinished: Path) -> Iterator[Take]:
    """Yield a function that gathers envelopes in a temporary file, and write the table at the end.

    The envelopes may need more memory than there is.
    """
    from restante.waku.files import parquet

    with tempfile.NamedTemporaryFile(dir=unfinished.parent, suffix=".rlp") as aside:
        yield lambda envelopes: aside.writelines(each.raw for each in envelopes)
        aside.flush()
        parquet.write(unfinished, _pages(Path(aside.name)))


def _pages(file: Path) -> Iterator[list[Archived]]:
    now = int(time.time())
    page: list[Archived] = []
    for number, each in enumerate(rlp_file.read(file), 1):
        assert not isinstance(each, UnreadableItem)
        page.append(Archived(number, now, each.raw))
        if len(page) == TABLE_PAGE_ROWS:
            yield page
            page = []
    yield page


def _lines(output: IO[bytes], envelopes: list[Envelope], keys: Sequence[SymmetricKey | Key]) -> None:
    output.writelines(msgspec.json.encode(line(envelope, keys)) + b"\n" for envelope in envelopes)
    output.flush()


def _texts(output: IO[bytes], envelopes: list[Envelope], keys: Sequence[SymmetricKey | Key]) -> None:
    output.writelines(text_line(envelope, keys).encode() + b"\n" for envelope in envelopes)
    output.flush()


def text_line(envelope: Envelope, keys: Sequence[SymmetricKey | Key]) -> str:
    """Return when an envelope was sent (UTC), and its text in one line, or why there is none.

    Anybody may have sent it, so control characters are escapes.
    """
    sent = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(envelope.sent))
    opened = _opened(envelope, keys)
    if opened is None:
        return f"{sent} (no key opens it)"
    try:
        return f"{sent} {in_one_line(opened.payload.decode())}"
    except UnicodeDecodeError:
        return f"{sent} ({counted(len(opened.payload), 'byte')} that are not text)"


def line(envelope: Envelope, keys: Sequence[SymmetricKey | Key]) -> dict[str, Any]:
    """Return the content of an envelope's line: all its fields, and its payload if a key decrypts it."""
    said: dict[str, Any] = {
        "hash": envelope.hash.hex(),
        "sent": envelope.sent,
        "expiry": envelope.expiry,
        "ttl": envelope.ttl,
        "topic": envelope.topic.hex(),
        "nonce": envelope.nonce,
        "data": envelope.data.hex(),
    }
    opened = _opened(envelope, keys)
    if opened is None:
        return said
    try:
        said["text"] = opened.payload.decode()
    except UnicodeDecodeError:
        said["payload"] = opened.payload.hex()
    if opened.signer is not None:
        said["signer"] = opened.signer.hex()
    return said


def _opened(envelope: Envelope, keys: Sequence[SymmetricKey | Key]) -> Opened | None:
    with suppress(PeerError):
        return open_sealed(envelope.data, *keys)
    return None
