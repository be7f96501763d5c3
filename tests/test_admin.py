"""The mailbox server's admin port: whether it is ready, counts that agree with what was done, who may read them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
import threading
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import structlog
from prometheus_client import Metric

from restante.common import admin_connections, admin_http, admin_live, disk_probe
from restante.common.admin_access import read_admin_token
from restante.common.disk_probe import FILE
from restante.common.errors import Misuse, StoreDamaged
from restante.common.wrong_tokens import WrongTokens
from restante.mailbox.core.admission import AdmissionTerms
from restante.mailbox.core.limits import UNLIMITED
from restante.mailbox.protocol.hashcash import Mode
from restante.mailbox.server import dashboard, measurements, refusals, status_pages
from restante.mailbox.server.dashboard import DashboardPages
from restante.mailbox.server.running_settings import RunningSettings
from restante.mailbox.settings import Serve
from restante.mailbox.store import recent, sqlite
from support.bounds import BOUND, bounded
from support.events import Events, watching
from support.mailbox.clients import Clients
from support.mailbox.inside import Inside, inside
from support.manual_fields import documented, fields, sentences
from support.metrics import counts
from support.processes import database

MONITORING: Final = Path(__file__).parents[1] / "docs/monitoring.md"
TOKEN: Final = "0123456789abcdef"


class Admin:
    """Whoever looks at the admin port."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with bounded(path), self._session.get(self._url + path, headers=headers) as response:
            return response.status, await response.text()

    @property
    def port(self) -> int:
        return int(self._url.rpartition(":")[2])

    async def status(self, path: str) -> int:
        """Request a page, and read nothing of it but the status."""
        async with bounded(path), self._session.get(self._url + path) as response:
            return response.status

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Events]:
        """Read the events of the dashboard."""
        async with watching(self._session, self._url) as events:
            yield events

    async def counts(self) -> dict[str, float]:
        status, text = await self.get("/metrics")
        assert status == 200, text
        return counts(text)

    async def page(self, path: str) -> dict[str, Any]:
        status, text = await self.get(path)
        assert status == 200, text
        page: dict[str, Any] = json.loads(text)
        return page


