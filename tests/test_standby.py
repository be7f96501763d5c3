"""Servers that share a database: one serves, the others stand by, and clients come again after a take-over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from restante.common import admin_dashboard, admin_http
from restante.common import postgres as common_postgres
from restante.common.signals import ServerSignals
from restante.mailbox.server import standby, status_pages
from restante.mailbox.settings import Serve
from restante.mailbox.store import postgres as store_postgres
from restante.mailbox.store.postgres import NOT_SYNCHRONOUS, TTL_SECONDS, Node
from restante.mailbox.store.status import Nodes, read_nodes, render_nodes
from support.admin_port import looking
from support.bounds import BOUND, bounded
from support.documents import Document
from support.loops import on_uvloop
from support.mailbox.clients import Client, LostError
from support.mailbox.ledger import APP, Ledger
from support.ports import held_port
from support.postgres import Cluster, programs
from support.processes import RESTANTE, Serving, called, spawn

pytestmark = pytest.mark.xdist_group("postgres")


class Host:
    """A server of this process: its ports, and the task that runs it."""

    def __init__(self, server: Cluster, port: int, admin: int) -> None:
        settings = Serve(
            database=server.url, listen=(f"127.0.0.1:{port}",), admin=f"127.0.0.1:{admin}" if admin else "off"
        )
        self.url, self.admin = f"ws://127.0.0.1:{port}/v1", admin
        self._signals = ServerSignals()
        self._task = asyncio.create_task(standby._serve_in_turn(settings, lambda: (settings, []), self._signals))

    async def serves(self) -> Client:
        """Wait until it serves, and return a client of it."""
        async with bounded("a server that serves"):
            while True:
                if self._task.done():
                    self._task.result()
                try:
                    return await Client.connect(self.url)
                except LostError:
                    await asyncio.sleep(0.01)

    async def page(self, path: str) -> str:
        return await asyncio.to_thread(read_page, self.admin, path)

    async def stop(self) -> None:
        self._signals.stop.set()
        async with bounded("a server that stops"):
            await self._task


def read_page(port: int, path: str) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError:
        return ""


@asynccontextmanager
async def host(server: Cluster, *, admin: bool = False) -> AsyncIterator[Host]:
    with held_port() as port, held_port() as admin_port:
        its = Host(server, port, admin_port if admin else 0)
        try:
            yield its
        finally:
            await its.stop()


async def until(holds: Callable[[], Any]) -> None:
    async with bounded("what was waited for"):
        while not await holds():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


@on_uvloop
async def test_when_the_engine_stops_another_server_goes_on_at_once_with_its_mailboxes(postgres: Cluster) -> None:
    async with host(postgres, admin=True) as first:
        client = await first.serves()
        await client.call("bind", appid="x", side="a")
        await client.call("open", mailbox="m")
        await client.call("add", phase="1", body="00")
        assert await first.page("/readyz") == "ok\n"
        async with host(postgres, admin=True) as second:
            await until(lambda: answers(second, "/readyz", "503 standby: "))
            metrics = await second.page("/metrics")
            assert 'restante_role{role="standby"} 1.0' in metrics
            assert "restante_take_overs_total 0.0" in metrics
            with pytest.raises(LostError):
                await Client.connect(second.url)
            await first.stop()
            await client.ends()
            assert client.close_code == 1001
            again = await second.serves()
            await again.call("bind", appid="x", side="b")
            await again.call("open", mailbox="m")
            assert [message["body"] for message in again.heard] == ["00"]
            assert await second.page("/readyz") == "ok\n"
            metrics = await second.page("/metrics")
            assert 'restante_role{role="engine"} 1.0' in metrics
            assert "restante_term 2.0" in metrics
            await again.leave()


async def answers(its: Host, path: str, begin: str) -> bool:
    return (await its.page(path)).startswith(begin)


@on_uvloop
async def test_while_the_database_does_not_answer_readyz_says_so(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_http, "DISK_TIMEOUT", 0.05)
    async with host(postgres, admin=True) as its:
        client = await its.serves()
        async with postgres.connected() as other:
            async with other.transaction():
                await other.execute("LOCK TABLE restante.lease")
                hangs = "503 the database does not answer: a write has not finished for 0.05 s"
                await until(lambda: answers(its, "/readyz", hangs))
            await until(lambda: answers(its, "/readyz", "ok"))
        await client.leave()


@on_uvloop
async def test_a_server_whose_connection_is_cut_closes_its_clients_and_begins_a_new_term(postgres: Cluster) -> None:
    async with host(postgres) as its:
        client = await its.serves()
        await client.call("bind", appid="x", side="a")
        await client.call("open", mailbox="m")
        await client.call("add", phase="1", body="00")
        await asyncio.to_thread(
            postgres.rows,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'restante serve'",
        )
        await client.ends()
        assert client.close_code == 1012
        again = await its.serves()
        await again.call("bind", appid="x", side="b")
        await again.call("open", mailbox="m")
        assert [message["body"] for message in again.heard] == ["00"]
        assert await asyncio.to_thread(postgres.rows, "SELECT term FROM restante.lease") == [(2,)]
        await again.leave()


@on_uvloop
async def test_the_dashboard_of_an_engine_has_the_results_of_the_last_week(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_dashboard, "EVENT_SECONDS", 0.0)
    monkeypatch.setattr(status_pages, "RECENT_SECONDS", 0.0)
    async with host(postgres, admin=True) as its, looking(its.admin) as look:
        client = await its.serves()
        await client.call("bind", appid="x", side="a")
        await client.call("open", mailbox="m")
        await client.call("close", mood="happy")
        async with look.watch() as events, bounded("results"):
            while not (recent := (await events.until("now"))["recent"]).get("results"):
                pass
            assert recent["results"]["week"]["lonely"] == 1
            monkeypatch.setattr(common_postgres, "READ_SECONDS", 0.1)
            async with postgres.connected() as other, other.transaction():
                await other.execute("LOCK TABLE restante.usage_mailboxes")
                while "problem" not in (recent := (await events.until("now"))["recent"]):
                    pass
                assert recent["problem"].endswith(f" {postgres.url}: it did not answer in time")
                await client.call("open", mailbox="n")  # the engine goes on
        await client.leave()


@on_uvloop
async def test_the_nodes_of_a_database_are_one_that_serves_and_those_that_stand_by(postgres: Cluster) -> None:
    async with host(postgres) as first:
        await (await first.serves()).leave()
        async with host(postgres, admin=True) as second:
            await until(lambda: answers(second, "/readyz", f"503 standby: {platform.node()} has the lease"))
            async with postgres.connected() as other, bounded("a renewal"):
                await other.fetch("SELECT 1 FROM restante.lease")  # as other programs may
                while not (nodes := await asyncio.to_thread(read_nodes, postgres.url)).serves:
                    pass
    assert (nodes.engine, nodes.released, nodes.standbys) == (platform.node(), False, ["local"])


def test_nodes_says_why_nobody_serves(postgres: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert called("nodes").returncode == 2
    served_once(postgres)
    shown = called("nodes", "--database", postgres.url).stdout
    assert shown == "engine    none: a, which had term 1, has ended\nstandbys  none\n"
    monkeypatch.setattr(store_postgres, "TTL_SECONDS", 0.0)
    postgres.rows("UPDATE restante.lease SET released = false")
    shown = called("nodes", RESTANTE_DATABASE=postgres.url).stdout
    assert shown.startswith("engine    none: a, which had term 1, does not renew its lease\n")
    assert render_nodes(Nodes("a", True, False, 7, 1, ["10.0.0.2", "10.0.0.3"])) == (
        "engine    a, term 7, 1 renewal\nstandbys  10.0.0.2, 10.0.0.3"
    )


def served_once(server: Cluster) -> None:
    """Let a server begin and end."""

    async def serve() -> None:
        await (await Node(server.url, "a").take_over()).close()

    asyncio.run(serve())


def test_status_of_a_database_is_that_of_its_server(postgres: Cluster) -> None:
    assert called("status", "--database", postgres.url).returncode == 2
    served_once(postgres)
    numbers = json.loads(called("status", "--json", RESTANTE_DATABASE=postgres.url).stdout)
    assert (numbers["running"], numbers["age"], numbers["mailboxes"]) == (False, None, 0)


def test_a_backup_of_pg_dump_is_restored_by_pg_restore(postgres: Cluster, tmp_path: Path) -> None:
    async def add_and_read() -> list[str]:
        store = await Node(url, "a").take_over()
        ledger = await Ledger.begin(store)
        ledger.open("a", f"m{store.term}")
        await ledger.commit(store)
        await store.close()
        return list(ledger.state.app(APP).mailboxes)

    def run(name: str) -> None:
        block = Document("docs/mailbox/standby.md").blocks[name]
        variables = {**os.environ, "PATH": f"{programs()}:{os.environ['PATH']}", "RESTANTE_DATABASE": url}
        subprocess.run(["sh", "-euc", block], cwd=tmp_path, env=variables, check=True, timeout=BOUND)

    with postgres.user_of_the_schema() as url:
        assert asyncio.run(add_and_read()) == ["m1"]
        run("pg_dump")
        assert asyncio.run(add_and_read()) == ["m1", "m2"]
        run("pg_restore")
        assert asyncio.run(add_and_read()) == ["m1", "m2"], "its second term is another one"
        postgres.empty()
        postgres.rows("CREATE SCHEMA restante AUTHORIZATION writer")
        run("pg_restore")
        assert asyncio.run(add_and_read()) == ["m1", "m2"]


@pytest.mark.parametrize(
    ("command", "instead"),
    [("backup f", "pg_dump "), ("restore f", "pg_restore "), ("import --usage f", "restante migrate ")],
)
def test_commands_that_are_for_data_directories_say_what_to_use(command: str, instead: str) -> None:
    done = called(*command.split(), "--database", "postgresql://me:hidden@db.example/restante")
    assert (done.returncode, done.stdout, instead in done.stderr, "hidden" in done.stderr) == (2, "", True, False)


NOWHERE = "postgresql://me@db.example/restante"


@pytest.mark.parametrize("command", ["serve", "config check", "status", "export file"])
def test_a_data_directory_beside_a_database_is_refused(command: str, tmp_path: Path) -> None:
    for flags, variables in ((("--database", NOWHERE), {}), ((), {"RESTANTE_DATABASE": NOWHERE})):
        done = called(*command.split(), "--data", tmp_path, *flags, **variables)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.search("^restante: --data: .*database", done.stderr), done.stderr


def test_the_data_directory_of_an_image_is_not_used_beside_a_database(tmp_path: Path) -> None:
    """Every container has the variable."""
    (file := tmp_path / "r.toml").write_text('[serve]\ndata = "post"\n')
    variables = {"RESTANTE_DATABASE": NOWHERE, "RESTANTE_DATA": str(tmp_path)}
    assert called("config", "check", **variables).returncode == 0
    del variables["RESTANTE_DATA"]
    done = called("config", "check", "--config", file, **variables)
    assert (done.returncode, f"{file}: data: " in done.stderr) == (2, True)


def test_config_check_refuses_a_url_that_serve_cannot_use() -> None:
    for url, sentence in (
        ("postgresql://me:hidden@db@db.example/restante", "the URL of the database is malformed"),
        (f"{NOWHERE}?sslrootcert=/nowhere/ca.pem", "sslrootcert /nowhere/ca.pem: No such file"),
    ):
        done = called("config", "check", "--database", url)
        assert (done.returncode, done.stdout, sentence in done.stderr) == (2, "", True), done.stderr


def test_config_check_looks_at_the_database_and_says_what_may_be_lost(postgres: Cluster) -> None:
    check = ("config", "check", "--database", postgres.url, "--with-database")
    refused = called(*check)
    assert (refused.returncode, refused.stdout) == (2, "")
    served_once(postgres)
    checked = called(*check)
    assert (checked.returncode, checked.stdout) == (0, "the settings can be used\n")
    assert checked.stderr == f"restante: {NOT_SYNCHRONOUS}\n"


# ── processes ────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def process(server: Cluster) -> AsyncIterator[tuple[Serving, int]]:
    """Start `restante serve`, and yield it with its admin port."""
    with held_port() as port, held_port() as admin:
        addresses = ("--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}")
        words = (*RESTANTE, "serve", "--database", server.url, *addresses, "--log-format", "json")
        async with Serving(await spawn(*words, cwd=server.folder), server.folder) as running:
            running.url = f"ws://127.0.0.1:{port}/v1"
            yield running, admin


async def ready(admin: int) -> bool:
    return await asyncio.to_thread(read_page, admin, "/readyz") == "ok\n"


async def stands_by(admin: int) -> bool:
    return (await asyncio.to_thread(read_page, admin, "/readyz")).startswith("503 standby: ")


async def add(url: str, side: str, body: str) -> Client:
    client = await Client.connect(url)
    await client.call("bind", appid="x", side=side)
    await client.call("open", mailbox="m")
    await client.call("add", phase=body, body=body)
    return client


@pytest.mark.thorough
@on_uvloop
async def test_after_a_kill_and_after_a_stop_of_ten_times_its_lease_no_answered_command_is_lost(
    postgres: Cluster,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first, first_admin = await stack.enter_async_context(process(postgres))
        await until(lambda: ready(first_admin))
        second, second_admin = await stack.enter_async_context(process(postgres))
        await until(lambda: stands_by(second_admin))
        client = await add(first.url, "a", "00")
        first.kill()
        await client.ends()
        await until(lambda: ready(second_admin))
        client = await add(second.url, "b", "01")
        async with process(postgres) as (third, third_admin):
            await until(lambda: stands_by(third_admin))
            second.send(signal.SIGSTOP)
            waiting = await client.say("list")  # nothing is written for it
            await until(lambda: ready(third_admin))
            other = await add(third.url, "a", "02")
            await asyncio.sleep(10 * TTL_SECONDS)
            second.send(signal.SIGCONT)
            await client.ends()
            assert (client.close_code, waiting.answered) == (1012, False)
            await until(lambda: stands_by(second_admin))
            assert await ready(third_admin)
            late = await add(third.url, "b", "03")
            assert [message["body"] for message in late.heard] == ["00", "01", "02", "03"]
            for client in (other, late):
                await client.leave()
