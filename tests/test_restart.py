"""A restart that clients do not notice: what is handed over, and when the process goes on as it is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch
from urllib.parse import urlsplit

import msgspec
import pytest
from msgspec.structs import replace

from client.live import APP_ID
from restante.client import OfferedFile, TransitOptions, Wormhole, receive, send_file
from restante.common import lock_file
from restante.common.data_directory import lock_data_directory
from restante.common.errors import PeerError
from restante.common.handover import MFD_NOEXEC_SEAL, VARIABLE, Head, take, waits_for_disk, write
from restante.common.listening import parse_listen_address
from restante.common.lock_file import is_locked
from restante.common.restart import ANSWER_FILE, Answer, Running
from restante.common.service_manager import ServiceManager
from restante.common.signals import ServerSignals, _listening_for_signals
from restante.mailbox.core.connection_state import LOST_SOCKET, ConnectionState, ReceivedText
from restante.mailbox.core.fair_queue import FairQueue
from restante.mailbox.core.limits import MIB, UNLIMITED, Limits
from restante.mailbox.core.model import Now
from restante.mailbox.protocol.hashcash import Demand
from restante.mailbox.server import receive_buffer
from restante.mailbox.server import restart as restart_module
from restante.mailbox.server.commit_loop import CommitLoop, SlowCommit
from restante.mailbox.server.connection import MAX_FRAMES_PER_SECOND
from restante.mailbox.server.handover import Body, leave
from restante.mailbox.server.restart import CHECK_SECONDS, CONNECTIONS_CLOSED, Restart
from restante.mailbox.settings import Serve
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import SqliteStore
from support.bounds import bounded
from support.certificates import Certificate
from support.loops import meanwhile, on_uvloop, until
from support.mailbox.clients import Clients
from support.mailbox.live import LiveServer, open_live
from support.mailbox.raw_socket import CLOSE, CONTINUATION, PING, PONG, TEXT, RawSocket, frame, handshake
from support.processes import RESTANTE, Serving, altered, called, restante, serving, spawn

LIMITS = replace(UNLIMITED, message_bytes=MIB, mailbox_bytes=64 * MIB)
KERNEL = "what the kernel brings"


def command(**message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


# ── what is read and written ──────────────────────────────────────────────────────────────────────


@on_uvloop
async def test_a_frame_may_be_cut_anywhere(tmp_path: Path) -> None:
    message = command(type="ping", ping="0123456789" * 20)
    async with open_live(tmp_path) as live:
        socket = await live.enter()
        for cut in (1, 2, 3, 4, 7, 8, 100, len(message) - 1):
            socket.write(command(type="ping", ping=cut), message[:cut])
            assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
            await until(KERNEL, lambda cut=cut: live.latest.unfinished_bytes == cut)  # type: ignore[misc]
            await live.hand_over()
            socket.write(message[cut:])
            assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"], cut
        await socket.leave()


@on_uvloop
async def test_a_connection_with_a_frame_in_a_buffer_that_is_not_known_is_closed_with_1012(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live:
        begun, other = await live.enter(), await live.enter()
        begun.write(command(type="ping", ping=1)[:9])
        await until(KERNEL, lambda: any(socket.unfinished_bytes for socket in live.server.sockets()))
        with patch.object(receive_buffer, "PICOWS_VERSION", "2.3.2"):
            await live.hand_over()
        assert await begun.closed() == 1012
        begun.cut()
        await other.is_served()
        await other.leave()


@on_uvloop
async def test_a_large_message_in_fragments_goes_on(tmp_path: Path) -> None:
    body = json.dumps({"type": "ping", "ping": "x" * 500_000}).encode()
    first, second = frame(TEXT, body[:200_000], fin=False), frame(CONTINUATION, body[200_000:])
    async with open_live(tmp_path) as live:
        socket = await live.enter()
        socket.write(first, second[:150_000])
        await until(KERNEL, lambda: live.latest.unfinished_bytes == 150_000)
        held = live.server.reading_bytes
        await live.hand_over()
        assert (live.latest.fragments.size, live.latest.unfinished_bytes) == (200_000, 150_000)
        assert 200_000 <= live.server.reading_bytes <= held
        socket.write(second[150_000:])
        assert (await socket.hear())["type"] == "ack"
        assert len((await socket.hear())["pong"]) == 500_000
        await socket.leave()


@on_uvloop
async def test_what_the_kernel_has_not_taken_is_written_once(tmp_path: Path) -> None:
    number, body = 60, "x" * 100_000
    async with open_live(tmp_path, limits=LIMITS) as live:
        adder, slow = await live.member("a"), await live.enter()
        for phase in range(number):
            adder.say(type="add", phase=str(phase), body=body)
        while (await adder.hear()).get("phase") != str(number - 1):
            pass
        slow.say(type="bind", appid="x", side="b")
        slow.say(type="open", mailbox="m")
        await until(KERNEL, lambda: live.latest._owed)
        for _ in range(2):
            await until(KERNEL, lambda: (record := live.latest.record()) and record.unwritten and record.owed)
            await live.hand_over()
        heard = [await slow.hear() for _ in range(number + 2)][2:]
        assert [(message["phase"], message["body"]) for message in heard] == [(str(p), body) for p in range(number)]
        for socket in (adder, slow):
            await socket.leave()


@on_uvloop
async def test_pings_are_answered_and_counted_on(tmp_path: Path) -> None:
    async with open_live(tmp_path, limits=replace(LIMITS, commands=1e6, commands_at_once=1_000_000)) as live:
        socket = await live.enter()
        socket.write(*(frame(PING, b"flood") for _ in range(MAX_FRAMES_PER_SECOND + 10)))
        await until(KERNEL, lambda: live.server.slowed)
        second = live.server.second
        await live.hand_over()
        assert (live.server.second, live.server.slowed) == (second, [live.latest])
        socket.write(frame(PING, b"last"))
        live.server.tick()
        while (await socket.read()) != (PONG, b"last"):
            pass
        await socket.leave()


@on_uvloop
async def test_a_client_that_is_being_closed_is_not_handed_over(tmp_path: Path) -> None:
    """Its code and its mailbox are given up as if it had gone."""
    async with open_live(tmp_path) as live:
        closing, other = await live.member("a"), await live.member("b")
        for _ in range(2):
            await other.hear()
        socket = next(socket for socket in live.server.sockets() if socket.connection.session.side == "a")
        socket._close(1008, "test")
        await live.hand_over()
        await live.commit_loop.idle.wait()
        assert [socket.connection.session.side for socket in live.server.sockets()] == ["b"]
        assert len(live.commit_loop.dispatcher.connections) == 1
        closing.cut()
        await other.is_served()
        await other.leave()


@on_uvloop
async def test_a_file_arrives_although_the_server_restarts_after_each_command(tmp_path: Path) -> None:
    """And while the file goes. Each client has one connection to the server."""
    (parcel := tmp_path / "parcel").write_bytes(os.urandom(16 * MIB))
    (folder := tmp_path / "to").mkdir()
    transit, sent, restarts = TransitOptions(relays=()), list[int](), [(0, 0)]
    async with open_live(tmp_path / "data") as live, AsyncExitStack() as stack:

        def news() -> tuple[int, int]:
            return sum(live.commit_loop.measurements.carried_out.values()), len(sent)

        async def restart() -> None:
            while True:
                await until("an answer, or more of the file", lambda: news() != restarts[-1])
                restarts.append(news())
                await live.hand_over()

        sender, receiver = (Wormhole.create(APP_ID, server=live.url) for _ in range(2))
        await stack.enter_async_context(meanwhile(restart()))
        async with bounded("the end of both"), sender, receiver:
            await receiver.set_code(await sender.allocate_code())
            sending = asyncio.create_task(send_file(sender, parcel, transit=transit, on_progress=sent.append))
            offered = await receive(receiver, transit)
            assert isinstance(offered, OfferedFile)
            arrived = await offered.accept(folder / "arrived")
            await sending
        assert arrived.read_bytes() == parcel.read_bytes()
        assert live.commit_loop.dispatcher.connections_seen == 2
    assert len(restarts) > 10


# ── what is counted ───────────────────────────────────────────────────────────────────────────────

PROXY = ("127.0.0.0/8",)
VISITOR = {"X_Real_IP": "192.0.2.7", "X_Real_Port": "1"}


async def refusal(socket: RawSocket, **message: Any) -> str:
    """Return the text of the error that a command is answered with."""
    socket.say(**message)
    while (answer := await socket.hear())["type"] != "error":
        pass
    text: str = answer["error"]
    return text


@on_uvloop
async def test_the_next_process_is_left_what_the_one_before_was(tmp_path: Path) -> None:
    """Everything that one hand-over has, the next one has, too. No field has the value that a new server has."""
    async with open_live(tmp_path, limits=Limits(), trusted=PROXY) as live:
        live.clock.now, live.server.second = 5.0, 7
        visitors = [VISITOR, {"X_Real_IP": "198.51.100.7", "X_Real_Port": "1"}, VISITOR, VISITOR]
        sockets = first, second, third, over_rate = [await live.enter(**visitor) for visitor in visitors]
        for side, socket in (("a", first), ("b", second)):
            socket.say(type="bind", appid="x", side=side)
            socket.say(type="open", mailbox="m")
        first.say(type="allocate")
        first.say(type="add", phase="p", body="00")
        second.say(type="claim", nameplate="77")
        third.say(type="bind", appid="x", side="c")
        live.commit_loop.trace = None
        for socket in sockets:
            socket.write(frame(PING, b"fence"))
            while (await socket.read()) != (PONG, b"fence"):
                pass
        async with bounded("the end of the batch"):
            await live.commit_loop.idle.wait()
        set_all(live)
        second.write(command(type="ping", ping=1)[:9])
        await until(KERNEL, lambda: any(socket.unfinished_bytes for socket in live.server.sockets()))
        over_rate.say(type="ping", ping=1)
        await until(KERNEL, lambda: not live.commit_loop.queue.empty and not len(live.commit_loop.queue))
        live.commit_loop.refuse(live.latest.connection, PeerError(1008, "text", hint="hint", reason="reason"))
        for _ in range(3):
            await live.server.hold(1.0)
            before = leave(live.server, closed=1)
            await live.server.release()
            await live.hand_over()
            await live.server.hold(1.0)
            after = leave(live.server, closed=1)
            await live.server.release()
            assert comparable(after) == comparable(before)
        assert unset(before) == WITHOUT_VALUE
        assert before.commit_loop.measurements.carried_out["bind"] == 3
        assert [len(quota.nameplates) for quota in before.registry.quotas] == [2, 2]
        assert before.commit_loop.next_pruning == 1e6
        assert (before.second, before.load, before.demanded, before.changes) == (9, (1, 2, 3.0, 4), 5, 6)
        assert [record.unbound_since for record in before.connections] == [7] * 4
        assert [record.departing_commands for record in before.connections] == [0, 0, 3, 0]
        for socket in sockets:
            socket.cut()


WITHOUT_VALUE = {
    "CommitLoopRecord.deferred",  # it is stored before, unless the store fails
    *(
        f"SocketRecord.{name}"
        for name in ("fragments", "held_since", "ignored", "owed", "pending_close", "pong", "slowed", "unwritten")
    ),
}
"""Fields that are empty when nothing is under way."""


def set_all(live: LiveServer) -> None:
    """Give a value to what has none yet. The third of four connections is refused, and the last is over its rate."""
    server, commit_loop, admission = live.server, live.commit_loop, live.server.admission
    dispatcher, measurements = commit_loop.dispatcher, commit_loop.measurements
    server.second, server.failed_handshakes = 9, 8
    admission.load_level.state, admission.demanded, admission.changes = (1, 2, 3.0, 4), 5, 6
    for quota in admission.addresses.quotas.values():
        quota.demanded = 7
        quota.remember_nameplate(1000)
        for bucket in quota._buckets:
            bucket.level = 1.0, 2.0
    dispatcher.quotas.visited, dispatcher.quotas.visitors = 1, 2
    counts = dispatcher.quotas.refusal_counts
    counts.since_start["a"], counts.this_minute["b", "x"], counts.lately["c", "y"] = 1, 2, 3
    commit_loop.next_pruning, commit_loop._left_out, commit_loop._service_at_start = 1e6, 3, 2.0
    measurements.latest_slow_commits.append(SlowCommit(1.0, 2.0, 3))
    measurements.prune_seconds = 4.0
    for number, name in enumerate(measurements._NUMBERS, 1):
        setattr(measurements, name, number)
    for number, kind in enumerate(measurements.not_carried_out, 1):
        measurements.not_carried_out[kind] = number
    for number, ended in enumerate(measurements.results, 1):
        measurements.results[ended] = number
    for mailbox in dispatcher.state.mailboxes():
        dispatcher.state.unsaved[mailbox.key] = mailbox
    *_, third, last = sorted(dispatcher.connections, key=lambda connection: connection.number)
    third.verdict, third.departing_commands = PeerError(1008, "text"), 3
    third.session = replace(third.session, demand=Demand(20, "resource"), released=True, closed=True)
    client = next(client for client in server.sockets() if client.connection is third)
    client.ignores_input, client._unfinished_at_ping = True, 1
    assert last.backlog.rate_limiter is not None
    last.backlog.rate_limiter.debts = 1e6, 2e6, True


def unset(body: Body) -> set[str]:
    """Return the fields that are empty or zero in all records of their kind. A tuple is if one of its items is."""
    names, with_value = set[str](), set[str]()

    def has_value(value: Any) -> bool:
        if isinstance(value, msgspec.Struct):
            fields = {f"{type(value).__name__}.{name}": getattr(value, name) for name in value.__struct_fields__}
            names.update(fields)
            with_value.update([name for name, field in fields.items() if has_value(field)])
            return True
        if isinstance(value, dict | list | tuple):
            items = [has_value(item) for item in (value.values() if isinstance(value, dict) else value)]
            return all(items) if isinstance(value, tuple) else any(items)
        return bool(value)

    has_value(body)
    return names - with_value


def comparable(body: Body) -> Any:
    """Return what must be the same in the next process."""
    plain = msgspec.to_builtins(body)
    plain["state"]["grace_sides"].sort()
    for record in plain["connections"]:
        del record["socket"]["descriptor"]
    return plain


@on_uvloop
async def test_limits_of_an_address_hold(tmp_path: Path) -> None:
    limits = replace(
        LIMITS,
        address_connections=3,
        address_connects=60.0,
        address_connects_at_once=4,
        address_nameplates=2,
        address_claims=6.0,
        address_claims_at_once=3,
    )
    async with open_live(tmp_path, limits=limits, trusted=PROXY) as live:
        sockets = [await live.enter(**VISITOR) for _ in range(3)]
        for number, socket in enumerate(sockets):
            socket.say(type="bind", appid="x", side=str(number))
            await socket.hear()
        for socket in sockets[:2]:
            socket.say(type="allocate")
            assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "allocated"]
        await live.hand_over()
        assert "nameplates" in await refusal(sockets[2], type="allocate")
        await live.hand_over()
        refused = await live.dial(**VISITOR)
        assert (await refused.hear())["type"] == "welcome"
        assert "connections" in (await refused.hear())["error"]
        sockets[0].say(type="release", nameplate="1")
        await live.hand_over()
        other = await live.enter(X_Real_IP="198.51.100.7", X_Real_Port="1")
        await other.is_served()
        for socket in (*sockets, refused, other):
            socket.cut()


@on_uvloop
async def test_a_client_that_is_refused_after_it_was_admitted_is_counted_until_it_ends(tmp_path: Path) -> None:
    async with open_live(tmp_path, limits=replace(LIMITS, bind=1.0), trusted=PROXY) as live:
        live.server.cleanup_seconds = 3600.0
        socket = await live.enter(**VISITOR)
        for _ in range(3):
            live.server.tick()
        assert "bind" in (await socket.hear())["error"]
        await live.hand_over()
        (quota,) = live.server.admission.addresses.quotas.values()
        assert (quota.connections, len(live.server.admitted)) == (1, 1)
        socket.cut()
        await until(KERNEL, lambda: not live.server.sockets())
        assert (quota.connections, len(live.server.admitted)) == (0, 0)


@on_uvloop
async def test_who_is_over_its_rate_waits_as_long_as_before(tmp_path: Path) -> None:
    async with open_live(tmp_path, limits=replace(LIMITS, commands=1.0, commands_at_once=4)) as live:
        socket = await live.enter()
        for number in range(10):
            socket.say(type="ping", ping=number)
        heard = [await socket.hear() for _ in range(10)]
        await until(KERNEL, lambda: not live.commit_loop.queue.empty and not len(live.commit_loop.queue))
        waiting = len(live.commit_loop.queue.entries())
        assert waiting == 5
        await live.hand_over()
        await until(KERNEL, lambda: not len(live.commit_loop.queue))
        assert len(live.commit_loop.queue.entries()) == waiting
        live.clock.now += 100.0
        live.commit_loop._wake_up()
        heard += [await socket.hear() for _ in range(10)]
        assert [message["pong"] for message in heard if "pong" in message] == list(range(10))
        await socket.leave()


def test_what_waits_is_left_once_however_often_its_connection_was_over_its_rate() -> None:
    queue, connection = FairQueue(), ConnectionState(LOST_SOCKET)
    entry = ReceivedText(connection, Now(0.0, 0.0), "text", 4, 4, long=False)
    connection.backlog.waiting.append(entry)
    queue._waiting[connection] = None
    queue._park(connection, 1.0)
    queue._unpark(connection)
    queue._park(connection, 2.0)
    assert queue.entries() == [entry]


# ── the process ───────────────────────────────────────────────────────────────────────────────────


async def test_who_does_not_read_gets_all_of_it_later_and_once(tmp_path: Path) -> None:
    """Some of it is in the kernel, some in the transport, and some waits."""
    number, size = 120, 100_000
    async with serving(tmp_path / "data") as server, Clients() as clients:
        adder = await clients.opened(server.url, "x", "a", "m")
        for phase in range(number):
            await adder.call("add", phase=str(phase), body=f"{phase:05}" * (size // 5))
        slow = await RawSocket.dial(server.port)
        slow.say(type="bind", appid="x", side="b")
        slow.say(type="open", mailbox="m")
        assert [(await slow.hear())["type"] for _ in range(3)] == ["welcome", "ack", "ack"]
        await server.restarts(2)
        heard = [await slow.hear() for _ in range(number)]
        assert [(frame["phase"], frame["body"]) for frame in heard] == [
            (str(phase), f"{phase:05}" * (size // 5)) for phase in range(number)
        ]
        await slow.is_served()
        await slow.leave()
        await server.stop()


async def test_a_flood_is_answered_in_order_and_once(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "data", options=("--limit", "commands=0", "--limit", "bytes=0")) as server,
        Clients() as clients,
    ):
        other = await clients.opened(server.url, "x", "a", "m")
        flood = await RawSocket.dial(server.port)
        await flood.hear()
        sent, heard, over = 0, 0, asyncio.Event()

        async def send() -> None:
            nonlocal sent
            while not over.is_set():
                flood.write(*(command(type="ping", ping=sent + index) for index in range(100)))
                sent += 100
                await flood.writer.drain()
                while sent - heard > 2000 and not over.is_set():  # noqa: ASYNC110 - it may not owe more
                    await asyncio.sleep(0)

        async def read() -> None:
            nonlocal heard
            while not (sending.done() and heard == sent):
                frame = await flood.hear()
                if frame["type"] == "pong":
                    assert frame["pong"] == heard
                    heard += 1

        sending = asyncio.create_task(send())
        reading = asyncio.create_task(read())
        await server.restarts(2)
        await other.call("add", phase="1", body="")
        over.set()
        await sending
        await reading
        await flood.leave()
        await server.stop()


async def test_a_restart_that_cannot_be_says_why_and_disturbs_nobody(tmp_path: Path) -> None:
    (file := tmp_path / "r.toml").write_text("")
    async with serving(tmp_path / "data", options=("--config", str(file))) as server, Clients() as clients:
        client = await clients.opened(server.url, "x", "a", "m")
        file.write_text("[serve]\nmotto = 1\n")
        outcome = await asyncio.to_thread(restante, "restart", "--data", server.data)
        assert outcome.returncode == 1
        assert "the server was not restarted and goes on: the installed version cannot go on" in outcome.stderr
        assert "motto" in outcome.stderr
        await server.logged("the server was not restarted and goes on")
        await client.call("add", phase="1", body="")
        file.write_text('[serve]\nmotd = "new"\n')
        outcome = await asyncio.to_thread(restante, "restart", "--data", server.data, "--json")
        assert outcome.returncode == 0, outcome
        answer = json.loads(outcome.stdout)
        assert (answer["error"], answer["connections"]) == ("", 1)
        assert json.loads((server.data / ANSWER_FILE).read_bytes()) == answer
        await client.call("add", phase="2", body="")
        newcomer = await clients.bind(server.url, "x", "b")
        assert newcomer.frames[0]["welcome"]["motd"] == "new"
        await server.stop()
    outcome = await asyncio.to_thread(restante, "restart", "--data", server.data)
    assert outcome.returncode == 2
    assert "no server of this machine uses" in outcome.stderr


@asynccontextmanager
async def restart_of(live: LiveServer, data: Path) -> AsyncIterator[tuple[Restart, ServerSignals]]:
    """Yield what restarts the server up to the last call, execve(2), which fails, and its signals."""
    assert live.store.directory_lock is not None
    locks = live.store.directory_lock.descriptors
    with (
        _listening_for_signals(lambda _name: None) as signals,
        patch.object(Restart, "_check", AsyncMock()),
        patch.object(os, "execve", side_effect=OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC))),
    ):
        yield Restart(live.server, Serve(data=str(data)), locks, {}, ServiceManager({}), signals, None), signals


async def failure(restart: Restart, data: Path) -> str:
    """Restart in vain, and return why."""
    restart.begin()
    await until("the answer", (data / ANSWER_FILE).exists)
    return msgspec.json.decode((data / ANSWER_FILE).read_bytes(), type=Answer).error


@on_uvloop
async def test_a_thread_that_waits_for_the_disk_ends_the_restart_and_not_the_server(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live, restart_of(live, tmp_path) as (restart, _):
        socket = await live.enter()
        with (
            patch.object(restart_module, "waits_for_disk", side_effect=chain([False], repeat(True))),
            patch.object(restart_module, "LAST_SECONDS", 0.0),
        ):
            assert "the disk does not answer" in await failure(restart, tmp_path)
        await socket.is_served()
        await socket.leave()


@on_uvloop
async def test_a_signal_to_stop_that_comes_while_clients_wait_ends_the_restart(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live, restart_of(live, tmp_path) as (restart, signals):
        socket = await live.enter()
        hold = live.server.hold

        async def hold_and_stop(seconds: float) -> int:
            closed = await hold(seconds)
            signal.pthread_kill(signal_threads()[0], signal.SIGTERM)
            await until("the signal", lambda: signals.stopping)
            return closed

        with patch.object(live.server, "hold", hold_and_stop):
            assert (await failure(restart, tmp_path)).endswith("it stops")
        await signals.stop.wait()
        await socket.is_served()
        await socket.leave()


@on_uvloop
async def test_a_program_that_cannot_be_executed_leaves_all_as_it_was(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live, restart_of(live, tmp_path) as (restart, _):
        socket = await live.enter()
        before = inherited_descriptors()
        assert "Exec format error" in await failure(restart, tmp_path)
        assert inherited_descriptors() == before
        await socket.is_served()
        await socket.leave()


def inherited_descriptors() -> set[int]:
    """Return what another program would inherit."""
    descriptors = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the list
            descriptors |= {int(file.name)} if os.get_inheritable(int(file.name)) else set()
    return descriptors


@on_uvloop
async def test_a_disk_that_hangs_ends_the_restart_and_not_the_server(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live, restart_of(live, tmp_path) as (restart, _):
        socket = await live.enter()
        flushed, commit = asyncio.Event(), live.store._commit

        async def hang(*, small: bool) -> None:
            await flushed.wait()
            await commit(small=small)

        live.store._commit = hang  # type: ignore[method-assign]
        socket.say(type="bind", appid="x", side="a")
        socket.say(type="open", mailbox="m")
        await until(KERNEL, lambda: live.commit_loop.dispatcher.changes)
        with patch.object(restart_module, "HOLD_SECONDS", 0.01):
            assert "the disk does not answer" in await failure(restart, tmp_path)
        flushed.set()
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "ack"]
        await socket.is_served()
        await (await live.enter()).leave()
        await socket.leave()


async def test_a_server_does_not_restart_on_another_data_directory(tmp_path: Path) -> None:
    (file := tmp_path / "r.toml").write_text(f'[serve]\ndata = "{tmp_path / "old"}"\n')
    listen = ("--listen", "127.0.0.1:0", "--admin", "off", "--log-format", "json")
    await SqliteStore.open(tmp_path / "new").close()
    process = await spawn(*RESTANTE, "serve", "--config", str(file), *listen)
    async with Serving(process, tmp_path / "old") as server:
        await server.logged("listening")
        file.write_text(f'[serve]\ndata = "{tmp_path / "new"}"\n')
        server.send(signal.SIGUSR2)
        refused = await server.logged("the server was not restarted and goes on")
        assert "is not the data directory of the running server" in refused["reason"]
        await server.stop()


@on_uvloop
async def test_a_batch_that_is_undone_forgets_nobody_who_was_there_at_the_restart(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live:
        state = live.commit_loop.dispatcher.state
        closing, socket = await live.member("a"), await live.member("b")
        for _ in range(2):
            await socket.hear()
        state.end_grace_period()
        next(each for each in live.server.sockets() if each.connection.session.side == "a")._close(1008, "test")
        await live.hand_over()
        state = live.commit_loop.dispatcher.state
        assert state.in_grace_period
        state.undo_batch()
        assert ("x", "b") in state.record().grace_sides
        closing.cut()
        await socket.leave()


@on_uvloop
async def test_who_is_closed_because_the_next_process_has_less_room_is_told_so(tmp_path: Path) -> None:
    limits = replace(LIMITS, commands=1.0, commands_at_once=1)
    async with open_live(tmp_path, limits=limits) as live:
        small, large = await live.enter(), await live.enter()
        small.write(frame(TEXT, b"x" * 200_000, fin=False))
        for _ in range(7):
            large.say(type="ping", ping="x" * 50_000)
        await until(KERNEL, lambda: live.server.reading_bytes >= 200_000)
        await until(KERNEL, lambda: live.commit_loop.queue.held_bytes >= 250_000)
        open_again = live._open_again

        async def open_with_less_room(service: float) -> CommitLoop:
            live.server.policy.limits = replace(limits, held_bytes=350_000)
            return await open_again(service)

        with patch.object(live, "_open_again", open_with_less_room):
            await live.hand_over()
        while (told := await large.read())[0] == TEXT:
            pass
        assert (told[0], int.from_bytes(told[1][:2])) == (CLOSE, 1008)
        small.write(frame(PING, b"still there"))
        assert await small.read() == (PONG, b"still there")
        for socket in (small, large):
            socket.cut()


@on_uvloop
async def test_who_has_still_to_be_named_by_its_proxy_is_awaited(tmp_path: Path) -> None:
    async with open_live(tmp_path, trusted=PROXY) as live:
        (address,) = await live.server.listeners.listen(parse_listen_address("proxy:127.0.0.1:0", "--listen"))
        socket = await RawSocket.connect(int(address.rpartition(":")[2]))
        await until(KERNEL, lambda: live.server.unnamed)
        holding = asyncio.create_task(live.server.hold(60.0))
        socket.write(b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n", handshake())
        await holding
        assert (live.server.unnamed, len(live.server.sockets())) == (0, 1)
        await live.server.release()
        socket.cut()


@on_uvloop
async def test_few_descriptors_do_not_end_a_server_that_has_connections(tmp_path: Path) -> None:
    async with open_live(tmp_path) as live:
        socket = await live.enter()
        live.server.listeners._descriptors = 0  # those that the next process may open
        await live.hand_over()
        await socket.is_served()
        await live.server.listeners.check_descriptors(1)
        assert not live.server.listeners._accepting
        await socket.leave()


@pytest.mark.parametrize("setting", ['admin = "{}"', 'listen = ["127.0.0.1:0", "{}"]'])
async def test_a_server_does_not_restart_on_an_address_that_is_taken(setting: str, tmp_path: Path) -> None:
    before = {"admin": 'admin = "off"', "listen": 'listen = ["127.0.0.1:0"]'}
    (file := tmp_path / "r.toml").write_text("\n".join(["[serve]", *before.values()]))
    command = (*RESTANTE, "serve", "--config", str(file), "--data", str(tmp_path / "data"), "--log-format", "json")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        after = setting.format(f"127.0.0.1:{taken.getsockname()[1]}")
        async with Serving(await spawn(*command), tmp_path / "data") as server:
            await server.logged("listening")
            file.write_text("\n".join(["[serve]", *(before | {setting.split(maxsplit=1)[0]: after}).values()]))
            server.send(signal.SIGUSR2)
            refused = await server.logged("the server was not restarted and goes on")
            assert "Address already in use" in refused["reason"]
            await server.stop()


def test_an_installation_that_cannot_be_imported_is_refused_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is a module that the server imports late."""
    monkeypatch.delattr("restante.mailbox.server.status_pages", raising=False)
    monkeypatch.setitem(sys.modules, "restante.mailbox.server.status_pages", None)
    running = Running((tmp_path.stat().st_dev, tmp_path.stat().st_ino), Serve().listen, Serve().admin)
    with pytest.raises(ImportError, match="status_pages"):
        called("config", "check", "--data", tmp_path, **running.environment())


