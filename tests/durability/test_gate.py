"""A commit that has not ended answers nobody; one that failed never will; one that could not begin is said so."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client import Metric

from restante.common import admin_http
from restante.common.admin_http import AdminPages
from restante.common.errors import StoreError
from restante.mailbox.server.commit_loop import NOT_STORED, Retention
from restante.mailbox.store import sqlite
from restante.mailbox.store.load import load
from support.bounds import BOUND, bounded
from support.mailbox.clients import Clients
from support.mailbox.inside import Inside, inside, kinds, news
from support.mailbox.picture import picture
from support.ports import held_port
from support.processes import database

APP = "app"


@contextmanager
def other_program(data: Path) -> Iterator[sqlite3.Connection]:
    """Open the database beside the server."""
    with closing(sqlite3.connect(database(data), isolation_level=None)) as other:
        yield other


# ── held ─────────────────────────────────────────────────────────────────────────────────────────


async def test_replies_come_in_order_when_the_commit_ends(tmp_path: Path) -> None:
    async with inside(tmp_path) as here, Clients() as clients:
        sender = await clients.opened(here.url, APP, "a", "m")
        subscriber = await clients.opened(here.url, APP, "b", "m")
        third = await clients.bind(here.url, APP, "c")
        await here.commit_loop.idle.wait()  # all that was said before is committed
        await news(sender, subscriber, third)
        here.gate.shut()
        await sender.say("add", phase="1", body="held")
        await here.gate.reached()
        await sender.say("add", phase="2", body="behind it")
        await subscriber.say("ping", ping=1)
        await third.say("allocate")
        await third.say("list")
        newcomer = await clients.connect(here.url)  # it is greeted: the loop turns
        await newcomer.say("bind", appid=APP, side="d")
        everybody = (sender, subscriber, third, newcomer)
        assert list(map(kinds, await news(*everybody))) == [[], [], [], ["welcome"]]

        here.gate.let_one_through()
        await here.gate.reached()
        # The first batch is told. The second is held, with what was read from it: the new nameplate in the list.
        assert list(map(kinds, await news(*everybody))) == [["ack", "message"], ["message"], [], []]

        here.gate.open()
        for client in everybody:
            await client.answers(client.said[-1])
        added, seen, listed, bound = await news(*everybody)
        assert kinds(added) == ["ack", "message"]
        assert kinds(seen) == ["message", "ack", "pong"]
        assert kinds(listed) == ["ack", "allocated", "ack", "nameplates"]
        assert listed[3]["nameplates"] == [{"id": listed[1]["nameplate"]}]
        assert kinds(bound) == ["ack"]
        assert [frame["body"] for frame in subscriber.heard] == ["held", "behind it"]


def pages_of(flushing: Callable[[], float | None]) -> AdminPages:
    """Return pages without metrics."""

    async def metrics(_ready: bool) -> list[Metric]:
        return []

    return AdminPages(unready=str, metrics=metrics, flushing=flushing)


async def test_a_server_whose_commit_does_not_end_is_healthy_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_port() as port:
        async with (
            inside(tmp_path) as here,
            Clients() as clients,
            admin_http.serving_admin("127.0.0.1", port, pages_of(lambda: here.store.flushing)),
            ClientSession() as http,
        ):

            async def ready(path: str = "/readyz") -> tuple[int, str]:
                async with bounded("an answer"), http.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.text()

            sender = await clients.opened(here.url, APP, "a", "m")
            await here.commit_loop.idle.wait()
            monkeypatch.setattr(admin_http, "LOOP_TIMEOUT", BOUND)
            monkeypatch.setattr(admin_http, "DISK_TIMEOUT", 0.0)
            assert await ready() == (200, "ok\n")
            here.gate.shut()
            added = await sender.say("add", phase="1", body="held")
            await here.gate.reached()
            assert await ready() == (503, "the disk hangs: a write has not finished for 0 s\n")
            assert await ready("/healthz") == (200, "ok\n"), "a restart repairs no disk"
            monkeypatch.setattr(admin_http, "DISK_TIMEOUT", 2 * BOUND)
            assert await ready() == (200, "ok\n"), "a commit may take its time"
            monkeypatch.setattr(admin_http, "DISK_TIMEOUT", 0.0)
            here.gate.open()
            await sender.answers(added)
            assert await ready() == (200, "ok\n")


async def test_the_health_check_reports_a_blocked_event_loop() -> None:
    with held_port() as port:

        def health() -> tuple[int, bytes]:
            connection = HTTPConnection("127.0.0.1", port, timeout=BOUND)
            with closing(connection):
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                return answer.status, answer.read()

        async with admin_http.serving_admin("127.0.0.1", port, pages_of(lambda: None)):
            assert await asyncio.to_thread(health) == (200, b"ok\n")
            with ThreadPoolExecutor() as elsewhere:
                answer = elsewhere.submit(health).result(BOUND)  # blocks this loop
            assert answer == (503, b"the server hangs: the event loop is blocked or overloaded\n")


# ── failed ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_failed_commit_ends_the_server_and_answers_nobody(tmp_path: Path) -> None:
    def refuse_commit(action: int, name: str | None, *_: str | None) -> int:
        commits = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if commits else sqlite3.SQLITE_OK

    async with inside(tmp_path) as here, Clients() as clients:
        sender = await clients.opened(here.url, APP, "a", "m")
        subscriber = await clients.opened(here.url, APP, "b", "m")
        await news(sender, subscriber)
        here.store.database.set_authorizer(refuse_commit)
        await sender.say("add", phase="1", body="lost")
        async with bounded("the end of the commit loop"):
            with pytest.raises(StoreError, match="commit failed"):
                await here.running
        await subscriber.say("ping", ping="is anybody there?")
        assert await news(sender, subscriber) == [[], []]
    with other_program(tmp_path) as other:
        assert other.execute("SELECT count(*) FROM messages").fetchone() == (0,)


async def test_a_checkpoint_that_fails_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse_checkpoint(action: int, name: str | None, *_: str | None) -> int:
        if action != sqlite3.SQLITE_PRAGMA or name != "wal_checkpoint":
            return sqlite3.SQLITE_OK
        loop.call_soon_threadsafe(tried.set)
        return sqlite3.SQLITE_DENY

    monkeypatch.setattr(sqlite, "ROWS_PER_CHECKPOINT", 1)
    async with inside(tmp_path) as here, Clients() as clients:
        sender = await clients.opened(here.url, APP, "a", "m")
        here.store.database.set_authorizer(refuse_checkpoint)
        await sender.call("add", phase="1", body="in the log")
        async with bounded("a checkpoint"):
            await tried.wait()
        await news(sender)
        # To go on is right, for the log is good; to stop because the disk is bad is, too, if it is said so.
        assert not here.running.done() or isinstance(here.running.exception(), StoreError)


# ── refused ──────────────────────────────────────────────────────────────────────────────────────


def assert_as_stored(here: Inside, other: sqlite3.Connection) -> None:
    """What the server believes is what the database holds."""
    assert picture(here.commit_loop.dispatcher.state, touches=False) == picture(load(other), touches=False)


async def test_a_busy_database_is_reported_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)
    async with inside(tmp_path) as here, Clients() as clients:
        sender = await clients.opened(here.url, APP, "a", "m")
        subscriber = await clients.opened(here.url, APP, "b", "m")
        third = await clients.bind(here.url, APP, "c")
        newcomer = await clients.connect(here.url)
        await news(sender, subscriber, third, newcomer)
        with other_program(tmp_path) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = [
                await sender.say("add", phase="1", body="refused"),
                await third.say("allocate"),
                await newcomer.say("bind", appid=APP, side="d"),
            ]
            for client, command in zip((sender, third, newcomer), refused, strict=True):
                error = await client.refused(command)
                assert (error["error"], error["orig"], error["retry"]) == (NOT_STORED, command.fields, True)
            told = await news(sender, subscriber, third, newcomer)
            assert list(map(kinds, told)) == [["ack", "error"], [], ["ack", "error"], ["ack", "error"]]
            assert_as_stored(here, other)
            other.execute("ROLLBACK")
            # The connections live on, where they were before.
            await sender.call("add", phase="1", body="stored")
            await third.call("allocate")
            await newcomer.call("bind", appid=APP, side="d")
            await news(subscriber)
            assert [frame["body"] for frame in subscriber.heard] == ["stored"]
            assert_as_stored(here, other)


async def test_a_database_that_is_busy_while_old_usage_is_deleted_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)
    async with inside(tmp_path, retention=Retention(keep_usage=1.0)) as here, Clients() as clients:
        sender = await clients.opened(here.url, APP, "a", "m")
        with other_program(tmp_path) as other:
            pruned = here.store.apply

            async def apply_and_block(*batch: Any) -> None:
                """Let the pruning's own batch through: what comes next is the dropping."""
                await pruned(*batch)
                other.execute("BEGIN IMMEDIATE")

            monkeypatch.setattr(here.store, "apply", apply_and_block)
            here.commit_loop.start_pruning()
            async with bounded("it waits"):
                await here.gate.waits_for_the_lock.wait()
            monkeypatch.undo()
            await sender.call("ping", ping="still there?")
            other.execute("ROLLBACK")
            await sender.call("add", phase="1", body="still there")
