"""Pages of an archive's history in this process, without the wire: what the search costs. See bench/README.md.

python bench/waku_history.py [--envelopes N] [--topics N] [--rounds N] [--data DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from host import facts, scratch_root
from restante.waku.archive.query import Page, PageQuery
from restante.waku.archive.sqlite import Archive, open_archive
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keccak import keccak

START = 1_700_000_000
DAYS = 30
TTL = 50
DATA = 284
"""Bytes of an envelope's data: a sealed payload of 256; 305 with the fields."""
BATCH = 2000
LIMIT = 1000


@dataclass(frozen=True)
class Shape:
    """What an archive is filled with: topics drawn evenly, sent over 30 days."""

    envelopes: int
    topics: int

    @cached_property
    def names(self) -> list[bytes]:
        dice = random.Random(self.topics)
        return [dice.randbytes(4) for _ in range(self.topics)]

    def sent(self, share: float) -> int:
        return START + int(DAYS * 86400 * share)

    def __iter__(self) -> Iterator[Envelope]:
        names, dice = self.names, random.Random(1)
        for number in range(self.envelopes):
            # Each topic in turn, so that all are there; a stride that is no divisor scatters them.
            topic = names[(number * 2_654_435_761) % len(names)]
            yield make(self.sent(number / self.envelopes) + TTL, TTL, topic, dice.randbytes(DATA))


async def fill(archive: Archive, envelopes: Iterable[Envelope]) -> float:
    """Save them all; give the seconds that it took."""
    started = time.perf_counter()
    batch: list[Envelope] = []
    for envelope in envelopes:
        batch.append(envelope)
        if len(batch) == BATCH:
            await archive.save(batch, START)
            batch = []
    await archive.save(batch, START)
    return time.perf_counter() - started


MakeQuery = Callable[[Shape, random.Random], PageQuery]


@dataclass(frozen=True)
class Kind:
    """A kind of query, and the milliseconds that a page may take (or microseconds an envelope)."""

    title: str
    query: MakeQuery
    at_least: float | None = None
    aim: float | None = None
    per_envelope: bool = False


def _some(count: int, start: float = 0.0, stop: float = 0.0, days: float = DAYS) -> MakeQuery:
    """Return a maker of queries for `count` topics (0: all) and `days`, from between two shares of the time."""

    def query(shape: Shape, dice: random.Random) -> PageQuery:
        number = dice.randint(1, 3) if count == 3 else count
        topics = frozenset(dice.sample(shape.names, number)) if count else None
        lower = shape.sent(dice.uniform(start, stop))
        return PageQuery(lower=lower, upper=lower + int(days * 86400), topics=topics, limit=LIMIT)

    return query


def _filter(count: int) -> MakeQuery:
    """Return a maker of queries with the filter of `count` topics. 0: a half full one, for the first half."""

    def query(shape: Shape, dice: random.Random) -> PageQuery:
        if not count:
            half = sum(1 << place for place in dice.sample(range(512), 256))
            return PageQuery(lower=shape.sent(dice.uniform(0, 0.5)), upper=shape.sent(1), bloom=half, limit=LIMIT)
        topics = dice.sample(shape.names, dice.randint(1, 3) if count == 3 else count)
        return PageQuery(lower=shape.sent(0), upper=shape.sent(1), bloom=bloom.filter_of(topics), limit=LIMIT)

    return query


KINDS = {
    "three": Kind("1-3 topics, everything", _some(3), 5, 2),
    "three_day": Kind("  the newest day", _some(3, 29 / 30, 29 / 30)),
    "three_bloom": Kind("bloom of 1-3 topics", _filter(3), 10, 4),
    "ten": Kind("10 topics, page of 1,000", _some(10, 0, 0.4), 12, 6),
    "ten_bloom": Kind("  by bloom", _filter(10)),
    "hundred": Kind("  100 topics", _some(100, 0, 0.5)),
    "many": Kind("500 topics, page of 1,000", _some(500, 0, 0.5), 12, 6),
    "half_bloom": Kind("bloom half full, page of 1,000", _filter(0), 12, 6),
    "all": Kind("everything, µs an envelope", _some(0, 0, 0.9), None, 1.6, per_envelope=True),
}


@dataclass
class Figures:
    """Of one kind."""

    cpu: list[float]
    wall: list[float]
    envelopes: float
    looked: float


async def measure(archive: Archive, shape: Shape, kind: Kind, times: int) -> Figures:
    """Search the first pages of `times` different queries. Times are in milliseconds, or microseconds an envelope."""
    dice = random.Random(7)
    cpu, wall, found = [], [], []
    for asked in [kind.query(shape, dice) for _ in range(times)]:
        before, started = time.process_time(), time.perf_counter()
        page = await archive.page(asked)
        passed, used = time.perf_counter() - started, time.process_time() - before
        scale = 1e6 / max(1, len(page.raws)) if kind.per_envelope else 1e3
        cpu.append(used * scale)
        wall.append(passed * scale)
        found.append(page)
    return Figures(cpu, wall, _mean(found, lambda page: len(page.raws)), _mean(found, lambda page: page.looked))


def _mean(pages: list[Page], of: Callable[[Page], int]) -> float:
    return statistics.fmean(map(of, pages))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def row(kind: Kind, found: Figures) -> str:
    p50 = statistics.median(found.wall)
    verdict = ""
    if kind.aim is not None:
        verdict = "aim" if p50 <= kind.aim else "enough" if p50 <= (kind.at_least or kind.aim) else "MISSED"
    numbers = (statistics.median(found.cpu), p50, percentile(found.wall, 0.99))
    cells = "".join(f"{number:10.3g}" for number in numbers)
    aims = "".join(f"{'' if bound is None else bound:>10}" for bound in (kind.at_least, kind.aim))
    return f"{kind.title:34}{cells}{found.envelopes:10.0f}{found.looked:10.0f}{aims}  {verdict}"


def hashes_per_second() -> float:
    data, count = bytes(300), 20_000
    started = time.perf_counter()
    for _ in range(count):
        keccak(data)
    return count / (time.perf_counter() - started)


async def run(data: Path, shape: Shape, times: int, names: list[str]) -> dict[str, Figures]:
    archive = open_archive(data)
    if not (await archive.counts()).envelopes:
        print(f"filled in {await fill(archive, shape):.0f} s", file=sys.stderr)
    found = {}
    for name in names:
        await measure(archive, shape, KINDS[name], 3)  # pages of the disk are in memory, as a server's are
        found[name] = await measure(archive, shape, KINDS[name], times)
        print(row(KINDS[name], found[name]), flush=True)
    await archive.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME")
    parser.add_argument("--envelopes", type=int, default=1_000_000)
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--times", type=int, default=100, help="pages of each kind")
    parser.add_argument("--data", type=Path, metavar="DIR", help="an archive to be kept, filled if it is empty")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    options = parser.parse_args()
    root = scratch_root(options.data.parent if options.data else None)
    with tempfile.TemporaryDirectory(prefix="waku-history-", dir=root) as scratch:
        for name, fact in facts(Path(scratch)).items():
            print(f"{name:10} {fact}")
        print(f"{'keccak':10} {hashes_per_second():,.0f} hashes/s of 300 bytes\n")
        heads = ("cpu p50", "wall p50", "wall p99", "envelopes", "looked at", "at least", "aim")
        print(f"{'ms a page':34}{''.join(f'{head:>10}' for head in heads)}")
        shape = Shape(options.envelopes, options.topics)
        found = asyncio.run(run(options.data or Path(scratch) / "data", shape, options.times, options.only))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
