"""Logs and traces of a transfer: reads them from files, and checks that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from restante.common.errors import Misuse, plain
from restante.common.texts import counted
from restante.timing.logs import (
    JSON_SPACE,
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
from restante.timing.model.exchanges import MAX_APART_US, US_PER_SECOND, to_us
from restante.timing.model.timeline import ROLES, ClientLog, Role, Timeline, build_timeline, role_of, side_of

Remark = Callable[[str], None]
"""Prints a sentence that is no error."""

MAX_SKEW_SECONDS: Final = 1e9
"""Seconds of the largest `--skew`, 32 years."""


class LogFile(msgspec.Struct):
    """A client's timing log."""

    path: Path
    events: list[Event]

    def __str__(self) -> str:
        return path_text(self.path)


def read_transfer(paths: Sequence[Path], trace: Path | None, skews: Mapping[Role, float], remark: Remark) -> Timeline:
    """Return the timeline of one log, or of the sender's and the receiver's. `skews` are in seconds.

    Raises Misuse if a file cannot be used, or if the logs do not belong together.
    """
    logs = [read_log(path, remark) for path in paths]
    roles = _roles(logs, remark)
    for role in skews:
        if role not in roles:
            raise Misuse(f"--skew {role}=…: no log of the {role} was given")
    times = [time for log in logs for event in log.events if (time := to_us(event.start)) is not None]
    ids = {event.id for log in logs for event in log.events if event.name == "ws_send" and event.id is not None}
    lines = None if trace is None else read_trace(trace, ids, min(times), max(times), remark)
    clients = [
        ClientLog(role, log.events, round(skews[role] * US_PER_SECOND) if role in skews else None)
        for role, log in zip(roles, logs, strict=True)
    ]
    timeline = build_timeline(clients, lines)
    if trace is not None and not lines:
        remark(f"{path_text(trace)} has none of the transfer's commands: it is of another server, or of another time")
    for client, log in zip(timeline.clients, logs, strict=True):
        if client.offset_us is None:
            remark(f"{log} has no answer of the server, so its clock cannot be compared; its times are as written")
        elif client.moved_us:
            remark(
                f"the clock of {log} moved against the server's by {client.moved_us / 1e6:,.6f} s or more:"
                f" the network's times may be wrong by {(client.error_us or 0) / 1e6:,.6f} s"
            )
    return timeline


def _roles(logs: Sequence[LogFile], remark: Remark) -> list[Role]:
    """Return the role of each log. Raises Misuse."""
    sides = []
    for log in logs:
        try:
            sides.append(side_of(log.events))
        except ValueError as error:
            raise Misuse(f"{log} has {error}: give the log of one client") from error
    if len(logs) == 1:
        role = role_of(logs[0].events)
        if role is None:
            remark(
                f"{logs[0]} does not say whether it is the sender's or the receiver's: it is shown as the sender's"
            )
        return [role or "sender"]
    first, second = logs
    if sides[0] is not None and sides[0] == sides[1]:
        raise Misuse(f"{first} and {second} are both logs of one client: give the log of the other one")
    if not _received_from(first, sides[1]) and not _received_from(second, sides[0]):
        raise Misuse(f"{first} and {second} are not of one transfer: neither client received a message of the other")
    roles = [role_of(log.events) for log in logs]
    if roles[0] == roles[1]:
        remark(f"{first} and {second} do not say which one is the sender's: {first} is shown as the sender's")
    elif roles[0] == "receiver" or roles[1] == "sender":
        remark(f"{first} is the receiver's log, and {second} the sender's")
        return ["receiver", "sender"]
    return list(ROLES)


def _received_from(log: LogFile, side: str | None) -> bool:
    """Return whether a client received a message of a side."""
    return side is not None and any(event.author == side for event in log.events if event.name == "ws_receive")


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


MAX_LOG_BYTES: Final = 256 << 20
"""Bytes of the largest log that is read. It is read whole; the pipeline has the same limit."""

MAX_EVENTS: Final = 200_000
"""Events of the largest log that is read: 40,000 messages. A browser needs some seconds for as many."""

MAX_LINE_BYTES: Final = 1 << 16
"""Bytes of a trace's line that are read; a server's lines have about 200."""

NO_TIME: Final = "no time"
ENDS_EARLIER: Final = "ends earlier"

_FAULT_TEXTS: Final = {
    NOT_JSON: "it is not JSON",
    MISSING_VALUE: "a value is missing",
    WRONG_TYPE: "a value has the wrong type",
    NO_TIME: "its time is not a time since 1970",
    ENDS_EARLIER: "it ends before it begins",
}

