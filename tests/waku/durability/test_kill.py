"""kill -9 while senders post: what was confirmed is there after the restart, and nothing twice.

What a killed process has written stays with the kernel; that a commit reaches the disk is for test_disk.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from restante.common.errors import PeerError
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import packets
from support.bounds import bounded
from support.waku.letters import letter
from support.waku.processes import NodeProcess, archived, node_process
from support.waku.raw_peer import GoneError, RawPeer

SENDERS: Final = 4
AHEAD: Final = 4
"""Packets that a sender has under way."""
EARLIEST, LATEST = 1, 150
"""When the kill comes, in confirmations."""


class Load:
    """Rounds of posting on one data directory."""

    def __init__(self, seed: int, data: Path) -> None:
        self.data = data
        self.confirmed: set[bytes] = set()
        self.offered: set[bytes] = set()
        self.interrupted = 0
        """Packets that were under way at a kill."""
        self._dice = random.Random(seed)
        self._moments = random.Random(seed)
        """Of kills: no other dice, since the senders throw theirs in the order in which they are answered."""
        self._letters: list[Envelope] = []

    async def until_killed(self) -> None:
        """Post, and kill the node in the middle of it."""
        left = self._moments.randrange(EARLIEST, LATEST)
        async with node_process(self.data) as node:

            def count() -> None:
                nonlocal left
                left -= 1
                if not left:
                    node.serving.process.kill()

            async with bounded("the kill"), asyncio.TaskGroup() as senders:
                for _ in range(SENDERS):
                    senders.create_task(self._send(node, count))
            assert await node.serving.ended() == -signal.SIGKILL, node.serving.log

    async def _send(self, node: NodeProcess, count: Callable[[], None]) -> None:
        """Post until the node is gone: new envelopes, and copies of old ones, also of those under way elsewhere."""
        peer = await RawPeer.greet(node.port, node.enode.public)
        under_way: dict[bytes, set[bytes]] = {}
        try:
            while True:
                while len(under_way) < AHEAD:
                    some = self._some()
                    under_way[peer.offer(some)] = {each.hash for each in some}
                code, body = await peer.hear()
                if code == packets.MESSAGE_RESPONSE:
                    response = packets.read_response(body)
                    assert not response.refusals, response
                    self.confirmed |= under_way.pop(response.packet)
                    count()
        except (GoneError, PeerError, ConnectionError):
            self.interrupted += len(under_way)

    def _some(self) -> list[Envelope]:
        dice = self._dice
        fresh = [
            letter(
                len(self.offered) + number,
                topic=bytes((dice.randrange(3), 0, 0, 0)),
                age=dice.randrange(20),
                size=dice.randrange(400),
                now=int(time.time()),
            )
            for number in range(dice.randrange(1, 6))
        ]
        copies = dice.sample(self._letters, min(len(self._letters), dice.randrange(4)))
        self._letters = (self._letters + fresh)[-50:]
        self.offered |= {each.hash for each in fresh}
        some = fresh + copies
        dice.shuffle(some)
        return some

    async def losses(self) -> list[str]:
        """Look at what is on disk while no node runs."""
        there = Counter(await archived(self.data))
        found = [f"{digest.hex()} was confirmed and is lost" for digest in self.confirmed - there.keys()]
        found += [f"{digest.hex()} is there {times} times" for digest, times in there.items() if times > 1]
        found += [f"{digest.hex()} was never offered" for digest in there.keys() - self.offered]
        return found


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.thorough)])
async def test_every_confirmed_envelope_survives_every_kill(tmp_path: Path, kills: int) -> None:
    load = Load(20261121 + kills, tmp_path / "data")
    for _ in range(kills):
        await load.until_killed()
        assert await load.losses() == []
    assert load.interrupted, "no kill hit a packet under way"
    assert len(load.confirmed) > 20 * kills
