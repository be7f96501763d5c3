"""A disk that hangs, fills or turns read-only under either server: /readyz says so, and what clients see."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import time
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from restante.common.disk_probe import PROBE_FILE
from restante.mailbox.core.dispatcher import NOT_STORED, SERVICE_RESTART
from restante.waku.envelope.envelope import make
from restante.waku.node.archiving import DISK_FULL
from restante.waku.node.mailserver import FULL_TEXT
from support.admin_port import Look, counts, looking
from support.bounds import bounded
from support.faulty_disk import HANGS, CommandedDisk
from support.isolation import unavailable
from support.loops import until
from support.mailbox.clients import Client, Clients, LostError
from support.ports import held_port
from support.processes import Serving, altered, child, evidence, run, serving, started
from support.waku.archives import raws_of
from support.waku.processes import WAKU, node_process
from support.waku.raw_peer import GoneError

FULL: Final = "the disk cannot be written: No space left on device\n"
READ_ONLY: Final = "the disk cannot be written: Read-only file system\n"

NAMESPACES: Final = ("--user", "--mount")
KIB: Final = 1024
FREE_DISK: Final = 1024 * KIB
NUMBERS: Final = itertools.count()

Store = Callable[[str], Awaitable[tuple[str, str | None]]]
"""Stores a text, and gives what it is known by and why it was refused."""


@dataclass(frozen=True)
class SmallDisk:
    enter: tuple[str, ...]
    folder: Path
    """The disk as a process in the namespace sees it."""
    outside: Path
    """The same as we see it, also after the server has ended."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def fill(self) -> None:
        with (self.outside / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            filler.write(bytes(shutil.disk_usage(self.outside).free))
            while True:
                filler.write(bytes(KIB))

    def make_room(self) -> None:
        (self.outside / "filler").unlink()


@asynccontextmanager
async def small_disk(folder: Path, size: int) -> AsyncIterator[SmallDisk]:
    """Make a disk of so many KiB. It ends with the processes that are in its namespace."""
    if reason := unavailable():
        pytest.skip(f"disks of their own: {reason}")
    disk = folder / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size}k none "$0" && echo ready && exec sleep infinity'
    async with child("unshare", *NAMESPACES, "--map-root-user", "sh", "-c", mount, str(disk)) as holder:
        await holder.says("ready")
        enter = ("nsenter", "--target", str(holder.pid), *NAMESPACES, "--preserve-credentials")
        assert run(*enter, "true").returncode == 0
        yield SmallDisk(enter, disk, Path(f"/proc/{holder.pid}/root{disk}"))


class Load:
    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        self.refusals: list[str] = []
        self.over = False
        self._news = asyncio.Event()

    async def run(self, store: Store) -> None:
        with contextlib.suppress(LostError, GoneError, ConnectionError):
            while not self.over:
                name, refusal = await store(str(next(NUMBERS)))
                if refusal is None:
                    self.stored[name] += 1
                else:
                    self.refusals.append(refusal)
                self._news.set()

    async def more(self) -> None:
        wanted = self.stored.total() + 10
        await self.until("more that is stored", lambda: self.stored.total() >= wanted)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds():
                self._news.clear()
                await self._news.wait()


@dataclass
class RunningServer:
    process: Serving
    look: Look
    clients: list[Client]
    """Those of a mailbox server, which must receive all that is stored."""
    connect: Callable[[str], Awaitable[Store]]

    @asynccontextmanager
    async def load(self) -> AsyncIterator[Load]:
        load = Load()
        tasks = [asyncio.create_task(load.run(await self.connect(side))) for side in "ab"]
        try:
            await load.more()
            yield load
        finally:
            load.over = True
            await asyncio.gather(*tasks)

    async def delivered_once(self, stored: Counter[str]) -> None:
        for client in [client for client in self.clients if client.close_code is None]:
            await client.call("ping", ping=1)
            assert Counter(frame["body"] for frame in client.heard) == stored


