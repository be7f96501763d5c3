"""`restante waku request`: write history from Mailservers, and live envelopes, to a file or to standard output.

The file has the three forms of the command: by default, with `--live`, and with `--ranges`; then the state file, then
the output.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from restante.common.atomic_file import draft_of, new_file
from restante.common.errors import InUse, Misuse, PeerError, StoreError
from restante.common.lock_file import lock_file
from restante.common.progress import progress
from restante.common.signals import cleaning_up
from restante.common.texts import counted, in_one_line
from restante.waku.archive.records import Archived
from restante.waku.client.fetch import OnState, RequestOptions, Subscriber, fetch
from restante.waku.client.inbox import Inbox
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import FetchReport
from restante.waku.client.subscribe import OnFailure, SubscriptionRun
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import Opened, SymmetricKey, open_sealed
from restante.waku.files import UnreadableItem, rlp_file
from restante.waku.files.missing_ranges import MissingRange
from restante.waku.protocol.interest import WANTS_EVERYTHING

ResultT = TypeVar("ResultT")

RunRequest = Callable[[Subscriber, FetchState, OnState], Coroutine[Any, Any, ResultT]]
"""Requests what the state does not cover, and calls these with the envelopes and with each new state."""

Keys = Sequence[SymmetricKey | Key]
"""Keys that decrypt payloads."""

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where history is written, and the file with the state of the fetch."""

    output_file: Path | None = None
    """None: standard output."""
    keys: Keys = ()
    """Keys of the payloads that lines of JSON contain."""
    state_file: Path | None = None
    text: bool = False
    """Whether standard output gets times and texts, in place of lines of JSON."""


def run_fetch(
    servers: Sequence[Enode], query: HistoryQuery, options: RequestOptions, destination: Destination
) -> FetchReport:
    """Fetch what is not known yet and return a report. Raises Misuse, and StoreError if writing fails."""

    async def run(subscriber: Subscriber, state: FetchState, keep: OnState) -> FetchReport:
        return await fetch(servers, query, options, subscriber, state=state, keep=keep)

    return write_history(run, destination)


def run_subscribe(
    servers: Sequence[Enode],
    query: HistoryQuery,
    options: RequestOptions,
    destination: Destination,
    on_failure: OnFailure,
    seconds: float | None,
) -> FetchReport:
    """Fetch what is not known yet, then receive live envelopes, until SIGINT or SIGTERM or for `seconds`.

    Raises Misuse, and StoreError if writing fails.
    """

    async def run(subscriber: Subscriber, state: FetchState, keep: OnState) -> FetchReport:
        subscription = SubscriptionRun(
            servers, query, options, subscriber, state=state, keep=keep, on_failure=on_failure
        )
        until = asyncio.Event()
        with _call_on_signals(until.set):
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, until.set)
            return await subscription.run(until)

    return write_history(run, destination)


def write_history(run: RunRequest[ResultT], destination: Destination) -> ResultT:
    """Run what fetches envelopes, write them to the destination, save the state, and return the result.

    The state is saved only when the envelopes that it covers are written: after each page on standard output, and
    otherwise when the file is complete, because the file does not exist before.
    """
    output_file, state_file = destination.output_file, destination.state_file
    with cleaning_up(), nullcontext() if state_file is None else lock_state_file(state_file):
        state = latest_state = FetchState() if state_file is None else load_state(state_file)

        def keep(new_state: FetchState) -> None:
            nonlocal latest_state
            if state_file is not None and output_file is None and new_state != latest_state:
                save_state(state_file, new_state)
            latest_state = new_state

        # On a terminal, the lines themselves show the progress, and a progress bar would be mixed with them.
        lines_only = output_file is None and sys.stdout.isatty()
        progress_bar = nullcontext(lambda _: None) if lines_only else progress("request")
        output = open_output(output_file, destination.keys, text=destination.text)
        with output as write_envelopes, progress_bar as advance:

            def subscriber(envelopes: list[Envelope]) -> None:
                write_envelopes(envelopes)
                advance(len(envelopes))

            result = asyncio.run(run(subscriber, state, keep))
        if state_file is not None:
            save_state(state_file, latest_state)
        return result


