"""A timeline for a terminal: where the time went in a sentence, then tables, then a small diagram. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from restante.common.units import columns, duration, moment, percent, plain_ascii
from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import Client, Command, Delay, Frame, Role, Span, Timeline
from restante.timing.outputs.wording import NO_TRACE, answer, clock, delay_cells

# ──────────
# Draws the messages of a timeline with characters: time runs down, each client and the server has a lane. Pure.
#


MAX_ROWS: Final = 40
"""Rows of messages and spans: with the tables above them, about two screens."""

LIVE_US: Final = 10_000
"""Microseconds after its answer within which a message is sent on if the other client is connected. One that is sent
later was stored meanwhile, and has a row of its own."""

GAP_SHARE: Final = 0.05
"""Share of the duration without a message that is drawn as a gap."""

_MOMENT_WIDTH: Final = 10
_TOOK_WIDTH: Final = 10
_MIN_WIDTH_WITH_TOOK: Final = 60
_MAX_ARROW_WIDTH: Final = 40


class _Row(msgspec.Struct):
    """A line of the diagram: a message, or a span of a client."""

    at: int
    role: Role
    label: str
    took: int | None
    """Microseconds to the last receipt that is known."""
    kind: str
    """"command", "frame" (from the server) or "span"."""
    through: bool = False
    """Whether a command's message also reached the other client, at once."""
    stop: int | None = None
    count: int = 1


