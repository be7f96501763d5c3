"""Restante's Mailserver over real RLPx connections. See bench/README.md."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import re
import statistics
import sys
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import uvloop

import harness
from harness import CACHEGRIND, Bench, Figure, Results, Server, counted, own, percentile
from restante.common.dice import SystemDice
from restante.waku.archive.query import PageQuery
from restante.waku.archive.sqlite import open_archive
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from restante.waku.devp2p.hello import Capability, Hello
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet
from restante.waku.devp2p.snappy import compress
from restante.waku.envelope import bloom, rlp
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import new_key
from restante.waku.protocol import completion, packets, request
from restante.waku.protocol.completion import Completed

T = TypeVar("T")
SENDERS = 4
PACKET = 10
"""Envelopes in a packet of `ingest`, unless `--packet` says otherwise."""
WINDOW = 16
"""Packets that a sender of `ingest` leaves unconfirmed, unless `--window` says otherwise. Real senders never wait."""
RATE_TARGETS = {(4, 10): 12_000.0}
"""Envelopes a second that `ingest_rate` must reach, by window and packet. Others have no target."""
CROWD_RATE, CONNECT_AT_A_TIME, CLIENTS = 200, 32, 8
UNCOUNTED_REQUESTS = 5
"""What is read from the disk is then in memory, as it is in a server that has run."""
UNLIMITED = ("--limit", "pages=0", "--limit", "rows=0")
ID = b"\x11" * request.ID_BYTES
START = 1_700_000_000
DAYS = 30
DAY_SECONDS = 86_400
TTL = 50
DATA_BYTES = 284
"""Of an envelope: a sealed payload of 256 bytes. With the fields it has 305."""
LIMIT = 1_000
"""Envelopes of a page."""


def _page_figures(name: str, headed: Figure, p99: Figure | None = None, *, by: str = "p50") -> dict[str, Figure]:
    """Return the lines of a kind of page: the one that its target is of, and those that explain it."""
    others = {
        "p50": Figure("  p50 at the client, ms"),
        "p99": p99 or Figure("  p99, ms"),
        "cpu": Figure("  server CPU, ms"),
        "envelopes": Figure("  envelopes a page"),
        "busy": Figure("  generator's share of its CPU"),
    }
    del others[by]
    return {f"{name}_{part}": figure for part, figure in {by: headed, **others}.items()}


def _beside(figure: Figure, status_go: str) -> Figure:
    return replace(figure, elsewhere=status_go)


FIGURES = {
    "ingest": _beside(own("ingest of {n}, CPU µs an envelope, confirmed after fsync", 40, 28), "42, no fsync"),
    "ingest_rate": Figure("  envelopes/s, {window} packets of {packet} unconfirmed", higher_is_better=True),
    "ingest_ack_p50": Figure("  confirmation p50, ms"),
    "ingest_ack_p99": Figure("  confirmation p99, ms"),
    "ingest_flushes": Figure("  envelopes a flush"),
    "ingest_peak": Figure("  peak resident, MiB"),
    "ingest_disk": Figure("  disk, bytes an envelope"),
    "crowd": _beside(own("200 envelopes/s with {idle} idle peers, CPU ms an envelope", 0.5, 0.2), "13.7, saturated"),
    "crowd_ack_p50": Figure("  confirmation p50, ms"),
    "crowd_ack_p99": Figure("  confirmation p99, ms"),
    "idle_kib": _beside(own("idle peer, resident KiB", 35, 25), "60"),
    "handshake": _beside(own("handshake, CPU µs", 600, 450), "450-490"),
    "handshake_rate": Figure("  handshakes/s"),
    **_page_figures(
        "page_three",
        _beside(own("{n}, {topics} topics: 1-3 of them, p50, ms", 5, 2), "427"),
        _beside(own("  p99, ms", 15, 5), "482"),
    ),
    **_page_figures("page_crowd", _beside(own("  the same, 8 clients at once, p50, ms", 40, 20), "3,350")),
    **_page_figures("page_day", _beside(Figure("  the same, the newest day, p50, ms"), "11.8")),
    **_page_figures("page_bloom", _beside(own("bloom of 1-3 topics, p50, ms", 10, 4), "483")),
    **_page_figures("page_ten", _beside(own("10 topics, page of 1,000, CPU ms", 12, 6), "176"), by="cpu"),
    **_page_figures("page_many", _beside(own("500 topics, page of 1,000, CPU ms", 12, 6), "6.5"), by="cpu"),
    **_page_figures("page_half", _beside(own("bloom half full, page of 1,000, CPU ms", 12, 6), "6.5"), by="cpu"),
    "page_all": _beside(own("everything, page after page, CPU µs an envelope", 4, 2.7), "1.8"),
    "page_peak": Figure("  peak resident, MiB"),
    "instructions_hash": Figure("copying and hashing an envelope's 305 bytes, instructions"),
    "instructions_frames": Figure("  making frames of them"),
    "instructions_ingest": Figure("ingest, instructions an envelope"),
    "ingest_times": Figure("  times copying and hashing"),
    "instructions_flushes": Figure("  envelopes a flush"),
    "instructions_page": Figure("everything, instructions an envelope"),
    "page_times": own("  times copying and hashing", 1.3, 1.2),
    "page_times_frames": Figure("  times making frames"),
    **_page_figures("page_million", own("{n} different topics: 1-3 of them, p50, ms", 10, 4)),
}


@dataclass
class Run(harness.Run):
    """How much to measure."""

    envelopes: int
    idle: int
    handshakes: int
    seconds: float
    topics: int
    pages: int
    window: int
    packet: int
    archives: Path
    made: dict[int, Archive] = field(default_factory=dict)
    """The archives of `history`, which are made once for all rounds, by their number of topics."""

    async def start(self, *flags: str, data: Path | None = None, under: Sequence[str] = ()) -> tuple[Server, Enode]:
        """Start a server on an empty folder, or on an archive."""
        limits = [part for name in ("bytes", "envelopes", "connects") for part in ("--limit", f"address_{name}=0")]
        wide = ("--max-peers", "20000", "--max-peers-per-address", "20000", "--min-pow", "0", "--max-ttl", "4000000")
        data = data or self.bench.folder()
        server = await self.bench.start("waku", data, *wide, *limits, "--retention", "60", *flags, under=under)
        while not (line := re.search(r"^enode:.*$", server.log.read_text(), re.MULTILINE)):
            server.check()
            await asyncio.sleep(0.02)  # under valgrind it is printed long after the server has begun to listen
        return server, enode.parse(line[0])


# ── A peer ──

# Times are perf_counter's: those of uvloop's loop are whole milliseconds.
_DICE = SystemDice()
_STATUS = packets.write_options(packets.Options(pow=0.0, light=False, confirmations=True, topics=frozenset()))
"""A peer wants no topic, because relaying to the senders is not measured."""


class Answer(NamedTuple):
    """What was answered to a request for a page, not parsed, and how long it took."""

    packets: list[bytes]
    completion: bytes
    seconds: float


class BenchPeer(asyncio.Protocol):
    """A peer, which posts envelopes and counts confirmations, or requests history."""

    def __init__(self, address: Enode) -> None:
        self._key = new_key(_DICE)
        self._enode = address
        self._loop = asyncio.get_running_loop()
        self.delays: list[float] = []
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._sent_at: deque[float] = deque()
        self._confirmed = asyncio.Event()
        self._packets: list[bytes] = []
        self._answer: asyncio.Future[tuple[list[bytes], bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    async def connect(self) -> BenchPeer:
        hello = Hello("bench", (Capability(*packets.CAPABILITY),), 0, self._key.public)
        self._session = Devp2p(Rlpx.initiator(self._key, self._enode.public, _DICE), hello, self._loop.time())
        await self._loop.create_connection(lambda: self, self._enode.host, self._enode.port)
        await self._greeted
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no common base class
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._session.receive_data(data, self._loop.time()):
            if isinstance(event, Packet):
                self._handle(event)
            elif isinstance(event, Connected):
                self._session.send(packets.STATUS, _STATUS)
            elif isinstance(event, Disconnected) and not self._greeted.done():
                self._greeted.set_exception(ConnectionError(event.text))
        self._flush()

    def _handle(self, packet: Packet) -> None:
        if packet.code == packets.STATUS:
            self._greeted.set_result(None)
        elif packet.code == packets.MESSAGE_RESPONSE:
            response = packets.read_response(packet.payload)
            assert not response.refusals, response
            self.delays.append(time.perf_counter() - self._sent_at.popleft())
            self._confirmed.set()
        elif packet.code == packets.P2P_MESSAGE:
            self._packets.append(packet.payload)
        elif packet.code == packets.REQUEST_COMPLETE and self._answer is not None:
            self._answer.set_result((self._packets, packet.payload))
            self._packets = []

    async def request_page(self, query: PageQuery) -> Answer:
        wants_all = query.bloom is None and query.topics is None
        written = request.encode(
            request.Request(
                id=ID,
                lower=query.lower,
                upper=query.upper,
                bloom=bloom.ALL_BITS if wants_all else query.bloom,
                topics=query.topics or frozenset(),
                limit=query.limit,
                cursor=query.after or b"",
            )
        )
        self._answer = self._loop.create_future()
        started = time.perf_counter()
        self._session.send(packets.REQUEST, written)
        self._flush()
        return Answer(*await self._answer, time.perf_counter() - started)

    def _flush(self) -> None:
        data = self._session.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def post(self, raws: Iterable[bytes]) -> None:
        body = packets.write_envelopes(raws)
        self._sent_at.append(time.perf_counter())
        self._session.send(packets.MESSAGES, body, compressed=compress(body))
        self._flush()

    async def post_all(self, batches: Iterable[Iterable[bytes]], window: int) -> None:
        """Post packets, of which at most `window` are unconfirmed, and wait until all are confirmed."""
        for batch in batches:
            self.post(batch)
            await self.confirmed(window)
        await self.confirmed(1)

    async def confirmed(self, window: int) -> None:
        """Wait until fewer than so many packets are unconfirmed."""
        while len(self._sent_at) >= window:
            self._confirmed.clear()
            await self._confirmed.wait()

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect_peers(address: Enode, count: int) -> list[BenchPeer]:
    peers: list[BenchPeer] = []
    for start in range(0, count, CONNECT_AT_A_TIME):
        number = min(CONNECT_AT_A_TIME, count - start)
        peers += await asyncio.gather(*(BenchPeer(address).connect() for _ in range(number)))
    return peers


# ── Envelopes that are posted, and idle peers ──


def batched(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def new_envelopes(count: int, topics: int, *, ahead: int) -> Iterator[bytes]:
    """Make envelopes sent over 30 days, in that order give or take 30 s, that expire in `ahead` seconds."""
    names = [os.urandom(4) for _ in range(topics)]
    now, span = int(time.time()), DAYS * DAY_SECONDS
    for number in range(count):
        age = max(0, span - span * number // count + (number * 7919) % 61 - 30)
        topic = names[(number * 2_654_435_761) % topics]
        data = number.to_bytes(8, "big") + os.urandom(16) * ((DATA_BYTES - 8) // 16 + 1)
        yield rlp.encode([now + ahead, age + ahead, topic, data[:DATA_BYTES], number])


async def ingest(run: Run) -> None:
    """Closed loop, to a full archive."""
    server, address = await run.start()
    senders = await connect_peers(address, SENDERS)
    batches = batched(new_envelopes(run.envelopes, run.topics, ahead=300), run.packet)
    before, flushes, started = server.cpu(), server.flushes(), time.perf_counter()
    await asyncio.gather(*(sender.post_all(batches, run.window) for sender in senders))
    seconds = time.perf_counter() - started
    await asyncio.sleep(3)  # checkpoints are part of the cost
    run.add("ingest", (server.cpu() - before) / run.envelopes * 1e6)
    run.add("ingest_rate", run.envelopes / seconds)
    _add_delays(run, "ingest", senders)
    run.add("ingest_flushes", run.envelopes / max(1, server.flushes() - flushes))
    run.add("ingest_peak", server.peak() / 1024**2)
    await _leave(server, senders)
    run.add("ingest_disk", sum(file.stat().st_size for file in server.data.iterdir()) / run.envelopes)


async def crowd(run: Run) -> None:
    """200 envelopes a second, one in a packet, from two senders, beside many idle peers."""
    server, address = await run.start()
    idle = await connect_peers(address, run.idle)
    senders = await connect_peers(address, 2)
    count = int(run.seconds * CROWD_RATE)
    before, started = server.cpu(), time.perf_counter()
    for number, raw in enumerate(new_envelopes(count, run.topics, ahead=60)):
        await asyncio.sleep(max(0.0, started + number / CROWD_RATE - time.perf_counter()))
        senders[number % 2].post([raw])
    for sender in senders:
        await sender.confirmed(1)
    run.add("crowd", (server.cpu() - before) / count * 1e3)
    _add_delays(run, "crowd", senders)
    await _leave(server, [*idle, *senders])


async def handshakes(run: Run) -> None:
    """Handshakes, 32 at a time, and the memory of the peers that are then idle."""
    server, address = await run.start()
    loaded = await connect_peers(address, 50)  # what the first handshakes load does not count
    before, resident, started = server.cpu(), server.rss(), time.perf_counter()
    peers = await connect_peers(address, run.handshakes)
    seconds = time.perf_counter() - started
    run.add("handshake", (server.cpu() - before) / run.handshakes * 1e6)
    run.add("handshake_rate", run.handshakes / seconds)
    await asyncio.sleep(1)
    run.add("idle_kib", (server.rss() - resident) / run.handshakes / 1024)
    await _leave(server, [*loaded, *peers])


def _add_delays(run: Run, name: str, senders: list[BenchPeer]) -> None:
    delays = [delay * 1e3 for sender in senders for delay in sender.delays]
    run.add(f"{name}_ack_p50", percentile(delays, 0.5))
    run.add(f"{name}_ack_p99", percentile(delays, 0.99))


async def _leave(server: Server, peers: list[BenchPeer]) -> None:
    for peer in peers:
        peer.leave()
    await server.stop()


# ── History: pages of a large archive, each compared with what it must contain ──


class Entry(NamedTuple):
    """An envelope of an archive."""

    key: bytes
    """The key of cursors: sent(4) ‖ hash(32)."""
    topic: bytes


@dataclass
class Archive:
    """An archive on the disk, of topics drawn evenly and envelopes sent over 30 days; and what it must contain."""

    envelopes: int
    topics: int
    data: Path
    entries: list[Entry] = field(default_factory=list)
    keys: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Of each topic."""

    @cached_property
    def names(self) -> list[bytes]:
        dice = random.Random(self.topics)
        return [dice.randbytes(4) for _ in range(self.topics)]

    def sent(self, share: float) -> int:
        return START + int(DAYS * DAY_SECONDS * share)

    async def fill(self) -> None:
        """Fill it, unless it is from an earlier run. What it must contain is computed in any case."""
        archive = open_archive(self.data)
        try:
            is_new = not (await archive.counts()).envelopes
            for batch in batched(self._make_envelopes(), 2_000):
                if is_new:
                    await archive.save(batch, START)
                for envelope in batch:
                    self.entries.append(Entry(key_of(envelope), envelope.topic))
        finally:
            await archive.close()
        self.entries.sort()
        for key, topic in self.entries:
            self.keys[topic].append(key)

    def _make_envelopes(self) -> Iterator[Envelope]:
        dice = random.Random(1)
        for number in range(self.envelopes):
            # All topics are there. A stride that is no divisor scatters them.
            topic = self.names[(number * 2_654_435_761) % len(self.names)]
            yield make(self.sent(number / self.envelopes) + TTL, TTL, topic, dice.randbytes(DATA_BYTES))

    def page(self, query: PageQuery) -> tuple[list[bytes], bool]:
        """Return the keys of a page, and whether there are more."""
        start = query.lower.to_bytes(4, "big").ljust(36, b"\0") if query.after is None else query.after + b"\0"
        matching = itertools.takewhile(
            lambda key: key[:4] <= query.upper.to_bytes(4, "big"), self._keys_from(start, self._topics_of(query))
        )
        keys = list(itertools.islice(matching, query.limit + 1))
        return keys[: query.limit], len(keys) > query.limit

    def _topics_of(self, query: PageQuery) -> set[bytes] | None:
        if query.topics is not None or query.bloom is None:
            return None if query.topics is None else set(query.topics)
        return {
            topic for topic in self.keys if bloom.required_bits(topic) & query.bloom == bloom.required_bits(topic)
        }

    def _keys_from(self, start: bytes, topics: set[bytes] | None) -> Iterator[bytes]:
        if topics is not None and len(topics) <= 100:
            lists = [self.keys[topic] for topic in topics if topic in self.keys]
            return heapq.merge(*(keys[bisect_left(keys, start) :] for keys in lists))
        numbers = range(bisect_left(self.entries, (start, b"")), len(self.entries))
        entries = (self.entries[number] for number in numbers)
        return (entry.key for entry in entries if topics is None or entry.topic in topics)

    def check(self, query: PageQuery, answer: Answer) -> int:
        """Compare an answer with what it must be. Return the number of its envelopes."""
        envelopes = [envelope for packet in answer.packets for envelope in packets.read_envelopes(packet)]
        keys, is_more = self.page(query)
        assert [key_of(envelope) for envelope in envelopes] == keys, f"wrong envelopes: {query}"
        end = completion.parse(answer.completion)
        expected = Completed(ID, keys[-1][4:] if keys else completion.NO_HASH, keys[-1] if is_more else b"")
        assert end == expected, end
        return len(envelopes)


