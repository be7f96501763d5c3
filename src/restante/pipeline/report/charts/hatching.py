"""Hatching: lines in an area that tell the parts of a chart apart without colour. Pure.

They are paths that end at the edges of the area. Patterns of SVG would be shorter, but a browser prints each area
with a pattern as bitmaps: the PDF of a month had 87 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from restante.pipeline.report.charts.elements import coordinate

_SPACING: Final = 8
"""Distance of slanted lines along an edge."""

_NARROW_SPACING: Final = 4
"""Distance of lying and upright lines, and of rows of dots."""

_DOT: Final = 2
_INSET: Final = 0.5
"""Distance of the lines' ends from the edges, so that their corners do not stick out."""


MIN_HATCHED: Final = 2.5
"""Width and height of an area with lines. In a thinner one a line would be wider than the area, which stands for a
number; its edges have the colour, then."""


class Area(NamedTuple):
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float


def _positions(low: float, high: float, spacing: float) -> Iterator[float]:
    """Yield places from low to high with a distance. One is in the middle, so that a small area has a line, too."""
    middle = (low + high) / 2
    for step in range(math.ceil((low - middle) / spacing), math.floor((high - middle) / spacing) + 1):
        yield middle + step * spacing


def _move(x: float, y: float) -> str:
    return f"M{coordinate(x)} {coordinate(y)}"


def _rising(area: Area) -> str:
    """Return lines from the lower left to the upper right."""
    lines = []
    for total in _positions(area.left + area.top, area.right + area.bottom, _SPACING):
        start, end = max(area.left, total - area.bottom), min(area.right, total - area.top)
        lines.append(f"{_move(start, total - start)}l{coordinate(end - start)} {coordinate(start - end)}")
    return "".join(lines)


def _falling(area: Area) -> str:
    """Return lines from the upper left to the lower right."""
    lines = []
    for difference in _positions(area.left - area.bottom, area.right - area.top, _SPACING):
        start, end = max(area.left, difference + area.top), min(area.right, difference + area.bottom)
        lines.append(f"{_move(start, start - difference)}l{coordinate(end - start)} {coordinate(end - start)}")
    return "".join(lines)


def _crossed(area: Area) -> str:
    return _rising(area) + _falling(area)


def _lying(area: Area) -> str:
    width = coordinate(area.right - area.left)
    return "".join(f"{_move(area.left, y)}h{width}" for y in _positions(area.top, area.bottom, _NARROW_SPACING))


def _upright(area: Area) -> str:
    height = coordinate(area.bottom - area.top)
    return "".join(f"{_move(x, area.top)}v{height}" for x in _positions(area.left, area.right, _NARROW_SPACING))


def _dotted(area: Area) -> str:
    """Return dots, every second row of which is shifted."""
    dots = []
    for row, y in enumerate(_positions(area.top, area.bottom, _NARROW_SPACING)):
        for column, x in enumerate(_positions(area.left, area.right, _NARROW_SPACING)):
            if (row + column) % 2 == 0:
                start, end = max(x - _DOT / 2, area.left), min(x + _DOT / 2, area.right)
                dots.append(f"{_move(start, y)}h{coordinate(end - start)}")
    return "".join(dots)


class Hatching(NamedTuple):
    """How an area is filled."""

    name: str
    lines: Callable[[Area], str] | None
    """Return the lines of an area as the data of a path. None: the area is filled evenly."""
    thickness: float = 1


HATCHINGS: Final = (
    Hatching("plain", None),
    Hatching("slanted", _rising, 2),
    Hatching("lying", _lying, 1.8),
    Hatching("dotted", _dotted, 2),
    Hatching("crossed", _crossed, 1.4),
    Hatching("upright", _upright, 1.8),
)
"""The hatchings of the parts of a bar, in their order."""


def hatch(hatching: Hatching, x: float, y: float, width: float, height: float) -> str:
    """Return the lines of a hatching in a rectangle as the data of a path, or "" if it has none."""
    if hatching.lines is None or min(width, height) < MIN_HATCHED:
        return ""
    return hatching.lines(Area(x + _INSET, y + _INSET, x + width - _INSET, y + height - _INSET))
