"""A timeline for a terminal: what took the time in a sentence, then tables, then a small diagram. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from restante.common.units import columns, duration, moment, percent, plain_ascii
from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import (
    Delay,
    Role,
    Timeline,
    TimelineClient,
    TimelineCommand,
    TimelineFrame,
    TimelineSpan,
)
from restante.timing.outputs.wording import NO_TRACE, answer_text, clock_text, delay_cells, message_label

MIN_WIDTH: Final = 40
MAX_WIDTH: Final = 200

_COLOURS: Final[Mapping[str, int]] = {
    **dict.fromkeys((phases.HUMAN, elapsed.PEER, elapsed.NOT_RUNNING), 33),
    **dict.fromkeys((phases.TRANSFER, phases.TRANSIT_CONNECT), 32),
    **dict.fromkeys((elapsed.CONNECT, phases.NETWORK_OUT, phases.NETWORK_IN, phases.ROUND_TRIP), 34),
    **dict.fromkeys((phases.SERVER, phases.QUEUE, phases.COMMIT, phases.QUEUE_AND_COMMIT, phases.ANSWER), 31),
}
"""Colours of bars (ECMA-48, SGR): yellow for people, green for the transfer, blue for the network, red for the
server. Others have the terminal's own colour."""

_DELAY_HEADS: Final = ("", "count", "median", "max", "sum", "error")

_LABEL_WIDTH: Final = 18
_TIME_WIDTH: Final = 10
_SHARE_WIDTH: Final = 5


def timeline_text(timeline: Timeline, width: int, *, colour: bool = False, unicode: bool = True) -> str:
    """Return a timeline as lines of at most `width` columns (40 to 200).

    `colour` writes escapes for colours and bold; `unicode` characters that are not ASCII.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    blocks = [textwrap.wrap(answer_text(client, timeline), width) for client in timeline.clients]
    blocks.extend(_elapsed_table(client, width, colour=colour) for client in timeline.clients)
    blocks.extend(_delay_tables(timeline, width, colour=colour))
    blocks.append([_heading("Messages", colour=colour), *timeline_diagram(timeline, width)])
    blocks.append([line for remark in _remarks(timeline) for line in textwrap.wrap(remark, width)])
    text = "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"
    return text if unicode else plain_ascii(text)


def _heading(text: str, *, colour: bool) -> str:
    return f"\x1b[1m{text}\x1b[m" if colour else text


def _elapsed_table(client: TimelineClient, width: int, *, colour: bool) -> list[str]:
    """Return the table of a client's time by cause."""
    total = client.stop_us - client.start_us
    lines = [_heading(f"{client.role.capitalize()}, {duration(total)}", colour=colour)]
    for spent in sorted(client.spent, key=lambda spent: -spent.us):
        lines.append(_bar_line(f"  {spent.cause}", spent.cause, spent.us, total, width, colour=colour))
        lines.extend(
            _bar_line(f"    {cause}", cause, us, total, width, colour=colour)
            for cause, us in sorted((spent.peer or {}).items(), key=lambda item: -item[1])
        )
    return lines


def _bar_line(label: str, cause: str, us: int, total: int, width: int, *, colour: bool) -> str:
    line = label.ljust(_LABEL_WIDTH + 2) + duration(us).rjust(_TIME_WIDTH)
    line += percent(us, total).rjust(_SHARE_WIDTH)
    bar_width = width - len(line) - 1
    bar = "█" * round(bar_width * us / total) if total else ""
    if colour and bar and cause in _COLOURS:
        bar = f"\x1b[{_COLOURS[cause]}m{bar}\x1b[m"
    return f"{line} {bar}".rstrip()


def _delay_tables(timeline: Timeline, width: int, *, colour: bool) -> Iterator[list[str]]:
    """Yield the table of delays of each client."""
    for client in timeline.clients:
        delays = [delay for delay in timeline.delays if delay.role == client.role]
        if delays:
            rows = [_DELAY_HEADS, *(_delay_row(delay) for delay in delays)]
            heading = _heading(f"Delays of the {client.role}", colour=colour)
            yield [heading, *(f"  {line}" for line in columns(rows, width - 2, drop=((4,), (5,), (1,))))]


def _delay_row(delay: Delay) -> Sequence[str]:
    return (delay.phase, *delay_cells(delay), "" if delay.error_us is None else duration(delay.error_us))


