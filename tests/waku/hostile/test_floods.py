"""Too much of what is allowed: who sends it waits, and nobody else."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from restante.waku.devp2p.snappy import compress
from restante.waku.envelope.bloom import ALL_BITS
from restante.waku.envelope.envelope import make
from restante.waku.protocol import packets
from restante.waku.protocol.packets import Options
from support.effort import rounds
from support.waku.raw_peer import BASE, RawPeer
from support.waku.siege import NOTHING, REMEMBERED, TOPIC, Siege, floods

pytestmark = pytest.mark.asyncio(loop_scope="module")

ATTACKERS: Final = 4


async def all_of(siege: Siege, *bodies: tuple[int, bytes], times: int = 1) -> None:
    """Let each attacker send all this, as fast as it is read."""

    async def attack(peer: RawPeer) -> None:
        for _ in range(times):
            for code, body in bodies:
                peer.say(code, body)
                await peer.drain()
        await peer.fence()

    await asyncio.gather(*(attack(peer) for peer in await siege.greet_many(ATTACKERS)))


async def test_a_flood_of_good_envelopes(siege: Siege) -> None:
    async with siege.beside_the_pair("a flood of good envelopes"):
        peers = await siege.greet_many(ATTACKERS)

        async def flood(peer: RawPeer) -> None:
            for part in floods(rounds(1000, 3000), 100, size=300):
                peer.offer(part)
                await peer.drain()
            await peer.fence()

        await asyncio.gather(*map(flood, peers))


async def test_a_flood_of_refused_envelopes(siege: Siege) -> None:
    bodies = [
        packets.write_envelopes(each.raw for each in part)
        for part in floods(rounds(1000, 4000), 200, age=1000, size=300)
    ]
    async with siege.beside_the_pair("a flood of refused envelopes"):
        await all_of(siege, *((packets.MESSAGES, body) for body in bodies))


async def test_decades_of_ttl_are_refused(siege: Siege) -> None:
    decades = [
        make(2**32 - 1 - number, 2**31 - 1, number.to_bytes(4, "big"), b"x") for number in range(rounds(500, 2000))
    ]
    back = [make(each.expiry - 2**31, 2**31 - 1, each.topic, b"x") for each in decades]
    async with siege.beside_the_pair("decades of TTL"):
        peer = await siege.greet(NOTHING)
        for envelopes in (decades, back):
            response = await peer.post(*envelopes)
            assert len(response.refusals) == len(envelopes)


COUNT: Final = rounds(10_000, 20_000)


async def test_as_many_topics_as_envelopes_take_no_more_memory_than_is_set_aside(siege: Siege) -> None:
    """A million would be like these: what is forgotten makes room."""
    async with siege.beside_the_pair(f"{COUNT:,} envelopes of as many topics"):
        peer = await siege.greet(NOTHING)
        for part in floods(COUNT, 1000, ttl=3600):
            assert not (await peer.post(*part)).refusals
        newcomer = await siege.greet(Options(bloom=1, pow=0.0))
        await newcomer.fence()


MANY: Final = [number.to_bytes(4, "big") for number in range(1 << 20, (1 << 20) + packets.MAX_INTEREST_TOPICS)]


async def test_updates_of_ten_thousand_topics(siege: Siege) -> None:
    bodies = [packets.write_options(Options(topics=frozenset(MANY[number:]))) for number in range(9)]
    async with siege.beside_the_pair("updates of ten thousand topics"):
        await all_of(siege, *((packets.STATUS_UPDATE, body) for body in bodies))


async def test_an_interest_that_changes_with_every_packet(siege: Siege) -> None:
    bodies = [packets.write_options(Options(bloom=ALL_BITS ^ 1 << bit)) for bit in range(rounds(40, 120))]
    async with siege.beside_the_pair("filters that change with every packet"):
        await all_of(siege, *((packets.STATUS_UPDATE, body) for body in bodies))


async def test_packets_of_a_million_items(siege: Siege) -> None:
    """They are 50 kB on the wire: whoever listed the items would need seconds and hundreds of MiB for each."""
    million = b"\xfa\x10\x00\x00" + b"\x80" * (1 << 20)
    codes = (packets.MESSAGES, packets.BATCH_ACK, packets.MESSAGE_RESPONSE, packets.STATUS_UPDATE)
    async with siege.beside_the_pair("packets of a million items"):
        for code in codes:
            peer = await siege.greet(NOTHING)
            peer.say(code, million)
            await peer.fence()
        stranger = await siege.enter()
        stranger.say(packets.STATUS, million)
        await stranger.ended()


async def test_more_envelopes_than_a_packet_may_have(siege: Siege) -> None:
    body = packets.write_envelopes([make(1, 1, b"tiny", b"").raw] * (packets.MAX_PACKET_ENVELOPES + 1))
    async with siege.beside_the_pair("50,001 envelopes of 10 bytes"):
        peer = await siege.greet(NOTHING)
        peer.say(packets.MESSAGES, body)
        await peer.drain()
        await siege.until("it was read", lambda: not peer.writer.transport.get_write_buffer_size())


async def test_pings_and_pongs(siege: Siege) -> None:
    async with siege.beside_the_pair("pings and pongs"):
        for peer in await siege.greet_many(ATTACKERS):
            for number in range(rounds(500, 2000)):
                peer.frame((b"\2", b"\3")[number % 2] + compress(b"\xc0"))
            await peer.fence()


async def test_unknown_codes_and_hellos(siege: Siege) -> None:
    async with siege.beside_the_pair("unknown codes, and Hellos again"):
        for peer in await siege.greet_many(ATTACKERS):
            for number in range(rounds(500, 2000)):
                peer.frame(b"\x80" + compress(b"\xc0") if number % 2 else bytes((BASE + 99,)) + compress(b"anything"))
            await peer.fence()


async def test_copies_of_what_the_pair_has_posted(siege: Siege) -> None:
    async with siege.beside_the_pair("copies of what the pair has posted") as pair:
        await pair.plays(REMEMBERED)  # a flood of the test before may have made the node forget the older ones
        peer = await siege.greet(Options(topics=frozenset([TOPIC]), pow=0.0))
        for _ in range(rounds(60, 200)):
            peer.offer(pair.posted)
            await peer.drain()
        await peer.fence()
