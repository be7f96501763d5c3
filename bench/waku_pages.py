"""History over real RLPx: pages asked of a large archive, each compared with what must be in it."""

from __future__ import annotations

import asyncio
import heapq
import random
import statistics
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from restante.waku.archive.query import PageQuery
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import completion, request
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.completion import Completed
from waku_figures import Run
from waku_history import DAYS, KINDS, LIMIT, START, Shape, fill, percentile
from waku_peer import BenchPeer

CLIENTS = 8
WARM = 5
"""Requests that are not counted: what is read from the disk is in memory, as it is in a server that has run."""

UNLIMITED = ("--limit", "pages=0", "--limit", "rows=0")

ID = b"\x11" * request.ID_BYTES


@dataclass
class Truth:
    """What an archive has, by the keys of cursors: sent(4) ‖ hash(32)."""

    topics: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    every: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Key and topic."""
    samples: dict[int, list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))
    """By the lowest place that a filter must have to let a topic through: all of them, and the topic."""

    def watch(self, envelopes: Shape) -> Iterator[Envelope]:
        """Note what passes by."""
        for each in envelopes:
            key = key_of(each)
            self.topics[each.topic].append(key)
            self.every.append((key, each.topic))
            yield each

    def index(self) -> None:
        self.every.sort()
        for topic, keys in self.topics.items():
            keys.sort()
            sample = bloom.required_bits(topic)
            self.samples[sample & -sample].append((sample, topic))

    def page(self, asked: PageQuery) -> tuple[list[bytes], bool]:
        """Return the keys that must be answered with, and whether there are more."""
        start = (asked.lower.to_bytes(4, "big")).ljust(36, b"\0") if asked.after is None else asked.after + b"\0"
        found: list[bytes] = []
        for key in self._from(start, self._names(asked)):
            if key[:4] > asked.upper.to_bytes(4, "big"):
                break
            if len(found) == asked.limit:
                return found, True
            found.append(key)
        return found, False

    def _names(self, asked: PageQuery) -> set[bytes] | None:
        if asked.topics is not None:
            return set(asked.topics)
        if asked.bloom is None:
            return None
        let = asked.bloom
        lowest = [place for place in self.samples if place & let]
        return {topic for place in lowest for sample, topic in self.samples[place] if sample & let == sample}

    def _from(self, start: bytes, names: set[bytes] | None) -> Iterator[bytes]:
        if names is not None and len(names) <= 100:
            lists = [self.topics[name] for name in names if name in self.topics]
            return heapq.merge(*(keys[bisect_left(keys, start) :] for keys in lists))
        at = bisect_left(self.every, (start, b""))
        return (key for key, topic in _behind(self.every, at) if names is None or topic in names)


def _behind(every: list[tuple[bytes, bytes]], at: int) -> Iterator[tuple[bytes, bytes]]:
    for number in range(at, len(every)):
        yield every[number]


def key_of(envelope: Envelope) -> bytes:
    return envelope.sent.to_bytes(4, "big") + envelope.hash


@dataclass
class Held:
    """An archive on the disk, and what must be in it."""

    shape: Shape
    data: Path
    truth: Truth = field(default_factory=Truth)

    async def make(self) -> None:
        """Fill it, unless it was kept from a run before; what is in it is computed in any case."""
        archive = open_archive(self.data)
        try:
            envelopes = self.truth.watch(self.shape)
            if (await archive.counts()).envelopes:
                for _ in envelopes:
                    pass
            else:
                print(f"  filled in {await fill(archive, envelopes):.0f} s", file=sys.stderr)
        finally:
            await archive.close()
        self.truth.index()


@dataclass
class Asked:
    """A request, and what was answered."""

    query: PageQuery
    packets: list[bytes]
    end: bytes
    seconds: float

    def check(self, truth: Truth) -> int:
        """Compare it with what must be; gives how many envelopes there were."""
        found = [each for packet in self.packets for each in waku_packets.read_envelopes(packet)]
        keys, more = truth.page(self.query)
        assert [key_of(each) for each in found] == keys, f"wrong envelopes: {self.query}"
        end = completion.parse(self.end)
        assert end == Completed(ID, keys[-1][4:] if keys else completion.NO_HASH, keys[-1] if more else b""), end
        return len(found)


async def fetch_page(peer: BenchPeer, query: PageQuery) -> Asked:
    written = request.Request(
        id=ID,
        lower=query.lower,
        upper=query.upper,
        bloom=bloom.ALL_BITS if query.bloom is None and query.topics is None else query.bloom,
        topics=query.topics or frozenset(),
        limit=query.limit,
        cursor=query.after or b"",
    )
    return Asked(query, *await peer.request_page(request.encode(written)))


async def _in_turn(peer: BenchPeer, queries: list[PageQuery]) -> list[Asked]:
    return [await fetch_page(peer, query) for query in queries]


class Pages:
    """The scenario: its archives are made once for all rounds."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._held: dict[Shape, Held] = {}

    async def held(self, run: Run, topics: int) -> Held:
        shape = Shape(run.envelopes, topics)
        if shape not in self._held:
            name = f"archive-{run.envelopes}-{topics}"
            held = self._held[shape] = Held(shape, (self._kept or run.bench.scratch) / name)
            await held.make()
        return self._held[shape]

    async def __call__(self, run: Run) -> None:
        """Pages of history, from an archive of many topics and from one of very many."""
        held = await self.held(run, run.topics)
        server, node = await run.start("--retention", "0", *UNLIMITED, data=held.data)
        peers = [await BenchPeer(node).connect() for _ in range(CLIENTS)]
        one = peers[0]
        for name, kind in (("page_three", "three"), ("page_bloom", "three_bloom"), ("page_day", "three_day")):
            await self.several(run, held, server.cpu, [one], name, kind)
        await self.several(run, held, server.cpu, peers, "page_crowd", "three")
        for name, kind in (("page_ten", "ten"), ("page_many", "many"), ("page_half", "half_bloom")):
            await self.several(run, held, server.cpu, [one], name, kind)
        await self.everything(run, held, server.cpu, one)
        run.add("page_peak", server.peak() / 1024**2)
        for peer in peers:
            peer.leave()
        await server.stop()
        held = await self.held(run, run.envelopes)
        server, node = await run.start("--retention", "0", *UNLIMITED, data=held.data)
        one = await BenchPeer(node).connect()
        await self.several(run, held, server.cpu, [one], "page_million", "three")
        await self.several(run, held, server.cpu, [one], "page_million_bloom", "three_bloom")
        one.leave()
        await server.stop()

    async def several(
        self, run: Run, held: Held, cpu: Callable[[], float], peers: list[BenchPeer], name: str, kind: str
    ) -> None:
        """Let each peer request pages of a kind, one after the other, and compare them when all have arrived."""
        dice = random.Random(len(peers))
        queries = [KINDS[kind].query(held.shape, dice) for _ in range(WARM + run.pages)]
        for query in queries[:WARM]:
            (await fetch_page(peers[0], query)).check(held.truth)
        shares = [queries[WARM + number :: len(peers)] for number in range(len(peers))]
        before, spent, started = cpu(), time.process_time(), time.perf_counter()
        answers = await asyncio.gather(*(_in_turn(peer, share) for peer, share in zip(peers, shares, strict=True)))
        seconds, used = time.perf_counter() - started, cpu() - before
        busy = (time.process_time() - spent) / seconds
        found = [each for some in answers for each in some]
        envelopes = statistics.fmean(each.check(held.truth) for each in found)
        delays = [each.seconds * 1e3 for each in found]
        run.add(f"{name}_p50", statistics.median(delays))
        run.add(f"{name}_p99", percentile(delays, 0.99))
        run.add(f"{name}_cpu", used / len(found) * 1e3)
        run.add(f"{name}_envelopes", envelopes)
        run.add(f"{name}_busy", busy)

    async def everything(self, run: Run, held: Held, cpu: Callable[[], float], peer: BenchPeer) -> None:
        """Walk through all there is, from cursor to cursor."""
        query = PageQuery(lower=START, upper=START + DAYS * 86400, limit=LIMIT)
        number, before = 0, cpu()
        while True:
            answer = await fetch_page(peer, query)
            number += answer.check(held.truth)
            end = completion.parse(answer.end)
            assert isinstance(end, Completed)
            if not end.cursor:
                break
            query = PageQuery(lower=query.lower, upper=query.upper, limit=LIMIT, after=end.cursor)
        assert number == run.envelopes, number
        run.add("page_all", (cpu() - before) / number * 1e6)
