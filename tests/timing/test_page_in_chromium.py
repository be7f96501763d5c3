"""The HTML page of a timeline in a real browser: drawn, read, searched, zoomed, by pointer, fingers and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FloatRect, Locator

from restante.common.units import duration
from restante.timing.model.timeline import CauseTime, Elapsed, Timeline, TimelineClient, TimelineSpan
from restante.timing.outputs.page import timeline_page
from support.timing import pages as timelines
from support.timing.browser import PHONE, WIDE, Opened, chromium, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def wide(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    with opened(browser, timeline_page(timelines.waited()), tmp_path, **WIDE) as wide:
        yield wide


def lasting(durations: list[int]) -> bytes:
    """Return the page of a timeline with steps that take so long, in microseconds."""
    spans = [TimelineSpan("sender", "import", None, at, at + us) for at, us in enumerate(durations)]
    end = max(durations) + len(durations)
    client = TimelineClient("sender", len(spans), 0, end, 0, 1, 0, False, [CauseTime("program", end)])
    elapsed = [Elapsed("sender", "program", 0, end)]
    return timeline_page(Timeline(1, 1_795_000_000.0, end, False, [client], [], [], spans, elapsed, []))


def box_of(locator: Locator) -> FloatRect:
    box = locator.bounding_box()
    assert box is not None
    return box


def pake(opened: Opened) -> tuple[float, float]:
    box = box_of(opened.page.locator(".labels span", has_text=re.compile("^pake")).first)
    return box["x"] - 5, box["y"] + box["height"]


def ticks(opened: Opened) -> list[str]:
    return sorted(opened.page.locator(".labels .tick:not([hidden])").all_inner_texts())


def press(opened: Opened, *keys: str) -> None:
    for key in keys:
        opened.page.keyboard.press(key)
    opened.next_frame()


def test_the_pointer_shows_the_numbers_of_a_message_and_who_waited(wide: Opened) -> None:
    tooltip = wide.page.locator("#tooltip")
    assert wide.text("#lanes").split("\n") == ["Sender", "clock ± 20.1 ms", "Receiver", "clock ± 30 ms", "Server"]
    assert len(wide.drawn()) > 50
    assert not tooltip.is_visible()
    x, y = pake(wide)
    wide.page.mouse.move(x, y)
    tooltip.wait_for()
    text = " ".join(wide.text("#tooltip").split())
    assert text.startswith("sender → receiver: pake at 0.762 s network out 20 ms ± 20.1 ms queue 4 µs commit 2.95 ms")
    assert text.endswith("sent until the receiver has it 2.85 s ± 50.2 ms")
    assert set(wide.drawn("#marks")) != {"0,0,0,0"}
    wide.page.mouse.move(5, 5)
    tooltip.wait_for(state="hidden")
    box = box_of(wide.page.locator("#plot"))
    wide.page.mouse.move(x - 14, box["y"] + box["height"] / 2)
    tooltip.wait_for()
    text = " ".join(wide.text("#tooltip").split())
    assert text.startswith("sender: peer from 0.806 s to 3.653 s duration 2.85 s Meanwhile the receiver: not running")
    # A click keeps it until Escape.
    wide.page.mouse.click(x, y)
    wide.page.mouse.move(5, 5)
    wide.next_frame()
    assert tooltip.is_visible()
    row = wide.page.locator("#rows tr.chosen")
    assert row.inner_text() == "0.762 s\tsender → receiver: pake\t2.85 s\t20 ms\t3.21 ms\t20 ms"
    assert row.get_attribute("aria-current") == "true"
    wide.page.keyboard.press("Escape")
    assert not tooltip.is_visible()


def test_the_drawing_follows_a_change_to_dark_colours(wide: Opened) -> None:
    light = wide.drawn()
    wide.page.emulate_media(color_scheme="dark")
    assert wide.drawn() != light


def test_the_keyboard_alone_suffices(wide: Opened) -> None:
    keys = wide.page.keyboard
    for _ in range(12):
        if wide.page.evaluate("document.activeElement.id") != "plot":
            keys.press("Tab")
    assert wide.page.evaluate("document.activeElement.id") == "plot"
    press(wide, "Home", "ArrowDown")
    assert wide.text("#announcer") == "sender: pake1, at 0.100 s. crypto 100 ms. 2 of 22."
    for _ in range(30):
        if "sender to receiver: pake" in wide.text("#announcer"):
            break
        keys.press("ArrowDown")
    assert "network out 20 ms ± 20.1 ms, queue 4 µs, commit 2.95 ms" in wide.text("#announcer")
    everything = wide.picture()
    press(wide, "Enter")
    assert wide.picture() != everything
    press(wide, "End")
    assert wide.text("#announcer").endswith("22 of 22.")
    press(wide, "ArrowLeft", "ArrowUp", "Home", "ArrowRight")
    assert "receiver" in wide.text("#announcer")
    press(wide, "Escape", "0")
    assert wide.page.locator("#reset").is_disabled()
    press(wide, "+")
    assert wide.page.locator("#reset").is_enabled()
    before = wide.picture()
    press(wide, "PageDown")
    assert wide.picture() != before
    press(wide, "-", "0", "/")
    assert wide.page.evaluate("document.activeElement.id") == "query"
    keys.type("version")
    press(wide, "Enter")
    assert wide.text("#matches") == "1 of 2"
    press(wide, "Shift+Enter")
    assert wide.text("#matches") == "2 of 2"
    press(wide, "Escape")
    assert wide.page.evaluate("document.activeElement.id") == "plot"
    assert wide.text("#matches") == ""
    keys.press("Tab")
    assert wide.page.evaluate("document.activeElement.id") != "plot"


@pytest.mark.thorough
def test_zoom_by_buttons_wheel_and_back_and_waits_can_be_shortened(wide: Opened) -> None:
    """Between the pake and the receiver's start is no event, nor during the transfer of the file."""
    pictures, axis, mouse = [wide.picture()], ticks(wide), wide.page.mouse
    box = box_of(wide.page.locator("#plot"))

    def zoom() -> None:
        wide.page.keyboard.down("Control")
        mouse.wheel(0, -300)
        wide.page.keyboard.up("Control")

    def drag() -> None:
        mouse.down()
        mouse.move(box["x"] + 300, box["y"] + 400, steps=4)
        mouse.up()

    wide.page.click("#zoom-in")
    for act in (zoom, lambda: mouse.wheel(0, 200), drag):
        pictures.append(wide.picture())
        mouse.move(box["x"] + 300, box["y"] + 200)
        act()
    pictures.append(wide.picture())
    assert all(picture != next_picture for picture, next_picture in pairwise(pictures))
    assert ticks(wide) != axis
    wide.page.click("#reset")
    wide.next_frame()
    assert ticks(wide) == axis
    wide.page.click("#fold")
    wide.next_frame()
    assert wide.page.locator(".labels .fold").all_inner_texts() == ["2.19 s", "1.91 s"]
    assert [tick for tick in ticks(wide) if "1 s" < tick < "2.9 s"] == []
    wide.page.focus("#plot")
    press(wide, "End", "Enter", "Home", "PageDown", "PageUp", "0", "w")
    assert ticks(wide) == axis


