"""The page of a report in a real browser: wide, on a phone, in the dark, printed, without a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from pipeline import reports
from restante.pipeline.report.page import page
from support.timing.browser import PHONE, RULES, WIDE, chromium, opened

PAGES = {"whole": page(reports.whole()), "hostile": page(reports.hostile())}
VIEWS: dict[str, dict[str, Any]] = {
    "wide": WIDE,
    "phone": PHONE,
    "dark": {**WIDE, "color_scheme": "dark"},
    "forced colours": {**WIDE, "forced_colors": "active"},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as shown:
        yield shown


TEXTS = """() => {
    const outside = [], small = [], overlapping = [];
    for (const chart of document.querySelectorAll("svg.chart")) {
        const frame = chart.getBoundingClientRect();
        const texts = [...chart.querySelectorAll("text")]
            .map((text) => [text.textContent, text.getBoundingClientRect()]);
        texts.forEach(([words, box], at) => {
            if (box.height < 10) small.push(words);
            if (box.left < frame.left - 4 || box.right > frame.right + 4 || box.bottom > frame.bottom + 4)
                outside.push(words);
            overlapping.push(...texts.slice(at + 1)
                .filter(([, other]) => box.left < other.right - 1 && other.left < box.right - 1
                    && box.top < other.bottom - 5 && other.top < box.bottom - 5)
                .map(([others]) => [words, others]));
        });
    }
    return [outside, small, overlapping];
}"""
"""Finds the texts of charts that are outside of them, or small, and pairs that overlap."""

CUT = """() => [...document.querySelectorAll(".scrolled")]
    .filter((box) => box.scrollWidth > box.clientWidth && box.offsetWidth < box.closest("section").clientWidth)
    .map((box) => box.getAttribute("aria-labelledby"))"""
"""Finds the tables that are cut although the page is wider."""

QUICK = {("whole", "wide"), ("hostile", "phone")}


@pytest.mark.parametrize(
    ("name", "view"),
    [
        pytest.param(name, view, marks=() if (name, view) in QUICK else pytest.mark.thorough)
        for name in PAGES
        for view in VIEWS
    ],
)
def test_a_page_fits_and_loads_nothing(browser: Browser, tmp_path: Path, name: str, view: str) -> None:
    with opened(browser, PAGES[name], tmp_path, **VIEWS[view]) as shown:
        # Not innerWidth: a phone shows all of a page that is too wide, and makes it smaller.
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view]["viewport"]["width"]
        for chart in shown.page.locator("svg.chart").all():
            size = chart.bounding_box()
            assert size is not None
            assert size["width"] > 300
        if name == "whole":
            assert shown.page.evaluate(TEXTS) == [[], [], []]
        if view != "phone":
            assert shown.page.evaluate(CUT) == []


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["wide", "phone", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(browser: Browser, tmp_path: Path, name: str, view: str) -> None:
    with opened(browser, PAGES[name], tmp_path, bypass_csp=True, **VIEWS[view]) as shown:
        # It does not judge the contrast of texts above a gradient.
        shown.page.add_style_tag(content=".scrolled { background: none }")
        results = Axe().run(shown.page, options=RULES)
    assert results.violations_count == 0, results.generate_report()
    passed = {rule["id"] for rule in results.response["passes"]}
    assert {"color-contrast", "heading-order", "region", "svg-img-alt", "scrollable-region-focusable"} <= passed


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAGES)
def test_a_printed_page_is_light_fits_paper_and_shows_all_rows(browser: Browser, tmp_path: Path, name: str) -> None:
    """The PDF of a month has 160 kB. Areas that are printed as bitmaps make it 90 MB."""
    options = {"viewport": {"width": 700, "height": 1000}, "color_scheme": "dark"}
    with opened(browser, PAGES[name], tmp_path, **options) as shown:
        dark = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        shown.page.emulate_media(media="print")
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 700  # A4, 12 mm of margin on both sides
        hidden = """[...document.querySelectorAll(".scrolled")]
            .filter((box) => box.scrollHeight > box.clientHeight + 1).length"""
        assert shown.page.evaluate(hidden) == 0
        assert not shown.page.locator("nav").is_visible()
        if name == "whole":
            assert shown.page.get_by_text("A rule.").is_visible()
        pdf = shown.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) < 1_000_000
