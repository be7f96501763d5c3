"""A node under siege, in a process of its own: who means well notices nothing, and nothing of attackers is left."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
import pytest_asyncio

from restante.waku.archive.history import MAX_PAIRED_BITS, MAX_SINGLE_BITS
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.archive.sqlite import READER_COUNT, open_archive
from restante.waku.devp2p.hello import CAPABILITY_CODES, Reason
from restante.waku.devp2p.rlpx import MAX_HANDSHAKE_BYTES
from restante.waku.devp2p.snappy import compress
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey, seal
from restante.waku.node.history_requests import MAX_PAGES, MAX_QUEUED_REQUESTS
from restante.waku.passwords import OFFLINE_INBOX
from restante.waku.protocol import completion, packets
from restante.waku.protocol.acceptance import EXPIRED, OLD
from restante.waku.protocol.completion import Completed, RequestRefused
from restante.waku.protocol.packets import Options
from restante.waku.protocol.request import MAX_PAGE_ENVELOPES, MAX_REQUEST_TOPICS, NO_TOPIC
from support.bounds import bounded
from support.dice import Seeded
from support.proc import descriptors, resident
from support.waku.letters import letter
from support.waku.processes import NodeProcess, altered, node_process
from support.waku.raw_peer import BASE, FULL_NODE, ID, NOTHING, RawPeer, fetch_page, page, plain

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB: Final = 1 << 20
OPTIONS: Final = (
    *("--max-peers", "2000", "--max-peers-per-address", "100000", "--limit", "address_connects=0"),
    *("--limit", f"known_bytes={MIB}", "--limit", f"pool_bytes={2 * MIB}"),
)
"""Attackers come by the hundred. The node's memory of envelopes is small, so that what else it keeps shows."""

