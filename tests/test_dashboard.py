"""The dashboards of the mailbox server and the relay: in a real browser beside clients, and who may change what."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import aiohttp.web
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from support.bounds import BOUND
from support.mailbox.pair import Pair
from support.mailbox.raw_socket import RawSocket
from support.ports import held_port
from support.processes import RELAY, RESTANTE, Serving, database, serving
from support.proxy_headers import line
from support.timing.browser import RULES, launch_options
from test_serve import welcome

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPORTS: Final = "https://reports.example/fleet/"
TOKEN: Final = "a-token-of-a-test"
AUTHORIZED: Final = {"Authorization": f"Bearer {TOKEN}"}

expect.set_options(timeout=BOUND * 1000)

WIDE: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 900}}
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
VIEWS: Final[dict[str, dict[str, Any]]] = {"wide": WIDE, "phone": PHONE, "dark": {**WIDE, "color_scheme": "dark"}}


@dataclass
class Watched:
    server: Serving
    admin: str
    pair: Pair
    refused: int = 0
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@asynccontextmanager
async def watched(
    data: Path, *options: str, token: bool = True, program: tuple[str, ...] = RESTANTE
) -> AsyncIterator[Watched]:
    """Serve with an admin port; its token is TOKEN, or it has none."""
    file = data.with_name("token")
    file.write_text(TOKEN)
    admin = ("--admin", "127.0.0.1:0", *(("--admin-token-file", str(file)) if token else ()))
    async with serving(data, program, (*admin, *options)) as server:
        url = (await server.logged("the dashboard is open"))["url"]
        yield Watched(server, url, Pair(server.port))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """A server for the whole file, whose pair has had some sessions, and has one under way."""
    options = ("--limit", "message_bytes=4096", "--reports-url", REPORTS)
    async with watched(tmp_path_factory.mktemp("busy") / "server", *options) as watching:
        for _ in range(3):
            await watching.pair.play()
        guests = []
        for number in range(3):
            guest = await RawSocket.dial(watching.server.port)
            guests.append(guest)
            guest.say(type="bind", appid="app", side=f"guest-{number}")
            guest.say(type="claim", nameplate=f"{number}")
        yield watching
        for guest in guests:
            guest.cut()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    options = launch_options()
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(**options)
        yield chromium
        await chromium.close()


@asynccontextmanager
async def opened(
    browser: Browser, watching: Watched, token: str | None = TOKEN, **options: Any
) -> AsyncIterator[Page]:
    context = await browser.new_context(**options)
    context.set_default_timeout(BOUND * 1000)
    watching.complaints, watching.requests = [], []
    try:
        page = await context.new_page()

        def on_console(message: ConsoleMessage) -> None:  # 401: the page asks whether a token is needed
            if message.type in {"error", "warning"} and "a status of 401 (Unauthorized)" not in message.text:
                watching.complaints.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: watching.complaints.append(str(error)))
        page.on("request", lambda request: watching.requests.append(request.url))
        await page.goto(watching.admin)
        if token is not None:
            await page.get_by_label("Token of the admin port").fill(token)
            await page.keyboard.press("Enter")
        yield page
    finally:
        await context.close()


FITS: Final = """() => {
    const moods = ["happy", "lonely", "errory", "scary", "pruney", "crowded"];
    const of = (number) => Object.fromEntries(moods.map((mood) => [mood, number]));
    const reason = "no_room_for_large_messages";
    const limits = "address_connections 1,000, address_connects 1,000, address_connects_at_once 1,000";
    show({
        recent: {
            as_of: 1.8e9, last_backup: 1.8e9, transfers: { hour: 12345, today: 234567 },
            clients: [{ client: "x".repeat(128), version: "0".repeat(128), binds: 1234567 }],
            results: { hour: of(12345), day: of(234567), week: of(1234567) },
            waiting_seconds: { mailboxes: 1234567, p50: 12.3, p90: 123.4, p99: 1234.5 },
        },
        refusals_by_reason: [{ reason, limits, last_hour: 12345, since_start: 1234567 }],
        refused_addresses: [{ address_id: "75895f9e2e", reason, times: 12345 }],
        commits: { latest_slow: [{ at: 1.8e9, seconds: 1234.5, changes: 12345 }], slow: 12345 },
    });
    return [...document.querySelectorAll(".scrolled")].map((table) => table.scrollWidth - table.clientWidth);
}"""
"""Shows large figures, and returns how many pixels of each table are out of view."""


@pytest.mark.parametrize(
    "view", ["phone", *(pytest.param(view, marks=pytest.mark.thorough) for view in ("wide", "dark"))]
)
async def test_it_shows_what_the_server_does(browser: Browser, busy: Watched, view: str) -> None:
    big = await RawSocket.dial(busy.server.port)  # refused now: the server forgets whom it refused after two minutes
    big.say(type="ping", ping="x" * 5000)
    await big.last_words()
    busy.refused += 1
    async with opened(browser, busy, **VIEWS[view]) as page:
        await expect(page.locator("#state")).to_have_text("Ready")
        await expect(page.locator("[data-value='connections.open']")).to_have_text("3")
        await expect(page.locator("[data-value='live.nameplates']")).to_have_text("3")
        await expect(page.locator("[data-grid='recent.results'] tbody tr").first).to_contain_text(
            re.compile(rf"^happyboth sides came.*{len(busy.pair.mailboxes)} \(100\s%\)")
        )
        await expect(page.locator("[data-rows='refusals_by_reason'] tbody tr")).to_have_text(
            [f"message_bytesmessage_bytes 4,096{busy.refused}{busy.refused}"]
        )
        await expect(page.locator("[data-rows='refused_addresses'] tbody tr")).to_contain_text(["message_bytes"])
        await expect(page.locator("[data-value='recent.transfers.hour']")).to_have_text(str(len(busy.pair.mailboxes)))
        await expect(page.locator("[data-value='users.url']")).to_have_text(busy.server.url)
        await expect(page.locator("[data-value='recent.last_backup']").first).to_have_text("never")
        await expect(page.get_by_role("link", name="Reports of days")).to_have_attribute("href", REPORTS)
        assert await page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view]["viewport"]["width"]
        results = await Axe().run(page, options=RULES)
        assert results.violations_count == 0, results.generate_report()
        guest = await RawSocket.dial(busy.server.port)
        await expect(page.locator("[data-value='connections.open']")).to_have_text("4")
        guest.cut()
        await expect(page.locator("[data-value='connections.open']")).to_have_text("3")
        assert await page.evaluate(FITS) == [0, 0, 0, 0, 0], "tables of large numbers fit"
        assert await page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view]["viewport"]["width"]
    assert busy.complaints == []
    asked = {url.removeprefix(busy.admin) for url in busy.requests if not url.startswith("data:")}
    assert asked == {"", "dashboard.css", "dashboard.js", "events"}


RELAY_OPTIONS: Final = (
    *("--listen", "proxy:127.0.0.1:0", "--trust-proxy", "127.0.0.0/8"),
    *("--limit", "address_waiting=1", "--limit", "month_bytes=1000000"),
)

RELAY_FITS: Final = """() => {
    const names = ["happy", "lonely", "redundant", "errory", "impatient", "empty"];
    const limits = "address_waiting 1,000,000";
    show({
        pairs: { running: 500, slowed: 500 }, connections: { waiting: 5000 },
        bytes: { day: 999.5 * 2 ** 40, month: 999.5 * 2 ** 40 }, limits: {
            pairs: { value: 500 }, waiting: { value: 5000 }, month_bytes: { value: 999.5 * 2 ** 40 },
        },
        results_by_time: { since_start: Object.fromEntries(names.map((name) => [name, 12345678])) },
        top_addresses: [{ address_id: "75895f9e2e", bytes: 999.5 * 2 ** 40 }],
        refusals_by_reason: [{ reason: "no_room_for_requests", limits, last_hour: 1234567, since_start: 12345678 }],
        refused_addresses: [{ address_id: "75895f9e2e", reason: "address_handshakes", times: 12345 }],
    });
    return [...document.querySelectorAll(".scrolled")].map((table) => table.scrollWidth - table.clientWidth);
}"""
"""As FITS, for the relay."""

TOP: Final = """(rates) => rates.map((rate) => {
    samples = [0, 10].map((time) => ({ time, bytes: rate * time }));
    showSeries();
    return document.querySelector("[data-series='bytes'] [data-top]").textContent.replaceAll("\u00a0", " ");
})"""
"""Shows charts of bytes a second, and returns the tops of their scales."""


@pytest.mark.parametrize(
    "view", ["phone", *(pytest.param(view, marks=pytest.mark.thorough) for view in ("wide", "dark"))]
)
async def test_it_shows_what_the_relay_does(browser: Browser, tmp_path: Path, view: str) -> None:
    async with watched(tmp_path / "relay", *RELAY_OPTIONS, program=RELAY) as watching:
        port = int(watching.server.url.rpartition(":")[2])
        clients = []
        for number, token in enumerate("aabc"):
            clients.append(await RawSocket.connect(port))
            clients[-1].write(line(f"203.0.113.{number}") + f"please relay {token * 64}\n".encode())
        for client in clients[:2]:
            assert await client.reader.readline() == b"ok\n"
        clients[0].write(b"x" * 2000)
        assert await clients[1].reader.readexactly(2000)
        again = await RawSocket.connect(port)
        again.write(line("203.0.113.2"))
        assert await again.rest() == b"", "one may wait"
        async with opened(browser, watching, **VIEWS[view]) as page:
            await expect(page.locator("#state")).to_have_text("Ready")
            for value, text in (("pairs.running", "1"), ("connections.waiting", "2"), ("bytes.month", "1.95 KiB")):
                await expect(page.locator(f"[data-value='{value}']")).to_have_text(text)
            await expect(page.locator("[data-value='limits.month_bytes.value']")).to_have_text("977 KiB")
            await expect(page.locator("[data-rows='top_addresses'] tbody tr")).to_have_text(
                [re.compile(r"^[0-9a-f]{10}1.95\sKiB$")] * 2
            )
            await expect(page.locator("[data-rows='refusals_by_reason'] tbody tr")).to_have_text(
                ["address_waitingaddress_waiting 111"]
            )
            await expect(page.locator("[data-rows='refused_addresses'] tbody tr")).to_contain_text(
                ["address_waiting"]
            )
            assert await page.locator("form:visible").count() == 0
            results = await Axe().run(page, options=RULES)
            assert results.violations_count == 0, results.generate_report()
            clients[0].cut()
            await expect(page.locator("[data-grid='results_by_time'] tbody tr").first).to_contain_text(
                re.compile(r"^happyboth sides came.*1 \(100\s%\)")
            )
            await expect(page.locator("[data-value='pairs.running']")).to_have_text("0")
            assert await page.evaluate(TOP, [0, 700, 900, 15e6, 2.5 * 2**30]) == [
                "",
                "800 B",
                "1 KiB",
                "15 MiB",
                "3 GiB",
            ]
            assert await page.evaluate(RELAY_FITS) == [0, 0, 0, 0], "tables of large numbers fit"
            assert await page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view]["viewport"]["width"]
        assert watching.complaints == []
        for client in clients[1:]:
            client.cut()


async def test_it_says_why_usage_records_cannot_be_read(browser: Browser, busy: Watched) -> None:
    file = database(busy.server.data)
    file.rename(file.with_suffix(".away"))
    async with opened(browser, busy, **WIDE) as page:
        problem = page.locator("[data-if='recent.problem']")
        await expect(problem).to_contain_text(
            "The usage records cannot be read: there is no mailbox server's data in"
        )
        await expect(page.locator("[data-if='recent.results']")).to_be_hidden()
        await expect(page.locator("#state")).to_have_text("Ready")
        file.with_suffix(".away").rename(file)
        await expect(problem).to_be_hidden()
        await expect(page.locator("[data-grid='recent.results'] tbody tr")).to_have_count(6)


SLOW: Final = """(commits) => {
    show({ commits: { latest_slow: commits, slow: commits.length } });
    const cells = [...document.querySelectorAll("[data-rows='commits.latest_slow'] tbody td")];
    const none = !document.querySelector("#no-slow").hidden;
    return { none, cells: cells.map((cell) => cell.textContent.replaceAll("\u00a0", " ")) };
}"""
"""Shows slow commits, and returns what is seen. All in one step: the next news of the server replace them."""


SHOW: Final = """(rows) => {
    const start = Date.UTC(2026, 10, 22, 11, 30) / 1000;
    samples = rows.map(([seconds, commands, peak]) => (
        { time: start + seconds, connections: commands, commands, peaks: peak ? { commands: peak } : {} }
    ));
    showSeries();
    const figure = document.querySelector("[data-series='commands']");
    const text = (part) => figure.querySelector(`[data-${part}]`).textContent.replaceAll("\\u00a0", " ");
    const path = (name) => figure.querySelector(`.${name}`).getAttribute("d").replace(/[0-9.,]+/g, "");
    return {
        axis: ["from", "span", "to"].map(text), scale: ["top", "bottom"].map(text), said: text("said"),
        drawn: ["line", "dots", "peaks"].map(path),
        label: figure.querySelector("svg").getAttribute("aria-label").replaceAll("\\u00a0", " "),
    };
}"""
"""Shows charts of samples: for each, seconds after half past eleven, a count of commands, and their highest rate."""


async def test_slow_commits_are_listed_and_a_chart_says_of_which_time_it_is(browser: Browser, busy: Watched) -> None:
    async with opened(browser, busy, **WIDE) as page:
        await expect(page.locator("#state")).to_have_text("Ready")
        result = await page.evaluate(SLOW, [{"at": 1.8e9, "seconds": 1234.5, "changes": 12_345}])
        assert result == {"none": False, "cells": ["2027-01-15 08:00:00 UTC", "20 min 34 s", "12,345"]}
        assert await page.evaluate(SLOW, []) == {"none": True, "cells": []}
        result = await page.evaluate(SHOW, [[0, 0], [10, 20], [30, 20], [1200, 20], [1210, 25], [1220, 0]])
        assert result["axis"] == ["11:30", "20 min 20 s", "11:50 UTC"]
        assert result["label"].endswith(", highest 2, from 11:30 to 11:50 UTC (20 min 20 s)")
        assert result["drawn"] == ["MLML", "", ""], "there is a gap, and nothing after a restart"
        result = await page.evaluate(SHOW, [[0, 0], [10, 20, 7.1], [60, 20], [70, 30]])
        assert result["drawn"] == ["ML", "Mh", "MV"], "a lone sample is a dot, and a peak is a line"
        assert (result["scale"], result["said"]) == (["8", "0"], "latest 1, highest 7.1")
        result = await page.evaluate(SHOW, [[0, 0], [10, 5]])
        assert result["axis"] == ["11:30:00", "10 s", "11:30:10 UTC"]
        result = await page.evaluate(SHOW, [[0, 0]])
        assert (result["axis"], result["said"], result["drawn"]) == ([""] * 3, "no figures yet", [""] * 3)


@pytest.mark.thorough
async def test_a_server_that_says_nothing_is_not_called_ready(browser: Browser, tmp_path: Path) -> None:
    async with watched(tmp_path / "server") as watching, opened(browser, watching, **WIDE) as page:
        await expect(page.locator("#state")).to_have_text("Ready")
        watching.server.send(signal.SIGSTOP)
        await expect(page.locator("#state")).to_contain_text("No connection: no news for 10 s")
        watching.server.send(signal.SIGCONT)
        await expect(page.locator("#state")).to_have_text("Ready")


async def test_nothing_is_shown_without_the_right_token(browser: Browser, busy: Watched) -> None:
    async with opened(browser, busy, None, **WIDE) as page:
        await expect(page.locator("#state")).to_have_text("A token is needed")
        await expect(page.locator("#content")).to_be_hidden()
        await page.get_by_label("Token of the admin port").fill("another-token-of-a-test")
        await page.keyboard.press("Enter")
        await expect(page.locator("#state")).to_have_text("The token is wrong")
        await expect(page.locator("#content")).to_be_hidden()


async def test_a_server_that_ends_is_said_and_one_that_starts_is_found(browser: Browser, tmp_path: Path) -> None:
    with held_port() as port:
        options = ("--admin", f"127.0.0.1:{port}")
        async with serving(tmp_path / "data", RESTANTE, options) as server:
            watching = Watched(server, f"http://127.0.0.1:{port}/", Pair(server.port))
            async with opened(browser, watching, None, **WIDE) as page:
                await expect(page.locator("#state")).to_have_text("Ready")
                await expect(page.get_by_role("button", name="Apply")).to_be_hidden()
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"{watching.admin}settings", data=BODY, headers=JSON) as answer,
                ):
                    assert answer.status == 403
                    assert "--admin-token-file" in await answer.text()
                await server.stop()
                await expect(page.locator("#state")).to_contain_text("No connection")
                async with serving(tmp_path / "data", RESTANTE, options):
                    await expect(page.locator("#state")).to_have_text("Ready")


async def test_only_edited_settings_are_changed_by_keyboard_until_sighup(browser: Browser, tmp_path: Path) -> None:
    async with watched(tmp_path / "s", "--motd", "As started") as watching, opened(browser, watching, **WIDE) as page:
        port = watching.server.port
        motd, bits = page.get_by_label("Message of the day"), page.get_by_label("Difficulty")
        answer = page.locator("#answer")
        await expect(motd).to_have_value("As started")
        await page.get_by_label("Permission").focus()
        await page.keyboard.type("hash")
        await page.keyboard.press("Tab")
        await page.keyboard.type("7")
        await page.keyboard.press("Tab")
        await motd.fill("<b>Back at noon</b>")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(answer).to_have_text("Applied, until the server starts again or gets SIGHUP.")
        await expect(page.locator("[data-value='permission.mode']")).to_have_text("hashcash")
        await expect(page.locator("[data-value='permission.difficulty']")).to_have_text("7 bits")
        changed = await watching.server.logged("the setting has changed", setting="permission")
        assert (changed["before"], changed["after"], changed["by"]) == ("none", "hashcash", "dashboard")
        greeting = await welcome(port)
        assert greeting["motd"] == "<b>Back at noon</b>"
        assert greeting["permission-required"]["hashcash"]["bits"] == 7
        watching.server.send(signal.SIGHUP)
        await expect(motd).to_have_value("As started")
        greeting = await welcome(port)
        assert greeting["motd"] == "As started"
        assert "permission-required" not in greeting
        await expect(bits).to_have_value("20")
        await bits.fill("9")
        async with (
            aiohttp.ClientSession(headers=AUTHORIZED) as another,
            another.post(f"{watching.admin}settings", json={"motd": "of another operator"}) as posted,
        ):
            assert await posted.json() == {"motd": "of another operator", "permission": "none", "permission_bits": 20}
        await page.get_by_role("button", name="Apply").click()
        await watching.server.logged("the setting has changed", setting="permission_bits", after=9)
        await expect(answer).to_contain_text("Applied")
        await expect(motd).to_have_value("of another operator")
        assert (await welcome(port))["motd"] == "of another operator"
        await watching.server.stop()
        await bits.fill("10")
        await page.get_by_role("button", name="Apply").click()
        await expect(answer).to_contain_text("Not applied, as far as is known")


BODY: Final = b'{"motd": "changed"}'
JSON: Final = {"Content-Type": "application/json"}
OPERATOR: Final = {**JSON, **AUTHORIZED}


async def test_a_change_that_is_not_the_operators_or_is_wrong_is_refused(busy: Watched) -> None:
    url = f"{busy.admin}settings"
    async with aiohttp.ClientSession() as session:

        async def post(body: bytes, headers: dict[str, str]) -> tuple[int, str]:
            async with session.post(url, data=body, headers=headers) as answer:
                return answer.status, await answer.text()

        for status, headers in (
            (401, JSON),
            (401, {**JSON, "Authorization": "Bearer wrong"}),
            *((403, {**OPERATOR, "Origin": origin}) for origin in ("https://evil.example", "null")),
            *((403, {**OPERATOR, "Sec-Fetch-Site": site}) for site in ("cross-site", "same-site")),
            (421, {**OPERATOR, "Host": "evil.example"}),
            (415, {**AUTHORIZED, "Content-Type": "text/plain"}),
        ):
            assert (await post(BODY, headers))[0] == status, headers
        for body in (
            *(b"{", b"[]", b'{"listen": "*:1"}', b'{"permission": "always"}', b'{"permission_bits": 41}'),
            *(b'{"motd": "%s"}' % (b"x" * 2001), rb'{"motd": "\ud800"}'),
        ):
            assert (await post(body, OPERATOR))[0] == 400, body
        reason = "motd: U+001B is a control character; only line breaks and tabs are allowed"
        refused = await post(rb'{"motd": "\u001b[2J", "permission": "hashcash"}', OPERATOR)
        assert refused == (400, f"the settings were not changed: {reason}\n")
        assert (await post(b" " * 70_000, OPERATOR))[0] == 413
        async with session.get(url, headers=AUTHORIZED) as answer:
            assert answer.status == 405
        assert set(await welcome(busy.server.port)) & {"motd", "permission-required"} == set()
        assert (await post(rb'{"motd": "Back\n\tat noon"}', OPERATOR))[0] == 200
        assert (await welcome(busy.server.port))["motd"] == "Back\n\tat noon"
        assert (await post(b'{"motd": ""}', OPERATOR))[1].startswith('{"motd":null,')


async def test_the_page_may_load_only_its_own_files(busy: Watched) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("", "dashboard.css", "dashboard.js"):
            async with session.get(busy.admin + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                assert "unsafe" not in policy
                tag = answer.headers["ETag"]
            async with session.get(busy.admin + path, headers={"If-None-Match": tag}) as answer:
                assert answer.status == 304


async def test_a_page_that_finds_no_place_waits_and_the_server_can_end(browser: Browser, tmp_path: Path) -> None:
    async with watched(tmp_path / "server") as watching, aiohttp.ClientSession() as session:
        viewers = [await session.get(f"{watching.admin}events", headers=AUTHORIZED) for _ in range(21)]
        assert [viewer.status for viewer in viewers] == [200] * 20 + [429]
        async with opened(browser, watching, **WIDE) as page:
            await expect(page.locator("#state")).to_have_text(
                "Too many dashboards are open: this server shows 20 at once. Close one. Then this page shows the"
                " figures."
            )
            await expect(page.locator("#content")).to_be_hidden()
            viewers[0].close()
            await expect(page.locator("#state")).to_have_text("Ready")
            await expect(page.locator("#content")).to_be_visible()
        await watching.server.stop()


async def test_without_a_token_the_oldest_dashboard_makes_room(browser: Browser, tmp_path: Path) -> None:
    """Any program of the machine could take all places, and lock the operator out."""
    async with watched(tmp_path / "server", token=False) as watching, aiohttp.ClientSession() as session:
        async with opened(browser, watching, None, **WIDE) as page:
            await expect(page.locator("#state")).to_have_text("Ready")
            viewers = [await session.get(f"{watching.admin}events") for _ in range(39)]
            assert {viewer.status for viewer in viewers} == {200}
            await expect(page.locator("#state")).to_have_text(
                "This server shows 20 dashboards at once, and newer ones were opened. Load this page again to see the"
                " figures. The figures below are old."
            )
            for viewer in viewers:
                viewer.close()
        async with opened(browser, watching, None, **WIDE) as page:
            await expect(page.locator("#state")).to_have_text("Ready")
        await watching.server.stop()
