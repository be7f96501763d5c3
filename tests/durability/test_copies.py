"""Copies of the files of a running server: which are whole, and which are not."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from support.mailbox.clients import Client, Clients
from support.proc import stopped
from support.processes import Serving, called, database, serving, wal


async def begin(clients: Clients, server: Serving) -> Client:
    return await clients.opened(server.url, "app", "a", "box")


async def add(client: Client, first: int, last: int) -> None:
    for number in range(first, last):
        await client.call("add", phase=str(number), body="held" * 200)


def restored(copy: Path, new: Path) -> int | None:
    """Return how many messages a copy of the files has, or None if it is damaged."""
    done = called("restore", copy / "restante.sqlite", "--data", new, "--json")
    if done.returncode == 0:
        messages: int = json.loads(done.stdout)["messages"]
        return messages
    assert done.returncode == 1, done.stderr
    assert "nothing was restored, because" in done.stderr or "is not a database of this" in done.stderr
    return None


async def test_a_copy_of_one_moment_has_every_acknowledged_message(tmp_path: Path) -> None:
    """As a snapshot of the file system does it: here the server is stopped while its files are copied."""
    async with serving(tmp_path / "data") as server, Clients() as clients:
        client = await begin(clients, server)
        for number in range(3):
            await add(client, 10 * number, 10 * (number + 1))
            await client.say("add", phase="on its way", body="held" * 20_000)
            server.send(signal.SIGSTOP)
            await stopped(server.pid)
            shutil.copytree(server.data, tmp_path / f"copy-{number}")
            server.send(signal.SIGCONT)
            await client.call("ping", ping="go on")
            there = restored(tmp_path / f"copy-{number}", tmp_path / f"new-{number}")
            assert there is not None
            acknowledged = 11 * number + 10
            assert acknowledged <= there <= acknowledged + 1
        await server.stop()


async def test_a_copy_of_the_database_without_its_log_lacks_what_is_only_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server, Clients() as clients:
        client = await begin(clients, server)
        await add(client, 0, 10)
        checkpoint(server)
        await add(client, 10, 20)
        (tmp_path / "copy").mkdir()
        shutil.copy(database(server.data), tmp_path / "copy")
        assert restored(tmp_path / "copy", tmp_path / "new") == 10
        await server.stop()


async def test_a_copy_of_one_file_after_the_other_is_damaged_if_a_checkpoint_is_made_between(tmp_path: Path) -> None:
    """As `cp -r` may do it: between the two files the server moves its log into the database, and begins it anew."""
    async with serving(tmp_path / "data") as server, Clients() as clients:
        client = await begin(clients, server)
        await add(client, 0, 10)
        checkpoint(server)
        await add(client, 10, 300)
        (tmp_path / "copy").mkdir()
        shutil.copy(database(server.data), tmp_path / "copy")
        checkpoint(server)
        await add(client, 300, 310)
        shutil.copy(wal(server.data), tmp_path / "copy")
        assert restored(tmp_path / "copy", tmp_path / "new") is None
        await server.stop()


def checkpoint(server: Serving) -> None:
    """Move what is in the log into the database; the next commit begins the log anew."""
    with closing(sqlite3.connect(database(server.data))) as another:
        assert another.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
