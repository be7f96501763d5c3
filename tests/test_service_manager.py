"""What both servers tell systemd, through a real socket: ready, stopping, reloading, and that the loop works."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from restante.common.service_manager import ServiceManager
from support.bounds import BOUND, bounded
from support.faulty_disk import HANGS, CommandedDisk, looking
from support.mailbox import altered as mailbox_altered
from support.mailbox.clients import Clients
from support.ports import held_port
from support.processes import RESTANTE, Serving, serving, started
from support.waku import processes as waku

WATCHDOG_MICROSECONDS: Final = 400_000
"""A timeout that a server answers ten times a second. /healthz takes 0.8 s to say that a loop hangs."""

Message = dict[str, str]


class Manager:
    """A service manager that only reads."""

    def __init__(self, folder: Path, *, abstract: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"@restante-{os.getpid()}-{folder.name}" if abstract else str(folder / "notify")
        self.socket.bind("\0" + name[1:] if abstract else name)
        self.socket.settimeout(BOUND)
        self.variables = {"NOTIFY_SOCKET": name}

    @property
    def with_watchdog(self) -> dict[str, str]:
        return {**self.variables, "WATCHDOG_USEC": str(WATCHDOG_MICROSECONDS)}

    def next(self) -> Message:
        """Wait for the next message."""
        lines = self.socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    async def message(self, name: str) -> Message:
        """Wait for a message that has this variable."""
        async with bounded(name):
            while name not in (found := await asyncio.to_thread(self.next)):
                pass
            return found

    def waiting(self) -> list[Message]:
        """Return the messages that have not been read."""
        found: list[Message] = []
        self.socket.setblocking(False)
        try:
            while True:
                found.append(self.next())
        except BlockingIOError:
            return found
        finally:
            self.socket.settimeout(BOUND)


@contextmanager
def listening(folder: Path, *, abstract: bool = False) -> Iterator[Manager]:
    manager = Manager(folder, abstract=abstract)
    with manager.socket:
        yield manager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with listening(tmp_path) as found:
        yield found


@asynccontextmanager
async def mailbox_server(
    data: Path, variables: dict[str, str], *options: str, program: tuple[str, ...] = RESTANTE
) -> AsyncIterator[Serving]:
    async with serving(data, program, options, **variables) as server:
        yield server


@asynccontextmanager
async def waku_node(
    data: Path, variables: dict[str, str], *options: str, program: tuple[str, ...] = waku.WAKU
) -> AsyncIterator[Serving]:
    async with waku.node_process(data, *options, program=program, variables=variables) as node:
        yield node.serving


Start = Callable[..., AbstractAsyncContextManager[Serving]]
SERVERS: Final = pytest.mark.parametrize("start", [mailbox_server, waku_node])


@SERVERS
@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
async def test_a_server_says_when_it_is_ready_and_when_it_stops(start: Start, abstract: bool, tmp_path: Path) -> None:
    with listening(tmp_path, abstract=abstract) as manager:
        async with start(tmp_path / "data", manager.variables) as server:
            assert await asyncio.to_thread(manager.next) == {"READY": "1", "STATUS": "serving"}
            assert manager.waiting() == []  # no watchdog
            await server.stop()
        assert manager.waiting() == [{"STOPPING": "1", "STATUS": "draining"}]


async def test_a_server_is_ready_when_it_listens_and_not_before(tmp_path: Path, manager: Manager) -> None:
    async with mailbox_server(tmp_path / "data", manager.variables) as server, Clients() as clients:
        await manager.message("READY")
        await (await clients.connect(server.url)).leave()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        async with started(tmp_path / "other", RESTANTE, words, DEVNULL, **manager.variables) as server:
            assert await server.ended() == 2
    assert manager.waiting() == []


async def test_sighup_is_a_reload_with_a_beginning_and_an_end(tmp_path: Path, manager: Manager) -> None:
    async with mailbox_server(tmp_path / "data", manager.variables) as server:
        await manager.message("READY")
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        server.send(signal.SIGHUP)
        begun = await manager.message("RELOADING")
        assert begun == {**begun, "RELOADING": "1", "STATUS": "reading the settings again"}
        assert before <= int(begun["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert await asyncio.to_thread(manager.next) == {"READY": "1", "STATUS": "serving"}


@SERVERS
async def test_the_watchdog_is_answered_until_the_server_has_ended(
    start: Start, tmp_path: Path, manager: Manager
) -> None:
    async with start(tmp_path / "data", manager.with_watchdog) as server:
        for _ in range(3):
            await manager.message("WATCHDOG")
        await server.stop()
    assert {"STOPPING": "1", "STATUS": "draining"} in manager.waiting()


@SERVERS
async def test_a_watchdog_for_another_process_is_not_answered(start: Start, tmp_path: Path, manager: Manager) -> None:
    """In the same time, a server whose watchdog it is answers ten times."""
    others = {**manager.with_watchdog, "WATCHDOG_PID": "1"}
    (tmp_path / "own").mkdir()
    with listening(tmp_path / "own") as own:
        async with start(tmp_path / "data", others) as server, start(tmp_path / "data-2", own.with_watchdog):
            await manager.message("READY")
            for _ in range(10):
                await own.message("WATCHDOG")
            assert manager.waiting() == []
            await server.stop()


@pytest.mark.parametrize(
    ("start", "program"),
    [(mailbox_server, mailbox_altered.__name__), (waku_node, "support.waku.altered")],
    ids=["mailbox", "waku"],
)
async def test_a_server_whose_event_loop_hangs_does_not_answer_the_watchdog(
    start: Start, program: str, tmp_path: Path, manager: Manager
) -> None:
    """Nor does it say so when it is ended: the manager's signal shows in the log where it hung."""
    words = waku.altered("hangs-with-a-file") if "waku" in program else mailbox_program("hangs-with-a-file")
    variables = {**manager.with_watchdog, mailbox_altered.HANG_FILE: str(tmp_path / "hang")}
    with held_port() as port:
        options = ("--admin", f"127.0.0.1:{port}")
        async with start(tmp_path / "data", variables, *options, program=words) as server, looking(port) as look:
            await manager.message("WATCHDOG")
            (tmp_path / "hang").touch()
            async with bounded("503"):
                while (await look.get("/healthz"))[0] != 503:
                    pass
            manager.waiting()  # what was sent before it hung
            for _ in range(2):  # in 1.6 s it would be sent sixteen times
                assert (await look.get("/healthz"))[0] == 503
            assert manager.waiting() == []
            server.send(signal.SIGABRT)
            assert await server.ended() == -signal.SIGABRT
            assert "Fatal Python error: Aborted" in server.said["stderr"]
            assert "in tick" in server.said["stderr"]


