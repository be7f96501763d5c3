"""One process to a data directory; and how it ends: by a signal, or by its disk."""

import asyncio
import contextlib
import resource
import signal
import socket
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Final

from support.bounds import bounded
from support.mailbox.clients import Clients
from support.mailbox.raw_socket import PING, PONG, RawSocket, frame
from support.processes import database, evidence, serving, wal

GOING_AWAY: Final = 1001

WINDOW: Final = 1 << 16
"""Bytes that a client's kernel takes before the client reads, about."""


async def test_sigterm_answers_what_was_read_and_ends_with_everything_in_the_database_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    bodies = [str(number) for number in range(50)]
    async with serving(data) as server, Clients() as clients:
        sender = await clients.opened(server.url, "app", "a", "m")
        subscriber = await clients.opened(server.url, "app", "b", "m")
        # Another program writes: the first batch waits for it in the commit thread, the other commands in the queue.
        with contextlib.closing(sqlite3.connect(database(data), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for body in bodies:
                await sender.say("add", phase="1", body=body)
            await sender.fence()  # all of it was read
            sender.new()
            server.send(signal.SIGTERM)
            await server.logged("draining")
            assert sender.new() == []
            other.execute("ROLLBACK")
        assert await server.ended() == 0
        for client in (sender, subscriber):
            await client.ends()
            assert client.close_code == GOING_AWAY
            assert [frame["body"] for frame in client.heard] == bodies
        assert Counter(frame["type"] for frame in sender.new()) == {"ack": len(bodies), "message": len(bodies)}
    assert not wal(data).exists() or wal(data).stat().st_size == 0
    with evidence(data) as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (len(bodies),)


async def test_a_client_that_is_still_sending_receives_all_replies_and_the_close(tmp_path: Path) -> None:
    data = tmp_path / "data"
    bodies = [f"{number} ".ljust(4500, ".") for number in range(50)]  # fewer than would leave it unread
    async with serving(data) as server:
        client = await RawSocket.dial(server.port)
        # Most of what is said waits in the kernel of the server, as on a slow network.
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        client.say(type="bind", appid="app", side="a")
        client.say(type="open", mailbox="m")
        assert [(await client.hear())["type"] for _ in range(3)] == ["welcome", "ack", "ack"]
        with contextlib.closing(sqlite3.connect(database(data), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for body in bodies:
                client.say(type="add", phase="1", body=body)
            client.write(frame(PING))
            await client.writer.drain()
            assert await client.read() == (PONG, b"")  # all of it was read
            server.send(signal.SIGTERM)
            await refuses_connections(server.port)  # and takes in no more
            client.say(type="ping", ping="too late")
            await client.writer.drain()
            other.execute("ROLLBACK")
        kinds = Counter([(await client.hear())["type"] for _ in range(2 * len(bodies))])
        assert kinds == {"ack": len(bodies), "message": len(bodies)}
        assert await client.closed() == GOING_AWAY
        await client.hang_up()
        assert await server.ended() == 0


async def refuses_connections(port: int) -> None:
    """Wait until nobody listens any more."""
    async with bounded("a refused connection"):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # it waited to be accepted
                continue
            writer.close()
            with contextlib.suppress(ConnectionResetError):
                await writer.wait_closed()


async def test_a_last_checkpoint_that_fails_loses_nothing_and_is_one_sentence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data) as server, Clients() as clients:
        client = await clients.opened(server.url, "app", "a", "m")
        await client.call("close")
        # The log may not grow, nor the database: all that is left to do is to copy the one into the other.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (database(data).stat().st_size, resource.RLIM_INFINITY))
        server.send(signal.SIGTERM)
        await server.ended()
        assert not [line for line in server.log if "Traceback" in line]
    with evidence(data) as db:
        assert db.execute("SELECT count(*) FROM usage_mailboxes").fetchone() == (1,)


async def test_a_full_disk_ends_the_server_and_answers_nobody(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data) as server, Clients() as clients:
        sender = await clients.opened(server.url, "app", "a", "m")
        subscriber = await clients.opened(server.url, "app", "b", "m")
        await sender.call("add", phase="1", body="kept")
        await subscriber.until("the delivery", lambda: bool(subscriber.heard))
        before = [list(client.frames) for client in (sender, subscriber)]
        # A limit on the size of files stands for the disk: the kernel refuses to let the log grow (setrlimit(2)).
        size = wal(data).stat().st_size
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        await sender.say("add", phase="1", body="too much")
        assert await server.ended() == 1
        assert server.log[-1] == "restante: commit failed: disk I/O error"
        for client in (sender, subscriber):
            await client.ends()
            assert client.close_code is None
        assert [client.frames for client in (sender, subscriber)] == before
    async with serving(data) as server, Clients() as clients:
        back = await clients.opened(server.url, "app", "b", "m")
        await back.fence()
        assert [frame["body"] for frame in back.heard] == ["kept"]