def key_of(envelope: Envelope) -> bytes:
    return envelope.sent.to_bytes(4, "big") + envelope.hash


MakeQuery = Callable[[Archive, random.Random], PageQuery]


def _topics(archive: Archive, dice: random.Random, count: int = 0) -> frozenset[bytes]:
    return frozenset(dice.sample(archive.names, count or dice.randint(1, 3)))


def _query(archive: Archive, start: float, **condition: object) -> PageQuery:
    """Return a query for the time from a share of the 30 days on."""
    lower = archive.sent(start)
    return PageQuery(lower=lower, upper=lower + DAYS * DAY_SECONDS, limit=LIMIT, **condition)  # type: ignore[arg-type]


QUERIES: dict[str, MakeQuery] = {
    "page_three": lambda archive, dice: _query(archive, 0, topics=_topics(archive, dice)),
    "page_bloom": lambda archive, dice: _query(archive, 0, bloom=bloom.filter_of(_topics(archive, dice))),
    "page_day": lambda archive, dice: _query(archive, (DAYS - 1) / DAYS, topics=_topics(archive, dice)),
    "page_crowd": lambda archive, dice: _query(archive, 0, topics=_topics(archive, dice)),
    "page_ten": lambda archive, dice: _query(archive, dice.uniform(0, 0.4), topics=_topics(archive, dice, 10)),
    "page_many": lambda archive, dice: _query(archive, dice.uniform(0, 0.5), topics=_topics(archive, dice, 500)),
    "page_half": lambda archive, dice: _query(
        archive, dice.uniform(0, 0.5), bloom=sum(1 << bit for bit in dice.sample(range(512), 256))
    ),
}