_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_log(path: Path, remark: Remark) -> LogFile:
    """Return the events of a log. Bad events are left out, which `remark` prints. Raises Misuse."""
    content = _read_content(path)
    good = _undamaged_events(path, content)
    if good:
        return LogFile(path, good)
    events: list[Event] = []
    bad: list[tuple[int, str]] = []
    end = None
    for item in log_items(content):
        if item.fault is not None:
            end = item
            break
        if len(events) + len(bad) == MAX_EVENTS:
            raise _too_many_events(path)
        event = _event_or_fault(item.raw)
        if isinstance(event, str):
            bad.append((item.offset, event))
        else:
            events.append(event)
    if end is not None and not events:
        raise _not_a_log(path, content)
    if end is not None:
        remark(
            f"{path_text(path)} is damaged or cut off at byte {end.offset:,}:"
            f" the {counted(len(events), 'event')} before it are shown"
        )
    if not events:
        if not bad:
            raise Misuse(f"{path_text(path)} has no events: the client wrote an empty log")
        offset, fault = bad[0]
        raise Misuse(
            f"{path_text(path)} is not a timing log: none of its items is an event;"
            f" byte {offset:,}: {_FAULT_TEXTS[fault]}"
        )
    _report_bad_items(path, "event", bad, remark)
    return LogFile(path, events)


def _undamaged_events(path: Path, content: bytes) -> list[Event]:
    """Return the events of a log whose events are all good, which takes a third of the time; else nothing.

    Raises Misuse if it has more than MAX_EVENTS.
    """
    try:
        items = _decode_list(content)
    except READ_ERRORS:
        return []
    if len(items) > MAX_EVENTS:
        raise _too_many_events(path)
    try:
        events = [read_event(item) for item in items]
    except READ_ERRORS:
        return []
    return [] if any(map(_time_fault, events)) else events


def _too_many_events(path: Path) -> Misuse:
    return Misuse(f"{path_text(path)} has more than {counted(MAX_EVENTS, 'event')}, the most that can be shown")


def read_trace(path: Path, ids: Collection[str], start: int, stop: int, remark: Remark) -> dict[str, list[TraceLine]]:
    """Return the lines of a trace that may belong to logs, by id: those with their ids, in their time.

    `start` and `stop` are in microseconds since 1970. Bad lines are left out, which `remark` prints. Raises Misuse.
    """
    lines: dict[str, list[TraceLine]] = {}
    bad: list[tuple[int, str]] = []
    count = 0
    for offset, line in _trace_lines(path):
        try:
            trace_line = read_line(line)
        except READ_ERRORS as error:
            bad.append((offset, fault_of(error)))
            if not count or len(bad) == MAX_EVENTS:
                break
            continue
        count += 1
        received = to_us(trace_line.server_rx)
        if trace_line.id is None or received is None:
            continue
        if trace_line.id in ids and start - MAX_APART_US <= received <= stop + MAX_APART_US:
            lines.setdefault(trace_line.id, []).append(trace_line)
    if not count:
        raise Misuse(
            f"{path_text(path)} is not a trace: it does not begin with a command (see restante serve --trace)"
        )
    _report_bad_items(path, "line", bad, remark)
    return lines


def _trace_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its offset; of one that is too long, only the beginning. Raises Misuse.

    A line without its end is left out: the server is writing it.
    """
    offset = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if line.endswith(b"\n") or len(line) == MAX_LINE_BYTES:
                    yield offset, line
                offset += len(line)
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                    offset += len(line)
    except OSError as error:
        raise _unreadable(path, error) from error


def path_text(path: Path) -> str:
    """Return a path without control characters."""
    name = str(path)
    return name if name.isprintable() else ascii(name)


def _read_content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LOG_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > MAX_LOG_BYTES:
        raise Misuse(f"{path_text(path)} is larger than {MAX_LOG_BYTES >> 20} MiB, so it is no timing log")
    if not content.strip(JSON_SPACE):
        raise Misuse(f"{path_text(path)} is empty: the client writes its log when it ends")
    return content


def _unreadable(path: Path, error: OSError) -> Misuse:
    return Misuse(f"cannot read {path_text(path)}: {plain(error)}")


def _not_a_log(path: Path, content: bytes) -> Misuse:
    if content.lstrip(JSON_SPACE).startswith(b"{"):
        return Misuse(
            f"{path_text(path)} is not a timing log, which is a JSON list; a server's trace is given with --server"
        )
    return Misuse(f"{path_text(path)} is not a timing log, which is a JSON list of events (see --dump-timing)")


def _event_or_fault(raw: bytes) -> Event | str:
    try:
        event = read_event(raw)
    except READ_ERRORS as error:
        return fault_of(error)
    return _time_fault(event) or event


def _time_fault(event: Event) -> str:
    """Return why the times of an event cannot be, or nothing."""
    start, stop = to_us(event.start), to_us(event.stop)
    if start is None or start < 0 or (event.stop is not None and stop is None):
        return NO_TIME
    for stamp in (event.server_rx, event.server_tx):
        if stamp is not None and ((time := to_us(stamp)) is None or time < 0):
            return NO_TIME
    return ENDS_EARLIER if stop is not None and stop < start else ""


def _report_bad_items(path: Path, kind: str, bad: list[tuple[int, str]], remark: Remark) -> None:
    if bad:
        offset, fault = bad[0]
        are = "is" if len(bad) == 1 else "are"
        remark(
            f"{path_text(path)}: {counted(len(bad), kind)} {are} left out;"
            f" the first is at byte {offset:,}: {_FAULT_TEXTS[fault]}"
        )
