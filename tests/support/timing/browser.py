"""A real Chromium, which opens pages of the timing tool from files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from support import foreign
from support.bounds import BOUND
from support.foreign import Program

RULES: Final = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
    "resultTypes": ["violations"],
}
"""axe-core's rules for WCAG 2.2, levels A and AA, and those that no criterion asks for."""


def launch_options(program: Program | None = None) -> dict[str, Any]:
    """Return how playwright launches Chromium. Skip the test if the machine has none and cannot get it."""
    program = program or foreign.chromium()
    # Root has no sandbox. For others it needs a program that belongs to root, which an unpacked Chromium lacks.
    flags = ["--no-sandbox"] if os.geteuid() == 0 or program.variables else []
    return {
        "executable_path": program.path,
        "args": flags,
        "env": {**os.environ, **program.variables},
        "timeout": BOUND * 1000,
    }


@contextmanager
def chromium(program: Program | None = None) -> Iterator[Browser]:
    """Start Chromium: this one, else the one that tests use."""
    options = launch_options(program)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """An opened page, and what it said and requested."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def foreign(self) -> list[str]:
        """Return the requests for anything but the page itself."""
        return [url for url in self.requests if url != self.url and not url.startswith("data:")]

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def drawn(self, selector: str = "#base") -> dict[str, int]:
        """Return how many pixels of a canvas have each colour."""
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

    def picture(self, selector: str = "#base") -> str:
        """Return what a canvas shows."""
        self.next_frame()
        return str(self.page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector))

    def next_frame(self) -> None:
        """Wait until the browser has drawn what is pending."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def opened(browser: Browser, content: bytes, folder: Path, **options: Any) -> Iterator[Opened]:
    """Open a page from a file. `options` are those of a browser context, like viewport and color_scheme."""
    file = folder / "page.html"
    file.write_bytes(content)
    context = browser.new_context(**options)
    context.set_default_timeout(BOUND * 1000)
    try:
        page = context.new_page()
        found = Opened(page, file.as_uri())

        def on_console(message: ConsoleMessage) -> None:
            if message.type in {"error", "warning"}:
                found.complaints.append(message.text)

        def on_request(request: Request) -> None:
            found.requests.append(request.url)

        page.on("console", on_console)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", on_request)
        page.goto(found.url)
        yield found
    finally:
        context.close()