GIVE_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Let the C library give memory back to the system as soon as it is free."""

SLACK: Final = 8 * MIB
"""How much more a node may hold when all have gone than after its warm-up, besides what SQLite has in its cache: of
what was archived since, no more than that. A large packet that is kept is 10."""

NOW: Final = int(time.time()) - 100
DICE: Final = Seeded(2000)
CHANCE: Final = random.Random(2001)
PAIR, WANTED, HEAVY = b"pair", b"want", b"load"
PAGE: Final = [make(NOW - 50 + number, 50, WANTED, DICE.draw(300)) for number in range(20)]
HALF: Final = sum(1 << bit for bit in CHANCE.sample(range(512), 256))


class Siege:
    def __init__(self, node: NodeProcess, poster: RawPeer, reader: RawPeer, requesters: list[RawPeer]) -> None:
        self.node = node
        self.posted: list[Envelope] = []
        self.rounds = 0
        self.source = "127.0.3.1"
        """The address that attackers come from: another one for each attack, and none is of those who mean well."""
        self.secrets = {topic.hex() for topic in (PAIR, WANTED, HEAVY, ID)} | {"127.0.", "pair"}
        self._poster, self._reader, self._requesters = poster, reader, itertools.cycle(requesters)
        self._attackers: list[RawPeer] = []
        self._before = (0, 0, 0)

    async def play(self) -> None:
        envelope = make(int(time.time()) + 30, 30, PAIR, f"of the pair {self.rounds}".encode())
        self.posted = [*self.posted[-9:], envelope]
        asked = fetch_page(next(self._requesters), upper=int(time.time()), topics=frozenset([WANTED]))
        # All read all the time, so all answer the node's Pings however long another one waits.
        posted = self._poster.post(envelope)
        response, relayed, answer = await asyncio.gather(posted, self._reader.relayed(1), asked)
        assert not response.refusals
        assert relayed == [envelope]
        assert answer == (PAGE, b"")
        self.rounds += 1

    async def plays(self, count: int) -> None:
        count += self.rounds
        while self.rounds < count:  # noqa: ASYNC110 - it is nobody's event
            await asyncio.sleep(0.01)

    async def beside(self, attack: Awaitable[None]) -> None:
        attacking = asyncio.ensure_future(attack)
        while not attacking.done():
            await self.play()
            await asyncio.sleep(0.01)
        attacking.result()
        self.everybody_goes()
        await self.play()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.node.enode.port, local_addr=(self.source, 0))

    async def knock(self) -> RawPeer:
        return self._one_more(await RawPeer.knock(self.node.enode.port, self.node.enode.public, source=self.source))

    async def greet(self, options: Options = NOTHING, source: str | None = None) -> RawPeer:
        return self._one_more(await self.node.greet(options, source=source or self.source))

    async def greet_many(self, count: int) -> list[RawPeer]:
        return [await self.greet() for _ in range(count)]

    def _one_more(self, peer: RawPeer) -> RawPeer:
        self._attackers.append(peer)
        self.secrets.add(peer.key.public.hex())
        return peer

    def everybody_goes(self) -> None:
        for attacker in self._attackers:
            attacker.cut()
        self._attackers = []

    def _resources(self) -> tuple[int, int, int]:
        pid = self.node.serving.pid
        archive = sum(file.stat().st_size for file in self.node.serving.data.glob(f"{ARCHIVE_FILE}*"))
        return descriptors(pid), resident(pid), archive

    async def warm_up(self) -> None:
        for _ in range(20):
            await self.play()
        before = self._resources()[0]
        await self.greet_many(50)
        flood = await self.greet()
        for part in floods(2000, 500):
            await flood.post(*part)
        asked = [plain(topics=frozenset(), upper=NOW, bloom=wide) for wide in (HALF, bloom.ALL_BITS, HALF)]
        asked.append(plain(topics=frozenset([HEAVY]), upper=NOW))
        for _ in range(2):  # what the caches of all readers have room for
            await asyncio.gather(*(answered(peer, asked) for peer in await self.greet_many(READER_COUNT)))
        self.everybody_goes()
        await self.until("an empty house", lambda: self._resources()[0] <= before)
        self._before = self._resources()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds():
                await self._poster.fence()

    async def ends_well(self) -> None:
        await self.play()

        def as_before() -> bool:
            count, size, archive = (now - before for now, before in zip(self._resources(), self._before, strict=True))
            return count <= 0 and size - archive < SLACK

        await self.until("as much as before", as_before)
        await self.node.serving.stop()
        lines = self.node.serving.log
        events = {json.loads(line)["event"] for line in lines}
        assert events <= {"listening", "draining", "stopped", "the last minute"}
        hashes = {envelope.hash.hex() for envelope in (*self.posted, *PAGE)}
        assert not [secret for secret in self.secrets | hashes if secret in "".join(lines)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """A node that cuts off no peer which reads nothing or says nothing: who waits for such an end waits for ever."""
    data = tmp_path_factory.mktemp("siege") / "data"
    archive = open_archive(data)
    crowd = [make(NOW - number, 50, DICE.draw(4), DICE.draw(20)) for number in range(5_000)]
    heavy = [make(NOW - 100 - number, 50, HEAVY, DICE.draw(500_000)) for number in range(30)]
    for batch in (PAGE, crowd, heavy):
        await archive.save(batch, NOW)
    await archive.close()
    async with node_process(data, *OPTIONS, program=altered("no-timeouts"), variables=GIVE_BACK) as node:
        requesters = [await node.greet(NOTHING, source=f"127.0.1.{number}") for number in range(1, 9)]
        reader = await node.greet(Options(pow=0.0, confirmations=True, topics=frozenset([PAIR])))
        siege = Siege(node, await node.greet(NOTHING), reader, requesters)
        await siege.warm_up()
        yield siege
        siege.everybody_goes()
        await siege.ends_well()


Attack = Callable[[Siege, int], Awaitable[None]]
ATTACKS: list[Attack] = []
_numbers, _sources = itertools.count(1), itertools.count(2)


def attack(function: Attack) -> Attack:
    ATTACKS.append(function)
    return function


def floods(count: int, part: int, **fields: int) -> Iterator[list[Envelope]]:
    """Make envelopes that nobody had, each of a topic of its own, in packets of so many."""
    now = int(time.time())
    for _ in range(0, count, part):
        numbers = itertools.islice(_numbers, part)
        yield [letter(number, topic=number.to_bytes(4, "big"), now=now, **fields) for number in numbers]


async def flood(peer: RawPeer, packets: Iterable[tuple[int, bytes]]) -> None:
    for code, body in packets:
        peer.say(code, body)
        await peer.writer.drain()
    await peer.fence()


async def answered(peer: RawPeer, requests: Iterable[bytes]) -> Counter[str]:
    bodies = list(requests)

    async def say() -> None:
        for body in bodies:
            peer.say(packets.REQUEST, body)
            await peer.writer.drain()

    saying = asyncio.create_task(say())
    ends = [(await page(peer))[1] for _ in bodies]
    await saying
    return Counter(end.reason if isinstance(end, RequestRefused) else "" for end in ends)


@attack
async def bytes_that_are_no_handshake_are_not_answered(siege: Siege, _scale: int) -> None:
    for stream in (
        *(b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30, bytes(3000), b"\xff" * 3000),
        b"\4" + CHANCE.randbytes(306),  # the form before EIP-8
        (113).to_bytes(2, "big") + b"\4" + CHANCE.randbytes(112),
        (MAX_HANDSHAKE_BYTES + 1).to_bytes(2, "big") + b"\4" + CHANCE.randbytes(MAX_HANDSHAKE_BYTES),
        (400).to_bytes(2, "big") + b"\4" + bytes(399),  # a point that is none
        (400).to_bytes(2, "big") + b"\4" + siege.node.enode.public + CHANCE.randbytes(335),  # no good MAC
    ):
        reader, writer = await siege.connect()
        writer.write(stream)
        writer.write_eof()
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.transport.abort()


@attack
async def a_broken_frame_ends_its_connection(siege: Siege, _scale: int) -> None:
    messages = rlp.encode(BASE + packets.MESSAGES)
    for frame in (
        rlp.encode(BASE + CAPABILITY_CODES) + compress(b"\xc0"),
        messages + b"\xff" * 20,  # not compressed
        messages + compress(bytes(1 << 24)),  # a bomb of 16 MiB
        messages + b"\xff\xff\xff\xff\x0f" + bytes(10),  # a size of 4 GiB and a few bytes
    ):
        peer = await siege.greet()
        peer.frame(frame)
        assert await peer.ended() is Reason.BREACH, frame
    peer = await siege.greet()
    peer.writer.write(CHANCE.randbytes(64))
    assert await peer.ended() is Reason.BREACH


@attack
async def packets_that_cannot_be_read_end_no_connection(siege: Siege, scale: int) -> None:
    peer = await siege.greet()
    codes = (packets.MESSAGES, packets.BATCH_ACK, packets.MESSAGE_RESPONSE, packets.STATUS_UPDATE)
    for code, body in itertools.product(codes, ("", "80", "c1", "b800", "f80180", "c3820001", "ff" * 9, "c1" * 2000)):
        peer.say(code, bytes.fromhex(body))
    noise = [(code, CHANCE.randbytes(30 * scale)) for code in range(1, CAPABILITY_CODES)]
    await flood(peer, noise)
    assert not (await peer.post()).refusals


@attack
async def handshakes_that_never_end(siege: Siege, scale: int) -> None:
    silent = [await siege.connect() for _ in range(60 * scale)]
    for _, writer in silent[::2]:
        writer.write((400).to_bytes(2, "big") + b"\4" + bytes(100))
    knocking = [await siege.knock() for _ in range(10 * scale)]
    async with bounded("the end of their time"):
        ends = await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
        await asyncio.gather(*(peer.ended() for peer in knocking))
    assert {end for end in ends if not isinstance(end, ConnectionError)} <= {b""}
    for _, writer in silent:
        writer.transport.abort()


@attack
async def peers_that_come_and_go(siege: Siege, scale: int) -> None:
    for number in range(15 * scale):
        for _ in range(10):
            _, writer = await siege.connect()
            writer.transport.abort()
        peer = await siege.greet()
        peer.offer([make(1, 1, b"gone", bytes(number))] * 10)
        peer.writer.write(peer.rlpx.seal(b"\x11" + bytes(500))[: 5 * number])
        peer.cut()


@attack
async def peers_that_read_nothing(siege: Siege, scale: int) -> None:
    before = resident(siege.node.serving.pid)
    deaf = [await siege.greet(FULL_NODE) for _ in range(4 * scale)]
    poster = await siege.greet()
    for number in range(60):
        now = int(time.time())
        response = await poster.post(letter(number, topic=b"deaf", size=200_000, ttl=1, now=now))
        assert {refusal.text for refusal in response.refusals} <= {OLD.words, EXPIRED.words}
    assert resident(siege.node.serving.pid) - before < len(deaf) * 2.5 * MIB + 20 * MIB


@attack
async def idle_peers(siege: Siege, scale: int) -> None:
    before, count = resident(siege.node.serving.pid), 120 * scale
    await siege.greet_many(count)
    assert (resident(siege.node.serving.pid) - before) / count < 40_000 + MIB / count


@attack
async def envelopes_that_are_good_refused_or_new_in_every_topic(siege: Siege, scale: int) -> None:
    good, refused, expired, many = await siege.greet_many(4)
    for peer, parts in (
        (good, floods(1000 * scale, 100, size=300)),
        (refused, floods(1000 * scale, 200, age=1000, size=300)),
        (expired, floods(1000 * scale, 200, age=60, size=0)),
    ):
        await flood(peer, [(packets.MESSAGES, packets.write_envelopes(one.raw for one in part)) for part in parts])
    for part in floods(5000 * scale, 1000, ttl=3600):  # a million would be like these: what is forgotten makes room
        assert not (await many.post(*part)).refusals
    decades = [make(2**32 - 1 - number, 2**31 - 1, number.to_bytes(4, "big"), b"x") for number in range(300)]
    assert len((await many.post(*decades)).refusals) == len(decades)


@attack
async def interests_that_change_with_every_packet(siege: Siege, scale: int) -> None:
    topics = [number.to_bytes(4, "big") for number in range(1 << 20, (1 << 20) + packets.MAX_INTEREST_TOPICS)]
    options = [Options(topics=frozenset(topics[number:])) for number in range(3 * scale)]
    options += [Options(bloom=bloom.ALL_BITS ^ 1 << bit) for bit in range(40 * scale)]
    updates = [(packets.STATUS_UPDATE, packets.write_options(interest)) for interest in options]
    await asyncio.gather(*(flood(peer, updates) for peer in await siege.greet_many(2)))


@attack
async def packets_of_a_million_items_or_of_too_many_envelopes(siege: Siege, _scale: int) -> None:
    """They are 50 kB on the wire: whoever listed the items would need seconds and hundreds of MiB for each."""
    million = b"\xfa\x10\x00\x00" + b"\x80" * (1 << 20)
    codes = (packets.MESSAGES, packets.BATCH_ACK, packets.MESSAGE_RESPONSE, packets.STATUS_UPDATE)
    for code, peer in zip(codes, await siege.greet_many(len(codes)), strict=True):
        await flood(peer, [(code, million)])
    many = packets.write_envelopes([make(1, 1, b"tiny", b"").raw] * (packets.MAX_PACKET_ENVELOPES + 1))
    await flood(await siege.greet(source="127.0.3.250"), [(packets.MESSAGES, many)])


@attack
async def pings_unknown_codes_and_copies(siege: Siege, scale: int) -> None:
    frames = (b"\2" + compress(b"\xc0"), b"\3" + compress(b"\xc0"), b"\x80\xc0", bytes((BASE + 99,)) + compress(b"x"))
    for peer in await siege.greet_many(2):
        for frame in frames * (200 * scale):
            peer.frame(frame)
        await peer.fence()
    copier = await siege.greet()
    await siege.plays(10)  # an attack before may have made the node forget the older ones
    for _ in range(50 * scale):
        copier.offer(siege.posted)
        await copier.writer.drain()
    await copier.fence()


def raw(**fields: Any) -> bytes:
    usual = {"id": ID, "lower": 0, "upper": NOW, "limit": 0, "cursor": b"", "bloom": b"", "topics": []}
    return rlp.encode(list((usual | fields).values()))


def sealed(body: bytes) -> Envelope:
    data = seal(body, to=SymmetricKey.from_password(OFFLINE_INBOX), dice=DICE, sign=new_key(DICE))
    return make(int(time.time()) + 50, 50, NO_TOPIC, data)


@attack
async def requests_that_cannot_be_served(siege: Siege, scale: int) -> None:
    peer, invalid = await siege.greet(), "request is invalid: "
    refusals = await answered(peer, [raw(bloom=bytes(size)) for size in (0, 1, 63, 65)] * (20 * scale))
    assert all("bloom" in refusal for refusal in refusals)
    many = [number.to_bytes(4, "big") for number in range(100_000)]
    assert await answered(peer, [raw(topics=many)]) == {f"{invalid}more than {MAX_REQUEST_TOPICS} topics": 1}
    refusals = await answered(peer, [raw(lower=NOW + 1, topics=[WANTED])] * (50 * scale))
    assert list(refusals) == [f"{invalid}query range is invalid: lower > upper"]
    for _ in range(50 * scale):
        peer.say(packets.REQUEST, DICE.draw(CHANCE.randrange(200)))
        peer.say(packets.P2P_MESSAGE, packets.write_envelopes(envelope.raw for envelope in PAGE))
        peer.say(packets.REQUEST_COMPLETE, completion.encode(ID))
    await peer.fence()
    assert not peer.inbox


@attack
async def garbage_sealed_with_the_password_and_replays(siege: Siege, scale: int) -> None:
    peer = await siege.greet()
    bodies = [
        bytes([first]) + DICE.draw(size) for size in (0, 6, 71, 75, 111, 116) for first in (0, 0x50, 0xC0, 0xF8)
    ]
    bodies += [b"", rlp.encode([0] * 8), rlp.encode([[]] * 5), rlp.encode([b"", 1, [[[]]], [], 0, 0, 0])]
    for start in range(0, len(bodies), 8):
        asked = [sealed(body) for body in bodies[start : start + 8]]
        peer.say_all((packets.REQUEST, envelope.raw) for envelope in asked)
        ends = [(await page(peer))[1] for _ in asked]
        assert {end.id for end in ends if isinstance(end, Completed | RequestRefused)} == {one.hash for one in asked}
    replayed = sealed(rlp.encode([0, NOW, b"", [WANTED], 0, b"", True])).raw
    for _ in range(5 * scale):
        assert set(await answered(peer, [replayed] * 10)) <= {"", "rate limit exceeded"}


@attack
async def requests_that_make_the_node_search_everything(siege: Siege, scale: int) -> None:
    bodies = [raw(bloom=bloom.encode(HALF)), raw(bloom=bloom.encode(HALF), limit=MAX_PAGE_ENVELOPES)]
    bodies += [raw(topics=[DICE.draw(4) for _ in range(MAX_REQUEST_TOPICS)])]
    for places in (MAX_PAIRED_BITS, MAX_SINGLE_BITS):
        few = sum(1 << bit for bit in CHANCE.sample(range(512), places))
        bodies.append(raw(bloom=bloom.encode(few), limit=1))
    for refusals in await asyncio.gather(*(answered(peer, bodies * scale * 2) for peer in await siege.greet_many(3))):
        assert set(refusals) <= {"", "too many requests at once", "rate limit exceeded"}


@attack
async def requests_as_fast_as_possible(siege: Siege, scale: int) -> None:
    bodies = [raw(topics=[WANTED])] * (400 * scale)
    for refusals in await asyncio.gather(*(answered(peer, bodies) for peer in await siege.greet_many(3))):
        assert refusals.total() == len(bodies)
        assert refusals[""] >= MAX_QUEUED_REQUESTS
        assert refusals["too many requests at once"]
        assert set(refusals) <= {"", "too many requests at once", "rate limit exceeded"}


@attack
async def requesters_that_leave_during_a_query(siege: Siege, scale: int) -> None:
    bodies = (raw(bloom=bloom.encode(HALF)), raw(topics=[HEAVY]), raw(topics=[WANTED]))
    for number in range(10 * scale):
        peer = await siege.greet()
        peer.say_all([(packets.REQUEST, body) for body in bodies * 3])
        await peer.writer.drain()
        if number % 3:
            await peer.hear()
        peer.cut()


@attack
async def requesters_of_one_address_or_of_many_that_read_nothing(siege: Siege, _scale: int) -> None:
    count = MAX_PAGES + 4
    for addresses in ([siege.source] * count, [f"127.0.4.{number}" for number in range(1, count + 1)]):
        for number, address in enumerate(addresses):
            peer = await siege.greet(NOTHING, address)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.say_all([(packets.REQUEST, raw(id=bytes([number]) * 32, topics=[HEAVY]))] * 5)
            await peer.writer.drain()
        await siege.plays(10)
        siege.everybody_goes()


@pytest.mark.parametrize("scale", [1, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_who_means_well_notices_nothing_of(siege: Siege, attack: Attack, scale: int) -> None:
    siege.source = f"127.0.3.{next(_sources)}"
    await siege.beside(attack(siege, scale))