def _remarks(timeline: Timeline) -> Iterator[str]:
    """Yield what limits the precision: the clocks, and a missing trace."""
    for client in timeline.clients:
        yield f"{clock_text(client, '; the error is at most {}')}."
    if not timeline.traced:
        yield f"{NO_TRACE}."


# ── diagram ───────────────────────────────────────────────────────────────────────────────────────
# Time runs down. Each client and the server has a lane.

MAX_ROWS: Final = 40
"""Rows of messages and spans: with the tables above them, about two screens."""

LIVE_US: Final = 10_000
"""Microseconds after its answer within which a message is sent on if the other client is connected. One that is sent
later was stored meanwhile, and has a row of its own."""

GAP_SHARE: Final = 0.05
"""Share of the duration without a message that is drawn as a gap."""

_MOMENT_WIDTH: Final = 10
_DURATION_WIDTH: Final = 10
_MIN_WIDTH_WITH_DURATION: Final = 60
_MAX_ARROW_WIDTH: Final = 40


class _DiagramRow(msgspec.Struct):
    """A line of the diagram: a message, or a span of a client."""

    start_us: int
    role: Role
    label: str
    duration_us: int | None
    """Microseconds to the last receipt that is known."""
    kind: str
    """"command", "frame" (from the server) or "span"."""
    through: bool = False
    """Whether a command's message also reached the other client, at once."""
    stop: int | None = None
    count: int = 1


