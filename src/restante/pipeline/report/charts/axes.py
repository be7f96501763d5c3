"""Axes: round numbers along them, and which labels fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from restante.pipeline.report.charts.elements import CHARACTER_WIDTH, WIDTH, element, text_element
from restante.pipeline.report.model import ValueKind
from restante.pipeline.report.values import compact_text

LEFT: Final = 38
"""Room for the numbers of an upright axis: six characters, such as <1,000."""

MAX_TICKS: Final = 5

_STEPS: Final = (1, 2, 5, 10)

_DURATION_TICKS_US: Final = (
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    10**6,
    10**7,
    6 * 10**7,
    6 * 10**8,
    36 * 10**8,
    10 * 36 * 10**8,
    864 * 10**8,
    10 * 864 * 10**8,
    100 * 864 * 10**8,
    1_000 * 864 * 10**8,
)
"""Round durations, each about ten times the one before it: 1 µs to 100 ms, 1 and 10 s, min, h; 1 to 1,000 days."""


def ticks(largest: float) -> list[int]:
    """Return round whole numbers from 0 to at least the largest value, evenly spaced."""
    step = max(Fraction(math.ceil(largest)) / (MAX_TICKS - 1), Fraction(1))
    power = 10 ** (len(str(math.floor(step))) - 1)
    step = next(power * factor for factor in _STEPS if power * factor >= step)
    return [step * n for n in range(math.ceil(Fraction(math.ceil(largest)) / step) + 1)] if largest else [0, 1]


def duration_ticks(shortest: float, longest: float) -> list[int]:
    """Return round durations for a logarithmic axis that has the shortest and the longest duration."""
    below = max((at for at, tick in enumerate(_DURATION_TICKS_US) if tick <= shortest), default=0)
    above = min(
        (at for at, tick in enumerate(_DURATION_TICKS_US) if tick >= longest), default=len(_DURATION_TICKS_US) - 1
    )
    return list(_DURATION_TICKS_US[min(below, above - 1) : above + 1] if above else _DURATION_TICKS_US[:2])


def log_place(value: float, scale: Sequence[int]) -> float:
    """Return where a value is on a logarithmic axis, from 0 to 1. Values beyond its ends are at its ends."""
    low, high = math.log(scale[0]), math.log(scale[-1])
    inside = min(max(value, scale[0]), scale[-1])
    return (math.log(inside) - low) / (high - low)


def upright_axis(scale: Sequence[int], top: float, bottom: float, kind: ValueKind) -> str:
    """Return lines across the chart with their numbers at the left."""
    parts = []
    for tick in scale:
        y = bottom - (bottom - top) * tick / scale[-1]
        parts.append(element("path", class_="rule" if tick else "line", d=f"M{LEFT} {y:.2f}H{WIDTH}"))
        parts.append(text_element(LEFT - 5, y + 4, compact_text(tick, kind), "end"))
    return "".join(parts)


def spaced(labels: Sequence[str], width: float) -> list[bool]:
    """Return which of several labels are written, so that none touches the next. The first one is."""
    longest = max((len(label) for label in labels), default=0) * CHARACTER_WIDTH + CHARACTER_WIDTH
    interval = max(math.ceil(longest / width), 1) if width > 0 else len(labels)
    return [index % interval == 0 for index in range(len(labels))]


def short_label(label: str) -> str:
    """Return a label of an axis: of a day, its day of the month."""
    return label[-2:].lstrip("0") if len(label) == 10 and label[4] == label[7] == "-" else label
