"""Elements of SVG and HTML with everything escaped, and texts that fit. Pure."""

from __future__ import annotations

import math
from html import escape
from typing import Final

from rich.cells import cell_len

WIDTH: Final = 340
"""Width of a chart: a phone's, so that its texts have their size there."""

TEXT_HEIGHT: Final = 11
"""Size of the texts of a chart (`.chart text` in page.css)."""

CHARACTER_WIDTH: Final = 6.2
"""Width that is reserved for a character of that size: sans-serif digits and most letters are narrower."""


def element(tag: str, content: str = "", **attributes: str | float | None) -> str:
    """Return an element with markup in it. Attributes that are None are left out; _ in their names stands for -."""
    markup = "".join(
        f' {name.strip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{markup}>{content}</{tag}>"


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else coordinate(value)


def coordinate(value: float) -> str:
    """Return a coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_element(x: float, y: float, content: str, class_: str | None = None) -> str:
    """Return a text at a place. `middle` and `end` say which point of it is there; `strong` makes it bold."""
    return element("text", escape(content), x=x, y=y, class_=class_)


def name_element(x: float, y: float, content: str, class_: str | None = None) -> str:
    """Return a text of a stranger at a place, up to the right edge of the chart.

    A longer one is cut. A frame cuts what is wider or higher than letters usually are.
    """
    width, base = WIDTH - x, TEXT_HEIGHT + 1
    svg_text = text_element(0, base, fit_text(content, width), class_)
    return element("svg", svg_text, class_="frame-of-name", x=x, y=y - base, width=width, height=TEXT_HEIGHT + 5)


def tooltip(content: str) -> str:
    """Return the tooltip of the element that it is in."""
    return element("title", escape(content))


def fit_text(content: str, width: float) -> str:
    """Return a text that is no wider than so many units: its beginning and …, if it is longer.

    Characters without a width, which are written above the one before them, may not be as many as the others.
    """
    room = max(math.floor(width / CHARACTER_WIDTH), 1)
    if cell_len(content) <= room and len(content) <= 2 * room:
        return content
    start, used = "", 0
    for character in content[: 2 * room]:
        used += cell_len(character)
        if used > room - 1:
            break
        start += character
    return f"{start.rstrip()}…"
