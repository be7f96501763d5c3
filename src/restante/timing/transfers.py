"""Reads the logs of one transfer, and checks that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from restante.common.errors import Misuse, plain
from restante.common.texts import counted
from restante.timing.logs import (
    MISSING_VALUE,
    NOT_JSON,
    READ_ERRORS,
    WRONG_TYPE,
    Event,
    TraceLine,
    fault_of,
    log_items,
    read_event,
    read_line,
)
from restante.timing.model.exchanges import MAX_APART_US, MICROSECONDS, us
from restante.timing.model.timeline import ROLES, ClientLog, Role, Timeline, role_of, side_of, timeline

# ── Reads timing logs and traces from files ───────────────────────────────────────────────────────


MAX_LOG_BYTES: Final = 256 << 20
"""Bytes of the largest log that is read. It is read whole; the pipeline has the same limit."""

MAX_EVENTS: Final = 200_000
"""Events of the largest log that is read: 40,000 messages. A browser needs some seconds for as many."""

MAX_LINE_BYTES: Final = 1 << 16
"""Bytes of a trace's line that are read; a server's lines have about 200."""

NO_TIME: Final = "no time"
ENDS_EARLIER: Final = "ends earlier"

_WORDS: Final = {
    NOT_JSON: "it is not JSON",
    MISSING_VALUE: "a value is missing",
    WRONG_TYPE: "a value has the wrong type",
    NO_TIME: "its time is not a time since 1970",
    ENDS_EARLIER: "it ends before it begins",
}

_SPACE: Final = b" \t\n\r"

Say = Callable[[str], None]
"""Tells the user a sentence that is no error."""

_Read = TypeVar("_Read")

_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Log(msgspec.Struct):
    """A client's timing log."""

    path: Path
    events: list[Event]

    def __str__(self) -> str:
        return shown(self.path)


def read_log(path: Path, say: Say) -> Log:
    """Return the events of a log. Bad events are left out, and `say` is told. Raises Misuse."""
    content = _content(path)
    good = _undamaged(path, content)
    if good:
        return Log(path, good)
    found: list[Event] = []
    bad: list[tuple[int, str]] = []
    end = None
    for item in log_items(content):
        if item.fault is not None:
            end = item
            break
        if len(found) + len(bad) == MAX_EVENTS:
            raise _too_long(path)
        _read(item.raw, item.at, _plausible, found, bad)
    if end is not None and not found:
        raise _foreign(path, content)
    if end is not None:
        say(f"{shown(path)} is damaged or cut off at byte {end.at:,}: the {_events(len(found))} before it are shown")
    if not found:
        if not bad:
            raise Misuse(f"{shown(path)} has no events: the client wrote an empty log")
        at, fault = bad[0]
        raise Misuse(
            f"{shown(path)} is not a timing log: none of its items is an event; byte {at:,}: {_WORDS[fault]}"
        )
    _say_bad(path, "event", bad, say)
    return Log(path, found)


def _undamaged(path: Path, content: bytes) -> list[Event]:
    """Return the events of a log whose events are all good, which takes a third of the time; else nothing.

    Raises Misuse if it has more than MAX_EVENTS.
    """
    try:
        raw = _list(content)
    except READ_ERRORS:
        return []
    if len(raw) > MAX_EVENTS:
        raise _too_long(path)
    try:
        return [_plausible(each) for each in raw]
    except READ_ERRORS:
        return []


def _too_long(path: Path) -> Misuse:
    return Misuse(f"{shown(path)} has more than {_events(MAX_EVENTS)}, the most that can be shown")