def mailbox_program(how: str) -> tuple[str, ...]:
    return (RESTANTE[0], "-m", mailbox_altered.__name__, how)


async def test_a_stopped_process_does_not_answer_the_watchdog_and_goes_on_later(
    tmp_path: Path, manager: Manager
) -> None:
    """In the same time, another server answers ten times."""
    (tmp_path / "other").mkdir()
    with listening(tmp_path / "other") as other:
        async with (
            mailbox_server(tmp_path / "data", manager.with_watchdog) as server,
            mailbox_server(tmp_path / "data-2", other.with_watchdog),
        ):
            await manager.message("WATCHDOG")
            server.send(signal.SIGSTOP)
            await asyncio.to_thread(os.waitid, os.P_PID, server.pid, os.WSTOPPED)
            manager.waiting()
            other.waiting()
            for _ in range(10):
                await other.message("WATCHDOG")
            assert manager.waiting() == []
            server.send(signal.SIGCONT)
            await manager.message("WATCHDOG")


@pytest.mark.parametrize("way", ["slow-disk", "fast-disk"])
async def test_a_disk_that_hangs_causes_no_restart(way: str, tmp_path: Path, manager: Manager) -> None:
    """Whether the commit is in a thread or on the event loop."""
    disk = CommandedDisk(tmp_path)
    variables = {**manager.with_watchdog, **disk.variables}
    with held_port() as port:
        options, program = ("--admin", f"127.0.0.1:{port}"), mailbox_program(way)
        async with (
            mailbox_server(disk.data, variables, *options, program=program) as server,
            looking(port) as look,
            Clients() as clients,
        ):
            client = await clients.opened(server.url, "app", "a", "m")
            await look.reports(disk.hang, HANGS)
            added = await client.say("add", phase="1", body="held")  # its commit hangs
            assert (await look.get("/readyz"))[1] == HANGS
            manager.waiting()
            for _ in range(10):
                await manager.message("WATCHDOG")
            assert not added.answered
            disk.go_on()
            await client.answers(added)
            await client.leave()
            await server.stop()


# ── the messages alone ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "own"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "half a minute"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_timeout_of_the_watchdog(variables: dict[str, str], seconds: float | None, manager: Manager) -> None:
    variables = {name: value.replace("own", str(os.getpid())) for name, value in variables.items()}
    assert ServiceManager({**manager.variables, **variables}).watchdog_seconds == seconds
    assert ServiceManager(variables).watchdog_seconds is None  # nobody would read the answers


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1234"])
def test_addresses_of_other_kinds_are_not_used(address: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": address}).notify("READY=1")


def test_a_manager_that_is_gone_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    found.notify("READY=1")
    found.notify("WATCHDOG=1")
    assert capsys.readouterr().out.count("the service manager cannot be reached") == 1


def test_a_reload_before_the_server_is_ready_does_not_say_that_it_is(manager: Manager) -> None:
    called = []
    ServiceManager(manager.variables).reload(lambda: called.append(1))
    assert called == [1]
    assert manager.waiting() == []
