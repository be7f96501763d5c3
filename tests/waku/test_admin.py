"""The node's admin port: whether it is alive, whether it is ready, and counts that agree with what was done."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

from restante.common import admin_http
from restante.waku.envelope import rlp
from restante.waku.limits import Limits
from restante.waku.node import status_pages
from restante.waku.node.history_requests import REFUSALS
from restante.waku.node.mailserver import ARCHIVE_RETRY_DELAY
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.acceptance import Policy
from support.bounds import BOUND
from support.faulty_disk import Look, looking
from support.manual_fields import documented, fields, sentences
from support.metrics import counts
from support.timing.browser import RULES, launch_options
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import ask, fetch_page, plain

FAILURES: Final = {
    "future": "in_future",
    "old": "very_old",
    "expired": "expired",
    "ttl": "long_ttl",
    "size": "oversized",
    "pow": "low_pow",
}
"""What dashboards for status-go call a refusal (waku/waku.go, addAndBridge); the ttl is bounded here only."""


@asynccontextmanager
async def looked_at(here: Inside, data: Path) -> AsyncIterator[Look]:
    """Serve the node's admin port, as `serve` does."""
    async with (
        admin_http.serving_admin("127.0.0.1", 0, status_pages.of(here.node, data)) as (_, port),
        looking(port) as look,
    ):
        yield look


async def metrics(look: Look) -> dict[str, float]:
    status, text = await look.get("/metrics")
    assert status == 200, text
    return counts(text)


async def test_counts_agree_with_what_was_done(tmp_path: Path) -> None:
    bad = {
        "future": [letter(age=-100), letter(age=-101)],
        "old": [letter(age=1000)],
        "expired": [letter(age=55)],
        "ttl": [letter(ttl=1001)],
        "size": [letter(size=6000)],
        "pow": [letter(ttl=999, size=4000, topic=TOPIC)],
    }
    good = [letter(number, age=number) for number in range(5)]
    size = sum(len(envelope.raw) for envelope in good)
    policy = Policy(min_pow=1e-6, max_ttl=1000, max_size=5000)
    async with inside(tmp_path, policy=policy) as here, looked_at(here, tmp_path) as look:
        poster, reader = await here.greet(), await here.greet()
        before = await metrics(look)
        assert before["waku_disk_free_bytes"] > 1_000_000
        assert {value for name, value in before.items() if name.startswith("mailserver")} == {0.0}
        await poster.post(*good)
        await poster.post(*good[:2])
        await poster.post(*itertools.chain(*bad.values()))
        assert await reader.relayed(5)
        for _ in range(2):
            await fetch_page(reader, lower=EPOCH - 2)
        await ask(reader, plain(lower=EPOCH + 1))
        reader.say(waku_packets.REQUEST, rlp.encode([1] * 6))
        await here.settled(poster, reader)
        shown = await metrics(look)
        assert {value for name, value in shown.items() if "rejected" in name} == {0.0}
        expected = {f"waku_envelopes_cache_failures_total {FAILURES[name]}": len(some) for name, some in bad.items()}
        expected |= {
            "waku_envelopes_received_total": 5 + 2 + 7,
            "waku_envelopes_validated_total": 5,
            "waku_envelopes_relayed_total": 5,
            "waku_envelopes_known": 5,
            "waku_envelopes_size_bytes_count": 5,
            "waku_envelopes_cached_total hit": 2,
            "waku_envelopes_cached_total miss": 5,
            "waku_peers": 2,
            "waku_connections": 2,
            "mailserver_archived_envelopes_total sqlite": 5,
            "mailserver_archived_bytes": size,
            "mailserver_archived_envelopes_failures_total sqlite": 0,
            "mailserver_archived_envelope_size_bytes_count sqlite": 5,
            "mailserver_archived_envelope_size_bytes_sum sqlite": size,
            "mailserver_requests_total": 4,
            "mailserver_requests_refused_total": 2,
            "mailserver_requests_batched_total": 2,
            "mailserver_requests_bundle_process_duration_seconds_count": 2,
            "mailserver_delivery_failures_total validation": 2,
            "mailserver_delivery_failures_total peer_req_limit": 0,
            "mailserver_delivery_failures_total iterator": 0,
            "mailserver_delivery_failures_total process": 0,
            "mailserver_delivery_duration_seconds_count": 2,
            "mailserver_delivery_duration_seconds_bucket +Inf": 2,
            "mailserver_delivery_attempts_total": 3,  # all but the one that could not be read
            "mailserver_envelope_queries_total topics unknown": 2,
            "mailserver_envelopes_total": 2 * 3,
            "mailserver_sent_envelope_batch_size_bytes_count": 2,
            "mailserver_sent_envelope_batch_size_bytes_bucket 1024": 2,
        }
        assert {name: shown[name] for name in expected} == expected


