"""A timeline for a terminal: where the time went in a sentence, then tables, then a small diagram. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from restante.common.units import columns, duration, percent, plain_ascii
from restante.timing.model import elapsed, phases
from restante.timing.model.timeline import Client, Delay, Timeline
from restante.timing.outputs.diagram import diagram
from restante.timing.outputs.wording import NO_TRACE, answer, clock, delay_cells

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
