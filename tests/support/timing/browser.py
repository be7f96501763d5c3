"""A real Chromium, which opens pages of the timing tool from files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from support import foreign
from support.bounds import BOUND

WIDE: Final[dict[str, Any]] = {"viewport": {"width": 1400, "height": 900}}
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}

RULES: Final = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
    "resultTypes": ["violations"],
}
"""axe-core's rules for WCAG 2.2, levels A and AA, and those that no criterion asks for."""


def launch_options() -> dict[str, Any]:
    """Return how playwright launches Chromium. Skip the test if the machine has none and cannot get it."""
    program = foreign.chromium()
    # Root has no sandbox. For others it needs a program that belongs to root, which an unpacked Chromium lacks.
    flags = ["--no-sandbox"] if os.geteuid() == 0 or program.variables else []
    environment = {**os.environ, **program.variables}
    return {"executable_path": program.path, "args": flags, "env": environment, "timeout": BOUND * 1000}


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright, playwright.chromium.launch(**launch_options()) as browser:
        yield browser


@dataclass
class Opened:
    page: Page

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def drawn(self, selector: str = "#base") -> dict[str, int]:
        self.next_frame()
        counts: dict[str, int] = self.page.evaluate(
            """(selector) => {
                const canvas = document.querySelector(selector);
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const counts = {};
                for (let at = 0; at < data.length; at += 4) {
                    const key = `${data[at]},${data[at + 1]},${data[at + 2]},${data[at + 3]}`;
                    counts[key] = (counts[key] ?? 0) + 1;
                }
                return counts;
            }""",
            selector,
        )
        return counts

    def picture(self) -> str:
        self.next_frame()
        return str(self.page.evaluate("document.querySelector('#base').toDataURL()"))

    def next_frame(self) -> None:
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def opened(browser: Browser, content: bytes, folder: Path, **options: Any) -> Iterator[Opened]:
    """Open a page from a file in a context with these options; it must cause no warning and request nothing else."""
    file = folder / "page.html"
    file.write_bytes(content)
    with browser.new_context(**options) as context:
        context.set_default_timeout(BOUND * 1000)
        page = context.new_page()
        complaints: list[str] = []
        requests: list[str] = []

        def on_console(message: ConsoleMessage) -> None:
            # A warning about `willReadFrequently` is one about these tests, which read the canvas.
            if message.type in {"error", "warning"} and "willReadFrequently" not in message.text:
                complaints.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        yield Opened(page)
        assert complaints == []
        assert [url for url in requests if url != file.as_uri() and not url.startswith("data:")] == []