async def history(run: Run) -> None:
    """Pages of an archive of many topics, and of one with a topic for each envelope."""
    for topics in (run.topics, run.envelopes):
        if topics not in run.made:
            run.made[topics] = Archive(run.envelopes, topics, run.archives / f"archive-{run.envelopes}-{topics}")
            await run.made[topics].fill()
        archive = run.made[topics]
        server, address = await run.start("--retention", "0", *UNLIMITED, data=archive.data)
        peers = await connect_peers(address, CLIENTS)
        pages = _Pages(run, archive, server)
        if topics == run.topics:
            for name, make_query in QUERIES.items():
                await pages.measure(name, peers if name == "page_crowd" else peers[:1], make_query)
            await pages.measure_everything(peers[0])
            run.add("page_peak", server.peak() / 1024**2)
        else:
            await pages.measure("page_million", peers[:1], QUERIES["page_three"])
        await _leave(server, peers)


class _Pages(NamedTuple):
    """Measures pages of an archive that a server has."""

    run: Run
    archive: Archive
    server: Server

    async def measure(self, name: str, peers: list[BenchPeer], make_query: MakeQuery) -> None:
        """Let each peer request pages of a kind, one after the other. Compare them when all have arrived."""
        run, archive, dice = self.run, self.archive, random.Random(len(peers))
        for _ in range(UNCOUNTED_REQUESTS):
            query = make_query(archive, dice)
            archive.check(query, await peers[0].request_page(query))
        queries = [make_query(archive, dice) for _ in range(run.pages)]

        async def request_some(number: int) -> list[tuple[PageQuery, Answer]]:
            return [(query, await peers[number].request_page(query)) for query in queries[number :: len(peers)]]

        before, own_before, started = self.server.cpu(), time.process_time(), time.perf_counter()
        answers = await asyncio.gather(*map(request_some, range(len(peers))))
        seconds, used = time.perf_counter() - started, self.server.cpu() - before
        busy = (time.process_time() - own_before) / seconds
        pages = list(itertools.chain.from_iterable(answers))
        delays = [answer.seconds * 1e3 for _, answer in pages]
        run.add(f"{name}_p50", statistics.median(delays))
        run.add(f"{name}_p99", percentile(delays, 0.99))
        run.add(f"{name}_cpu", used / len(pages) * 1e3)
        run.add(f"{name}_envelopes", statistics.fmean(archive.check(query, answer) for query, answer in pages))
        run.add(f"{name}_busy", busy)

    async def measure_everything(self, peer: BenchPeer) -> None:
        before = self.server.cpu()
        await _read_everything(self.archive, peer)
        self.run.add("page_all", (self.server.cpu() - before) / self.run.envelopes * 1e6)


