"""A commit that has not ended answers nobody; and how a process ends."""

import asyncio
import resource
import signal
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest

from restante.common import admin_http
from restante.common.admin_http import AdminPages
from support.bounds import BOUND, bounded
from support.mailbox.clients import Client, Clients, Frame
from support.mailbox.live import open_live
from support.mailbox.raw_socket import PING, PONG, RawSocket
from support.mailbox.raw_socket import frame as ws_frame
from support.ports import held_port
from support.processes import database, evidence, serving, wal
from support.sqlite import LOCK, beside

APP = "app"


def taken(client: Client) -> list[Frame]:
    frames, client.frames = client.frames, []
    return frames


async def news(*clients: Client) -> list[list[Frame]]:
    for client in 3 * clients:
        await client.fence()
    return [taken(client) for client in clients]


def kinds(frames: list[Frame]) -> list[str]:
    return [frame["type"] for frame in frames]


async def test_replies_come_in_order_when_the_commit_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_live(tmp_path) as here, Clients() as clients:
        sender = await clients.opened(here.url, APP, "a", "m")
        subscriber = await clients.opened(here.url, APP, "b", "m")
        third = await clients.bind(here.url, APP, "c")
        await here.commit_loop.idle.wait()  # all that was said before is committed
        await news(sender, subscriber, third)
        apply, waiting, tickets = here.store.apply, asyncio.Event(), asyncio.Semaphore(0)

        async def apply_with_a_ticket(*batch: Any) -> None:
            waiting.set()
            await tickets.acquire()
            await apply(*batch)

        async def reached() -> None:
            async with bounded("a batch"):
                await waiting.wait()
            waiting.clear()

        monkeypatch.setattr(here.store, "apply", apply_with_a_ticket)
        await sender.say("add", phase="1", body="held")
        await reached()
        await sender.say("add", phase="2", body="behind it")
        await subscriber.say("ping", ping=1)
        await third.say("allocate")
        await third.say("list")
        newcomer = await clients.connect(here.url)  # it is greeted: the loop turns
        await newcomer.say("bind", appid=APP, side="d")
        everybody = (sender, subscriber, third, newcomer)
        assert list(map(kinds, await news(*everybody))) == [[], [], [], ["welcome"]]

        tickets.release()
        await reached()
        # The first batch is told. The second is held, with what was read from it: the new nameplate in the list.
        assert list(map(kinds, await news(*everybody))) == [["ack", "message"], ["message"], [], []]

        tickets.release()
        monkeypatch.undo()
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
    pages = AdminPages(unready=str, metrics=AsyncMock(return_value=[]), flushing=lambda: None)
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


GOING_AWAY: Final = 1001


async def test_sigterm_answers_what_was_read_and_ends_with_everything_in_the_database_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    bodies = [str(number) for number in range(50)]
    async with serving(data) as server, Clients() as clients:
        sender = await clients.opened(server.url, "app", "a", "m")
        subscriber = await clients.opened(server.url, "app", "b", "m")
        # Another program writes: the first batch waits for it in the commit thread, the other commands in the queue.
        with beside(database(data), LOCK):
            for body in bodies:
                await sender.say("add", phase="1", body=body)
            await sender.fence()  # all of it was read
            taken(sender)
            server.send(signal.SIGTERM)
            await server.logged("draining")
            assert taken(sender) == []
        assert await server.ended() == 0
        for client in (sender, subscriber):
            await client.ends()
            assert client.close_code == GOING_AWAY
            assert [frame["body"] for frame in client.heard] == bodies
        assert Counter(frame["type"] for frame in taken(sender)) == {"ack": len(bodies), "message": len(bodies)}
    assert not wal(data).exists() or wal(data).stat().st_size == 0
    with evidence(data) as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (len(bodies),)


async def test_a_client_that_is_still_sending_receives_all_replies_and_the_close(tmp_path: Path) -> None:
    data = tmp_path / "data"
    bodies = [f"{number} ".ljust(4500, ".") for number in range(50)]  # fewer than would leave it unread
    async with serving(data) as server:
        client = await RawSocket.dial(server.port)
        # Most of what is said waits in the kernel of the server, as on a slow network.
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.say(type="bind", appid="app", side="a")
        client.say(type="open", mailbox="m")
        assert [(await client.hear())["type"] for _ in range(3)] == ["welcome", "ack", "ack"]
        with beside(database(data), LOCK):
            for body in bodies:
                client.say(type="add", phase="1", body=body)
            client.write(ws_frame(PING))
            await client.writer.drain()
            assert await client.read() == (PONG, b"")  # all of it was read
            server.send(signal.SIGTERM)
            async with bounded("a refused connection, for it takes in no more"):
                with suppress(ConnectionRefusedError):
                    while True:
                        with suppress(ConnectionResetError):  # it waited to be accepted
                            (await RawSocket.connect(server.port)).cut()
            client.say(type="ping", ping="too late")
            await client.writer.drain()
        kinds = Counter([(await client.hear())["type"] for _ in range(2 * len(bodies))])
        assert kinds == {"ack": len(bodies), "message": len(bodies)}
        assert await client.closed() == GOING_AWAY
        await client.hang_up()
        assert await server.ended() == 0


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
