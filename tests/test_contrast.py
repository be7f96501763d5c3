"""The colours of style sheets, of which axe-core skips many: WCAG 2.2 AA asks for 4.5 for text and 3 for shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import restante

PACKAGE = Path(restante.__file__).parent
CAUSES = ("human", "peer", "transfer", "crypto", "network", "server", "program")
REPORT = (
    "pipeline/report/web/page.css",
    ("paper",),
    ("ink", "soft", "accent", "warning"),
    ("line", *(f"fill-{number}" for number in range(1, 7))),
)
TIMELINE = ("timing/outputs/web/page.css", ("paper", "lane", "raised"), ("ink", "soft"), ("line", "accent", *CAUSES))


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("sheet", "papers", "texts", "shapes"), [REPORT, TIMELINE], ids=["report", "timeline"])
def test_texts_and_shapes_have_enough_contrast(
    sheet: str, papers: tuple[str, ...], texts: tuple[str, ...], shapes: tuple[str, ...], scheme: str
) -> None:
    light, _, dark = (PACKAGE / sheet).read_text().partition("prefers-color-scheme: dark")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark.partition("\n}\n")[0]))
    for paper in papers:
        for names, least in ((texts, 4.5), (shapes, 3)):
            for name in names:
                low, high = sorted((luminance(colours[name]), luminance(colours[paper])))
                assert (high + 0.05) / (low + 0.05) >= least, (name, paper)