async def _read_everything(archive: Archive, peer: BenchPeer) -> None:
    """Request all there is, from cursor to cursor."""
    query, number = _query(archive, 0), 0
    while True:
        answer = await peer.request_page(query)
        number += archive.check(query, answer)
        end = completion.parse(answer.completion)
        assert isinstance(end, Completed)
        if not end.cursor:
            break
        query = PageQuery(lower=query.lower, upper=query.upper, limit=LIMIT, after=end.cursor)
    assert number == archive.envelopes, number


# ── Instructions in user mode: what two runs differ by took the envelopes; the rest took the start ──

FEW, MANY = 2_000, 22_000
COPY = """
import sys
from restante.waku.devp2p.rlpx import Frames, Secrets
from restante.waku.envelope.keccak import keccak, running_keccak
page = bytes(305 * 1000)
frames = Frames(Secrets(bytes(32), bytes(32), running_keccak(), running_keccak()))
for _ in range(int(sys.argv[2]) // 1000):
    if sys.argv[1] == "hash":
        keccak(bytearray(page))
    else:
        for start in range(0, len(page), 1 << 16):
            frames.seal_pieces(b"", memoryview(page)[start : start + (1 << 16)])
"""
"""Copies and hashes pages of 1,000 envelopes, or makes frames of them."""


