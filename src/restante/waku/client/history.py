"""`restante waku request`: writes history from Mailservers, and live envelopes, to a file or to standard output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from restante.common.atomic_file import draft_of, new_file
from restante.common.errors import InUse, Misuse, PeerError, StoreError
from restante.common.lock_file import lock_file
from restante.common.progress import progress
from restante.common.settings import convert, limits_given
from restante.common.signals import cleaning_up
from restante.common.texts import counted, in_one_line
from restante.waku.archive.records import Archived
from restante.waku.client.fetch import OnState, RequestOptions, Subscriber
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import Budgets, FetchReport
from restante.waku.client.streams import EnvelopeStream, IncompleteError, Subscription, fetch_query, subscribe_query
from restante.waku.client.subscribe import OnFailure
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import Opened, SymmetricKey, open_sealed
from restante.waku.files import UnreadableItem, rlp_file

# ── The state file of a requester: JSON, replaced as a whole ──────────────────────────────────────


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock a state file for this process during the block. Raises InUse if another process has locked it.

    The lock is on a file next to it, because the state file itself is replaced. The lock file is removed at the end.
    Other programs have a FILE.lock, too, so it has a name that no other program uses.
    """
    try:
        is_directory = path.is_dir()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--state)") from error
    if is_directory:
        raise Misuse(f"cannot read {path}: it is a directory (--state)")
    beside = path.with_name(f".{path.name}.restante-lock")
    try:
        lock = _lock(beside)
    except BlockingIOError:
        raise InUse(f"another process is using {path}: wait for it (--state)") from None
    except OSError as error:
        raise Misuse(f"cannot write {beside}: {error.strerror} (--state)") from error
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(lock)


def _lock(beside: Path) -> int:
    """Lock a file and return its descriptor. Retry if the process that had locked it has removed it."""
    while True:
        lock = lock_file(beside)
        try:
            if os.path.samestat(os.fstat(lock), beside.stat()):
                return lock
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def load(path: Path) -> FetchState:
    """Read and return a state. Without a file, nothing is known. Raises Misuse if the file contains no state."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FetchState)
    except FileNotFoundError:
        return FetchState()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--state)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is not a state file: {error} (--state)") from None


def save(path: Path, state: FetchState) -> None:
    """Write a state atomically: after a crash, the file contains this state or the one before. Raises StoreError."""
    try:
        with draft_of(path) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror} (--state)") from error


# ──────────
# Where history is written: lines of JSON or of text, or a file of envelopes whose format follows from its suffix.
#


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


# ── history ───────────────────────────────────────────────────────────────────────────────────────


R = TypeVar("R")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where history is written, and the file that keeps the state of the fetch."""

    file: Path | None = None
    """None: standard output."""
    keys: tuple[SymmetricKey | Key, ...] = ()
    """Keys that decrypt payloads, so that lines of JSON contain them."""
    state: Path | None = None
    text: bool = False
    """Whether standard output gets times and texts, in place of lines of JSON."""


def run_fetch(
    servers: Sequence[Enode], query: HistoryQuery, options: RequestOptions, destination: Destination, budgets: Budgets
) -> FetchReport:
    """Fetch what is not known yet and return a report. Raises Misuse, and StoreError if writing fails."""

    async def run(subscriber: Subscriber, state: FetchState, keep: OnState) -> FetchReport:
        return await take_all(
            fetch_query(servers, query, options, state=state, keep=keep, budgets=budgets), subscriber
        )

    return carry_out(run, destination)


def run_subscribe(
    servers: Sequence[Enode],
    query: HistoryQuery,
    options: RequestOptions,
    destination: Destination,
    budgets: Budgets,
    on_failure: OnFailure,
    seconds: float | None,
) -> FetchReport:
    """Fetch what is not known yet, then receive live envelopes, until SIGINT or SIGTERM or for `seconds`.

    Raises Misuse, and StoreError if writing fails.
    """

    async def run(subscriber: Subscriber, state: FetchState, keep: OnState) -> FetchReport:
        stream = subscribe_query(
            servers, query, options, state=state, keep=keep, on_failure=on_failure, budgets=budgets
        )
        with _stopping(stream):
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, stream.stop)
            return await take_all(stream, subscriber)

    return carry_out(run, destination)


async def take_all(stream: EnvelopeStream, subscriber: Subscriber) -> FetchReport:
    """Hand a stream's envelopes to a subscriber and return the report, which says what is missing."""
    with suppress(IncompleteError):
        async with stream:
            async for page in stream.pages():
                subscriber(page)
    assert stream.report is not None
    return stream.report


def carry_out(
    run: Callable[[Subscriber, FetchState, OnState], Coroutine[Any, Any, R]], destination: Destination
) -> R:
    """Run what fetches envelopes and writes them to the destination, save its state, and return its result.

    The state is saved only when the envelopes that it covers are written: after each page on standard output, and
    otherwise when the file is complete, because the file does not exist before.
    """
    with cleaning_up(), nullcontext() if destination.state is None else held(destination.state):
        return _write(run, destination)


def _write(run: Callable[[Subscriber, FetchState, OnState], Coroutine[Any, Any, R]], destination: Destination) -> R:
    state = FetchState() if destination.state is None else load(destination.state)
    last = state

    def keep(found: FetchState) -> None:
        nonlocal last
        if destination.state is not None and destination.file is None and found != last:
            save(destination.state, found)
        last = found

    # On a terminal, the lines themselves show the progress, and a progress bar would be mixed with them.
    lines_only = destination.file is None and sys.stdout.isatty()
    shown = nullcontext(lambda _: None) if lines_only else progress("request")
    with results(destination.file, destination.keys, text=destination.text) as take, shown as advance:

        def subscriber(envelopes: list[Envelope]) -> None:
            take(envelopes)
            advance(len(envelopes))

        result = asyncio.run(run(subscriber, state, keep))
    if destination.state is not None:
        save(destination.state, last)
    return result


@contextmanager
def _stopping(stream: Subscription) -> Iterator[None]:
    """Stop the stream at the first SIGINT or SIGTERM. Later signals raise KeyboardInterrupt.

    That holds after the block, too. `loop.add_signal_handler` is not used: when the loop closes, it would also remove
    the handlers that end the process.
    """
    loop = asyncio.get_running_loop()

    def reset_signals() -> None:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler)

    def stop(_number: int, _frame: object) -> None:
        reset_signals()
        loop.call_soon_threadsafe(stream.stop)

    for each in SIGNALS:
        signal.signal(each, stop)
    try:
        yield
    finally:
        reset_signals()


def budgets(limits: Sequence[str]) -> Budgets:
    """Parse the limits of what a Mailserver may cost, each NAME=NUMBER. Raises Misuse."""
    types = {field.name: field.type for field in msgspec.structs.fields(Budgets)}
    given = dict(limits_given(Budgets, limits))
    return Budgets(**{name: convert(number, types[name], f"--limit {name}") for name, number in given.items()})