@asynccontextmanager
async def looked_at(here: Inside, data: Path, token: str | None = None) -> AsyncIterator[Admin]:
    """Serve the server's admin port, as `serve` does."""
    settings = RunningSettings(Serve(data=str(data)), lambda: (Serve(), []), here.server)
    pages = status_pages.of(here.server, here.store, data, settings)
    async with (
        admin_http.serving_admin("127.0.0.1", 0, pages, token) as (_, port),
        aiohttp.ClientSession() as session,
    ):
        yield Admin(session, f"http://127.0.0.1:{port}")


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_counts_agree_with_what_was_done(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        sender = await clients.bind(here.url, "app", "a")
        await sender.call("claim", nameplate="4")
        receiver = await clients.bind(here.url, "app", "b")
        await receiver.call("claim", nameplate="4")
        for each in (sender, receiver):
            await each.refused(await each.say("claim", nameplate="5"))
        opened = [await clients.opened(here.url, "app", side, "m") for side in "ab"]
        for number in range(3):
            await opened[0].call("add", phase=str(number), body="00")
        for each in opened:
            await each.call("close", mailbox="m", mood="happy")
        found = await look.counts()
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
        assert {name: found[name] for name in expected} == expected
        assert found["restante_batch_commands_count"] <= sum(
            value for name, value in found.items() if name.startswith("restante_commands_total")
        )
        assert found["restante_commit_seconds_sum"] > 0


async def test_the_difficulty_in_effect_is_that_of_the_mode(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        admission = here.server.admission
        admission.load_level.steps = 3
        modes: list[tuple[Mode, int]] = [("none", 0), ("hashcash", 20), ("adaptive", 22), ("none", 0)]
        for mode, due in modes:
            admission.terms = AdmissionTerms(mode=mode)
            shown = (await look.page("/varz"))["permission"]
            assert (shown["mode"], shown["bits"], shown["difficulty"]) == (mode, 20, due)
            assert (await look.counts())["restante_permission_difficulty"] == due
        admission.load_level.steps = 0
        admission.terms = AdmissionTerms(mode="adaptive")
        assert (await look.page("/varz"))["permission"]["difficulty"] == 0


async def test_a_mailbox_whose_prune_was_undone_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        client = await clients.bind(here.url, "app", "a")
        await client.call("claim", nameplate="1")

        def prune() -> None:
            state = here.commit_loop.dispatcher.state
            state.in_grace_period = False
            for mailbox in state.mailboxes():
                mailbox.touched = -1e6
            here.commit_loop.start_pruning()

        with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            prune()
            async with bounded("an undone batch"):
                while not (await look.counts())["restante_batches_not_stored_total"]:
                    pass
        async with bounded("the prune"):
            # The undone prune may not have ended yet: then another one does not start.
            while not (found := await look.counts())["restante_mailboxes_pruned_total"]:
                prune()
        assert found["restante_mailboxes_pruned_total"] == 1
        assert found["restante_results_total mailbox pruney"] == 1
        assert found["restante_mailboxes"] == 0


async def test_strangers_cannot_add_series(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        before = set(await look.counts())
        for number in range(20):
            client = await clients.bind(here.url, f"app-{number}", f"side-{number}")
            await client.refused(await client.say(f"kind-{number}"))
            await client.call("open", mailbox=f"mailbox-{number}")
            await client.call("close", mailbox=f"mailbox-{number}", mood=f"mood-{number}")
        found = await look.counts()
        assert set(found) == before
        assert found["restante_commands_total error malformed"] == 20
        assert found["restante_commands_total ok close"] == 20


def test_the_manual_has_every_reason_of_a_refusal_and_its_limits_exist() -> None:
    rows = set(re.findall(r"^\| `([a-z_]+)` \| ", MONITORING.read_text().partition("### Reasons")[2], re.MULTILINE))
    assert {*refusals.REASONS.values(), refusals.OTHER} <= rows
    assert set(refusals.LIMITS) <= set(refusals.REASONS.values())
    assert {each for names in refusals.LIMITS.values() for each in names} <= set(UNLIMITED.__struct_fields__)


# ── ready ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_without_room_on_its_disk_is_not_ready(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        assert await look.get("/readyz") == (200, "ok\n")
        here.commit_loop.dispatcher.state.room = False
        assert await look.get("/readyz") == (503, "the disk is nearly full\n")
        assert await look.get("/healthz") == (200, "ok\n")
        assert (await look.counts())["restante_ready"] == 0


async def test_a_server_is_not_ready_until_a_batch_is_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        client = await clients.opened(here.url, "app", "a", "m")
        with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await client.refused(await client.say("add", phase="1", body="00"))
        status, words = await look.get("/readyz")
        assert status == 503
        assert words.startswith("the last batch could not be stored: ")
        found = await look.counts()
        assert found["restante_commands_total not_stored add"] == 1
        assert found["restante_commands_total ok add"] == 0
        assert found["restante_batches_not_stored_total"] == 1
        await client.call("add", phase="1", body="00")
        assert await look.get("/readyz") == (200, "ok\n")
        assert (await look.counts())["restante_commands_total ok add"] == 1


async def test_a_batch_that_was_not_stored_long_ago_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer sends no clients to a server that is not ready, so no batch would be stored again."""
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(measurements, "STORE_PROBLEM_SECONDS", 0.0)
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        client = await clients.opened(here.url, "app", "a", "m")
        with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await client.refused(await client.say("add", phase="1", body="00"))
        assert await look.get("/readyz") == (200, "ok\n")


async def test_a_probe_that_ended_while_nobody_waited_is_not_believed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_probe, "INTERVAL_SECONDS", 0.0)
    probe, file = disk_probe.DiskProbe(tmp_path), tmp_path / FILE
    os.mkfifo(file)  # to open it for writing waits for a reader
    assert (await probe.problem(0.01)).startswith("the disk hangs")
    os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
    async with bounded("the end of the probe"):
        while file.exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        file.symlink_to("/dev/full")
        while await probe.problem(0.01) != "the disk cannot be written: No space left on device":
            pass


async def test_a_disk_that_is_full_shows_without_a_client(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        (tmp_path / FILE).symlink_to("/dev/full")
        assert await look.get("/readyz") == (503, "the disk cannot be written: No space left on device\n")
        assert await look.get("/healthz") == (200, "ok\n")
        assert (await look.counts())["restante_ready"] == 0
        assert (await look.page("/varz"))["unready"] == "the disk cannot be written: No space left on device"


async def test_a_disk_that_hangs_shows_without_a_client_and_holds_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_http, "DISK_TIMEOUT", 0.05)
    hangs = (503, "the disk hangs: a write has not finished for 0.05 s\n")
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        os.mkfifo(tmp_path / FILE)  # to open it for writing waits for a reader
        assert [await look.get("/readyz") for _ in range(3)] == [hangs] * 3
        assert await look.get("/healthz") == (200, "ok\n")
        os.close(os.open(tmp_path / FILE, os.O_RDONLY | os.O_NONBLOCK))
        async with bounded("a working disk"):
            while await look.get("/readyz") != (200, "ok\n"):
                pass
        assert not (tmp_path / FILE).exists()


async def test_a_server_that_drains_is_not_ready(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        here.server.draining = True
        assert await look.get("/readyz") == (503, "draining\n")


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


async def test_connections_are_shown_in_parts_and_without_what_clients_store(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        for number in range(5):
            await clients.opened(here.url, "app", f"side-{number}", f"mailbox-{number}")
        status, text = await look.get("/connz?limit=2&offset=3")
        page = json.loads(text)
        assert (status, page["schema"], page["total"], page["limit"], page["offset"]) == (200, 1, 5, 2, 3)
        assert [each["number"] for each in page["connections"]] == [4, 5]
        assert all(each["mailbox_open"] and each["application"] == "app" for each in page["connections"])
        assert not re.search("side-|mailbox-|127.0.0.1", text)


async def test_wrong_arguments_of_a_page_are_refused(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        for query in ("limit=1001", "limit=-1", "limit=x", "offset=", "offset=12345678901", "limit=１"):  # noqa: RUF001
            status, message = await look.get(f"/connz?{query}")
            assert status == 400
            assert message.startswith(query.partition("=")[0])


async def test_limits_are_shown_with_their_use_and_refusals(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        await clients.opened(here.url, "app", "a", "m")
        here.commit_loop.dispatcher.quotas.count_refusal(refusals.TOO_BIG, "an-address")
        limits = (await look.page("/limitz"))["limits"]
        assert set(limits) == set(UNLIMITED.__struct_fields__)
        assert limits["connections"]["used"] == 1
        assert limits["stored_bytes"]["used"] == here.commit_loop.dispatcher.state.stored
        assert limits["message_bytes"]["refusals"] == {"message_bytes": 1}
        refused = (await look.page("/varz"))["refused_addresses"]
        assert refused == [{"address_id": "an-address", "reason": "message_bytes", "times": 1}]
        here.commit_loop.log_refusals()
        assert (await look.page("/varz"))["refused_addresses"] == refused, "of the last minute, too"
        here.commit_loop.log_refusals()
        assert not (await look.page("/varz"))["refused_addresses"]


async def test_the_dashboard_has_refusals_of_the_last_hour_beside_all(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        now = Counter(seconds=0)
        settings = RunningSettings(Serve(data=str(tmp_path)), lambda: (Serve(), []), here.server)
        pages = status_pages.StatusPages(here.server)
        shown = DashboardPages(pages, here.server, tmp_path, settings, lambda: now["seconds"])
        count = here.commit_loop.dispatcher.quotas.count_refusal
        count(refusals.TOO_BIG, "an-address")
        for _ in range(60):
            now["seconds"] += 60
            await shown.sample()
        for _ in range(2):
            count(refusals.MUST_BIND, "another")
        count(refusals.TOO_BIG, None)

        async def rows() -> list[tuple[Any, ...]]:
            found = (await shown.details())["refusals_by_reason"]
            return [(row["reason"], row["last_hour"], row["since_start"]) for row in found]

        assert await rows() == [("bind", 2, 2), ("message_bytes", 2, 2)]
        now["seconds"] += 60
        await shown.sample()
        assert await rows() == [("bind", 2, 2), ("message_bytes", 1, 2)]
        for _ in range(61):
            now["seconds"] += 60
            await shown.sample()
        found = await shown.details()
        assert (found["refusals_by_reason"], found["refusals_since_start"]) == ([], 4)


async def test_the_manual_has_every_field_of_the_pages_and_no_other(tmp_path: Path) -> None:
    manual = documented("Fields of `/varz` of both servers:", "the [metrics](#metrics) explain them:")
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        await clients.opened(here.url, "app", "a", "m")
        here.commit_loop.dispatcher.quotas.count_refusal(refusals.TOO_BIG, "an-address")
        here.commit_loop.measurements.latest_slow_commits.append(measurements.SlowCommit(1.0, 0.3, 4))
        counts_shown = await look.page("/varz")
        shown = set(fields(counts_shown, {"commands", "results", "refusals"}))
        assert shown == {*manual, "schema"}
        for path, [row] in (
            ("commits.latest_slow", counts_shown["commits"]["latest_slow"]),
            ("refused_addresses", counts_shown["refused_addresses"]),
        ):
            assert set(re.findall(r"`([a-z_]+)`", manual[path])) == set(row)
        page = await look.page("/connz")
        assert set(page) == {"schema", "total", "offset", "limit", "connections"}
        assert set(page["connections"][0]) == sentences("Fields of a connection of the mailbox server: ")
        [limit, *_] = (await look.page("/limitz"))["limits"].values()
        assert {"limits", *limit} == sentences("`/limitz` has ") | {"limits"}


# ── the dashboard's events, and what fails ───────────────────────────────────────────────────────


async def test_slow_queries_of_usage_records_delay_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_live, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(dashboard, "RECENT_SECONDS", 0.0)
    go_on, asked = threading.Event(), threading.Semaphore(0)
    read = recent.read

    def slow(data: Path, now: float) -> dict[str, Any]:
        asked.release()
        assert go_on.wait(BOUND)
        return read(data, now)

    monkeypatch.setattr(recent, "read", slow)
    async with inside(tmp_path) as here, Clients() as clients, looked_at(here, tmp_path) as look:
        client = await clients.opened(here.url, "app", "a", "m")
        async with look.watch() as first, look.watch() as second:
            for each in (first, second, first):
                shown = await each.until("now", unready="", recent={"reading": True})
                assert shown["connections"]["open"] == 1
            assert asked.acquire(timeout=BOUND)
            assert not asked.acquire(blocking=False), "one query at a time, whoever looks"
            assert await look.get("/readyz") == (200, "ok\n")
            await client.call("ping", ping=1)
            go_on.set()
            async with bounded("results"):
                while "results" not in (await first.until("now"))["recent"]:
                    pass


async def test_usage_records_are_read_for_a_hundredth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_live, "EVENT_SECONDS", 0.0)
    now, read, reads = [0.0], recent.read, []

    def slow(data: Path, wall: float) -> dict[str, Any]:
        reads.append(now[0])
        now[0] += 0.5
        return read(data, wall)

    monkeypatch.setattr(recent, "read", slow)
    async with inside(tmp_path) as here:
        settings = RunningSettings(Serve(), lambda: (Serve(), []), here.server)
        pages = status_pages.StatusPages(here.server)
        shown = dashboard.DashboardPages(pages, here.server, tmp_path, settings, lambda: now[0])
        for later in (0.0, 5.0, 10.0, 49.9, 50.5, 100.0, 101.0):
            now[0] = max(now[0], later)
            async with bounded("a look"):
                await shown.details()
                while shown._reading:  # noqa: ASYNC110 - a thread
                    await asyncio.sleep(0)
    assert reads == [0.0, 50.5, 101.0]


async def test_a_query_that_fails_is_said_until_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_live, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(dashboard, "RECENT_SECONDS", 0.0)
    errors: list[Exception] = [StoreDamaged("page 3 is damaged"), Misuse("there is no data"), ZeroDivisionError()]
    read = recent.read

    def fail(data: Path, now: float) -> dict[str, Any]:
        if errors:
            raise errors[0]
        return read(data, now)

    monkeypatch.setattr(recent, "read", fail)
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look, look.watch() as events:
        for words in ("page 3 is damaged", "there is no data", "an error of the server, which its log has"):
            await events.until("now", recent={"problem": words})
            errors.pop(0)
        async with bounded("results"):
            while "results" not in (await events.until("now"))["recent"]:
                pass


@asynccontextmanager
async def shown_from(pages: dict[str, admin_http.Page], flushing: Callable[[], float | None]) -> AsyncIterator[str]:
    """Serve an admin port with these JSON pages, and yield its URL."""

    async def no_metrics(_ready: bool) -> list[Metric]:
        return []

    served = admin_http.AdminPages(unready=str, metrics=no_metrics, flushing=flushing, json=pages)
    async with admin_http.serving_admin("127.0.0.1", 0, served) as (_, port):
        yield f"http://127.0.0.1:{port}"


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

    async with shown_from({"/page": page}, lambda: 1.0) as url:
        answer = asyncio.get_running_loop().run_in_executor(None, get, f"{url}/page")
        assert read_there.wait(BOUND), "this blocks the event loop"
        assert await answer == {"schema": 1, "read": "again"}
    assert len(threads) == 2
    assert threads[0] != threads[1] == loop_thread


async def test_a_request_that_fails_is_logged_without_what_it_asked_for() -> None:
    async def page(_query: admin_http.Query) -> dict[str, Any]:
        raise ZeroDivisionError("a secret of a client")

    with structlog.testing.capture_logs() as logs:
        async with (
            shown_from({"/page": page}, lambda: None) as url,
            aiohttp.ClientSession() as session,
            session.get(f"{url}/page?limit=secret", headers={"X": "secret"}) as answer,
        ):
            assert (answer.status, await answer.text()) == (500, "internal error\n")
    [line] = logs
    assert (line["event"], line["log_level"]) == ("a request to the admin port failed", "error")
    assert line["fault"].startswith("ZeroDivisionError < test_admin.py:")
    assert "secret" not in str(line)


# ── who takes too much ───────────────────────────────────────────────────────────────────────────


async def test_connections_to_the_admin_port_are_limited(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        most = admin_connections.MAX_CONNECTIONS
        idle = [await asyncio.open_connection("127.0.0.1", look.port) for _ in range(most)]
        assert await look.get("/readyz") == (200, "ok\n"), "the oldest makes room"
        async with bounded("the end of the oldest"):
            assert await idle[0][0].read() == b""
        for _, each in idle:
            each.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for reader, _ in idle[2:]:
            async with bounded("an answer"):
                await reader.readuntil(b"ok\n")
        for _, each in idle:
            each.close()


async def test_no_other_site_can_use_a_page(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look, aiohttp.ClientSession() as session:
        for path in ("/healthz", "/metrics", "/varz", "/connz", "/limitz", "/", "/events", "/nothing"):
            async with session.get(f"http://127.0.0.1:{look.port}{path}") as answer:
                assert answer.headers["X-Content-Type-Options"] == "nosniff", path
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin", path


async def test_connections_that_do_not_read_make_room(tmp_path: Path) -> None:
    """Their answers fill the buffers of the kernel, and then that of the server."""
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        deaf = []
        for _ in range(admin_connections.MAX_CONNECTIONS):
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
                reader, writer = await asyncio.open_connection("127.0.0.1", look.port)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await reader.read()).endswith(b"ok\n")
            writer.close()
        for each in deaf:
            each.close()


async def test_a_connection_ends_after_some_time_unless_it_shows_a_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_connections, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(admin_live, "EVENT_SECONDS", 0.05)
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look, look.watch() as events:
        reader, writer = await asyncio.open_connection("127.0.0.1", look.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with bounded("the end"):
            with suppress(ConnectionResetError):
                assert (await reader.read()).endswith(b"ok\n")
        writer.close()
        for _ in range(10):
            await events.until("now")


async def test_a_connection_without_a_request_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connections, "REQUEST_TIMEOUT", 0.05)
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        for beginning in (b"", b"GET /healthz HTTP/1.1\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", look.port)
            writer.write(beginning)
            async with bounded("the end"):
                assert await reader.read() == b""
            writer.close()


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
    async with inside(tmp_path) as here, looked_at(here, tmp_path, token) as look:
        for request, due in requests.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", look.port)
            writer.write(request.replace(b"%s", authorization))
            async with bounded("an answer"):
                assert int((await reader.readuntil(b"\r\n")).split()[1]) == due[token is None], request
            writer.close()


async def test_a_viewer_that_does_not_read_loses_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_live, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(admin_live, "WRITE_TIMEOUT", 0.1)
    monkeypatch.setattr(admin_live, "MAX_VIEWERS", 1)
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        reader, asleep = await asyncio.open_connection("127.0.0.1", look.port, limit=1000)
        asleep.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readexactly(9) == b"HTTP/1.1 "  # the rest fills its buffer, and then the kernel's
        async with bounded("a place"):
            while await look.status("/events") != 200:
                pass
        asleep.close()


# ── who may read ─────────────────────────────────────────────────────────────────────────────────


async def test_all_but_health_checks_need_the_token(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path, TOKEN) as look:
        for path in ("/metrics", "/varz", "/connz", "/limitz", "/nothing"):
            for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
                assert (await look.get(path, **wrong))[0] == 401
        assert (await look.get("/varz", Authorization=f"bearer {TOKEN}"))[0] == 200
        assert [(await look.get(path))[0] for path in ("/healthz", "/readyz")] == [200, 200]


async def test_a_name_that_anybody_can_point_here_is_refused(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, looked_at(here, tmp_path) as look:
        for path in ("/metrics", "/healthz"):
            assert (await look.get(path, Host="evil.example"))[0] == 421
            assert (await look.get(path, Host="localhost:1"))[0] == 200


async def test_wrong_tokens_are_logged_at_once_and_then_once_a_minute(tmp_path: Path) -> None:
    now, wrong = [0.0], WrongTokens(lambda: now[0])
    with structlog.testing.capture_logs() as logged:
        for at in (0.0, 1.0, 59.0, 60.0, 61.0, 200.0):
            now[0] = at
            wrong.refused()
        async with inside(tmp_path) as here, looked_at(here, tmp_path, TOKEN) as look:
            logged_before = len(logged)
            assert await look.status("/varz") == 401  # without a header: nobody guesses
            assert (await look.get("/varz", Authorization=f"Bearer {TOKEN}x"))[0] == 401
    assert [line["times"] for line in logged[:logged_before]] == [1, 3, 2]
    assert [line["event"] for line in logged[logged_before:]] == ["requests to the admin port had a wrong token"]


@pytest.mark.parametrize("admin", ["0.0.0.0:4010", "*:4010", "[::]:4010", "192.168.1.2:4010", "admin.example:4010"])
def test_a_port_that_other_machines_reach_needs_a_token(tmp_path: Path, admin: str) -> None:
    with pytest.raises(Misuse, match="--admin-token-file"):
        read_admin_token(admin, None)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_admin_token(admin, str(file)) == TOKEN


def test_a_port_on_loopback_needs_no_token() -> None:
    for admin in ("off", "127.0.0.1:4010", "127.1.2.3:4010", "[::1]:4010", "localhost:4010"):
        assert read_admin_token(admin, None) is None


def test_a_token_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in (b"", b"short", b"0123456789 abcdef", b"\xff" * 20, b"0123456789abcdef\n0123456789abcdef"):
        file.write_bytes(content)
        with pytest.raises(Misuse, match="at least 16 printable ASCII characters"):
            read_admin_token("127.0.0.1:4010", str(file))
    with pytest.raises(Misuse, match="No such file"):
        read_admin_token("127.0.0.1:4010", str(tmp_path / "none"))