class MailboxKind:
    """`restante serve`. All commits are in the thread, or those of small batches on the event loop."""

    ready = "restante_ready"
    full = (
        FULL,
        "the disk is nearly full\n",
        "the last batch could not be stored: the database refused: database or disk is full\n",
    )
    refusals: Final = {"the server is full: its disk has no room for more; try again later", NOT_STORED}

    def __init__(self, way: str) -> None:
        self.program = altered(way)

    @asynccontextmanager
    async def serve(self, data: Path, variables: dict[str, str], *enter: str) -> AsyncIterator[RunningServer]:
        with held_port() as port:
            limits = ("--limit", "mailbox_messages=0", "--limit", f"free_disk={FREE_DISK}")
            options = ("--admin", f"127.0.0.1:{port}", *limits)
            async with (
                serving(data, (*enter, *self.program), options, **variables) as server,
                looking(port) as look,
                Clients() as clients,
            ):

                async def connect(side: str) -> Store:
                    client = await clients.opened(server.url, "app", side, "m")

                    async def store(text: str) -> tuple[str, str | None]:
                        nonlocal client
                        try:
                            if client.close_code == SERVICE_RESTART:
                                client = await clients.connect(server.url)
                                await client.call("bind", appid="app", side=side)
                                await client.call("open", mailbox="m")
                            command = await client.say("add", phase="p", body=text)
                            await client.answers(command)
                        except LostError:
                            if client.close_code != SERVICE_RESTART:
                                raise
                            return text, NOT_STORED
                        return text, command.error["error"] if command.error else None

                    return store

                yield RunningServer(server, look, clients.all, connect)

    async def stored(self, data: Path) -> Counter[str]:
        with evidence(data) as db:
            return Counter(body.strip('"') for (body,) in db.execute("SELECT body FROM messages"))


class NodeKind:
    ready = "waku_ready"
    full = (FULL, f"{DISK_FULL.state}\n")
    refusals: Final = {FULL_TEXT}
    program = WAKU

    @asynccontextmanager
    async def serve(self, data: Path, variables: dict[str, str], *enter: str) -> AsyncIterator[RunningServer]:
        with held_port() as port:
            options, program = ("--admin", f"127.0.0.1:{port}"), (*enter, *WAKU)
            starting = node_process(data, *options, program=program, variables=variables)
            async with starting as node, looking(port) as look:

                async def connect(_side: str) -> Store:
                    peer = await node.greet()

                    async def store(text: str) -> tuple[str, str | None]:
                        envelope = make(int(time.time()) + 50, 50, bytes(4), text.encode())
                        response = await peer.post(envelope)
                        return envelope.raw.hex(), next((refusal.text for refusal in response.refusals), None)

                    return store

                yield RunningServer(node.serving, look, [], connect)

    async def stored(self, data: Path) -> Counter[str]:
        return Counter(raw.hex() for raw in await asyncio.to_thread(raws_of, data))


async def recovers(look: Look, *faults: str) -> None:
    async with bounded("200"):
        while (answer := await look.get("/readyz")) != (200, "ok\n"):
            assert answer[1] in faults


async def works(look: Look) -> dict[str, float]:
    paths = ("/healthz", "/metrics", "/varz", "/connz", "/limitz")
    answers = await asyncio.gather(*map(look.get, paths))
    assert [status for status, _ in answers] == [200] * len(paths), answers
    return counts(answers[1][1])


Kind = MailboxKind | NodeKind
KINDS: Final[dict[str, Kind]] = {
    "on-the-loop": MailboxKind("fast-disk"),
    "in-the-thread": MailboxKind("slow-disk"),
    "node": NodeKind(),
}


def kinds(*names: str, quick: bool = True) -> pytest.MarkDecorator:
    """Run a test with these, in a quick run only with the first, or with none."""
    thorough = dict.fromkeys(names[quick:], pytest.mark.thorough)
    return pytest.mark.parametrize(
        "kind", [pytest.param(KINDS[name], id=name, marks=thorough.get(name, ())) for name in names]
    )


@kinds("on-the-loop", "in-the-thread", "node")
async def test_a_disk_that_hangs_is_reported_and_delays_clients_and_loses_nothing(tmp_path: Path, kind: Kind) -> None:
    disk = CommandedDisk(tmp_path)
    async with kind.serve(disk.data, disk.variables) as running:
        look = running.look
        async with running.load() as load:
            await look.reports(disk.hang, HANGS)
            assert (await works(look))[kind.ready] == 0
            if running.clients:
                figures = await look.shown()
                assert figures["unready"] == HANGS.strip()
                assert figures["connections"]["open"] == 2, "the dashboard has figures, also while the loop waits"
                assert "problem" not in figures
            disk.go_on()
            await recovers(look, HANGS)
            await load.more()
        await running.delivered_once(load.stored)
        assert load.refusals == []
        assert (await works(look))[kind.ready] == 1
        await running.process.stop()
    assert await kind.stored(disk.data) == load.stored
    assert not (disk.data / PROBE_FILE).exists()


