"""A disk that hangs, fills or turns read-only under `restante waku serve`: /readyz says so, and what peers see."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from restante.waku.node.archiving import DISK_FULL
from restante.waku.node.mailserver import FULL_WORDS
from support.bounds import bounded
from support.faulty_disk import FULL, HANGS, CommandedDisk, Look, looking, small_disk
from support.metrics import counts
from support.ports import held_port
from support.processes import started
from support.waku.letters import letter
from support.waku.processes import WAKU, NodeProcess, archived, node_process
from support.waku.raw_peer import GoneError, RawPeer

pytestmark = pytest.mark.thorough

DISK_KIB = 8192


@asynccontextmanager
async def served(
    data: Path, program: tuple[str, ...] = WAKU, variables: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[NodeProcess, Look]]:
    """Run a node with an admin port."""
    with held_port() as port:
        options = ("--admin", f"127.0.0.1:{port}")
        async with node_process(data, *options, program=program, variables=variables) as node, looking(port) as look:
            yield node, look


class Posts:
    """Two peers that post, each an envelope when the one before was answered."""

    def __init__(self) -> None:
        self.archived: list[bytes] = []
        """Hashes of envelopes that were confirmed."""
        self.refusals: list[str] = []
        """Words of errors."""
        self.over = False
        self._numbers = itertools.count()
        self._news = asyncio.Event()

    async def run(self, peer: RawPeer) -> None:
        """Post until it is over, or the node is gone."""
        with contextlib.suppress(GoneError, ConnectionError):
            while not self.over:
                envelope = letter(next(self._numbers), now=int(time.time()))
                response = await peer.post(envelope)
                self.refusals += (each.words for each in response.refusals)
                if not response.refusals:
                    self.archived.append(envelope.hash)
                self._news.set()

    async def more(self) -> None:
        """Wait until ten more envelopes are archived."""
        wanted = len(self.archived) + 10
        await self.until("confirmations", lambda: len(self.archived) >= wanted)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def posting(node: NodeProcess) -> AsyncIterator[Posts]:
    """Let two peers post until the block ends."""
    posts = Posts()
    tasks = [asyncio.create_task(posts.run(await node.greet())) for _ in range(2)]
    try:
        await posts.more()
        yield posts
    finally:
        posts.over = True
        await asyncio.gather(*tasks)


async def archived_once(data: Path, posts: Posts) -> None:
    """All that was confirmed is in the archive, and nothing else."""
    assert sorted(await archived(data)) == sorted(posts.archived)


async def test_a_disk_that_hangs_is_reported_and_delays_peers_and_loses_nothing(tmp_path: Path) -> None:
    disk = CommandedDisk(tmp_path)
    async with served(disk.data, variables=disk.variables) as (node, look):
        async with posting(node) as posts:
            await look.reports(disk.hang, HANGS)
            assert counts(await look.works())["waku_ready"] == 0
            disk.go_on()
            await look.recovers(HANGS)
            await posts.more()
        assert posts.refusals == []
        await node.serving.stop()
    await archived_once(disk.data, posts)


async def test_a_disk_that_fills_refuses_envelopes_until_there_is_room(tmp_path: Path) -> None:
    words = (FULL, f"{DISK_FULL.state}\n")
    async with small_disk(tmp_path, DISK_KIB) as disk:
        async with served(disk.data, (*disk.enter, *WAKU)) as (node, look):
            async with posting(node) as posts:
                await look.reports(disk.fill, *words)
                await look.works()
                await posts.until("an error", lambda: bool(posts.refusals))
                disk.make_room()
                await look.recovers(*words)
                await posts.more()
            assert set(posts.refusals) == {FULL_WORDS}
            await node.serving.stop()
        shutil.copytree(disk.outside / "data", tmp_path / "data")
    await archived_once(tmp_path / "data", posts)


async def test_a_node_that_a_full_disk_made_unready_is_ready_again_without_an_envelope(tmp_path: Path) -> None:
    """A load balancer sends no peers to a node that is not ready."""
    words = (FULL, f"{DISK_FULL.state}\n")
    async with small_disk(tmp_path, DISK_KIB) as disk, served(disk.data, (*disk.enter, *WAKU)) as (node, look):
        async with posting(node) as posts:
            await look.reports(disk.fill, *words)
            await posts.until("an error", lambda: bool(posts.refusals))
        disk.make_room()
        await look.recovers(*words)
        await node.serving.stop()


async def test_a_disk_that_turns_read_only_ends_a_node_that_has_peers(tmp_path: Path) -> None:
    disk = CommandedDisk(tmp_path)
    async with served(disk.data, variables=disk.variables) as (node, _):
        async with posting(node) as posts:
            disk.turn_read_only()
            assert await node.serving.ended() == 1
        assert node.serving.log[-1] == "restante: commit failed: disk I/O error"
    async with started(disk.data, WAKU, (), DEVNULL, **disk.variables) as second:
        assert await second.ended() == 1
        assert "Read-only file system" in second.log[-1]
    disk.turn_writable()
    async with served(disk.data, variables=disk.variables) as (node, _):
        await node.serving.stop()
    assert set(posts.archived) <= set(await archived(disk.data))