@pytest.mark.thorough
def test_a_phone_needs_no_sideways_scrolling_and_two_fingers_zoom(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, timeline_page(timelines.waited()), tmp_path, **PHONE) as phone:
        assert phone.page.evaluate("document.documentElement.scrollWidth") <= 360
        assert len(phone.drawn()) > 30
        phone.page.touchscreen.tap(*pake(phone))
        phone.page.locator("#tooltip").wait_for()
        box = box_of(phone.page.locator("#tooltip"))
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 360
        phone.page.reload()
        plot = phone.page.locator("#plot")
        plot.scroll_into_view_if_needed()
        before, box = phone.picture(), box_of(plot)
        session = phone.page.context.new_cdp_session(phone.page)
        middle = box["y"] + box["height"] / 2
        for kind, apart in (("touchStart", 30), ("touchMove", 45), ("touchMove", 90), ("touchEnd", None)):
            points = [] if apart is None else [{"x": 150, "y": middle - apart}, {"x": 200, "y": middle + apart}]
            points = [{**point, "id": number} for number, point in enumerate(points)]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        assert phone.picture() != before
        assert phone.page.evaluate("window.visualViewport.scale") == 1


@pytest.mark.thorough
def test_only_visible_rows_exist_and_print_has_every_row_on_white(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, lasting([1000] * 500), tmp_path, color_scheme="dark", **WIDE) as dark:
        rows = dark.page.locator("#list tbody tr[data-at]")
        dark.page.focus("#plot")
        press(dark, "End")
        assert rows.count() < 100
        assert rows.last.get_attribute("aria-rowindex") == "501"
        dark.page.emulate_media(media="print")
        dark.next_frame()
        assert rows.count() == 500
        assert dark.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not dark.page.locator(".toolbar").is_visible()
        dark.page.emulate_media(media="screen")
        dark.next_frame()
        assert rows.count() < 100
        assert dark.page.pdf().startswith(b"%PDF")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "timeline",
    [
        timelines.waited("receiver"),
        timelines.of_events("ws_send", "command dispatch"),
        timelines.of_events("command dispatch", "tx file"),
        timelines.of_events("command dispatch"),
        timelines.hostile("</script><img src=x onerror=alert(1)>\u2028"),
    ],
    ids=["receiver", "not compared", "no commands", "a moment", "hostile"],
)
def test_what_lacks_something_is_shown(browser: Browser, tmp_path: Path, timeline: Timeline) -> None:
    with opened(browser, timeline_page(timeline), tmp_path, **WIDE) as wide:
        lanes = [client.role.capitalize() for client in timeline.clients]
        assert wide.page.locator("#lanes b").all_inner_texts() == [*lanes, "Server"]
        wide.page.focus("#plot")
        press(wide, "Home", "ArrowDown", "Enter", "End", "+", "-", "0")
        rows = wide.page.locator("#list tbody tr[data-at]").count()
        unsent = [frame for frame in timeline.frames if frame.command is None]
        assert rows == len(timeline.commands) + len(timeline.spans) + len(unsent)
        assert wide.page.locator("img").count() == 0
        assert ("</script><img" in wide.text("#rows")) == ("<" in (timeline.spans[0].name))


@pytest.mark.thorough
def test_durations_are_written_as_in_the_tables(browser: Browser, tmp_path: Path) -> None:
    minute = 60_000_000
    times = [0, 1, 999, 1_000, 1_125, 1_375, 9_995, 9_999, 99_950, 999_499, 999_500, 1_000_000]
    times += [59_499_999, 59_500_000, minute, 61_000_000, 3_599_500_000]
    times += [60 * minute, 90 * minute, 1440 * minute, 1500 * minute]
    times += [12_345, 123_456, 1_234_567, 12_345_678, 2_625, 2_500, 10_250, 10_750, 100_500, 101_500]
    with opened(browser, lasting(times), tmp_path, **WIDE) as wide:
        rows = wide.page.locator("#list tbody tr[data-at] td:nth-child(3)").all_inner_texts()
        assert rows == list(map(duration, times))
