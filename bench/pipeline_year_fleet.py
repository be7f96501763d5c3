"""A fleet of four mailbox servers and two Mailservers, which serves one day after another. See bench/README.md."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline_run import DAY_SECONDS, add_usage
from restante.mailbox.store import schema as mailbox
from restante.mailbox.store.sqlite import Store
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import Envelope, parse
from restante.waku.settings import DEFAULT_RETENTION_DAYS

SERVERS: Final = {"north": 0.4, "east": 0.3, "south": 0.2, "west": 0.1}
"""Mailbox server → its share of the usage rows. They keep usage records for ever, which is the default."""

LATE_USAGE: Final = 0.05
"""Share of a day's usage rows that began on the day before: a record is written when a mailbox ends."""

MAILSERVERS: Final = ("alpha", "beta")
"""They keep envelopes for thirty days, which is the default."""

OUTAGE: Final = {"alpha": 0.05, "beta": 0.06}
"""Share of each day in which a Mailserver receives nothing; never two at the same time."""

FETCHED_LATER: Final = 1 / 6
"""Share of an outage, from its beginning, whose envelopes beta requests from alpha on the next day. In the end a
tenth of the envelopes is at one Mailserver only."""

TOPICS: Final = 400
TTL_SECONDS: Final = 50
DATA_BYTES: Final = 270
PRUNED_AT_ONCE: Final = 10_000


class Day(NamedTuple):
    """The envelopes of a day, in the order of sending."""

    sent: np.ndarray[Any, np.dtype[np.int64]]
    raws: list[bytes]
    outages: dict[str, float]
    """Mailserver → when its outage begins, as a share of the day."""

    def missed(self, name: str, share: float = 1.0) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which envelopes were sent during a Mailserver's outage, or the first `share` of it."""
        at = self.sent % DAY_SECONDS / DAY_SECONDS
        since = (at - self.outages[name]) % 1.0
        found: np.ndarray[Any, np.dtype[np.bool_]] = since < OUTAGE[name] * share
        return found


class Fleet(NamedTuple):
    """The fleet; its days are numbered from 1."""

    folder: Path
    midnight: int
    """When the first day begins, in seconds since 1970."""
    rows: int
    """Usage rows of a day, of all servers."""
    envelopes: int
    """Envelopes of a day, each counted once."""
    seed: int

    @property
    def sources(self) -> list[str]:
        """Return the names and paths for --source."""
        return [f"{name}={self.folder / name}" for name in (*SERVERS, *MAILSERVERS)]

    def make(self) -> None:
        """Make the servers' data directories."""
        asyncio.run(_make(self.folder))

    def serve(self, first: int, last: int) -> Counter[str]:
        """Serve some days, several servers at a time, and return how many rows were added to each table."""
        # Forked, so that multiprocessing starts no process that stays.
        with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
            working = [pool.submit(self.archive, name, first, last) for name in MAILSERVERS]
            working += [pool.submit(self.record, name, first, last) for name in SERVERS]
            return sum((each.result() for each in working), Counter())

    def record(self, name: str, first: int, last: int) -> Counter[str]:
        """Add usage records to a mailbox server's database."""
        made: Counter[str] = Counter()
        for day in range(first, last + 1):
            made += add_usage(
                self.folder / name / mailbox.FILE,
                self._start(day),
                round(self.rows * SERVERS[name]),
                [self.seed, day, *name.encode()],
                late=LATE_USAGE if day > 1 else 0,
            )
        return made

    def archive(self, name: str, first: int, last: int) -> Counter[str]:
        """Save envelopes in a Mailserver's archive, and delete what it keeps no longer."""
        return asyncio.run(self._archive(name, first, last))

    async def _archive(self, name: str, first: int, last: int) -> Counter[str]:
        made: Counter[str] = Counter()
        archive = open_archive(self.folder / name)
        try:
            before = self.day(first - 1) if first > 1 else None
            for day in range(first, last + 1):
                today = self.day(day)
                if name == MAILSERVERS[0]:
                    made["envelopes"] += len(today.raws)
                else:
                    if before is not None:
                        fetched = _chosen(before, before.missed(name, FETCHED_LATER))
                        await archive.save(fetched, self._start(day) + DAY_SECONDS // 24)
                        made["archived"] += len(fetched)
                    before = today
                received = _chosen(today, ~today.missed(name))
                then = (await archive.counts()).next_arrival
                await archive.save(received, self._start(day))
                made["archived"] += len(received)
                # Saved one second after another, as they came, a year would take hours.
                with archive.database:
                    archive.database.execute(
                        "UPDATE arrivals SET arrived = (id >> 31) + 1 + arrival % 4 WHERE arrival >= ?", (then,)
                    )
            old = self._start(last + 1) - int(DEFAULT_RETENTION_DAYS * DAY_SECONDS)
            while await archive.prune(old, PRUNED_AT_ONCE) == PRUNED_AT_ONCE:
                pass
        finally:
            await archive.close()
        return made

    def day(self, day: int) -> Day:
        """Return the envelopes of a day, of about 300 bytes each."""
        dice = np.random.default_rng([self.seed, day])
        count = self.envelopes
        sent = self._start(day) + np.sort(dice.integers(0, DAY_SECONDS, count))
        topics = dice.zipf(1.3, count) % TOPICS * 2_654_435_761 % 2**32  # spread over all topics
        first = dice.random()
        second = first + dice.uniform(0.25, 0.75)
        raw = np.concatenate(
            [
                _same(bytes.fromhex("f90125 84"), count),  # the list, and four bytes follow (RLP)
                _bytes(sent + TTL_SECONDS, ">u4"),
                _same(bytes([TTL_SECONDS, 0x84]), count),
                _bytes(topics, ">u4"),
                _same(bytes.fromhex("b9010e"), count),
                dice.integers(0, 256, (count, DATA_BYTES), np.uint8),
                _same(bytes([0x88]), count),
                _bytes(dice.integers(1 << 56, 1 << 63, count), ">u8"),
            ],
            axis=1,
        )
        size = raw.shape[1]
        whole = raw.tobytes()
        raws = [whole[at : at + size] for at in range(0, len(whole), size)]
        return Day(sent, raws, {"alpha": first, "beta": second % 1.0})

    def _start(self, day: int) -> int:
        return self.midnight + (day - 1) * DAY_SECONDS


async def _make(folder: Path) -> None:
    for name in SERVERS:
        await Store.open(folder / name).close()
    for name in MAILSERVERS:
        await open_archive(folder / name).close()


def _chosen(day: Day, which: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Envelope]:
    return [parse(day.raws[place]) for place in np.flatnonzero(which).tolist()]


def _same(some: bytes, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.tile(np.frombuffer(some, np.uint8), (count, 1))


def _bytes(numbers: np.ndarray[Any, Any], as_: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return numbers.astype(as_).view(np.uint8).reshape(len(numbers), -1)


def stretches(days: int, every: int, singly: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last day of each run: one of many days, then `singly` of one day each, and so on."""
    done = 0
    for measured in range(every, days + 1, every):
        if measured - singly > done:
            yield done + 1, measured - singly
            done = measured - singly
        for day in range(done + 1, measured + 1):
            yield day, day
        done = measured
