"""The relay's admin port: whether it is ready, and pages that agree with what was done. Its thread and its access are
those of the mailbox server (tests/test_admin.py)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from restante.common import admin_http
from restante.common.errors import StoreError
from restante.relay.core.limits import UNLIMITED, Limits
from restante.relay.protocol.refusals import KINDS
from restante.relay.server import status_pages
from restante.relay.server.running_settings import RelaySettings
from restante.relay.settings import RelayServe
from support.admin_port import MONITORING, READY, Look, documented, looking, other_fields, sentences
from support.documents import ROOT
from support.loops import until
from support.mailbox.raw_socket import RawSocket
from support.proxy_headers import line
from support.relay.live import LiveRelay, request

USED_UP: Final = "the bytes of this month are used up"


class Admin(Look):
    here: LiveRelay
    pages: admin_http.AdminPages
    proxied: int
    """A port whose connections begin with a PROXY header."""

    async def page(self, path: str) -> dict[str, Any]:
        status, text = await self.get(path)
        assert status == 200, text
        return dict(json.loads(text))

    async def ask(self, address: str, token: str) -> RawSocket:
        """Connect from an address, as a proxy says, and send a request."""
        client = await self.here.connect(self.proxied)
        client.write(line(address) + request(token))
        return client

    async def pair(self, *addresses: str) -> list[RawSocket]:
        clients = [await self.ask(address, "p") for address in addresses]
        for client in clients:
            assert await client.reader.readline() == b"ok\n"
        return clients

    async def passed_on(self, clients: list[RawSocket], size: int) -> None:
        before = self.here.relay.traffic.bytes
        clients[0].write(b"x" * size)
        assert await clients[1].reader.readexactly(size)
        await until("the bytes are counted", lambda: self.here.relay.traffic.bytes == before + size)


@asynccontextmanager
async def looked_at(data: Path, limits: Limits = UNLIMITED) -> AsyncIterator[Admin]:
    async with LiveRelay(data, limits=limits).serving() as here:
        settings = RelaySettings(RelayServe(), lambda: (RelayServe(), []), here.server)
        pages = status_pages.of(here.server, here.recording, settings)
        async with (
            admin_http.serving_admin("127.0.0.1", 0, pages) as (listening, *_),
            looking(listening.getsockname()[1]) as look,
        ):
            admin = Admin(look.session, look.port)
            admin.here, admin.pages, admin.proxied = here, pages, await here.listen("proxy:127.0.0.1:0")
            yield admin


async def test_the_counts_agree_with_what_was_done(tmp_path: Path) -> None:
    async with looked_at(tmp_path, replace(UNLIMITED, address_waiting=1, month_bytes=1000)) as look:
        before = await look.counts()
        pair = await look.pair("203.0.113.1", "203.0.113.2")
        await look.passed_on(pair, 100)
        await look.ask("203.0.113.1", "w")
        await until("one waits", lambda: look.here.relay.waiting == 1)
        refused, wrong = await look.ask("203.0.113.1", "x"), await look.here.connect()
        wrong.write(b"hello\n")
        assert (await refused.rest(), await wrong.rest()) == (b"", b"bad handshake\n")
        expected = {
            "restante_relay_pairs": 1,
            "restante_relay_waiting": 1,
            "restante_relay_new": 0,
            "restante_relay_connections_opened_total": 5,
            "restante_relay_bytes_total": 100,
            "restante_relay_day_bytes": 100,
            "restante_relay_month_bytes": 100,
            "restante_relay_month_limit_bytes": 1000,
            "restante_relay_results_total happy": 0,
            "restante_relay_results_total errory": 1,
            "restante_relay_refusals_total address_waiting": 1,
            "restante_relay_recording": 1,
            "restante_ready": 1,
        }
        counts = await look.counts()
        assert {name: counts[name] for name in expected} == expected
        assert (await look.page("/varz"))["bytes"]["running"] == 100
        pair[0].cut()
        await until("the pair ends", lambda: not look.here.relay.pairs)
        counts = await look.counts()
        assert (counts["restante_relay_results_total happy"], counts["restante_relay_pairs"]) == (1, 0)
        assert set(counts) == set(before), "strangers cannot add series"
        assert (await look.page("/varz"))["bytes"]["running"] == 0


async def test_a_relay_is_not_ready_when_the_month_is_used_up_or_it_drains(tmp_path: Path) -> None:
    async with looked_at(tmp_path, replace(UNLIMITED, month_bytes=100)) as look:
        pair = await look.pair("203.0.113.1", "203.0.113.2")
        assert await look.get("/readyz") == READY
        await look.passed_on(pair, 100)
        assert await look.get("/readyz") == (503, f"{USED_UP}\n")
        assert (await look.get("/healthz"), (await look.counts())["restante_ready"]) == (READY, 0)
        assert (await look.counts())["restante_relay_slowed_pairs"] == 1
        assert (await look.page("/varz"))["unready"] == USED_UP
        look.here.server.apply_limits(UNLIMITED)
        assert await look.get("/readyz") == READY
        look.here.server.draining = True
        assert (await look.get("/readyz"), await look.get("/healthz")) == ((503, "draining\n"), READY)
    relays = MONITORING.read_text().partition("| `/readyz` says | transit relay |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(.+)` \| ", relays, re.MULTILINE) == ["draining", USED_UP]


async def test_a_disk_that_takes_no_records_is_shown_and_the_relay_stays_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with looked_at(tmp_path) as look:

        async def fail(*_: object) -> None:
            raise StoreError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(look.here.store, "save", fail)
            (await look.here.connect()).cut()
            await until("a record", lambda: bool(look.here.relay.records))
            await look.here.recording.save()
        counts, page = await look.counts(), await look.page("/varz")
        assert (counts["restante_relay_recording"], counts["restante_relay_records_lost_total"]) == (0, 1)
        assert page["records"] == {"written": False, "lost": 1, "problem": "the disk is full"}
        assert await look.get("/readyz") == READY
        await look.here.recording.save()
        assert (await look.page("/varz"))["records"] == {"written": True, "lost": 1, "problem": ""}


async def test_pages_show_address_ids_and_neither_addresses_nor_tokens(tmp_path: Path) -> None:
    async with looked_at(tmp_path, replace(UNLIMITED, waiting=7)) as look:
        pair = await look.pair("203.0.113.1", "203.0.113.2")
        await look.passed_on(pair, 30)
        other = await look.pair("203.0.113.1", "127.0.0.1")
        await look.passed_on(other, 12)
        await look.ask("203.0.113.3", "w")
        await until("one waits", lambda: look.here.relay.waiting == 1)
        top = (await look.page("/varz"))["top_addresses"]
        assert [row["bytes"] for row in top] == [42, 30], "loopback is not counted"
        waiting, *paired = (await look.page("/connz"))["connections"]
        assert (waiting["paired"], waiting["pair_bytes"]) == (False, 0)
        assert [(row["paired"], row["pair_bytes"]) for row in paired] == [(True, 30)] * 2 + [(True, 12)] * 2
        assert [row["address_id"] for row in paired[:3:2]] == [top[0]["address_id"]] * 2
        assert (await look.page("/connz?limit=1&offset=4"))["connections"][0]["pair_bytes"] == 12
        limits = (await look.page("/limitz"))["limits"]
        assert (limits["waiting"]["used"], limits["waiting"]["value"], limits["pairs"]["used"]) == (1, 7, 2)
        for path in ("/varz", "/connz", "/limitz", "/metrics"):
            assert not re.search(r"203\.0\.113|127\.0\.0\.1|[pw]{64}", (await look.get(path))[1])


async def test_the_manual_has_every_field_of_the_pages_and_every_reason(tmp_path: Path) -> None:
    manual = documented("all servers", "the relay")
    async with looked_at(tmp_path) as look:
        await look.passed_on(await look.pair("203.0.113.1", "203.0.113.2"), 1)
        counts = await look.page("/varz")
        assert set(other_fields(counts, status_pages.METRICS)) == {*manual, "schema"}
        assert set(re.findall(r"`([a-z_]+)`", manual["top_addresses"])) == set(counts["top_addresses"][0])
        page = await look.page("/connz")
        assert set(page["connections"][0]) == sentences("Fields of a connection of the relay: ")
        [limit, *_] = (await look.page("/limitz"))["limits"].values()
        assert {"limits", *limit} == sentences("`/limitz` has ") | {"limits"}
    guide = (ROOT / "docs/relay/operating.md").read_text().partition("| reason of a refusal | ")[2]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", guide.partition("\n\n")[0], re.MULTILINE))
    others = {reason: kind for reason, kind in KINDS.items() if kind.limits != (reason,)}
    assert list(rows) == list(others)
    for reason, kind in others.items():
        assert set(re.findall(r"`([a-z_]+)`", rows[reason].partition(":")[0])) == set(kind.limits)


async def test_the_addresses_with_the_most_bytes_are_looked_for_every_ten_seconds(tmp_path: Path) -> None:
    """To look among many takes the event loop's time, and a dashboard asks each second."""
    now = [0.0]
    async with looked_at(tmp_path) as look:
        settings = RelaySettings(RelayServe(), lambda: (RelayServe(), []), look.here.server)
        pages = status_pages.StatusPages(look.here.server, look.here.recording, settings, lambda: now[0])
        tops = []
        for seconds in (0.0, 9.9, 10.0):
            now[0] = seconds
            await look.passed_on(await look.pair("203.0.113.1", "127.0.0.1"), 5)
            tops += [[row["bytes"] for row in (await pages.varz({}))["top_addresses"]]]
        assert tops == [[5], [5], [15]]


async def test_the_dashboard_is_told_all_that_its_page_names(tmp_path: Path) -> None:
    """What has no value, such as the certificate of a relay without one, is null and not missing."""
    async with looked_at(tmp_path) as look:
        page, values = (await look.get("/"))[1], await look.shown()
        named = re.findall(r'data-(?:value|rows|grid|if|href)="([a-z_.]+)"', page)
        assert len(named) > 20
        for path in named:
            part: Any = values
            for name in path.split("."):
                assert part is None or name in part, path
                part = part and part[name]
        dashboard = look.pages.dashboard
        assert dashboard is not None
        assert set(await dashboard.sample()) == set(re.findall(r'data-series="(\w+)"', page))