def timeline_diagram(timeline: Timeline, width: int) -> list[str]:
    """Return the lines of the diagram."""
    rows = sorted(_diagram_rows(timeline), key=lambda row: row.start_us)
    joined = _join_rows(rows)
    drawn_rows = _longest_rows(joined)
    lanes = _lanes(timeline)
    with_duration = width >= _MIN_WIDTH_WITH_DURATION
    free_width = width - _MOMENT_WIDTH - (_DURATION_WIDTH if with_duration else 0) - len(lanes)
    arrow_width = min(free_width // (len(lanes) - 1), _MAX_ARROW_WIDTH)
    if not drawn_rows:
        return ["No messages."]
    lines = [_heading_line(lanes, arrow_width, with_duration)]
    before = drawn_rows[0].start_us
    for row in drawn_rows:
        if row.start_us - before > GAP_SHARE * timeline.duration_us:
            lines.append(" " * _MOMENT_WIDTH + (" " * arrow_width).join("⋮" * len(lanes)))
        lines.append(_row_line(row, lanes, arrow_width, with_duration))
        before = max(before, row.start_us)
    left_out = sum(row.count for row in joined) - sum(row.count for row in drawn_rows)
    if left_out:
        sentence = f"{left_out:,} of {sum(row.count for row in joined):,} are left out: those that took least."
        lines.extend(textwrap.wrap(sentence, width))
    return [line.rstrip() for line in lines]


def _lanes(timeline: Timeline) -> list[str]:
    roles = {client.role for client in timeline.clients}
    return [lane for lane in ("sender", "server", "receiver") if lane == "server" or lane in roles]


def _diagram_rows(timeline: Timeline) -> Iterator[_DiagramRow]:
    delivered: dict[int, TimelineFrame] = {}
    for frame in timeline.frames:
        if frame.author == frame.role:
            continue
        if frame.command is not None:
            answered = timeline.commands[frame.command].answered_us
            if answered is not None and frame.sent_us is not None and abs(frame.sent_us - answered) <= LIVE_US:
                delivered[frame.command] = frame
                continue
        if frame.author != "server" or frame.type in {"welcome", "error"}:
            yield _frame_row(frame)
    for index, command in enumerate(timeline.commands):
        yield _command_row(command, delivered.get(index))
    for span in timeline.spans:
        if span.phase is not None:
            yield _span_row(span)


def _command_row(command: TimelineCommand, frame: TimelineFrame | None) -> _DiagramRow:
    label = message_label(command.type, command.phase)
    ends = (command.answer_received_us, None if frame is None else frame.received_us)
    arrived = [end for end in ends if end is not None]
    duration_us = max(arrived) - command.sent_us if arrived else None
    return _DiagramRow(command.sent_us, command.role, label, duration_us, "command", through=frame is not None)


def _frame_row(frame: TimelineFrame) -> _DiagramRow:
    sent = frame.received_us if frame.sent_us is None else frame.sent_us
    label = message_label("add" if frame.type == "message" else frame.type, frame.phase)
    duration_us = None if frame.sent_us is None else frame.received_us - frame.sent_us
    return _DiagramRow(sent, frame.role, label, duration_us, "frame")


def _span_row(span: TimelineSpan) -> _DiagramRow:
    duration_us = None if span.stop_us is None else span.stop_us - span.start_us
    return _DiagramRow(span.start_us, span.role, span.phase or "", duration_us, "span", stop=span.stop_us)


def _join_rows(rows: Sequence[_DiagramRow]) -> list[_DiagramRow]:
    """Join commands and frames of one type that follow one another, if there are too many rows."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    joined: list[_DiagramRow] = []
    for row in rows:
        row.label = _type_of(row)
        last_row = joined[-1] if joined else None
        if last_row is not None and _can_join(last_row, row):
            last_row.count += 1
            durations = [us for us in (last_row.duration_us, row.duration_us) if us is not None]
            last_row.duration_us = max(durations, default=None)
        else:
            joined.append(row)
    return joined


def _type_of(row: _DiagramRow) -> str:
    """Return a label without the number of the message."""
    kind, _, phase = row.label.partition(" ")
    return kind if row.kind != "span" and phase.isdecimal() else row.label


def _can_join(row: _DiagramRow, other: _DiagramRow) -> bool:
    return (row.role, row.label, row.kind, row.through) == (other.role, other.label, other.kind, other.through)


def _longest_rows(rows: Sequence[_DiagramRow]) -> list[_DiagramRow]:
    longest = sorted(range(len(rows)), key=lambda index: (-(rows[index].duration_us or 0), index))[:MAX_ROWS]
    return [rows[index] for index in sorted(longest)]


def _heading_line(lanes: Sequence[str], arrow_width: int, with_duration: bool) -> str:
    line = list(" " * (_MOMENT_WIDTH + len(lanes) + arrow_width * (len(lanes) - 1)))
    for number, name in enumerate(lanes):
        column = _MOMENT_WIDTH + number * (arrow_width + 1)
        if number == len(lanes) - 1:
            column -= len(name) - 1
        elif number > 0:
            column -= len(name) // 2
        line[column : column + len(name)] = name
    return "".join(line) + ("took".rjust(_DURATION_WIDTH) if with_duration else "")


def _row_line(row: _DiagramRow, lanes: Sequence[str], arrow_width: int, with_duration: bool) -> str:
    cells = [" " * arrow_width] * (len(lanes) - 1)
    marks = ["│"] * len(lanes)
    client_lane, server = lanes.index(row.role), lanes.index("server")
    client_arrow = min(client_lane, server)
    label = row.label + (f" x{row.count:,}" if row.count > 1 else "")
    rightwards = (client_lane < server) == (row.kind != "frame")
    if row.kind == "span":
        marks[client_lane] = "┃"
        longer = f"{label} {_duration_text(row.duration_us)}"
        shows_duration = not with_duration and len(longer) <= arrow_width - 2
        cells[client_arrow] = _span_cell(
            longer if shows_duration else label, arrow_width, left_aligned=client_lane < server
        )
    else:
        cells[client_arrow] = _arrow_cell(label, arrow_width, rightwards=rightwards)
        if row.through and len(lanes) == 3:
            cells[1 - client_arrow] = _arrow_cell("", arrow_width, rightwards=rightwards)
    line = moment(row.start_us).rjust(_MOMENT_WIDTH - 1) + " "
    line += "".join(mark + cell for mark, cell in zip(marks, [*cells, ""], strict=True))
    return line + (_duration_text(row.duration_us).rjust(_DURATION_WIDTH) if with_duration else "")


def _duration_text(duration_us: int | None) -> str:
    return "?" if duration_us is None else duration(duration_us)


def _span_cell(text: str, width: int, *, left_aligned: bool) -> str:
    return f" {text[: width - 2]}".ljust(width) if left_aligned else f"{text[: width - 2]} ".rjust(width)


def _arrow_cell(label: str, width: int, *, rightwards: bool) -> str:
    text = (label if len(label) <= width - 3 else label.removeprefix("add "))[: width - 3]
    return f"─{text}".ljust(width - 1, "─") + ">" if rightwards else "<" + f"{text}─".rjust(width - 1, "─")