async def test_packets_that_cannot_be_read_are_rejected_and_nothing_else_is(tmp_path: Path) -> None:
    """With the reasons of status-go (waku/v1/peer.go)."""
    large = waku_packets.write_envelopes([*(letter(number).raw for number in range(5000)), b"\xc0"])
    said = (
        (waku_packets.MESSAGES, large),
        (waku_packets.MESSAGES, b"\x80"),
        (waku_packets.MESSAGE_RESPONSE, b"\x80"),
        (waku_packets.BATCH_ACK, b"\x80"),
        (waku_packets.STATUS_UPDATE, b"\x80"),
        (waku_packets.REQUEST, b"\x80"),
        (waku_packets.MESSAGES, waku_packets.write_envelopes([letter(1, age=1000).raw])),
        (99, b"\x80"),
    )
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        peer = await here.greet()
        for code, body in said:
            peer.say(code, body)
            await peer.fence()
            await here.until("the packet", lambda: not here.node._digesting)
        assert here.node.mailserver.counts == {"old": 1}, "a large packet with one that is no envelope"
        shown = await metrics(look)
        assert shown["waku_envelopes_rejected_total invalid_data"] == 4
        assert shown["waku_envelopes_rejected_total invalid_settings_changed"] == 1


async def test_the_node_is_alive_and_not_ready_while_the_disk_is_full_or_it_drains(tmp_path: Path) -> None:
    ready, full = (200, "ok\n"), (503, "the disk is full\n")
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        poster = await here.greet()
        assert await look.get("/readyz") == ready
        assert (await metrics(look))["waku_ready"] == 1
        here.archive.full = True
        await poster.post(letter(1))
        assert (await look.get("/readyz"), await look.get("/healthz")) == (full, ready)
        shown = await metrics(look)
        assert (shown["mailserver_archived_envelopes_failures_total sqlite"], shown["waku_ready"]) == (1, 0)
        here.clock.now += ARCHIVE_RETRY_DELAY
        assert await look.get("/readyz") == ready, "otherwise nobody sends the envelope that shows it"
        await poster.post(letter(1))
        assert await look.get("/readyz") == full
        here.archive.full = False
        here.clock.now += ARCHIVE_RETRY_DELAY
        await poster.post(letter(1))
        assert await look.get("/readyz") == ready
        here.archive.idle.clear()
        packet = poster.offer([letter(2)])
        await poster.fence()
        draining = asyncio.create_task(here.node.drain(here.running))
        await here.until("the drain", lambda: bool(here.node.ready()))
        assert (await look.get("/readyz"), await look.get("/healthz")) == ((503, "draining\n"), ready)
        here.archive.idle.set()
        assert not (await poster.confirmed(packet)).refusals
        await poster.ended()
        await draining


async def test_pages_agree_with_what_was_done_and_have_no_address(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        poster, reader = await here.greet(), await here.greet()
        await poster.post(letter(1), letter(2), letter(age=1000))
        assert await reader.relayed(2)
        await fetch_page(reader)
        pages = {path: await look.get(path) for path in ("/varz", "/connz", "/limitz")}
        assert {status for status, _ in pages.values()} == {200}
        assert "127.0.0.1" not in "".join(text for _, text in pages.values())
        shown, connections, limits = (json.loads(text) for _, text in pages.values())
        assert (shown["archive"]["envelopes"], shown["envelopes"]["new"]) == (2, 2)
        assert shown["envelopes"]["refused"]["very_old"] == 1
        assert (shown["requests"]["received"], shown["requests"]["answered"]) == (1, 1)
        assert connections["total"] == 2
        assert all(each["identified"] and not each["dialled"] for each in connections["connections"])
        assert set(Limits.__struct_fields__) < set(limits["limits"])
        manual = documented("Fields of `/varz` of both servers:", "Fields of `/varz` of the node:")
        by_label = {"envelopes.refused", "requests.refused", "requests.queries"}
        assert set(fields(shown, by_label)) == {*manual, "schema"}
        assert set(connections["connections"][0]) == sentences("Fields of a connection of the node: ")
        assert limits["limits"]["max_peers"]["used"] == 2


async def test_the_dashboard_has_refusals_of_the_last_hour_beside_all(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        now = Counter(seconds=0)
        pages = status_pages.StatusPages(here.node, tmp_path, clock=lambda: now["seconds"])
        poster = await here.greet()
        await poster.post(letter(age=1000))
        for _ in range(61):
            now["seconds"] += 60
            await pages.sample()
        await poster.post(letter(age=-100))
        here.node.history_requests.refusals[REFUSALS[0]] += 1
        details, once = await pages.details(), {"last_hour": 1, "since_start": 1}
        assert details["refused_envelopes"] == [{"reason": "in_future", **once}]
        assert details["refused_requests"] == [{"reason": REFUSALS[0], **once}]
        assert (await pages.varz({}))["envelopes"]["refused"]["very_old"] == 1


@pytest.mark.thorough
async def test_the_dashboard_shows_the_node_and_changes_nothing(tmp_path: Path) -> None:
    options = launch_options()
    async with (
        inside(tmp_path) as here,
        looked_at(here, tmp_path) as look,
        async_playwright() as playwright,
        await playwright.chromium.launch(**options) as browser,
    ):
        poster = await here.greet()
        await poster.post(letter(1), letter(2), letter(age=1000))
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(look._url)
        await expect(page.locator("#state")).to_have_text("Ready", timeout=BOUND * 1000)
        await expect(page.locator("[data-value='archive.envelopes']")).to_have_text("2")
        await expect(page.locator("[data-rows='refused_envelopes'] tbody tr")).to_have_text(["very_old11"])
        assert await page.locator("form:visible").count() == 0
        results = await Axe().run(page, options=RULES)
        assert results.violations_count == 0, results.generate_report()
        assert complaints == []
        here.archive.full = True
        await poster.post(letter(3))
        await expect(page.locator("#state")).to_have_text("Not ready: the disk is full", timeout=BOUND * 1000)
