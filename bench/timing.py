"""Measure the HTML page of a long timeline: how long it takes to make, to show, and how fast it scrolls.

Needs Debian's Chromium. Figures: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from playwright.sync_api import Browser, Page, sync_playwright

import host
from restante.timing.model.timeline import (
    CauseTime,
    Delay,
    Elapsed,
    Role,
    Timeline,
    TimelineClient,
    TimelineCommand,
    TimelineFrame,
)
from restante.timing.outputs.page import timeline_page

MAX_SHOW_SECONDS = 2.0
MIN_FRAMES_PER_SECOND = 30.0

TITLES = {
    "made_ms": "timeline_page() makes the page, ms",
    "megabytes": "its size, MB",
    "paint_ms": "in Chromium: first paint, ms",
    "shown_ms": "the diagram is drawn, ms since the start of loading",
    "scroll_2": "half of the messages in view: scrolls at frames/s",
    "scroll_2_p99_ms": "  longest time between two frames, but for 1 %, ms",
    "scroll_16": "one in 16 in view",
    "scroll_16_p99_ms": "  longest time between two frames, but for 1 %, ms",
    "scroll_256": "one in 256 in view",
    "scroll_256_p99_ms": "  longest time between two frames, but for 1 %, ms",
    "scroll_rows": "the table scrolls at frames/s",
    "empty_page": "an empty page in which a number changes, frames/s",
}

SCROLL = """async ({ seconds, factor }) => {
    const plot = document.getElementById("plot");
    const box = plot.getBoundingClientRect();
    const place = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, cancelable: true };
    const turn = (deltaY, ctrlKey) => plot.dispatchEvent(new WheelEvent("wheel", { ...place, deltaY, ctrlKey }));
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    document.getElementById("reset").click();
    for (let zoom = 1; zoom < factor; zoom *= 2) turn(-115.5, true);
    await frame();
    const before = Number(plot.dataset.frames);
    const times = [];
    const began = performance.now();
    let direction = 1;
    while (performance.now() - began < seconds * 1000) {
        const thumb = document.getElementById("thumb").getBoundingClientRect();
        if (thumb.bottom >= box.bottom - 3) direction = -1;
        else if (thumb.top <= box.top + 3) direction = 1;
        turn(direction * 60, false);
        times.push(await frame());
    }
    const drawn = Number(plot.dataset.frames) - before;
    const gaps = times.slice(1).map((each, at) => each - times[at]).sort((a, b) => a - b);
    return { rate: drawn / ((performance.now() - began) / 1000), p99: gaps[Math.floor(gaps.length * 0.99)] };
}"""
"""Turns the wheel in each frame, and counts the frames in which the diagram was drawn anew."""

SCROLL_ROWS = """async (seconds) => {
    const rows = document.getElementById("rows");
    const began = performance.now();
    let frames = 0;
    while (performance.now() - began < seconds * 1000) {
        rows.scrollTop = (rows.scrollTop + 300) % (rows.scrollHeight - rows.clientHeight);
        await new Promise((done) => requestAnimationFrame(done));
        frames++;
    }
    return frames / ((performance.now() - began) / 1000);
}"""

EMPTY = """async (seconds) => {
    const node = document.body.appendChild(document.createElement("div"));
    const began = performance.now();
    let frames = 0;
    while (performance.now() - began < seconds * 1000) {
        node.textContent = String(frames++);
        await new Promise((done) => requestAnimationFrame(done));
    }
    return frames / ((performance.now() - began) / 1000);
}"""
"""Changes a number in each frame of an empty page: the rate that the machine allows."""

SHOWN = """() => new Promise((done) => {
    const look = () => {
        const paint = performance.getEntriesByName("first-contentful-paint")[0];
        const drawn = document.getElementById("plot").dataset.frames;
        if (paint && drawn) done({ paint: paint.startTime, all: performance.now() });
        else requestAnimationFrame(look);
    };
    look();
})"""


def drawn(messages: int, dice: Random) -> Timeline:
    """Return a timeline with so many messages, half of them from each client, 5 ms apart on average."""
    commands, frames, elapsed = [], [], []
    now = {"sender": 0, "receiver": 0}
    roles: tuple[Role, Role] = ("sender", "receiver")
    at = 0
    for number in range(messages):
        role = roles[number % 2]
        other = roles[1 - number % 2]
        at += round(dice.expovariate(1 / 5_000))
        rx = at + dice.randrange(8_000, 30_000)
        began = rx + dice.randrange(20, 2_000)
        done = began + dice.randrange(500, 9_000)
        heard = done + dice.randrange(8_000, 30_000)
        commands.append(TimelineCommand(role, "add", str(number // 2), at, rx, began, done, done, heard))
        arrived = done + dice.randrange(8_000, 30_000)
        frames.append(TimelineFrame(other, "message", str(number // 2), role, number, done, arrived))
        for cause, stop in (("network out", rx), ("queue", began), ("commit", done), ("network in", heard)):
            if stop > now[role]:
                elapsed.append(Elapsed(role, cause, now[role], stop))
                now[role] = stop
    end = max(*now.values(), *(each.received_us for each in frames))
    clients = [
        TimelineClient(role, 2 * messages, 0, end, 1_000_000, 400, 0, False, [CauseTime("network out", end)])
        for role in roles
    ]
    delays = [Delay(role, "network out", messages // 2, 0, end, 19_000, 30_000, 400) for role in roles]
    return Timeline(1, 1_795_000_000.0, end, True, clients, commands, frames, [], elapsed, delays)


def shown(browser: Browser, file: Path) -> tuple[Page, dict[str, float]]:
    """Open a page. Return it with the milliseconds to its first paint, and until the diagram was drawn."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    opened.goto(file.as_uri())
    times: dict[str, float] = opened.evaluate(SHOWN)
    return opened, times


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    timeline = drawn(options.messages, Random(17))
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    file = folder / "page.html"
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for _ in range(options.rounds):
            began = time.perf_counter()
            content = timeline_page(timeline)
            add("made_ms", 1000 * (time.perf_counter() - began))
            add("megabytes", len(content) / 1e6)
            file.write_bytes(content)
            opened, times = shown(browser, file)
            add("paint_ms", times["paint"])
            add("shown_ms", times["all"])
            for factor in (2, 16, 256):
                scrolled = opened.evaluate(SCROLL, {"seconds": options.seconds, "factor": factor})
                add(f"scroll_{factor}", scrolled["rate"])
                add(f"scroll_{factor}_p99_ms", scrolled["p99"])
            opened.close()
            opened = browser.new_page(viewport={"width": 1400, "height": 900})
            add("empty_page", opened.evaluate(EMPTY, options.seconds))
            opened.close()
            opened, _ = shown(browser, file)
            add("scroll_rows", opened.evaluate(SCROLL_ROWS, options.seconds))
            opened.close()
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long it scrolls, each time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options, Path(folder))
        facts = host.facts(Path(folder), ("restante", "msgspec", "playwright"))
    for name, fact in facts.items():
        print(f"{name:10} {fact}")
    print(f"{'load':10} {load:.1f} before the run")
    print(f"\n{options.messages:,} messages, medians of {options.rounds} rounds")
    for name, title in TITLES.items():
        print(f"{title:62} {figures[name]:8.1f}")
    if options.json:
        options.json.write_bytes(msgspec.json.encode(figures))
    rates = [value for name, value in figures.items() if name.startswith("scroll") and not name.endswith("ms")]
    reached = figures["shown_ms"] < 1000 * MAX_SHOW_SECONDS and min(rates) >= MIN_FRAMES_PER_SECOND
    wanted = f"drawn within {MAX_SHOW_SECONDS:g} s, at least {MIN_FRAMES_PER_SECOND:g} frames/s"
    print(f"\n{wanted}: {'reached' if reached else 'MISSED'}")
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