@contextmanager
def _call_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in the loop at the first SIGINT or SIGTERM. Later signals raise KeyboardInterrupt.

    That is so after the block, too. `loop.add_signal_handler` is not used: when the loop closes, it would also remove
    the handlers that end the process.
    """
    loop = asyncio.get_running_loop()

    def reset_signals() -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.default_int_handler)

    def handle(_number: int, _frame: object) -> None:
        reset_signals()
        loop.call_soon_threadsafe(stop)

    for number in STOP_SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        reset_signals()


# ── ranges: fetch the envelopes that a Mailserver lacks from others ────────────────────────────────

MAX_FAILURES: Final = 3
"""Ranges in a row that a server does not answer, after which it is not asked any more. A server that is down costs a
minute for each range."""


class RangeResult(msgspec.Struct, frozen=True):
    """The result of requesting a range from every server."""

    range: MissingRange
    envelopes: int
    """Different envelopes that were fetched. The range may be of envelopes that its Mailserver has, too."""
    answered: bool
    """Whether a server answered for all of its times."""

    @property
    def is_open(self) -> bool:
        """Whether the range stays open: it brought no envelopes, or not all of it was answered for."""
        return not self.envelopes or not self.answered


def run_ranges(
    servers: Sequence[Enode],
    ranges: Sequence[MissingRange],
    options: RequestOptions,
    destination: Destination,
    on_failure: OnFailure,
) -> list[RangeResult]:
    """Ask every server for every range, because each may have other envelopes of it.

    Each envelope of a range is written once. `options` limit what a server may cost for one range.
    `on_failure` is called once for each reason for which a server did not answer. Raises Misuse, and StoreError if
    writing fails.
    """
    failures_in_a_row: Counter[int] = Counter()
    reported: set[tuple[int, str]] = set()

    async def fetch_range(missing_range: MissingRange, subscriber: Subscriber) -> RangeResult:
        inbox = Inbox(WANTS_EVERYTHING, len(servers) * options.connection.max_envelopes)
        query, envelopes, answered = query_for_range(missing_range), 0, False
        for number, enode in enumerate(servers):
            if failures_in_a_row[number] >= MAX_FAILURES:
                continue
            report = await fetch([enode], query, options, subscriber, inbox=inbox)
            envelopes += report.handed_over
            answered |= not report.missing
            failures_in_a_row[number] = failures_in_a_row[number] + 1 if report.missing else 0
            for reason in report.failures.values():
                if (number, reason) not in reported:
                    reported.add((number, reason))
                    on_failure(number, reason)
        return RangeResult(missing_range, envelopes, answered)

    async def run(subscriber: Subscriber, _state: FetchState, _keep: OnState) -> list[RangeResult]:
        return [await fetch_range(missing_range, subscriber) for missing_range in ranges]

    return write_history(run, destination)


def query_for_range(missing_range: MissingRange) -> HistoryQuery:
    """Return the query for a range."""
    lower, upper, topics = missing_range.lower, missing_range.upper, missing_range.topics
    if topics is None:
        return HistoryQuery(lower, upper, bloom=bloom.ALL_BITS)
    return HistoryQuery(lower, upper, frozenset(map(bytes.fromhex, topics)))


def open_range_sentences(results: Sequence[RangeResult], max_sentences: int) -> list[str]:
    """Return a sentence for each range that stays open, and one for those above `max_sentences`."""
    sentences = [
        f"{result.range.describe()}: "
        + (
            "no Mailserver has envelopes of it; it stays open"
            if result.answered
            else "no Mailserver answered for all of it; it stays open: try again later, or name another Mailserver"
        )
        for result in results
        if result.is_open
    ]
    if (more := len(sentences) - max_sentences) > 0:
        sentences[max_sentences:] = [f"{more:,} more ranges stay open" if more > 1 else "1 more range stays open"]
    return sentences


# ── state file: JSON, replaced as a whole ─────────────────────────────────────────────────────────


@contextmanager
def lock_state_file(path: Path) -> Iterator[None]:
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
    lock_path = path.with_name(f".{path.name}.restante-lock")
    try:
        descriptor = _lock(lock_path)
    except BlockingIOError:
        raise InUse(f"another process is using {path}: wait for it (--state)") from None
    except OSError as error:
        raise Misuse(f"cannot write {lock_path}: {error.strerror} (--state)") from error
    try:
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(lock_path: Path) -> int:
    """Lock a file and return its descriptor. Retry if the process that had locked it has removed it."""
    while True:
        descriptor = lock_file(lock_path)
        try:
            if os.path.samestat(os.fstat(descriptor), lock_path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def load_state(path: Path) -> FetchState:
    """Read and return a state. Without a file, nothing is known. Raises Misuse if the file contains no state."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FetchState)
    except FileNotFoundError:
        return FetchState()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--state)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is not a state file: {error} (--state)") from None


