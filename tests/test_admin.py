"""The mailbox server's admin port: whether it is ready, what was done, and who may read that by which names."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock

import aiohttp
import pytest
import structlog
from msgspec.structs import replace

from restante.common import admin_dashboard, admin_http, disk_probe
from restante.common.admin_access import known_host, read_admin_token, same_origin
from restante.common.admin_http import WrongTokens
from restante.common.disk_probe import PROBE_FILE
from restante.common.errors import Misuse, StoreDamaged
from restante.common.settings import resolve_settings
from restante.mailbox.core.limits import UNLIMITED
from restante.mailbox.protocol import refusals
from restante.mailbox.server import commit_loop, status_pages
from restante.mailbox.server.running_settings import MailboxSettings
from restante.mailbox.settings import SERVE, Serve
from restante.mailbox.store import sqlite, status
from restante.waku.settings import WAKU
from support.admin_port import MONITORING, Look, documented, other_fields, sentences
from support.bounds import BOUND, bounded
from support.loops import until
from support.mailbox.clients import Clients
from support.mailbox.live import LiveServer, open_live
from support.mailbox.raw_socket import RawSocket
from support.ports import held_port
from support.processes import database, serving
from support.sqlite import LOCK, beside
from support.waku.processes import node_process

TOKEN: Final = "0123456789abcdef"


class Admin(Look):
    def __init__(
        self, here: LiveServer, data: Path, clients: Clients, session: aiohttp.ClientSession, port: int
    ) -> None:
        super().__init__(session, port)
        self.here = here
        self.data = data
        self.clients = clients
        self.writers: list[asyncio.StreamWriter] = []

    async def status(self, path: str) -> int:
        async with bounded(path), self.session.get(self.url + path) as response:
            return response.status

    async def send(self, request: bytes = b"", limit: int = 1 << 16) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        self.writers.append(writer)
        writer.write(request)
        return reader

    async def told(self, request: bytes) -> bytes:
        connection = await RawSocket.connect(self.port)
        connection.write(request)
        return await connection.rest()

    async def page(self, path: str) -> dict[str, Any]:
        status, text = await self.get(path)
        assert status == 200, text
        return dict(json.loads(text))


@asynccontextmanager
async def looked_at(data: Path, token: str | None = None) -> AsyncIterator[Admin]:
    async with open_live(data) as here, Clients() as clients, aiohttp.ClientSession() as session:
        settings = MailboxSettings(Serve(data=str(data)), lambda: (Serve(), []), here.server)
        pages = status_pages.of(here.server, here.store, data, settings)
        async with admin_http.serving_admin("127.0.0.1", 0, pages, token) as (listening, *_):
            look = Admin(here, data, clients, session, listening.getsockname()[1])
            yield look
            for writer in look.writers:
                writer.close()


@pytest.fixture
async def look(tmp_path: Path) -> AsyncIterator[Admin]:
    async with looked_at(tmp_path) as look:
        yield look


def dashboard_pages(here: LiveServer, data: Path, now: list[float]) -> status_pages.DashboardPages:
    settings = MailboxSettings(Serve(data=str(data)), lambda: (Serve(), []), here.server)
    pages = status_pages.StatusPages(here.server)
    return status_pages.DashboardPages(pages, here.server, data, settings, lambda: now[0])


HEALTHZ: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


async def test_the_counts_agree_with_what_was_done(look: Admin) -> None:
    sender = await look.clients.bind(look.here.url, "app", "a")
    await sender.call("claim", nameplate="4")
    receiver = await look.clients.bind(look.here.url, "app", "b")
    await receiver.call("claim", nameplate="4")
    for client in (sender, receiver):
        await client.refused(await client.say("claim", nameplate="5"))
    opened = [await look.clients.opened(look.here.url, "app", side, "m") for side in "ab"]
    for number in range(3):
        await opened[0].call("add", phase=str(number), body="00")
    for client in opened:
        await client.call("close", mailbox="m", mood="happy")
    counts = await look.counts()
    expected = {
        "restante_connections": 4,
        "restante_connections_opened_total": 4,
        "restante_commands_total ok bind": 4,
        "restante_commands_total ok claim": 2,
        "restante_commands_total error claim": 2,
        "restante_commands_total ok add": 3,
        "restante_commands_total ok close": 2,
        "restante_delivery_seconds_count": 3,
        "restante_delivery_seconds_bucket +Inf": 3,
        "restante_results_total mailbox happy": 1,
        "restante_results_total mailbox scary": 0,
        "restante_disk_has_room": 1,
        "restante_ready": 1,
        "restante_permission_mode none": 1,
        "restante_permission_mode adaptive": 0,
    }
    assert {name: counts[name] for name in expected} == expected
    commands = sum(value for name, value in counts.items() if name.startswith("restante_commands_total"))
    assert counts["restante_batch_commands_count"] <= commands
    assert counts["restante_commit_seconds_count"] > 0
    for number in range(20):
        client = await look.clients.bind(look.here.url, f"app-{number}", f"side-{number}")
        await client.refused(await client.say(f"kind-{number}"))
        await client.call("open", mailbox=f"mailbox-{number}")
        await client.call("close", mailbox=f"mailbox-{number}", mood=f"mood-{number}")
    later = await look.counts()
    assert set(later) == set(counts), "strangers cannot add series"
    assert later["restante_commands_total error malformed"] == 20
    assert later["restante_commands_total ok close"] == 22


async def test_the_difficulty_in_effect_is_that_of_the_mode(look: Admin) -> None:
    admission = look.here.server.admission
    cases = ((3, "hashcash", 20), (3, "adaptive", 22), (3, "none", 0), (0, "adaptive", 0))
    for steps, mode, due in cases:
        admission.load_level.steps, admission.terms = steps, replace(admission.terms, mode=mode)
        permission = (await look.page("/varz"))["permission"]
        assert (permission["mode"], permission["bits"], permission["difficulty"]) == (mode, 20, due)
        assert (await look.counts())["restante_permission_difficulty"] == due


def test_the_manual_has_every_reason_of_a_refusal_and_its_limits_exist() -> None:
    rows = set(re.findall(r"^\| `([a-z_]+)` \| ", MONITORING.read_text().partition("### Reasons")[2], re.MULTILINE))
    assert set(refusals.KINDS) <= rows
    assert {name for kind in refusals.KINDS.values() for name in kind.limits} <= set(UNLIMITED.__struct_fields__)


async def test_a_server_that_cannot_store_or_drains_is_not_ready_and_says_why(look: Admin) -> None:
    (look.data / PROBE_FILE).symlink_to("/dev/full")
    assert await look.get("/readyz") == (503, "the disk cannot be written: No space left on device\n")
    assert await look.get("/healthz") == (200, "ok\n")
    assert (await look.counts())["restante_ready"] == 0
    assert (await look.page("/varz"))["unready"] == "the disk cannot be written: No space left on device"
    look.here.commit_loop.dispatcher.state.room = False
    assert await look.get("/readyz") == (503, "the disk is nearly full\n")
    look.here.server.draining = True
    assert await look.get("/readyz") == (503, "draining\n")


async def test_a_server_is_unready_before_it_listens(look: Admin) -> None:
    look.here.server.listens = False
    assert (await look.page("/varz"))["unready"] == "the server does not listen yet"


async def test_a_server_is_unready_until_a_batch_is_stored(look: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer sends no clients to a server that is not ready, so no batch would be stored again."""
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)
    client = await look.clients.opened(look.here.url, "app", "a", "m")
    await client.call("claim", nameplate="1")  # its mailbox may be pruned
    state = look.here.commit_loop.dispatcher.state
    state.in_grace_period = False
    for mailbox in state.mailboxes():
        mailbox.touched = -1e6
    with beside(database(look.data), LOCK):
        await client.say("add", phase="1", body="00")
        await client.ends()
        look.here.commit_loop.start_pruning()
        async with bounded("two batches that are not stored"):
            while (counts := await look.counts())["restante_batches_not_stored_total"] < 2:
                pass
    status, reason = await look.get("/readyz")
    assert (status, reason.partition(": ")[0]) == (503, "the last batch could not be stored")
    assert counts["restante_commands_total not_stored add"] == 1
    assert counts["restante_commands_total ok add"] == counts["restante_mailboxes_pruned_total"] == 0
    later = look.here.commit_loop.now().service + commit_loop.STORE_PROBLEM_SECONDS
    assert look.here.commit_loop.measurements.store_problem(later) == ""
    again = await look.clients.opened(look.here.url, "app", "a", "m")
    await again.call("add", phase="1", body="00")
    assert await look.get("/readyz") == (200, "ok\n")
    assert (await look.counts())["restante_commands_total ok add"] == 1