@pytest.mark.thorough
async def test_as_many_connections_as_the_descriptors_allow_stay(tmp_path: Path) -> None:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    number = min(20_000, descriptors * 3 // 4)
    options = ("--trust-proxy", PROXY[0], "--limit", "connections=0", "--limit", "handshake=60")
    async with serving(tmp_path / "data", options=options) as server:
        sockets = []
        for begin in range(0, number, 100):
            visitors = [f"10.0.{index // 256}.{index % 256}" for index in range(begin, min(begin + 100, number))]
            sockets += await asyncio.gather(
                *(RawSocket.dial(server.port, X_Real_IP=visitor, X_Real_Port="1") for visitor in visitors)
            )
        server.send(signal.SIGUSR2)
        await server.logged("restarted", connections=number)
        for socket in sockets:
            assert (await socket.hear())["type"] == "welcome"
            await socket.is_served()
        for socket in sockets:
            socket.cut()
        await server.stop()


def test_a_lock_that_was_left_is_that_of_its_directory_only(tmp_path: Path) -> None:
    left = lock_data_directory(tmp_path / "old").descriptors
    with lock_data_directory(tmp_path / "new", left):
        assert is_locked(tmp_path / "new")
        assert not is_locked(tmp_path / "old")


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Handle SIGUSR2 so in this process, whatever a server that ran in it has left."""
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_process_that_is_no_server_is_not_sent_the_signal(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with lock_data_directory(tmp_path), handled(signal.SIG_DFL):
        outcome = called("restart", "--data", tmp_path)
    assert (outcome.returncode, "is no server" in outcome.stderr) == (2, True)


def test_neither_another_server_nor_a_process_with_another_lock_is_sent_the_signal(tmp_path: Path) -> None:
    """Another file system may have a locked file with the same inode."""
    lock = f"1: FLOCK  ADVISORY  WRITE {os.getpid()} 00:01:{tmp_path.stat().st_ino} 0 EOF\n"
    (same := tmp_path / "locks").write_text(lock)
    with handled(signal.default_int_handler):
        with lock_data_directory(tmp_path / "relay"):
            relay = called("restart", "--data", tmp_path / "relay")
        (tmp_path / FILE).touch()
        with patch.object(lock_file, "LOCKS", same):
            other = called("restart", "--data", tmp_path)
    for outcome in (relay, other):
        assert (outcome.returncode, "no server of this machine uses" in outcome.stderr) == (2, True), outcome.stderr


async def test_a_hand_over_of_another_format_is_refused_and_the_server_starts_as_usual(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", altered("hands-over-in-another-format")) as server, Clients() as clients:
        client = await clients.opened(server.url, "x", "a", "m")
        await client.call("add", phase="1", body="")
        server.send(signal.SIGUSR2)
        await server.logged("this version cannot go on with the connections of the one before")
        await server.logged("restarted", connections=None)
        await client.ends()
        again = await clients.opened(server.url, "x", "a", "m")
        assert [message["phase"] for message in again.heard] == ["1"]
        await server.stop()


async def test_a_process_that_cannot_go_on_with_what_it_was_left_starts_again_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", altered("cannot-enter")) as server, Clients() as clients:
        client = await clients.opened(server.url, "x", "a", "m")
        await client.call("add", phase="1", body="")
        outcome = await asyncio.to_thread(restante, "restart", "--data", server.data)
        assert (outcome.returncode, CONNECTIONS_CLOSED in outcome.stderr) == (1, True), outcome.stderr
        await client.ends()
        again = await clients.opened(server.url, "x", "a", "m")
        assert [message["phase"] for message in again.heard] == ["1"]
        await server.stop()


async def test_an_address_that_is_named_twice_stays_two(tmp_path: Path) -> None:
    twice = ("--listen", "127.0.0.1:0") * 2
    async with serving(tmp_path / "data", options=twice) as server:

        def urls() -> list[str]:
            return [json.loads(line)["url"] for line in server.log if '"listening"' in line]

        await server.until("it listens on both", lambda: len(urls()) == 2)
        await server.restarts(2)
        assert sorted(urls()) == sorted(3 * urls()[:2])
        for url in urls()[:2]:
            await (await RawSocket.dial(urlsplit(url).port or 0)).leave()
        await server.stop()


def test_a_kernel_that_wants_files_in_memory_without_programs_gets_them() -> None:
    create, flags = os.memfd_create, []

    def create_sealed(name: str, flag: int) -> int:
        flags.append(flag)
        if not flag:
            raise PermissionError
        return create(name, 0)

    with patch.object(os, "memfd_create", create_sealed):
        os.close(write(Head(0, 1, 0.0, "", {}, [], []), b""))
    assert flags == [0, MFD_NOEXEC_SEAL]


@pytest.mark.parametrize(("states", "waits"), [("", False), ("SSR", False), ("SDS", True)])
def test_a_thread_that_waits_for_a_disk_keeps_the_process(states: str, waits: bool, tmp_path: Path) -> None:
    for number, state in enumerate(states):
        (thread := tmp_path / str(number)).mkdir()
        (thread / "stat").write_text(f"{number} (a (D) name) {state} 1 2 3\n")
    (tmp_path / "ended").mkdir()
    assert waits_for_disk(tmp_path) == waits


def test_the_file_of_a_hand_over_is_closed_when_it_was_read() -> None:
    head = Head(os.getpid(), 1, 0.0, "", {}, [], [])
    file = write(head, b"body")
    handover = take({VARIABLE: str(file)})
    assert handover is not None
    assert (handover.head, handover.read_body()) == (head, b"body")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


@pytest.mark.parametrize("text", ["", "-1", "0", "9" * 5000, "99999"])
def test_a_variable_that_names_no_hand_over_is_ignored(text: str) -> None:
    assert take({VARIABLE: text}) is None


@pytest.mark.parametrize(
    ("program", "event"),
    [
        (RESTANTE, {"event": "restarted", "connections": 1}),
        (
            altered("cannot-be-replaced"),
            {"event": "the server was not restarted and goes on", "reason": "Cannot allocate memory"},
        ),
    ],
)
async def test_a_connection_with_tls_of_the_server_is_closed_as_at_a_drain(
    program: tuple[str, ...], event: dict[str, Any], tmp_path: Path
) -> None:
    """Whether the process is replaced or goes on, the others stay, and it may connect again."""
    certificate = Certificate(tmp_path)
    path = tmp_path / "socket"
    files = ("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path))
    options = (*files, "--listen", "127.0.0.1:0", "--listen", f"unix:{path}")
    async with serving(tmp_path / "data", program, options) as server:
        port = urlsplit(server.url).port or 0
        encrypted = await RawSocket.connect(port, ssl=certificate.client)
        plain = RawSocket(*await asyncio.open_unix_connection(str(path)))
        for socket in (encrypted, plain):
            socket.write(handshake())
            await socket.head()
            await socket.hear()
        server.send(signal.SIGUSR2)
        assert await encrypted.closed() == 1001
        encrypted.cut()
        await server.logged(**event)
        await plain.is_served()
        again = await RawSocket.connect(port, ssl=certificate.client)
        again.write(handshake())
        await again.head()
        for socket in (again, plain):
            socket.cut()
        await server.stop()
        assert not path.exists()


@on_uvloop
async def test_the_next_process_ignores_sighup_if_this_one_was_started_so() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for at_start in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, at_start)
            with _listening_for_signals(lambda _name: None) as signals:
                handler = signal.getsignal(signal.SIGHUP)
                with signals.leaving():
                    assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == (at_start is signal.SIG_IGN)
                assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)


def signal_threads() -> list[int]:
    return [thread.ident or 0 for thread in threading.enumerate() if thread.name == "signals"]


@on_uvloop
async def test_a_signal_that_comes_while_the_process_is_replaced_waits_for_the_next_program() -> None:
    with _listening_for_signals(lambda _name: None) as signals:
        with signals.leaving():
            assert not signal_threads()
        signal.pthread_kill(signal_threads()[0], signal.SIGTERM)
        await signals.stop.wait()


def test_a_signal_that_comes_before_the_server_listens_is_obeyed_when_it_does() -> None:
    signals, calls = ServerSignals(), []
    for _ in range(2):
        signals.receive(signal.SIGUSR2)
    signals.serve(lambda: calls.append("reload"), lambda: calls.append("restart"))
    assert calls == ["restart"]
    signals.receive(signal.SIGHUP)
    assert calls == ["restart", "reload"]
    signals.serve(lambda: None, lambda: calls.append("in the next term"))
    assert calls == ["restart", "reload"]


def test_a_signal_that_comes_while_the_program_is_imported_waits_for_the_server(tmp_path: Path) -> None:
    """Otherwise it ends the process (man 7 signal)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    blocked = before.copy()

    def serve(*_: object) -> None:
        blocked.update(signal.pthread_sigmask(signal.SIG_SETMASK, before))

    with patch("restante.mailbox.server.main.serve", serve):
        assert called("serve", "--data", tmp_path, "--listen", "127.0.0.1:0", "--admin", "off").returncode == 0
    assert blocked - before == {signal.SIGHUP, signal.SIGUSR2}


async def test_two_restarts_at_once_are_one(tmp_path: Path) -> None:
    """The program that checks inherits nothing, and the admin port stays where it is."""
    file, admin = tmp_path / "go on", ("--admin", "127.0.0.1:0")
    checked = serving(tmp_path / "data", altered("checks-with-a-file"), admin, HANG_FILE=str(file))
    async with checked as server, Clients() as clients:
        client = await clients.opened(server.url, "x", "a", "m")
        server.send(signal.SIGUSR2)
        await server.logged("checking the installed version, for a restart")
        server.send(signal.SIGUSR2)
        await server.logged("a restart is under way already")
        (child,) = children_of(server.pid)
        assert not descriptors_of(child) & descriptors_of(server.pid)
        file.touch()
        await server.logged("restarted", connections=1)
        await client.call("add", phase="1", body="")
        await server.stop()
        assert sum('"checking the installed' in line for line in server.log) == 1
        assert len({json.loads(line)["url"] for line in server.log if '"the dashboard is open"' in line}) == 1


def children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started (proc_tid_children(5))."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descriptors_of(pid: int) -> set[str]:
    """Return what a process has open beside its standard streams."""
    opened = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed since it was listed
            opened |= {str(file.readlink())} if int(file.name) > 2 else set()
    return opened - {"/dev/null"}


async def test_a_server_that_is_stopped_while_it_restarts_stops(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server:
        server.send(signal.SIGUSR2)
        server.send(signal.SIGTERM)
        assert await server.ended() == 0, server.log


async def test_a_server_is_stopped_although_the_check_hangs(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", altered("checks-with-a-file"), HANG_FILE=str(tmp_path / "none")) as server:
        server.send(signal.SIGUSR2)
        await server.logged("checking the installed version, for a restart")
        server.send(signal.SIGTERM)
        assert await server.ended(CHECK_SECONDS / 2) == 0, server.log