def waiting(pid: int) -> set[signal.Signals]:
    """Return the signals that the process has not taken yet (man 5 proc, status: ShdPnd)."""
    [bits] = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:"))
    return {number for number in signal.Signals if int(bits.split()[1], 16) >> (number - 1) & 1}


@pytest.mark.parametrize("second", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["second", "one"])
@kinds("on-the-loop", "in-the-thread", "node")
async def test_sigterm_during_a_hang_waits_for_the_disk_and_a_second_one_does_not(
    tmp_path: Path, kind: Kind, second: bool
) -> None:
    disk = CommandedDisk(tmp_path)
    async with kind.serve(disk.data, disk.variables) as running:
        async with running.load() as load:
            await running.look.reports(disk.hang, HANGS)
            running.process.send(signal.SIGTERM)
            await until("a signal that is taken", lambda: signal.SIGTERM not in waiting(running.process.pid))
            if second:
                running.process.send(signal.SIGTERM)
            else:
                disk.go_on()
            assert await running.process.ended() == int(second)
        assert all(client.close_code == (None if second else 1001) for client in running.clients)
    kept = await kind.stored(disk.data)
    assert load.stored <= kept
    if second:
        disk.go_on()
    async with kind.serve(disk.data, disk.variables) as running, running.load() as later:
        pass
    assert await kind.stored(disk.data) == kept + later.stored


@kinds("in-the-thread", "on-the-loop", "node")
async def test_a_disk_that_fills_refuses_clients_until_there_is_room(tmp_path: Path, kind: Kind) -> None:
    async with small_disk(tmp_path, 8 * FREE_DISK // KIB) as disk:
        async with kind.serve(disk.data, {}, *disk.enter) as running:
            look = running.look
            async with running.load() as load:
                await look.reports(disk.fill, *kind.full)
                await works(look)
                await load.until("an error", lambda: bool(load.refusals))
                disk.make_room()
                await recovers(look, *kind.full)
                await load.more()
            await running.delivered_once(load.stored)
            assert set(load.refusals) <= kind.refusals
            stored = load.stored
            if not running.clients:
                # A load balancer sends no peers to a node that is not ready: it becomes so without an envelope.
                async with running.load() as load:
                    await look.reports(disk.fill, *kind.full)
                    await load.until("an error", lambda: bool(load.refusals))
                disk.make_room()
                await recovers(look, *kind.full)
                stored += load.stored
            await running.process.stop()
        shutil.copytree(disk.outside / "data", tmp_path / "data")
    assert await kind.stored(tmp_path / "data") == stored


@kinds("on-the-loop", "node")
async def test_a_read_only_disk_is_reported_without_a_client_until_it_is_writable(tmp_path: Path, kind: Kind) -> None:
    disk = CommandedDisk(tmp_path)
    async with kind.serve(disk.data, disk.variables) as running:
        await running.look.reports(disk.turn_read_only, READ_ONLY)
        await works(running.look)
        disk.turn_writable()
        await recovers(running.look, READ_ONLY)
        async with running.load() as load:
            pass
        await running.process.stop()
    assert await kind.stored(disk.data) == load.stored


@kinds("on-the-loop", "in-the-thread", "node", quick=False)
async def test_a_disk_that_turns_read_only_ends_a_server_that_has_clients(tmp_path: Path, kind: Kind) -> None:
    disk = CommandedDisk(tmp_path)
    async with kind.serve(disk.data, disk.variables) as running:
        async with running.load() as load:
            disk.turn_read_only()
            assert await running.process.ended() == 1
        assert running.process.log[-1] == "restante: commit failed: disk I/O error"
        assert all(client.close_code is None for client in running.clients)
    async with started(disk.data, kind.program, (), DEVNULL, **disk.variables) as second:
        assert await second.ended() == 1
        assert "Read-only file system" in second.log[-1]
    disk.turn_writable()
    kept = await kind.stored(disk.data)
    assert load.stored <= kept
    async with kind.serve(disk.data, disk.variables) as running, running.load() as later:
        pass
    assert await kind.stored(disk.data) == kept + later.stored