async def test_a_disk_that_hangs_shows_and_takes_one_thread(look: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that ended while nobody waited is not believed later."""
    monkeypatch.setattr(admin_http, "DISK_TIMEOUT", 0.05)
    monkeypatch.setattr(disk_probe, "INTERVAL_SECONDS", 0.0)
    file = look.data / PROBE_FILE
    os.mkfifo(file)  # to open it for writing waits for a reader
    hangs = (503, "the disk hangs: a write has not finished for 0.05 s\n")
    assert [await look.get("/readyz") for _ in range(3)] == [hangs] * 3
    assert await look.get("/healthz") == (200, "ok\n")
    os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
    await until("the end of the probe", lambda: not file.exists())
    file.symlink_to("/dev/full")
    async with bounded("the next probe"):
        while await look.get("/readyz") != (503, "the disk cannot be written: No space left on device\n"):
            pass


async def test_connections_are_shown_in_parts_and_without_what_clients_store(look: Admin) -> None:
    for number in range(5):
        await look.clients.opened(look.here.url, "app", f"side-{number}", f"mailbox-{number}")
    status, text = await look.get("/connz?limit=2&offset=3")
    page = json.loads(text)
    assert (status, page["schema"], page["total"], page["limit"], page["offset"]) == (200, 1, 5, 2, 3)
    assert [connection["number"] for connection in page["connections"]] == [4, 5]
    assert all(row["mailbox_open"] and row["application"] == "app" for row in page["connections"])
    assert not re.search("side-|mailbox-|127.0.0.1", text)
    for query in ("limit=1001", "limit=-1", "limit=x", "offset=", "offset=12345678901", "limit=１"):  # noqa: RUF001
        status, message = await look.get(f"/connz?{query}")
        assert (status, message.partition(":")[0]) == (400, query.partition("=")[0])


async def test_limits_are_shown_with_their_use_and_refusals(look: Admin) -> None:
    await look.clients.opened(look.here.url, "app", "a", "m")
    look.here.commit_loop.dispatcher.quotas.refusal_counts.count(refusals.TOO_BIG.reason, "an-address")
    limits = (await look.page("/limitz"))["limits"]
    assert set(limits) == set(UNLIMITED.__struct_fields__)
    assert limits["connections"]["used"] == 1
    assert limits["stored_bytes"]["used"] == look.here.commit_loop.dispatcher.state.stored
    assert limits["message_bytes"]["refusals"] == {"message_bytes": 1}
    refused = (await look.page("/varz"))["refused_addresses"]
    assert refused == [{"address_id": "an-address", "reason": "message_bytes", "times": 1}]
    look.here.commit_loop.log_refusals()
    assert (await look.page("/varz"))["refused_addresses"] == refused, "of the last minute, too"
    look.here.commit_loop.log_refusals()
    assert not (await look.page("/varz"))["refused_addresses"]


async def test_the_dashboard_has_refusals_of_the_last_hour_beside_all(tmp_path: Path) -> None:
    async with open_live(tmp_path) as here:
        now = [0.0]
        pages = dashboard_pages(here, tmp_path, now)
        count = here.commit_loop.dispatcher.quotas.refusal_counts.count

        async def rows_after(minutes: int) -> list[tuple[str, int, int]]:
            for _ in range(minutes):
                now[0] += 60
                await pages.sample()
            rows = (await pages.details())["refusals_by_reason"]
            return [(row["reason"], row["last_hour"], row["since_start"]) for row in rows]

        count(refusals.TOO_BIG.reason, "an-address")
        assert await rows_after(60) == [("message_bytes", 1, 1)]
        for reason in ("bind", "bind", "message_bytes"):
            count(reason, None)
        assert await rows_after(0) == [("bind", 2, 2), ("message_bytes", 2, 2)]
        assert await rows_after(1) == [("bind", 2, 2), ("message_bytes", 1, 2)]
        assert await rows_after(61) == []
        assert (await pages.details())["refusals_since_start"] == 4


async def test_the_manual_has_every_field_of_the_pages_and_no_other(look: Admin) -> None:
    manual = documented("all servers", "the mailbox server")
    await look.clients.opened(look.here.url, "app", "a", "m")
    look.here.commit_loop.dispatcher.quotas.refusal_counts.count(refusals.TOO_BIG.reason, "an-address")
    look.here.commit_loop.measurements.latest_slow_commits.append(commit_loop.SlowCommit(1.0, 0.3, 4))
    counts = await look.page("/varz")
    assert set(other_fields(counts, status_pages.METRICS)) == {*manual, "schema"}
    rows = {"commits.latest_slow": counts["commits"]["latest_slow"], "refused_addresses": counts["refused_addresses"]}
    for path, [row] in rows.items():
        assert set(re.findall(r"`([a-z_]+)`", manual[path])) == set(row)
    page = await look.page("/connz")
    assert set(page) == {"schema", "total", "offset", "limit", "connections"}
    assert set(page["connections"][0]) == sentences("Fields of a connection of the mailbox server: ")
    [limit, *_] = (await look.page("/limitz"))["limits"].values()
    assert {"limits", *limit} == sentences("`/limitz` has ") | {"limits"}


async def test_slow_or_failing_queries_of_usage_delay_nobody(look: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_dashboard, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(status_pages, "RECENT_SECONDS", 0.0)
    go_on, asked = threading.Event(), threading.Semaphore(0)
    errors: list[Exception] = [StoreDamaged("page 3 is damaged"), Misuse("there is no data"), ZeroDivisionError()]
    read = status.recent_usage

    def slow(data: Path, now: float) -> dict[str, Any]:
        asked.release()
        assert go_on.wait(BOUND)
        if errors:
            raise errors[0]
        return read(data, now)

    monkeypatch.setattr(status, "recent_usage", slow)
    client = await look.clients.opened(look.here.url, "app", "a", "m")
    async with look.watch() as first, look.watch() as second:
        for events in (first, second, first):
            page = await events.until("now", unready="", recent={"reading": True})
            assert page["connections"]["open"] == 1
        assert asked.acquire(timeout=BOUND)
        assert not asked.acquire(blocking=False), "one query at a time, whoever looks"
        assert await look.get("/readyz") == (200, "ok\n")
        await client.call("ping", ping=1)
        go_on.set()
        for problem in ("page 3 is damaged", "there is no data", "an error of the server, which its log has"):
            await first.until("now", recent={"problem": problem})
            errors.pop(0)
        async with bounded("results"):
            while "results" not in (await first.until("now"))["recent"]:
                pass


async def test_usage_is_read_for_a_hundredth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_dashboard, "EVENT_SECONDS", 0.0)
    now, read, reads = [0.0], status.recent_usage, []

    def slow(data: Path, wall: float) -> dict[str, Any]:
        reads.append(now[0])
        now[0] += 0.5
        return read(data, wall)

    monkeypatch.setattr(status, "recent_usage", slow)
    async with open_live(tmp_path) as here:
        pages = dashboard_pages(here, tmp_path, now)
        for later in (0.0, 5.0, 10.0, 49.9, 50.5, 100.0, 101.0):
            now[0] = max(now[0], later)
            await pages.details()
            await until("a look", lambda: not pages._reading)  # a thread, and nothing public tells that it has read
    assert reads == [0.0, 50.5, 101.0]


async def test_results_that_nobody_looked_at_for_long_are_not_shown_at_first(tmp_path: Path) -> None:
    now = [0.0]
    async with open_live(tmp_path) as here:
        pages = dashboard_pages(here, tmp_path, now)

        async def look() -> dict[str, Any]:
            result: dict[str, Any] = (await pages.details())["recent"]
            await until("a look", lambda: not pages._reading)
            return result

        assert await look() == {"reading": True}
        assert (await look())["as_of"] == here.clock.wall()
        now[0] += 3600.0
        here.clock.now += 3600.0
        assert await look() == {"reading": True}
        assert (await look())["as_of"] == here.clock.wall()


def test_a_sample_has_the_highest_second_since_the_one_before() -> None:
    peaks = admin_dashboard.Peaks(
        '<figure data-series="g" data-kind="gauge"><figure data-series="c" data-kind="rate">'
        '<figure data-series="s" data-of="n" data-kind="ratio">'
    )
    for second, gauge, counter, seconds, number in ((0, 1, 0, 0, 0), (1, 7, 20, 4, 2), (3, 2, 30, 4, 2)):
        peaks.add(second, {"g": gauge, "c": counter, "s": seconds, "n": number})
    assert peaks.take() == {"g": 7, "c": 20, "s": 2}
    peaks.add(4, {"g": 1, "c": 0, "s": 0, "n": 0})
    assert peaks.take() == {"g": 1}, "the server was restarted"


@asynccontextmanager
async def served(page: admin_http.Page, flushing: float | None) -> AsyncIterator[str]:
    metrics = AsyncMock(return_value=[])
    pages = admin_http.AdminPages(unready=str, metrics=metrics, flushing=lambda: flushing, json={"/page": page})
    async with admin_http.serving_admin("127.0.0.1", 0, pages) as (listening, *_):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/page"


async def test_a_page_is_read_again_if_the_loop_went_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the event loop waits for the disk, the admin port's thread reads. The loop may go on and change it."""
    monkeypatch.setattr(admin_http, "LOOP_TIMEOUT", 0.01)
    loop_thread, read_there, threads = threading.get_ident(), threading.Event(), []

    async def page(_query: admin_http.Query) -> dict[str, Any]:
        threads.append(threading.get_ident())
        if threads[-1] != loop_thread:
            read_there.set()
            raise RuntimeError("dictionary changed size during iteration")
        return {"read": "again"}

    def get(url: str) -> Any:
        with urllib.request.urlopen(url, timeout=BOUND) as answer:
            return json.load(answer)

    async with served(page, 1.0) as url:
        answer = asyncio.get_running_loop().run_in_executor(None, get, url)
        assert read_there.wait(BOUND), "this blocks the event loop"
        assert await answer == {"schema": 1, "read": "again"}
    assert len(threads) == 2
    assert threads[0] != threads[1] == loop_thread


async def test_a_request_that_fails_is_logged_without_what_it_asked_for() -> None:
    async def page(_query: admin_http.Query) -> dict[str, Any]:
        raise ZeroDivisionError("a secret of a client")

    with structlog.testing.capture_logs() as logs:
        async with (
            served(page, None) as url,
            aiohttp.ClientSession() as session,
            session.get(f"{url}?limit=secret", headers={"X": "secret"}) as answer,
        ):
            assert (answer.status, await answer.text()) == (500, "internal error\n")
    [line] = logs
    assert (line["event"], line["log_level"]) == ("a request to the admin port failed", "error")
    assert line["fault"].startswith("ZeroDivisionError < test_admin.py:")
    assert "secret" not in str(line)


async def test_connections_to_the_admin_port_are_limited(look: Admin) -> None:
    idle = [await look.send() for _ in range(admin_dashboard.MAX_CONNECTIONS)]
    assert await look.get("/readyz") == (200, "ok\n"), "the oldest makes room"
    async with bounded("the end of the oldest"):
        assert await idle[0].read() == b""
    for reader, writer in list(zip(idle, look.writers, strict=True))[2:]:
        writer.write(HEALTHZ + b"\r\n")
        async with bounded("an answer"):
            await reader.readuntil(b"ok\n")


async def test_connections_that_do_not_read_make_room(look: Admin) -> None:
    """Their answers fill the buffers of the kernel, and then that of the server."""
    deaf = []
    for _ in range(admin_dashboard.MAX_CONNECTIONS):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", look.port))
        made.setblocking(False)
        with suppress(BlockingIOError):
            made.send(b"GET /dashboard.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
        deaf.append(made)
        async with bounded("the beginning of an answer"):
            await asyncio.get_running_loop().sock_recv(made, 1)
    for _ in range(3):
        async with bounded("an answer"):
            assert (await (await look.send(HEALTHZ + b"Connection: close\r\n\r\n")).read()).endswith(b"ok\n")
    for made in deaf:
        made.close()


async def test_connections_end_unless_they_show_a_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is ended by one of the limits: the others are longer than the test waits."""
    for module, limit in ((admin_dashboard, "REQUEST_TIMEOUT"), (admin_http, "KEEPALIVE_TIMEOUT")):
        monkeypatch.setattr(module, limit, 10 * BOUND)
    monkeypatch.setattr(admin_dashboard, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(admin_dashboard, "EVENT_SECONDS", 0.0)
    async with looked_at(tmp_path) as look, look.watch() as events:
        answer = await look.told(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")  # is answered in the same turn
        assert answer.startswith(b"HTTP/1.1 421 ")
        for _ in range(10):
            await events.until("now")
        monkeypatch.setattr(admin_dashboard, "MAX_SECONDS", 10 * BOUND)
        monkeypatch.setattr(admin_dashboard, "REQUEST_TIMEOUT", 0.0)
        for beginning in (b"", HEALTHZ):
            assert await look.told(beginning) == b"", "there was no whole request"


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_no_request_makes_the_admin_port_fail(tmp_path: Path, token: str | None) -> None:
    requests = {
        b"GET /varz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n\r\n": (401, 200),
        b"GET /events HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\n%s\r\n": (403, 403),
        b"GET /events HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n%s\r\n": (403, 403),
        b"POST /settings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 12\r\n%s\r\n{"motd":"\xff"}': (400, 403),
    }
    authorization = f"Authorization: Bearer {TOKEN}\r\n".encode() if token else b""
    async with looked_at(tmp_path, token) as look:
        for request, due in requests.items():
            answer = await look.send(request.replace(b"%s", authorization))
            async with bounded("an answer"):
                assert int((await answer.readuntil(b"\r\n")).split()[1]) == due[token is None], request


async def test_a_viewer_that_does_not_read_loses_its_place(look: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_dashboard, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(admin_dashboard, "WRITE_TIMEOUT", 0.1)
    monkeypatch.setattr(admin_dashboard, "MAX_VIEWERS", 1)
    asleep = await look.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n", limit=1000)
    assert await asleep.readexactly(9) == b"HTTP/1.1 "  # the rest fills its buffer, and then the kernel's
    async with bounded("a free place"):
        while await look.status("/events") != 200:
            pass


async def test_all_but_health_checks_need_the_token_and_no_other_site_can_use_a_page(tmp_path: Path) -> None:
    """A name that anybody can point here is refused."""
    authorized = {"Authorization": f"Bearer {TOKEN}"}
    async with looked_at(tmp_path, TOKEN) as look:
        for path in ("/metrics", "/varz", "/connz", "/limitz", "/events", "/nothing"):
            for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
                assert (await look.get(path, **wrong))[0] == 401
        assert (await look.get("/varz", Authorization=f"bearer {TOKEN}"))[0] == 200
        assert [(await look.get(path))[0] for path in ("/healthz", "/readyz")] == [200, 200]
        assert (await look.get("/healthz", Host="evil.example"))[0] == 421
        assert (await look.get("/varz", Host="evil.example", **authorized))[0] == 421
        assert (await look.get("/healthz", Host="localhost:1"))[0] == 200
        for path in ("/healthz", "/metrics", "/varz", "/connz", "/limitz", "/", "/events", "/nothing"):
            async with look.session.get(look.url + path, headers=authorized) as answer:
                assert answer.headers["X-Content-Type-Options"] == "nosniff", path
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin", path


async def test_wrong_tokens_are_logged_at_once_and_then_once_a_minute(tmp_path: Path) -> None:
    now, wrong = [0.0], WrongTokens(lambda: now[0])
    with structlog.testing.capture_logs() as logged:
        for at in (0.0, 1.0, 59.0, 60.0, 61.0, 200.0):
            now[0] = at
            wrong.refused()
        async with looked_at(tmp_path, TOKEN) as look:
            logged_before = len(logged)
            assert await look.status("/varz") == 401  # without a header: nobody guesses
            assert (await look.get("/varz", Authorization=f"Bearer {TOKEN}x"))[0] == 401
    assert [line["times"] for line in logged[:logged_before]] == [1, 3, 2]
    assert [line["event"] for line in logged[logged_before:]] == ["requests to the admin port had a wrong token"]


def test_a_port_that_other_machines_reach_needs_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    for admin in ("0.0.0.0:4010", "*:4010", "[::]:4010", "192.168.1.2:4010", "admin.example:4010"):
        with pytest.raises(Misuse, match="--admin-token-file"):
            read_admin_token(admin, None)
        assert read_admin_token(admin, str(file)) == TOKEN
    for admin in ("off", "127.0.0.1:4010", "127.1.2.3:4010", "[::1]:4010", "localhost:4010"):
        assert read_admin_token(admin, None) is None
    for content in (b"", b"short", b"0123456789 abcdef", b"\xff" * 20, b"0123456789abcdef\n0123456789abcdef"):
        file.write_bytes(content)
        with pytest.raises(Misuse, match="at least 16 printable ASCII characters"):
            read_admin_token("127.0.0.1:4010", str(file))
    with pytest.raises(Misuse, match="No such file"):
        read_admin_token("127.0.0.1:4010", str(tmp_path / "none"))


NAMES: Final = ("Relay.example.org", "prometheus-target")

ACCEPTED: Final = (
    *("relay.example.org", "RELAY.example.org", "relay.example.org:443", "prometheus-target:4010"),
    *("127.0.0.1", "127.0.0.1:4010", "[::1]", "[::1]:4010", "LocalHost", "localhost:1", "10.0.0.1"),
)
REFUSED: Final = (
    *("evil.example", "example.org", "a.relay.example.org", "relay.example.org.evil.example", "relay.example.org."),
    *("relay.example.org:", "relay.example.org:x", "relay.example.org@evil.example", "xrelay.example.org"),
    *("relay-example.org", "", ":80", "127.0.0.1.evil.example", "localhost.evil.example:80", "[x]", "::1"),
)


def test_an_address_or_a_name_of_the_setting_is_known_and_no_other() -> None:
    assert [name for name in (*ACCEPTED, *REFUSED) if known_host(name, ("", *NAMES))] == list(ACCEPTED)
    others = ("10.0.0.1:4010", "relay.example.org", "", ":80")
    assert [name for name in others if known_host(name, ("",))] == ["10.0.0.1:4010"]


def test_an_origin_must_be_the_name_that_the_request_uses() -> None:
    for origin, host in (
        ("https://relay.example.org", "relay.example.org"),
        ("https://relay.example.org", "RELAY.example.org"),
        ("https://relay.example.org", "relay.example.org:443"),
        ("http://relay.example.org", "relay.example.org:80"),
        ("http://relay.example.org:4010", "relay.example.org:4010"),
        ("http://[::1]:4010", "[::1]:4010"),
    ):
        assert same_origin(origin, host), (origin, host)
    for host in ("relay.example.org:80", "prometheus-target", "localhost"):
        assert not same_origin("https://relay.example.org", host), host
    for origin in (
        *("https://relay.example.org:8443", "https://evil.example", "https://relay.example.org.evil.example"),
        *("https://relay.example.org@evil.example", "file://relay.example.org", "null", "", "https://["),
        "https://relay.example.org:x",
    ):
        assert not same_origin(origin, "relay.example.org"), origin


def test_a_setting_that_is_no_name_is_refused() -> None:
    url, port = "https://relay.example.org", "relay.example.org:4010"
    for name in ("", "*", "*.example.org", port, url, "-a", "a.", "a b", "::1"):
        with pytest.raises(Misuse, match=r"--admin-host: '.*' is not the name of a host"):
            resolve_settings(SERVE, {"admin_host": [name]}, {}, None)
        with pytest.raises(Misuse, match=r"--admin-host: '.*' is not the name of a host"):
            resolve_settings(WAKU, {"admin_host": [name]}, {}, None)


async def test_servers_accept_their_names_and_a_page_of_the_same_name_may_change_settings(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    names = ("--admin-host", NAMES[0], "--admin-host", NAMES[1], "--admin-token-file", str(tmp_path / "token"))
    variables = {"RESTANTE_WAKU_ADMIN_HOST": ",".join(NAMES)}
    with held_port() as mailbox, held_port() as node:
        async with (
            serving(tmp_path / "mailbox", options=("--admin", f"127.0.0.1:{mailbox}", *names)),
            node_process(tmp_path / "node", "--admin", f"127.0.0.1:{node}", variables=variables),
            aiohttp.ClientSession() as session,
        ):
            for port in (mailbox, node):
                for name, status in {NAMES[0]: 200, "PROMETHEUS-TARGET:80": 200, "evil.example": 421}.items():
                    async with session.get(f"http://127.0.0.1:{port}/healthz", headers={"Host": name}) as answer:
                        assert answer.status == status, name
            for host, origin, status in (
                ("Relay.example.org:443", "https://relay.example.org", 200),
                ("relay.example.org", "https://prometheus-target", 403),
            ):
                headers = {"Host": host, "Origin": origin, "Authorization": f"Bearer {TOKEN}"}
                url = f"http://127.0.0.1:{mailbox}/settings"
                async with session.post(url, headers=headers, json={"motd": origin}) as answer:
                    assert answer.status == status, origin