def save_state(path: Path, state: FetchState) -> None:
    """Write a state atomically: after a crash, the file contains this state or the one before. Raises StoreError."""
    try:
        with draft_of(path, locked=True) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror} (--state)") from error


# ── output: lines of JSON or of text, or a file whose suffix decides its format ───────────────────


WriteEnvelopes = Callable[[list[Envelope]], None]

SUFFIXES: Final = (".jsonl", ".rlp", ".parquet")


def check_output_file(file: Path | None) -> None:
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
def open_output(file: Path | None, keys: Keys, *, text: bool = False) -> Iterator[WriteEnvelopes]:
    """Yield a function that writes envelopes, to standard output or to a file that appears when it is complete.

    With keys, lines contain the payload of each envelope that one of them decrypts. With `text`, standard output gets
    only times and texts. Raises Misuse, and StoreError if writing fails.
    """
    check_output_file(file)
    try:
        if file is None:
            yield partial(_write_lines, sys.stdout.buffer, _text_line if text else _json_line, keys)
        else:
            with new_file(file) as draft, _open_draft(file.suffix, draft, keys) as write_envelopes:
                yield write_envelopes
    except OSError as error:
        raise StoreError(f"cannot write {file or 'standard output'}: {error.strerror or error}") from error


@contextmanager
def _open_draft(suffix: str, draft: Path, keys: Keys) -> Iterator[WriteEnvelopes]:
    if suffix == ".parquet":
        with _open_table(draft) as write_envelopes:
            yield write_envelopes
        return
    with draft.open("wb") as output:
        if suffix == ".rlp":
            yield lambda envelopes: output.writelines(envelope.raw for envelope in envelopes)
        else:
            yield partial(_write_lines, output, _json_line, keys)


@contextmanager
def _open_table(draft: Path) -> Iterator[WriteEnvelopes]:
    """Yield a function that appends envelopes to a temporary file, and write the table at the end.

    The envelopes may need more memory than there is.
    """
    from restante.waku.files import parquet

    with tempfile.NamedTemporaryFile(dir=draft.parent, suffix=".rlp") as temporary:
        yield lambda envelopes: temporary.writelines(envelope.raw for envelope in envelopes)
        temporary.flush()
        parquet.write(draft, _read_rows(Path(temporary.name)))


def _read_rows(file: Path) -> Iterator[list[Archived]]:
    now = int(time.time())
    for number, envelope in enumerate(rlp_file.read(file), 1):
        assert not isinstance(envelope, UnreadableItem)
        yield [Archived(number, now, envelope.raw)]


def _write_lines(
    output: IO[bytes], line: Callable[[Envelope, Keys], bytes], keys: Keys, envelopes: list[Envelope]
) -> None:
    output.writelines(line(envelope, keys) + b"\n" for envelope in envelopes)
    output.flush()


def _json_line(envelope: Envelope, keys: Keys) -> bytes:
    """Return an envelope's line: all its fields, and its payload if a key decrypts it."""
    fields: dict[str, Any] = {
        "hash": envelope.hash.hex(),
        "sent": envelope.sent,
        "expiry": envelope.expiry,
        "ttl": envelope.ttl,
        "topic": envelope.topic.hex(),
        "nonce": envelope.nonce,
        "data": envelope.data.hex(),
    }
    opened = _opened(envelope, keys)
    if opened is not None:
        try:
            fields["text"] = opened.payload.decode()
        except UnicodeDecodeError:
            fields["payload"] = opened.payload.hex()
        if opened.signer is not None:
            fields["signer"] = opened.signer.hex()
    return msgspec.json.encode(fields)


def _text_line(envelope: Envelope, keys: Keys) -> bytes:
    """Return when an envelope was sent (UTC), and its text in one line, or why there is none.

    Anybody may have sent it, so control characters are escapes.
    """
    sent = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(envelope.sent))
    opened = _opened(envelope, keys)
    try:
        text = "(no key opens it)" if opened is None else in_one_line(opened.payload.decode())
    except UnicodeDecodeError as error:
        text = f"({counted(len(error.object), 'byte')} that are not text)"
    return f"{sent} {text}".encode()


def _opened(envelope: Envelope, keys: Keys) -> Opened | None:
    with suppress(PeerError):
        return open_sealed(envelope.data, *keys)
    return None
