"""The node in this process: its clock stands still, and its archive does as it is told."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from restante.common.errors import StoreFull
from restante.common.listening import parse_listen_address
from restante.waku.archive.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.archive.sqlite import Archive
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keys import Key, node_id
from restante.waku.limits import Limits
from restante.waku.node.admission import PeerLimits
from restante.waku.node.clock import NodeClock
from restante.waku.node.history_requests import HistoryTerms
from restante.waku.node.mailserver import ArchiveTerms, Mailserver
from restante.waku.node.node import Node
from restante.waku.node.pool import Pool
from restante.waku.protocol.acceptance import Policy
from support.loops import move_clock, until
from support.waku.letters import EPOCH
from support.waku.raw_peer import RawPeer, Reachable, everybody_goes

TURNS = 4
"""How often everybody is fenced: what waits for the loop's next turns has come by then."""


class Clock(NodeClock):
    """It stands still, and whoever waits for a time makes it that time at once."""

    now = EPOCH
    passed = 0.0
    """Seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.on = asyncio.Event()
        """Cleared by a test that is to see somebody wait."""
        self.on.set()
        self.waiting = 0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.passed

    async def pause(self, seconds: float) -> None:
        due = math.ceil((self.passed + seconds) * 1000) / 1000  # uvloop's timers have whole milliseconds, too
        self.waiting += 1
        try:
            await self.on.wait()
        finally:
            self.waiting -= 1
        self.passed = max(self.passed, due)


class Today(Clock):
    def wall(self) -> float:
        return time.time()


class ControlledArchive(Archive):
    full = False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.batches: list[int] = []
        self.saving = False
        self.idle = asyncio.Event()
        """While it is not set, no save begins to write."""
        self.idle.set()
        self.asked: list[PageQuery] = []
        self.search = asyncio.Event()
        """While it is not set, no search goes on."""
        self.search.set()

    async def page(self, query: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> Page:
        self.asked.append(query)
        await self.search.wait()
        return await super().page(query, bounds)

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        self.batches.append(len(batch))
        self.saving = True
        try:
            await self.idle.wait()
            if self.full:
                raise StoreFull("the database refused: database or disk is full")
            await super().save(batch, arrived)
        finally:
            self.saving = False

    async def hashes(self) -> list[bytes]:
        return [row.envelope().hash for row in await self.after(0, 1_000_000)]


class Inside(Reachable):
    def __init__(self, node: Node, archive: ControlledArchive, clock: Clock) -> None:
        self.node = node
        self.archive = archive
        self.clock = clock
        self.running = asyncio.create_task(node.archiving.run())

    def narrow(self, *peers: RawPeer) -> None:
        """Make the kernel buffer little of what is sent to these peers, which do not read."""
        for peer in peers:
            transport = self.node.peers[node_id(peer.key.public)].reading.transport
            assert transport is not None
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

    async def settled(self, *peers: RawPeer) -> None:
        """Wait until all that these peers said is done, and what they are told is in their inboxes."""
        for _ in range(TURNS):
            for peer in peers:
                await peer.fence()
            await self.archived()

    async def archived(self) -> None:
        await self.until("the archive", lambda: not self.node.mailserver.gathered and not self.archive.saving)

    def later(self, seconds: float) -> None:
        move_clock(self.node.loop, seconds)

    until = staticmethod(until)


@asynccontextmanager
async def inside(
    data: Path,
    *,
    number: int = 1,
    port: int = 0,
    policy: Policy | None = None,
    terms: ArchiveTerms | None = None,
    peer_limits: PeerLimits | None = None,
    save_interval: float = 0.0,
    limits: Limits | None = None,
    clock: Clock | None = None,
    history: HistoryTerms | None = None,
) -> AsyncIterator[Inside]:
    clock = clock or Clock()
    limits = limits or Limits()
    archive = ControlledArchive.open(data)
    assert isinstance(archive, ControlledArchive)
    pool = Pool(limits.known_bytes, limits.pool_bytes)
    mailserver = Mailserver(policy or Policy(), terms or ArchiveTerms(), pool, 2 * limits.unsaved_bytes)
    key = Key(bytes([number]) * 32)
    peer_limits = peer_limits or PeerLimits(max_peers=1000, max_peers_per_address=50)
    node = Node(key, mailserver, archive, peer_limits, limits, history, clock=clock, save_interval=save_interval)
    here = Inside(node, archive, clock)
    try:
        [at] = await node.listen(parse_listen_address(f"127.0.0.1:{port}", "--listen"))
        here.enode = Enode(key.public, "127.0.0.1", int(at.rpartition(":")[2]))
        yield here
    finally:
        await node.drain(asyncio.create_task(asyncio.sleep(0)) if here.running.done() else here.running)
        await archive.close()
        await everybody_goes()