def diagram(timeline: Timeline, width: int) -> list[str]:
    """Return the lines of the diagram."""
    rows = sorted(_rows(timeline), key=lambda row: row.at)
    joined = _joined(rows)
    kept = _longest(joined)
    lanes = _lanes(timeline)
    with_took = width >= _MIN_WIDTH_WITH_TOOK
    room = width - _MOMENT_WIDTH - (_TOOK_WIDTH if with_took else 0) - len(lanes)
    arrow = min(room // (len(lanes) - 1), _MAX_ARROW_WIDTH)
    if not kept:
        return ["No messages."]
    lines = [_heads(lanes, arrow, with_took)]
    before = kept[0].at
    for row in kept:
        if row.at - before > GAP_SHARE * timeline.duration_us:
            lines.append(" " * _MOMENT_WIDTH + (" " * arrow).join("⋮" * len(lanes)))
        lines.append(_drawn(row, lanes, arrow, with_took))
        before = max(before, row.at)
    left_out = sum(row.count for row in joined) - sum(row.count for row in kept)
    if left_out:
        words = f"{left_out:,} of {sum(row.count for row in joined):,} are left out: those that took least."
        lines.extend(textwrap.wrap(words, width))
    return [line.rstrip() for line in lines]


def _lanes(timeline: Timeline) -> list[str]:
    roles = {client.role for client in timeline.clients}
    return [*(["sender"] if "sender" in roles else []), "server", *(["receiver"] if "receiver" in roles else [])]


def _rows(timeline: Timeline) -> Iterator[_Row]:
    delivered: dict[int, Frame] = {}
    for frame in timeline.frames:
        if frame.author == frame.role:
            continue
        if frame.command is not None:
            answered = timeline.commands[frame.command].answered_us
            if answered is not None and frame.sent_us is not None and abs(frame.sent_us - answered) <= LIVE_US:
                delivered[frame.command] = frame
                continue
        if frame.author != "server" or frame.type in {"welcome", "error"}:
            yield _of_frame(frame)
    for at, command in enumerate(timeline.commands):
        yield _of_command(command, delivered.get(at))
    for span in timeline.spans:
        if span.phase is not None:
            yield _of_span(span)


def _of_command(command: Command, frame: Frame | None) -> _Row:
    label = " ".join(each for each in (command.type or "other", command.phase) if each)
    ends = (command.answer_received_us, None if frame is None else frame.received_us)
    arrived = [each for each in ends if each is not None]
    took = max(arrived) - command.sent_us if arrived else None
    return _Row(command.sent_us, command.role, label, took, "command", through=frame is not None)


def _of_frame(frame: Frame) -> _Row:
    sent = frame.received_us if frame.sent_us is None else frame.sent_us
    kind = "add" if frame.type == "message" else frame.type or "other"
    label = " ".join(each for each in (kind, frame.phase) if each)
    took = None if frame.sent_us is None else frame.received_us - frame.sent_us
    return _Row(sent, frame.role, label, took, "frame")


def _of_span(span: Span) -> _Row:
    took = None if span.stop_us is None else span.stop_us - span.start_us
    return _Row(span.start_us, span.role, span.phase or "", took, "span", stop=span.stop_us)


def _joined(rows: Sequence[_Row]) -> list[_Row]:
    """Join commands and frames of one type that follow one another, if there are too many rows."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    joined: list[_Row] = []
    for row in rows:
        row.label = _type_of(row)
        last = joined[-1] if joined else None
        if last is not None and _alike(last, row):
            last.count += 1
            last.took = max((each for each in (last.took, row.took) if each is not None), default=None)
        else:
            joined.append(row)
    return joined


def _type_of(row: _Row) -> str:
    """Return a label without the number of the message."""
    kind, _, phase = row.label.partition(" ")
    return kind if row.kind != "span" and phase.isdecimal() else row.label


def _alike(one: _Row, other: _Row) -> bool:
    return (one.role, one.label, one.kind, one.through) == (other.role, other.label, other.kind, other.through)


def _longest(rows: Sequence[_Row]) -> list[_Row]:
    if len(rows) <= MAX_ROWS:
        return list(rows)
    longest = sorted(range(len(rows)), key=lambda at: (-(rows[at].took or 0), at))[:MAX_ROWS]
    return [rows[at] for at in sorted(longest)]


def _heads(lanes: Sequence[str], arrow: int, with_took: bool) -> str:
    line = list(" " * (_MOMENT_WIDTH + len(lanes) + arrow * (len(lanes) - 1)))
    for number, name in enumerate(lanes):
        at = _MOMENT_WIDTH + number * (arrow + 1)
        start = at if number == 0 else at - len(name) + 1 if number == len(lanes) - 1 else at - len(name) // 2
        line[start : start + len(name)] = name
    return "".join(line) + ("took".rjust(_TOOK_WIDTH) if with_took else "")


def _drawn(row: _Row, lanes: Sequence[str], arrow: int, with_took: bool) -> str:
    cells = [" " * arrow] * (len(lanes) - 1)
    marks = ["│"] * len(lanes)
    mine, server = lanes.index(row.role), lanes.index("server")
    own = min(mine, server)
    label = row.label + (f" x{row.count:,}" if row.count > 1 else "")
    rightwards = (mine < server) == (row.kind != "frame")
    if row.kind == "span":
        marks[mine] = "┃"
        longer = f"{label} {_or_unknown(row.took)}"
        shows_took = not with_took and len(longer) <= arrow - 2
        cells[own] = _beside(longer if shows_took else label, arrow, left=mine < server)
    else:
        cells[own] = _arrow(label, arrow, rightwards=rightwards)
        if row.through and len(lanes) == 3:
            cells[1 - own] = _arrow("", arrow, rightwards=rightwards)
    line = moment(row.at).rjust(_MOMENT_WIDTH - 1) + " "
    line += "".join(mark + cell for mark, cell in zip(marks, [*cells, ""], strict=True))
    return line + (_or_unknown(row.took).rjust(_TOOK_WIDTH) if with_took else "")


def _or_unknown(took: int | None) -> str:
    return "?" if took is None else duration(took)


def _beside(text: str, arrow: int, *, left: bool) -> str:
    return f" {text[: arrow - 2]}".ljust(arrow) if left else f"{text[: arrow - 2]} ".rjust(arrow)


def _arrow(label: str, width: int, *, rightwards: bool) -> str:
    words = (label if len(label) <= width - 3 else label.removeprefix("add "))[: width - 3]
    return f"─{words}".ljust(width - 1, "─") + ">" if rightwards else "<" + f"{words}─".rjust(width - 1, "─")


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


MIN_WIDTH: Final = 40
MAX_WIDTH: Final = 200

_COLOURS: Final[Mapping[str, int]] = {
    **dict.fromkeys((phases.HUMAN, elapsed.PEER, elapsed.NOT_RUNNING), 33),
    **dict.fromkeys((phases.TRANSFER, phases.TRANSIT_CONNECT), 32),
    **dict.fromkeys((elapsed.CONNECT, phases.NETWORK_OUT, phases.NETWORK_IN, phases.ROUND_TRIP), 34),
    **dict.fromkeys(
        (phases.SERVER, phases.QUEUE, phases.COMMIT, phases.QUEUE_AND_COMMIT, phases.ANSWER),
        31,
    ),
}
"""Colours of bars (ECMA-48, SGR): yellow for people, green for the transfer, blue for the network, red for the
server. Others have the terminal's own colour."""

_BAR: Final = re.compile("█+")

_LABEL_WIDTH: Final = 18
_TIME_WIDTH: Final = 10
_SHARE_WIDTH: Final = 5


def text(timeline: Timeline, width: int, *, colour: bool = False, unicode: bool = True) -> str:
    """Return a timeline as lines of at most `width` columns (40 to 200).

    `colour` writes escapes for colours and bold; `unicode` characters that are not ASCII.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    blocks = [textwrap.wrap(answer(client, timeline), width) for client in timeline.clients]
    blocks.extend(_spent(client, width, colour=colour) for client in timeline.clients)
    blocks.extend(_delays(timeline, width, colour=colour))
    blocks.append([_heading("Messages", colour=colour), *diagram(timeline, width)])
    blocks.append([line for each in _remarks(timeline) for line in textwrap.wrap(each, width)])
    written = "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"
    return written if unicode else plain_ascii(written)


def _heading(words: str, *, colour: bool) -> str:
    return f"\x1b[1m{words}\x1b[m" if colour else words


def _spent(client: Client, width: int, *, colour: bool) -> list[str]:
    """Return the table of a client's time by cause."""
    whole = client.stop_us - client.start_us
    lines = [_heading(f"{client.role.capitalize()}, {duration(whole)}", colour=colour)]
    for spent in sorted(client.spent, key=lambda each: -each.us):
        lines.append(_bar_line(f"  {spent.cause}", spent.cause, spent.us, whole, width, colour=colour))
        lines.extend(
            _bar_line(f"    {cause}", cause, part, whole, width, colour=colour)
            for cause, part in sorted((spent.peer or {}).items(), key=lambda each: -each[1])
        )
    return lines


def _bar_line(label: str, cause: str, part: int, whole: int, width: int, *, colour: bool) -> str:
    words = label.ljust(_LABEL_WIDTH + 2) + duration(part).rjust(_TIME_WIDTH)
    words += percent(part, whole).rjust(_SHARE_WIDTH)
    room = width - len(words) - 1
    bar = "█" * round(room * part / whole) if whole else ""
    if colour and bar and cause in _COLOURS:
        bar = f"\x1b[{_COLOURS[cause]}m{bar}\x1b[m"
    return f"{words} {bar}".rstrip()


def _delays(timeline: Timeline, width: int, *, colour: bool) -> Iterator[list[str]]:
    """Yield the table of delays of each client."""
    for client in timeline.clients:
        delays = [each for each in timeline.delays if each.role == client.role]
        if delays:
            rows = [_DELAY_HEADS, *(_delay_row(each) for each in delays)]
            heading = _heading(f"Delays of the {client.role}", colour=colour)
            yield [heading, *(f"  {line}" for line in columns(rows, width - 2, drop=((4,), (5,), (1,))))]


_DELAY_HEADS: Final = ("", "count", "median", "max", "sum", "error")


def _delay_row(delay: Delay) -> Sequence[str]:
    return (delay.phase, *delay_cells(delay), "" if delay.error_us is None else duration(delay.error_us))


def _remarks(timeline: Timeline) -> Iterator[str]:
    """Yield what one has to know of the clocks."""
    for client in timeline.clients:
        yield f"{clock(client, '; the error is at most {}')}."
    if not timeline.traced:
        yield f"{NO_TRACE}."