def read_trace(path: Path, ids: Collection[str], start: int, stop: int, say: Say) -> dict[str, list[TraceLine]]:
    """Return the lines of a trace that may belong to logs, by id: those with their ids, in their time.

    `start` and `stop` are in microseconds since 1970. Bad lines are left out, and `say` is told. Raises Misuse.
    """
    lines: dict[str, list[TraceLine]] = {}
    found: list[TraceLine] = []
    bad: list[tuple[int, str]] = []
    read = 0
    for at, line in _lines(path):
        _read(line, at, read_line, found, bad)
        if found:
            each = found.pop()
            read += 1
            came = us(each.server_rx)
            if each.id is None or came is None:
                continue
            if each.id in ids and start - MAX_APART_US <= came <= stop + MAX_APART_US:
                lines.setdefault(each.id, []).append(each)
        elif not read or len(bad) == MAX_EVENTS:
            break
    if not read:
        raise Misuse(f"{shown(path)} is not a trace: it does not begin with a command (see restante serve --trace)")
    _say_bad(path, "line", bad, say)
    return lines


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its offset; of one that is too long, only the beginning. Raises Misuse.

    A line without its end is left out: the server is writing it.
    """
    at = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if line.endswith(b"\n") or len(line) == MAX_LINE_BYTES:
                    yield at, line
                at += len(line)
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                    at += len(line)
    except OSError as error:
        raise _unreadable(path, error) from error


def shown(path: Path) -> str:
    """Return a path without control characters."""
    name = str(path)
    return name if name.isprintable() else ascii(name)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LOG_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > MAX_LOG_BYTES:
        raise Misuse(f"{shown(path)} is larger than {MAX_LOG_BYTES >> 20} MiB, so it is no timing log")
    if not content.strip(_SPACE):
        raise Misuse(f"{shown(path)} is empty: the client writes its log when it ends")
    return content


def _unreadable(path: Path, error: OSError) -> Misuse:
    return Misuse(f"cannot read {shown(path)}: {plain(error)}")


def _foreign(path: Path, content: bytes) -> Misuse:
    if content.lstrip(_SPACE).startswith(b"{"):
        return Misuse(
            f"{shown(path)} is not a timing log, which is a JSON list; a server's trace is given with --server"
        )
    return Misuse(f"{shown(path)} is not a timing log, which is a JSON list of events (see --dump-timing)")


def _read(
    raw: bytes, at: int, parse: Callable[[bytes], _Read], found: list[_Read], bad: list[tuple[int, str]]
) -> None:
    try:
        found.append(parse(raw))
    except READ_ERRORS as error:
        bad.append((at, error.args[0] if isinstance(error, _Implausible) else fault_of(error)))


class _Implausible(ValueError):  # noqa: N818 - it is the event's fault, not an error of ours
    """The times of an event cannot be: NO_TIME or ENDS_EARLIER."""


def _plausible(raw: bytes | msgspec.Raw) -> Event:
    event = read_event(raw)
    start, stop = us(event.start), us(event.stop)
    if start is None or start < 0 or (event.stop is not None and stop is None):
        raise _Implausible(NO_TIME)
    for stamp in (event.server_rx, event.server_tx):
        if stamp is not None and ((time := us(stamp)) is None or time < 0):
            raise _Implausible(NO_TIME)
    if stop is not None and stop < start:
        raise _Implausible(ENDS_EARLIER)
    return event


def _say_bad(path: Path, kind: str, bad: list[tuple[int, str]], say: Say) -> None:
    if bad:
        at, fault = bad[0]
        are = "is" if len(bad) == 1 else "are"
        say(f"{shown(path)}: {counted(len(bad), kind)} {are} left out; the first is at byte {at:,}: {_WORDS[fault]}")


def _events(number: int) -> str:
    return counted(number, "event")


# ── transfer ──────────────────────────────────────────────────────────────────────────────────────


MAX_SKEW_SECONDS: Final = 1e9
"""Seconds of the largest `--skew`, 32 years."""


def read_transfer(paths: Sequence[Path], trace: Path | None, skews: Mapping[Role, float], say: Say) -> Timeline:
    """Return the timeline of one log, or of the sender's and the receiver's. `skews` are in seconds.

    Raises Misuse if a file cannot be used, or if the logs do not belong together.
    """
    logs = [read_log(path, say) for path in paths]
    roles = _roles(logs, say)
    for role in skews:
        if role not in roles:
            raise Misuse(f"--skew {role}=…: no log of the {role} was given")
    times = [time for log in logs for event in log.events if (time := us(event.start)) is not None]
    ids = {event.id for log in logs for event in log.events if event.name == "ws_send" and event.id is not None}
    lines = None if trace is None else read_trace(trace, ids, min(times), max(times), say)
    clients = [
        ClientLog(role, log.events, round(skews[role] * MICROSECONDS) if role in skews else None)
        for role, log in zip(roles, logs, strict=True)
    ]
    found = timeline(clients, lines)
    if trace is not None and not lines:
        say(f"{shown(trace)} has none of the transfer's commands: it is of another server, or of another time")
    for client, log in zip(found.clients, logs, strict=True):
        if client.offset_us is None:
            say(f"{log} has no answer of the server, so its clock cannot be compared; its times are as written")
        elif client.moved_us:
            say(
                f"the clock of {log} moved against the server's by {client.moved_us / 1e6:,.6f} s or more:"
                f" the network's times may be wrong by {(client.error_us or 0) / 1e6:,.6f} s"
            )
    return found


def _roles(logs: Sequence[Log], say: Say) -> list[Role]:
    """Return the role of each log. Raises Misuse."""
    for log in logs:
        _require_one_side(log)
    if len(logs) == 1:
        role = role_of(logs[0].events)
        if role is None:
            say(f"{logs[0]} does not say whether it is the sender's or the receiver's: it is shown as the sender's")
        return [role or "sender"]
    first, second = logs
    sides = [side_of(log.events) for log in logs]
    if sides[0] is not None and sides[0] == sides[1]:
        raise Misuse(f"{first} and {second} are both logs of one client: give the log of the other one")
    if not _met(first, sides[1]) and not _met(second, sides[0]):
        raise Misuse(f"{first} and {second} are not of one transfer: neither client received a message of the other")
    roles = [role_of(log.events) for log in logs]
    if roles[0] == roles[1]:
        say(f"{first} and {second} do not say which one is the sender's: {first} is shown as the sender's")
    elif roles[0] == "receiver" or roles[1] == "sender":
        say(f"{first} is the receiver's log, and {second} the sender's")
        return ["receiver", "sender"]
    return list(ROLES)


def _require_one_side(log: Log) -> None:
    try:
        side_of(log.events)
    except ValueError as error:
        raise Misuse(f"{log} has {error}: give the log of one client") from error


def _met(log: Log, side: str | None) -> bool:
    """Return whether a client received a message of a side."""
    return side is not None and any(event.author == side for event in log.events if event.name == "ws_receive")
