"""A confirmation means disk: it leaves after the flush, and what was confirmed is there after every kill, once."""

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
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.protocol import packets
from restante.waku.protocol.packets import Options
from support.bounds import bounded
from support.faulty_disk import Call, noting, read_notes
from support.waku.letters import letter
from support.waku.processes import NodeProcess, archived, node_process
from support.waku.raw_peer import GoneError, RawPeer

PACKETS: Final = 10
SENDERS: Final = 3
WANTS_NOTHING: Final = Options(pow=0.0, confirmations=True, topics=frozenset())


async def talk(node: NodeProcess, number: int) -> tuple[str, list[bytes]]:
    """Post packets, each when the one before is confirmed; return the node's socket, and a token of each packet."""
    peer = await node.greet(WANTS_NOTHING)
    tokens = [f"<sender {number} packet {packet}>".encode() for packet in range(PACKETS)]
    for token in tokens:
        now = int(time.time())
        await peer.post(*(make(now + 50, 50, b"\1\2\3\4", token + bytes([number])) for number in range(3)))
    return f"socket:[{inode(node.port, peer)}]", tokens


def inode(port: int, peer: RawPeer) -> int:
    """Find the node's end of a connection (man 5 proc_net, tcp: local and remote address, and the inode)."""
    other = peer.writer.get_extra_info("sockname")[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == (f"0100007F:{port:04X}", f"0100007F:{other:04X}"):
            return int(fields[9])
    raise AssertionError("no such connection")


def check(calls: list[Call], socket: str, tokens: list[bytes]) -> None:
    """Each confirmation left after a flush that began after what it confirms was written."""
    flushes = [call for call in calls if call.kind == "sync" and call.file.endswith("-wal")]
    sends = [call for call in calls if call.kind == "send" and call.file == socket]
    confirmations = sends[-PACKETS - 1 : -1]  # the last is the goodbye
    for token, send in zip(tokens, confirmations, strict=True):
        written = [call for call in calls if call.kind == "write" and token in call.data and call.end < send.begin]
        assert written, "confirmed, and not written"
        assert any(written[0].end < flush.begin and flush.end < send.begin for flush in flushes)


async def test_no_confirmation_leaves_before_its_commit_is_on_disk(tmp_path: Path) -> None:
    async with node_process(tmp_path / "data", variables=noting(tmp_path)) as node:
        talks = await asyncio.gather(*(talk(node, number) for number in range(SENDERS)))
        await node.serving.stop()
    calls = read_notes(tmp_path)
    for socket, tokens in talks:
        check(calls, socket, tokens)


KILLED_SENDERS: Final = 4
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
                for _ in range(KILLED_SENDERS):
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

    async def check(self) -> None:
        """On disk is all that was confirmed, once, and nothing that was not offered."""
        there = Counter(await archived(self.data))
        assert self.confirmed <= there.keys() <= self.offered
        assert set(there.values()) == {1}


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.thorough)])
async def test_every_confirmed_envelope_survives_every_kill(tmp_path: Path, kills: int) -> None:
    load = Load(20261121 + kills, tmp_path / "data")
    for _ in range(kills):
        await load.until_killed()
        await load.check()
    assert load.interrupted, "no kill hit a packet under way"
    assert len(load.confirmed) > 20 * kills
