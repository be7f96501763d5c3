"""A commit that has not ended answers nobody; one that could not begin is reported."""

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from restante.common import admin_http
from restante.common.admin_http import AdminPages
from restante.mailbox.server.commit_loop import NOT_STORED, Retention
from restante.mailbox.store import sqlite
from restante.mailbox.store.load import load
from support.bounds import BOUND, bounded
from support.mailbox.clients import Clients
from support.mailbox.live import Inside, inside, kinds, news
from support.mailbox.picture import picture
from support.ports import held_port
from support.processes import database

APP = "app"


@contextmanager
def other_program(data: Path) -> Iterator[sqlite3.Connection]:
    """Open the database beside the server."""
    with closing(sqlite3.connect(database(data), isolation_level=None)) as other:
        yield other


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


async def test_the_health_check_reports_a_blocked_event_loop() -> None:
    async def metrics(_ready: bool) -> list[Metric]:
        return []

    pages = AdminPages(unready=str, metrics=metrics, flushing=lambda: None)
    with held_port() as port:

        def health() -> tuple[int, bytes]:
            with closing(HTTPConnection("127.0.0.1", port, timeout=BOUND)) as connection:
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                return answer.status, answer.read()

        async with admin_http.serving_admin("127.0.0.1", port, pages):
            assert await asyncio.to_thread(health) == (200, b"ok\n")
            with ThreadPoolExecutor() as elsewhere:
                answer = elsewhere.submit(health).result(BOUND)  # blocks this loop
            assert answer == (503, b"the server hangs: the event loop is blocked or overloaded\n")


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
