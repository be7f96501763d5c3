"""Pictures of the dashboards of servers under load; those of the documents show the pages as they are now.

`./run test --pictures tests/test_dashboard_pictures.py` stores them in docs/dashboard. Look at them then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FloatRect, async_playwright, expect

from support import dashboard_pictures
from support.bounds import BOUND, PATIENCE, bounded
from support.dashboard_pictures import FOLDER, KEYWORD, PAGES, Dashboard, shown
from support.documents import ROOT
from support.png import chunks, text_of, with_text
from support.timing.browser import launch_options

MAX_BYTES: Final = 200_000
"""Of a picture: readers of the documents load all of them."""

MAX_HEIGHT: Final = 1140
"""Of a picture. On a phone the page is longer."""

SAMPLES: Final = 12
"""The charts' samples before a picture is taken: six seconds of load."""

SAMPLES_FOR_DOCUMENTS: Final = 120

WIDE: Final[dict[str, Any]] = {"viewport": {"width": 1240, "height": 900}}
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 360, "height": 900}, "has_touch": True, "is_mobile": True}
VIEWS: Final[dict[str, dict[str, Any]]] = {"wide": WIDE, "phone": PHONE, "dark": {**WIDE, "color_scheme": "dark"}}
NAMES: Final = [f"{server}-{view}" for server in PAGES for view in VIEWS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    options = launch_options()
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(**options)
        yield found
        await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PAGES)
async def dashboard(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Dashboard]:
    run = {"mailbox": dashboard_pictures.mailbox, "node": dashboard_pictures.node}[request.param]
    async with run(tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("view", VIEWS)
async def test_a_picture_of_a_server_under_load(
    browser: Browser, dashboard: Dashboard, view: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    for_documents = pytestconfig.option.pictures
    folder = FOLDER if for_documents else tmp_path
    samples, seconds = (SAMPLES_FOR_DOCUMENTS, PATIENCE) if for_documents else (SAMPLES, BOUND)
    page = await browser.new_page(**VIEWS[view])
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # A page that opens gets the whole history. One that is open gets a sample each two seconds.
    async with bounded(f"{samples} samples", seconds):
        while True:
            await page.goto(dashboard.url)
            await expect(page.locator("#state")).to_have_text("Ready")
            lines = await page.locator("[data-series] path").all()
            points = [len(re.findall("[ML]", await line.get_attribute("d") or "")) for line in lines]
            if points and max(points) >= samples - 1:  # a mean of nothing is no point
                break
            await asyncio.sleep(0.5)
    await expect(page.locator("[data-rows] tbody tr").first).to_be_visible(timeout=seconds * 1000)
    assert await page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view]["viewport"]["width"]
    box = await page.locator(dashboard.last).bounding_box()
    assert box is not None
    height = min(box["y"] + box["height"], MAX_HEIGHT)
    size = FloatRect(x=0, y=0, width=VIEWS[view]["viewport"]["width"], height=height)
    picture = await page.screenshot(full_page=True, clip=size)
    await page.close()
    folder.mkdir(exist_ok=True)
    file = folder / f"{dashboard.server}-{view}.png"
    file.write_bytes(with_text(picture, KEYWORD, shown(dashboard.server)))
    assert file.stat().st_size < MAX_BYTES
    assert complaints == []


@pytest.mark.parametrize("name", NAMES)
def test_the_pictures_of_the_documents_show_the_pages_as_they_are_now(name: str) -> None:
    picture = (FOLDER / f"{name}.png").read_bytes()
    assert text_of(picture, KEYWORD) == shown(name.partition("-")[0]), (
        f"{name}.png shows an earlier page: `./run test --pictures tests/test_dashboard_pictures.py` makes another"
    )
    assert len(picture) < MAX_BYTES


def test_the_documents_show_every_picture_and_the_readme_the_first_one() -> None:
    files = {f"docs/dashboard/{name}.png" for name in NAMES}
    assert {file.relative_to(ROOT).as_posix() for file in FOLDER.iterdir()} == files
    readme, guide = (ROOT / name for name in ("README.md", "docs/monitoring.md"))
    assert "(docs/dashboard/mailbox-wide.png)" in readme.read_text()
    for file in files:
        assert file in readme.read_text() or f'"{file.removeprefix("docs/")}"' in guide.read_text(), file


def test_a_page_with_another_label_style_or_script_makes_pictures_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown("mailbox")
    for name, file, old, new in (
        ("PAGES", PAGES["mailbox"], "<dt>Messages</dt>", "<dt>Letters</dt>"),
        ("STYLE", dashboard_pictures.STYLE, "1.25rem", "1.26rem"),
        ("SCRIPT", dashboard_pictures.SCRIPT, "function line(", "function lines("),
    ):
        other = tmp_path / file.name
        assert old in file.read_text()
        other.write_text(file.read_text().replace(old, new))
        with monkeypatch.context() as patched:
            patched.setattr(dashboard_pictures, name, {**PAGES, "mailbox": other} if name == "PAGES" else other)
            assert shown("mailbox") != before
    assert shown("mailbox") == before != shown("node")


def test_a_picture_with_a_text_has_the_same_pixels() -> None:
    picture = (FOLDER / "mailbox-wide.png").read_bytes()
    again = with_text(picture, "Another", "text")
    assert text_of(again, "Another") == "text"
    assert text_of(again, KEYWORD) is None
    assert next(chunks(again)) == next(chunks(picture))
    assert [data for kind, data in chunks(again) if kind == b"IDAT"] == [
        data for kind, data in chunks(picture) if kind == b"IDAT"
    ]