async def instructions(run: Run) -> None:
    """Count what an envelope takes: to ingest it, in a page of everything, and only to copy and hash its bytes."""
    many = MANY if run.envelopes >= MANY else 4 * FEW
    archive = Archive(FEW, run.topics, run.bench.folder())
    await archive.fill()
    await (await run.start())[0].stop()  # it compiles the modules

    async def ingested(number: int) -> int:
        server, address = await run.start(under=CACHEGRIND)
        senders = await connect_peers(address, SENDERS)
        batches = batched(new_envelopes(number, run.topics, ahead=3_000), run.packet)
        flushes = server.flushes()
        await asyncio.gather(*(sender.post_all(batches, run.window) for sender in senders))
        if number == many:
            run.add("instructions_flushes", number / max(1, server.flushes() - flushes))
        await _leave(server, senders)
        return counted(server.output())

    async def read(number: int) -> int:
        server, address = await run.start("--retention", "0", *UNLIMITED, data=archive.data, under=CACHEGRIND)
        peer = await BenchPeer(address).connect()
        for _ in range(number // FEW):
            await _read_everything(archive, peer)
        await _leave(server, [peer])
        return counted(server.output())

    async def copied(number: int, how: str) -> int:
        return await asyncio.to_thread(harness.count_instructions, "-c", COPY, how, str(number))

    counters: dict[str, Callable[[int], Awaitable[int]]] = {"ingest": ingested, "page": read}
    counters |= {how: partial(copied, how=how) for how in ("hash", "frames")}
    counts = {name: (await count(many) - await count(FEW)) / (many - FEW) for name, count in counters.items()}
    for name, count in counts.items():
        run.add(f"instructions_{name}", count)
    run.add("ingest_times", counts["ingest"] / counts["hash"])
    run.add("page_times", counts["page"] / counts["hash"])
    run.add("page_times_frames", counts["page"] / counts["frames"])


def hashes_per_second() -> float:
    data, count = bytes(300), 20_000
    started = time.perf_counter()
    for _ in range(count):
        keccak(data)
    return count / (time.perf_counter() - started)


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "ingest": ingest,
    "crowd": crowd,
    "peers": handshakes,
    "history": history,
    "instructions": instructions,
}


