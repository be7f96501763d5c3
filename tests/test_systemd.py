"""systemd: it knows every line of the units, they allow little, their commands work; and what servers tell it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from restante.cli.main import app
from restante.common.restart import ANSWER_FILE
from restante.common.service_manager import ServiceManager
from restante.mailbox.server import server as mailbox_server
from restante.mailbox.store.schema import connect
from restante.relay.settings import RelayServe
from restante.relay.store.schema import FILE, SCHEMA
from restante.waku.node import node as waku_node
from support.admin_port import looking
from support.bounds import BOUND, PATIENCE, bounded
from support.documents import ROOT, Document
from support.faulty_disk import HANGS, CommandedDisk
from support.mailbox import altered
from support.mailbox.clients import Clients
from support.mailbox.raw_socket import RawSocket, handshake
from support.ports import held_port
from support.processes import RELAY, RESTANTE, called, environment, run, serving, started
from support.waku import processes as waku

UNITS: Final = ROOT / "deploy" / "systemd"
SERVICES: Final = sorted(unit.name for unit in UNITS.glob("*.service"))
SERVERS: Final = {
    "restante.service": (("config", "show"), mailbox_server.DRAIN_SECONDS),
    "restante-relay.service": (("relay", "config"), RelayServe().drain),
    "restante-waku.service": (("waku", "config"), waku_node.DRAIN_SECONDS),
}
"""The units of servers: the command that shows its settings, and for how long the server drains."""
PROGRAM: Final = "/opt/restante/bin/restante"

NETWORK = Document("docs/mailbox/network.md")
RELAY_GUIDE = Document("docs/relay/operating.md")
PIPELINE_GUIDE = Document("docs/pipeline/operating.md")
OVERRIDES: Final = {
    "restante-pipeline.service": RELAY_GUIDE.blocks["pipeline service"],
    "restante-extract.service": PIPELINE_GUIDE.blocks["extract service"],
}
"""What the guides add to units for a relay."""


def systemd_analyze(*arguments: str | Path) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing (Debian: apt install systemd)")
    done = run(program, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def settings(unit: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in (UNITS / unit).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            values.setdefault(name, []).append(value)
    return values


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_may_do_little(unit: str) -> None:
    text = systemd_analyze("security", "--offline=true", UNITS / unit)
    exposure = re.search(rf"Overall exposure level for {unit}: (\d+\.\d+)", text)
    assert exposure is not None, text
    assert float(exposure[1]) <= 2.0, "of 10; access to the network alone is 0.9"


def test_systemd_knows_every_line_also_of_those_in_the_guides(tmp_path: Path) -> None:
    texts = {unit.name: unit.read_text() for unit in UNITS.iterdir()}
    texts |= {"restante.socket": NETWORK.blocks["socket"]}
    texts |= {"restante.service.d/override.conf": NETWORK.blocks["socket service"]}
    texts |= {f"{unit}.d/override.conf": text for unit, text in OVERRIDES.items()}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace(PROGRAM, "/bin/true"))
    units = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    assert systemd_analyze("verify", "--man=no", *units) == ""


@pytest.mark.parametrize("unit", SERVERS)
def test_a_server_is_started_again_whatever_happens_but_not_while_it_loads(unit: str) -> None:
    values = settings(unit)
    expected = {"Type": "notify", "Restart": "always", "StartLimitIntervalSec": "0", "TimeoutStartSec": "infinity"}
    assert {name: values[name] for name in expected} == {name: [value] for name, value in expected.items()}
    assert values["WatchdogSec"] == ["30"]
    assert "RestartPreventExitStatus" not in values, "an address or the data may be free soon"
    assert int(values["TimeoutStopSec"][0]) > SERVERS[unit][1], "it drains"
    assert bool(values.get("ExecReload")) == (unit != "restante-waku.service"), "the node reloads nothing"


@pytest.mark.parametrize("unit", SERVICES)
def test_the_command_of_a_service_has_only_flags_that_exist_and_directories_that_systemd_makes(unit: str) -> None:
    values = settings(unit)
    commands = [line for line in values["ExecStart"] if PROGRAM in line]
    assert commands
    made = {f"/var/lib/{name}" for name in values["StateDirectory"][0].split()}
    named = {"/".join(path.split("/")[:4]) for path in re.findall(r"/var/lib/[\w/-]+", str(values["ExecStart"]))}
    assert named <= made
    if unit in SERVERS:
        assert "--data ${STATE_DIRECTORY} " in commands[0]
        [listen] = re.findall(r"--listen (\S+)", commands[0])
        assert called(*SERVERS[unit][0], "--listen", listen).returncode == 0
    commands += re.findall(r"^ExecStart=(.+)$", OVERRIDES.get(unit, ""), re.MULTILINE)
    for line in commands:
        text = re.sub(r"^/bin/sh -c '(?:exec )?(.*)'$", r"\1", line)
        arguments = shlex.split(text.replace("${STATE_DIRECTORY}", "/data"))
        assert arguments.pop(0) == PROGRAM
        command: Any = typer.main.get_group(app)
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("restante", arguments).close()


@pytest.mark.parametrize(
    ("service", "file", "make"), [("restante", "restante.sqlite", connect), ("restante-relay", FILE, SCHEMA.connect)]
)
def test_the_unit_of_backups_makes_one_and_deletes_old_ones(
    service: str, file: str, make: Callable[[str], sqlite3.Connection], tmp_path: Path
) -> None:
    values = settings(f"{service}-backup.service")
    backups, data = tmp_path / f"{service}-backup", tmp_path / service
    backups.mkdir()
    data.mkdir()
    for name, days in (("old", 15), ("new", 13)):
        (backups / f"{name}.sqlite").touch()
        os.utime(backups / f"{name}.sqlite", (time.time() - days * 86400 - 3600,) * 2)
    make(str(data / file)).close()
    for line in (*values["ExecStart"], *values["ExecStartPost"]):
        command = (
            line.replace("%%", "%")
            .replace("/var/lib", str(tmp_path))
            .replace(PROGRAM, f"{sys.executable} -m restante")
        )
        done = run("sh", "-c", command)
        assert done.returncode == 0, done.stderr
    assert len(list(backups.iterdir())) == 2
    assert not (backups / "old.sqlite").exists()


def open_files(pid: int) -> dict[int, str]:
    """Return what a process has open."""
    return {int(file.name): str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}


PASS_ON: Final = """
import os, sys
listening, *command = sys.argv[1:]
os.dup2(int(listening), 3)
os.dup2(os.memfd_create("stored", 0), 4)
os.environ.update(LISTEN_FDS="2", LISTEN_PID=str(os.getpid()))
os.execvp(command[0], command)
"""
"""Starts a command with a listening socket and a file of its store, as systemd does (man 3 sd_listen_fds)."""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_a_socket_unit_serves_a_client_that_came_before(tmp_path: Path, family: socket.AddressFamily) -> None:
    [start] = re.findall(r"^ExecStart=(.+)$", NETWORK.blocks["socket service"], re.MULTILINE)
    start = start.replace(PROGRAM, f"{sys.executable} -m restante")
    start = start.replace("${STATE_DIRECTORY}", str(tmp_path / "data"))
    path = tmp_path / "s"
    with socket.socket(family) as listening:
        listening.bind(str(path) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listening.listen()
        its_side = socket.socket(family)
        its_side.connect(listening.getsockname())
        client = RawSocket(*await asyncio.open_connection(sock=its_side))
        client.write(handshake())
        command = (sys.executable, "-c", PASS_ON, str(listening.fileno()), *shlex.split(start), "--admin", "off")
        server = await asyncio.create_subprocess_exec(
            *command, pass_fds=[listening.fileno()], stderr=subprocess.DEVNULL, env=environment()
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await client.reader.readuntil(b"\r\n\r\n")
            assert (await client.hear())["type"] == "welcome"
            server.send_signal(signal.SIGUSR2)
            async with bounded("the restart"):
                while not (tmp_path / "data" / ANSWER_FILE).exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await client.is_served()
            assert "stored" in open_files(server.pid)[4]
            other_side = socket.socket(family)
            other_side.connect(listening.getsockname())
            other = RawSocket(*await asyncio.open_connection(sock=other_side))
            other.write(handshake())
            await other.head()
            other.cut()
            client.cut()
        finally:
            server.terminate()
            code = await server.wait()
        assert code == 0
        assert ("s" in os.listdir(tmp_path)) == (family == socket.AF_UNIX), "who made it removes it"  # noqa: PTH208


Message = dict[str, str]

READY: Final[Message] = {"READY": "1", "STATUS": "serving"}
STOPPING: Final[Message] = {"STOPPING": "1", "STATUS": "draining"}
WATCHDOG: Final[Message] = {"WATCHDOG": "1"}


class Manager:
    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name.replace("@", "\0"))  # an abstract name
        self.variables = {"NOTIFY_SOCKET": name}
        self.with_watchdog = {**self.variables, "WATCHDOG_USEC": "40000"}  # it is answered a hundred times a second

    def next(self, seconds: float = BOUND) -> Message:
        self.socket.settimeout(seconds)
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    async def message(self, name: str) -> Message:
        async with bounded(name):
            while name not in (message := await asyncio.to_thread(self.next)):
                pass
            return message

    def waiting(self, seconds: float = 0.0) -> list[Message]:
        """Return the messages that have not been read, and those of the next seconds, during which this blocks."""
        messages: list[Message] = []
        end = time.monotonic() + seconds
        try:
            while True:
                messages.append(self.next(max(0.0, end - time.monotonic())))
        except (BlockingIOError, TimeoutError):
            return messages


@pytest.fixture
def manager(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Manager]:
    manager = Manager(getattr(request, "param", str(tmp_path / "notify")))
    with manager.socket:
        yield manager


async def test_a_server_says_that_it_is_ready_works_reloads_and_stops(tmp_path: Path, manager: Manager) -> None:
    async with serving(tmp_path / "data", RESTANTE, (), **manager.with_watchdog) as server:
        assert await asyncio.to_thread(manager.next) == READY
        for _ in range(3):
            assert await asyncio.to_thread(manager.next) == WATCHDOG
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        server.send(signal.SIGHUP)
        begun = await manager.message("RELOADING")
        assert begun == {**begun, "RELOADING": "1", "STATUS": "reading the settings again"}
        assert before <= int(begun["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert await manager.message("READY") == READY
        server.send(signal.SIGUSR2)
        begun = await manager.message("RELOADING")
        assert begun == {**begun, "RELOADING": "1", "STATUS": "restarting"}
        assert int(begun["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert await manager.message("READY") == READY
        await manager.message("WATCHDOG")
        await server.logged("restarted")
        here = ("--listen", f"127.0.0.1:{server.port}")
        async with started(tmp_path / "other", RESTANTE, here, DEVNULL, **manager.variables) as second:
            assert await second.ended() == 75
        assert READY not in manager.waiting(), "a server that cannot listen is never ready"
        await server.stop()
    assert STOPPING in manager.waiting()


@pytest.mark.parametrize("manager", [f"@restante-{os.getpid()}"], indirect=True, ids=["abstract"])
async def test_a_waku_node_says_it_too_to_an_abstract_name(tmp_path: Path, manager: Manager) -> None:
    async with waku.node_process(tmp_path / "data", variables=manager.with_watchdog) as node:
        assert [await asyncio.to_thread(manager.next) for _ in range(3)] == [READY, WATCHDOG, WATCHDOG]
        await node.serving.stop()
    assert STOPPING in manager.waiting()


async def test_a_relay_says_it_too_and_reloads(tmp_path: Path, manager: Manager) -> None:
    async with serving(tmp_path / "data", RELAY, (), **manager.with_watchdog) as relay:
        assert [await asyncio.to_thread(manager.next) for _ in range(3)] == [READY, WATCHDOG, WATCHDOG]
        relay.send(signal.SIGHUP)
        await manager.message("RELOADING")
        assert await manager.message("READY") == READY
        await relay.stop()
    assert STOPPING in manager.waiting()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["slow-disk", "fast-disk"])
async def test_a_disk_that_hangs_causes_no_restart(way: str, tmp_path: Path, manager: Manager) -> None:
    """Whether the commit is in a thread or on the event loop."""
    disk = CommandedDisk(tmp_path)
    program = (RESTANTE[0], "-m", altered.__name__, way)
    with held_port() as port:
        options = ("--admin", f"127.0.0.1:{port}")
        async with (
            serving(disk.data, program, options, **manager.with_watchdog, **disk.variables) as server,
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


@pytest.mark.thorough
async def test_the_manager_s_signal_shows_in_the_log_where_a_server_hung(tmp_path: Path, manager: Manager) -> None:
    program = (RESTANTE[0], "-m", altered.__name__, "hangs-with-a-file")
    variables = {**manager.with_watchdog, altered.HANG_FILE: str(tmp_path / "hang")}
    with held_port() as port:
        options = ("--admin", f"127.0.0.1:{port}")
        async with serving(tmp_path / "data", program, options, **variables) as server, looking(port) as look:
            (tmp_path / "hang").touch()
            async with bounded("503"):
                while (await look.get("/healthz"))[0] != 503:
                    pass
            server.send(signal.SIGABRT)
            assert await server.ended() == -signal.SIGABRT
            assert "Fatal Python error: Aborted" in server.said["stderr"]
            assert "in tick" in server.said["stderr"]


async def test_the_watchdog_is_answered_while_the_disk_is_waited_for_and_not_in_a_hang(manager: Manager) -> None:
    async with ServiceManager(manager.with_watchdog).serving(asyncio.Event()):
        await manager.message("WATCHDOG")
        manager.waiting()
        assert len(manager.waiting(0.3)) <= 1, "the loop may have turned just before it hung"
        await manager.message("WATCHDOG")
    manager.waiting()
    async with ServiceManager(manager.with_watchdog).serving(asyncio.Event(), lambda: True):
        assert [manager.next() for _ in range(4)] == [READY, WATCHDOG, WATCHDOG, WATCHDOG]


async def test_without_a_watchdog_only_the_beginning_and_the_end_are_said(manager: Manager) -> None:
    calls: list[int] = []
    ServiceManager(manager.variables).reload(lambda: calls.append(1))
    assert (calls, manager.waiting()) == ([1], []), "a reload before the server is ready does not say that it is"
    stop = asyncio.Event()
    async with ServiceManager({**manager.with_watchdog, "WATCHDOG_PID": "1"}).serving(stop):
        assert manager.waiting(0.1) == [READY]
        stop.set()
        assert await manager.message("STOPPING") == STOPPING


def test_the_timeout_of_the_watchdog(manager: Manager) -> None:
    for variables, seconds in (
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "half a minute"}, None),
    ):
        assert ServiceManager({**manager.variables, **variables}).watchdog_seconds == seconds
        assert ServiceManager(variables).watchdog_seconds is None  # nobody would read the answers


def test_a_manager_that_is_gone_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("", "relative/path", "vsock:2:1234"):
        ServiceManager({"NOTIFY_SOCKET": address}).notify("READY=1")
    gone = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.notify("READY=1")
    gone.notify("WATCHDOG=1")
    assert capsys.readouterr().out.count("the service manager cannot be reached") == 1
