"""Durations and tables as people read them in a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_SMALL: Final = ((1, "µs"), (1_000, "ms"), (1_000_000, "s"))
"""Units of a duration below a minute, in microseconds."""

_LARGE: Final = ((60, "min", 1, "s"), (3_600, "h", 60, "min"), (86_400, "d", 3_600, "h"))
"""Units of longer durations: two of them, in seconds."""

_US_PER_SECOND: Final = 1_000_000

_MINUTE_US: Final = 59_950_000
"""Microseconds from which on three digits of the seconds are 60.0."""


def duration(us: float) -> str:
    """Return a duration with three digits, like 12.3 ms, 2.98 s; with two units from a minute on, like 1 min 3 s."""
    size = abs(us)
    sign = "-" if us < 0 else ""
    if size >= _MINUTE_US:
        seconds = math.floor(size / _US_PER_SECOND + 0.5)
        large, name, small, small_name = next(units for units in reversed(_LARGE) if seconds >= units[0])
        second = seconds % large // small
        return f"{sign}{seconds // large:,} {name}" + (f" {second} {small_name}" if second else "")
    if round(size) == 0:
        return "0 s"
    for unit, name in _SMALL:
        text = _three_digits(size / unit) if unit > 1 else f"{size:.0f}"
        if float(text) < 1_000 or unit == _US_PER_SECOND:
            return f"{sign}{text} {name}"
    raise AssertionError("every duration has a unit")


def _three_digits(number: float) -> str:
    """Return a number with three digits, less zeros behind the point."""
    decimals = next(
        decimals for decimals in (2, 1, 0) if decimals == 0 or round(number, decimals) < 10 ** (3 - decimals)
    )
    text = f"{number:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def elapsed(seconds: float) -> str:
    """Return a duration in its largest unit of which it has two, like 2 min, 119 s."""
    seconds = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def moment(us: float) -> str:
    """Return a time since the beginning, like 3.112 s; like 1:02:03 from 1,000 seconds on."""
    milliseconds = math.floor(abs(us) / 1_000 + 0.5)
    sign = "-" if us < 0 and milliseconds else ""
    seconds, milliseconds = divmod(milliseconds, 1_000)
    if seconds < 1_000:
        return f"{sign}{seconds}.{milliseconds:03} s"
    return f"{sign}{seconds // 3_600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def percent(part: float, total: float) -> str:
    """Return the share of a part: 81%, or <1%."""
    share = 100 * part / total if total else 0.0
    return "<1%" if 0 < share < 0.5 else f"{share:.0f}%"


def columns(rows: Sequence[Sequence[str]], width: int, drop: Sequence[Sequence[int]] = ()) -> list[str]:
    """Return the lines of a table, the first column left-aligned, the others right-aligned.

    As long as the table is wider than `width`, the next columns of `drop` are left out.
    """
    indices = list(range(len(rows[0])))
    widths = [max(len(row[index]) for row in rows) for index in indices]
    drops = iter(drop)
    while sum(widths[index] for index in indices) + 2 * (len(indices) - 1) > width and (dropped := next(drops, None)):
        indices = [index for index in indices if index not in dropped]
    return ["  ".join(_aligned(row[index], index, widths[index]) for index in indices).rstrip() for row in rows]


def _aligned(cell: str, index: int, width: int) -> str:
    return cell.ljust(width) if index == 0 else cell.rjust(width)


_ASCII: Final = str.maketrans({"µ": "u", "█": "#", "│": "|", "─": "-", "⋮": ":", "┃": "#"})
"""One character for each, so that the widths stay."""


def plain_ascii(text: str) -> str:
    """Return a text of these outputs for a terminal that shows only ASCII."""
    return text.translate(_ASCII)
