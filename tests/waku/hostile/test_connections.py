"""Connections that are of no use: they cost little, and go when their time is over."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from restante.waku.envelope.envelope import make
from support.bounds import bounded
from support.effort import rounds
from support.proc import resident
from support.waku.letters import letter
from support.waku.raw_peer import FULL_NODE
from support.waku.siege import MIB, NOTHING, Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY: Final = rounds(100, 300)
SILENT: Final = rounds(200, 500)


async def test_handshakes_that_never_end(siege: Siege) -> None:
    """Some say nothing, some half an auth packet, some all of it and no Hello; each is gone after five seconds."""
    async with siege.beside_the_pair("handshakes that never end"):
        silent = [await siege.connect() for _ in range(MANY)]
        half = [await siege.connect() for _ in range(MANY)]
        for _, writer in half:
            writer.write((400).to_bytes(2, "big") + b"\4" + bytes(100))
        whole = [await siege.knock() for _ in range(rounds(20, 50))]
        async with bounded("the end of their time"):
            ends = await asyncio.gather(*(reader.read() for reader, _ in (*silent, *half)), return_exceptions=True)
            await asyncio.gather(*(peer.ended() for peer in whole))
        assert {end for end in ends if not isinstance(end, ConnectionError)} <= {b""}
        for _, writer in (*silent, *half):
            writer.transport.abort()


async def test_thousands_of_connects(siege: Siege) -> None:
    async with siege.beside_the_pair("thousands of connects"):
        for _ in range(rounds(600, 3000)):
            _, writer = await siege.connect()
            writer.transport.abort()
            await asyncio.sleep(0)


async def test_peers_that_leave_as_soon_as_they_have_come(siege: Siege) -> None:
    async with siege.beside_the_pair("peers that come and go"):
        for _ in range(rounds(60, 200)):
            (await siege.greet()).cut()


async def test_peers_that_leave_in_the_middle(siege: Siege) -> None:
    async with siege.beside_the_pair("peers that leave in the middle"):
        for number in range(0, 100, rounds(3, 1)):
            peer = await siege.greet(NOTHING)
            peer.offer([make(1, 1, b"gone", bytes(number))] * 10)
            peer.writer.write(peer.rlpx.seal(b"\x11" + bytes(500))[: 5 * number])
            peer.cut()


async def test_peers_that_read_nothing(siege: Siege) -> None:
    """What is owed to each is bounded; so is how long it may owe us the reading."""
    before = resident(siege.node.pid)
    async with siege.beside_the_pair("readers that take nothing") as pair:
        deaf = await siege.greet_many(8, FULL_NODE)
        poster = await siege.greet(NOTHING)
        for number in range(60):
            now = pair.posted[-1].sent
            response = await poster.post(letter(number, topic=b"deaf", size=200_000, ttl=1, now=now))
            assert not [each for each in response.refusals if each.words != "very old envelope"]
        owed = resident(siege.node.pid) - before
        assert owed < len(deaf) * 2.5 * MIB + 20 * MIB, f"{owed / MIB:.1f} MiB"


async def test_hundreds_of_idle_peers(siege: Siege) -> None:
    async with siege.beside_the_pair(f"{SILENT} peers that only sit there"):
        before = resident(siege.node.pid)
        await siege.greet_many(SILENT, NOTHING)
        each = (resident(siege.node.pid) - before) / SILENT
        assert each < 40_000, f"{each / 1024:.1f} KiB each"