def main() -> int:
    parser = harness.parser(__doc__, SCENARIOS, rounds=3)
    parser.set_defaults(only=[name for name in SCENARIOS if name != "instructions"])
    parser.add_argument("--envelopes", type=int, default=1_000_000, metavar="N")
    parser.add_argument(
        "--window", type=int, default=WINDOW, metavar="N", help="packets that a sender of `ingest` leaves unconfirmed"
    )
    parser.add_argument("--packet", type=int, default=PACKET, metavar="N", help="envelopes in a packet of `ingest`")
    parser.add_argument(
        "--archives", type=Path, metavar="DIR", help="where those of `history` are kept for the next run"
    )
    options = parser.parse_args()
    quick = options.quick
    envelopes, topics, idle = (20_000, 500, 100) if quick else (options.envelopes, 5_000, 1_000)
    rate = replace(FIGURES["ingest_rate"], at_least=RATE_TARGETS.get((options.window, options.packet)))
    texts = {"n": f"{envelopes:,}", "topics": f"{topics:,}", "idle": f"{idle:,}"}
    texts |= {"window": options.window, "packet": options.packet}
    results = Results({**FIGURES, "ingest_rate": rate}, texts, peer="status-go, elsewhere")

    def measure(scratch: Path) -> None:
        harness.pin_generator()
        run = Run(
            bench=Bench(scratch),
            results=results,
            rounds=1 if quick else options.rounds,
            kinds=("restante",),
            envelopes=envelopes,
            topics=topics,
            pages=40 if quick else 200,
            idle=idle,
            handshakes=200 if quick else 2_000,
            seconds=2 if quick else 20,
            window=options.window,
            packet=options.packet,
            archives=options.archives or scratch,
        )
        uvloop.run(harness.run_scenarios(run, SCENARIOS, options.only * run.rounds))

    keccaks = f"{hashes_per_second():,.0f} hashes/s of 300 bytes"
    return harness.main(options, results, measure, facts={"keccak": keccaks})


if __name__ == "__main__":
    sys.exit(main())
