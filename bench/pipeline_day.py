"""What an envelope's verification costs, and what the next day costs a lake that has a hundred."""

from __future__ import annotations

import random
import time
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from restante.pipeline.build.freshness import DayRange
from restante.pipeline.build.run import build
from restante.pipeline.clean.envelopes import Stored
from restante.pipeline.ingest import Run
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.lake import FIRST_DAY, Lake
from restante.pipeline.schemas import CLIENT_VERSIONS, MAILBOXES, NAMEPLATES, SOURCE_KIND_ARCHIVE, Table
from restante.pipeline.sources.archived import BATCH_ENVELOPES, FoundEnvelopes, Origin, verify_batch
from restante.pipeline.steps import Steps
from restante.pipeline.tables import BUILDS
from restante.waku.envelope import rlp
from restante.waku.envelope.keccak import keccaks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = 100
LATE_DAYS = 3
MONTH_END = date(2026, 6, 30)
ENVELOPES = 20_000
PASSES = 20
"""Of the verification. One takes a tenth of a second, and in few the best of them depends on chance."""
SENT = 1_770_000_000
USAGE = {MAILBOXES: 4, NAMEPLATES: 3, CLIENT_VERSIONS: 3}
"""Tables, and how many tenths of the rows are theirs."""
TABLES = {name: each for name, each in BUILDS.items() if set(each.inputs) <= {table.name for table in USAGE}}


class Verified(NamedTuple):
    """What one core does, in the best of some passes."""

    envelopes_per_second: float
    hashes_per_second: float
    """Of the same bytes: what nothing can be faster than, by two to an envelope."""


def verification() -> Verified:
    """Verify envelopes of about 300 bytes and put them into Arrow columns, in this process, by CPU time."""
    dice = random.Random(1)
    raws = []
    for number in range(ENVELOPES):
        ttl = 50
        expiry, nonce = _bytes(SENT + number + ttl), _bytes(dice.getrandbits(63))
        raws.append(rlp.encode([expiry, _bytes(ttl), dice.randbytes(4), dice.randbytes(280), nonce]))
    latest = np.full(BATCH_ENVELOPES, SENT + 10 * ENVELOPES)
    origin = Origin("bench", SOURCE_KIND_ARCHIVE, "f", "", FIRST_DAY)
    took, hashed = [], []
    for _ in range(PASSES):
        start = time.process_time()
        for first in range(0, ENVELOPES, BATCH_ENVELOPES):
            made = verify_batch(
                FoundEnvelopes(
                    raws[first : first + BATCH_ENVELOPES],
                    np.arange(first, first + BATCH_ENVELOPES),
                    None,
                    Stored(latest),
                ),
                origin,
            )
            assert made.column("fault").null_count == made.num_rows
        took.append(time.process_time() - start)
        start = time.process_time()
        keccaks(raws)
        hashed.append(time.process_time() - start)
    return Verified(ENVELOPES / min(took), ENVELOPES / min(hashed))


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8)


class Day(NamedTuple):
    """How long building took, in seconds."""

    full: float
    """All of a hundred days, a second time: the first warms the session."""
    next: list[float]
    """After one more day, and some rows that were late; so often, one after the other. The last one is the last of a
    month, whose files then have the most rows."""


def next_day(spark: SparkSession, folder: Path, rows: int, rounds: int) -> Day:
    """Build all tables of usage of a hundred days; then take in one day after another, and build what that changed.

    Of the rows four tenths are mailboxes, three each nameplates and binds. A tenth of a day's are late: they are of
    one of the three days before.
    """
    everything = DayRange(date.min, date.max)
    first_day = MONTH_END - timedelta(DAYS + rounds)
    with Lake.open(folder / "lake", write=True, make=True) as lake:
        run = Run(lake, "bench", time.time, lambda: spark, Quiet("bench"), folder)
        _take(run, folder / "old", 0, rows, first_day)
        build(run, builds=TABLES)
        full, _ = _timed(run, everything)
        following = []
        for day in range(DAYS, DAYS + rounds + 1):
            _take(run, folder / f"day {day}", day, rows // DAYS, first_day)
            took, built = _timed(run)
            following.append(took)
            assert built.keys() == TABLES.keys(), built
            assert built["outcomes"] == 1 + LATE_DAYS, built
    return Day(full, following[1:])


def _take(run: Run, folder: Path, first: int, rows: int, first_day: date) -> None:
    """Add rows of the days from `first` on to the clean tables. Day 0 is `first_day`."""
    for seed, (table, share) in enumerate(USAGE.items()):
        usage_days(
            folder / table.name, table, first, rows * share // 10, np.random.default_rng([first, seed]), first_day
        )
        target = run.lake.table(table)
        read = run.spark().read.schema(table.ddl).parquet(str(folder / table.name))
        staged = target.stage(read.hint("rebalance", "day"))
        target.commit([staged], info=CommitInfo(run="bench", table=table.name, finished=time.time()))


def _timed(run: Run, only: DayRange | None = None) -> tuple[float, dict[str, int]]:
    """Build, and tell how long it took and of which tables how many days were built."""
    start = time.perf_counter()
    built = build(run, only, builds=TABLES)
    return time.perf_counter() - start, {each.table: len(each.days) for each in built if each.days}


def usage_days(
    folder: Path, table: Table, first: int, count: int, dice: np.random.Generator, first_day: date
) -> None:
    """Write rows of a table: of a hundred days, or of the one behind them, a tenth of these late."""
    apps = np.array([f"application {number}" for number in range(40)])
    results = np.array(["happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded"])
    versions = np.array([f"0.{number}.0" for number in range(30)])
    for part, start in enumerate(range(0, count, 250_000)):
        number = min(250_000, count - start)
        day = dice.integers(0, DAYS, number) if not first else np.full(number, first)
        if first:
            late = dice.random(number) < 0.1
            day[late] -= dice.integers(1, LATE_DAYS + 1, int(late.sum()))
        time_of_day = dice.integers(0, 86_400_000_000, number).astype("timedelta64[us]")
        at = np.datetime64(first_day, "us") + day.astype("timedelta64[D]") + time_of_day
        waiting = (1e6 * dice.lognormal(3, 2, number)).astype(np.int64)
        moment = pa.array(at, pa.timestamp("us", "UTC"))
        columns = {
            "id": pa.array(first * 10**8 + np.arange(start, start + number)),
            "origin": pa.array(np.full(number, "")),
            "app_id": pa.array(apps[dice.zipf(1.5, number) % 40]),
            "for_nameplate": pa.array(dice.random(number) < 0.8),
            "started": moment,
            "connect_time": moment,
            "implementation": pa.array(np.full(number, "python")),
            "version": pa.array(versions[dice.zipf(1.5, number) % 30]),
            "waiting_us": pa.array(waiting, mask=dice.random(number) < 0.2),
            "total_us": pa.array(waiting + (1e6 * dice.lognormal(2, 1, number)).astype(np.int64)),
            "result": pa.array(results[dice.integers(0, len(results), number)]),
            "blur_us": pa.nulls(number, pa.int64()),
            "day": pc.cast(pa.array(at.astype("datetime64[D]")), pa.date32()),
        }
        own = {column.name: columns[column.name] for column in table.columns if column.name in columns}
        file = folder / "source=main" / f"part-{part:05}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(own), file, compression="zstd")


class Quiet(Steps):
    """Says nothing."""

    def say(self, words: str) -> None:
        """Keep it."""
