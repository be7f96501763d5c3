"""What an envelope's verification costs, and what the next day costs a lake that has a hundred."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from restante.pipeline.building import build
from restante.pipeline.envelopes import Stored
from restante.pipeline.ingest import Run
from restante.pipeline.lake import FIRST_DAY, Lake
from restante.pipeline.notes import Note
from restante.pipeline.schemas import MAILBOXES
from restante.pipeline.sources.archived import ROWS, Found, Origin, batch
from restante.pipeline.steps import Steps
from restante.pipeline.tables import BUILDS
from restante.waku import rlp
from restante.waku.keccak import keccaks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = 100
LATE_DAYS = 3
ENVELOPES = 20_000
SENT = 1_770_000_000


class Verified(NamedTuple):
    """What one core does, in the best of some passes."""

    envelopes_per_second: float
    hashes_per_second: float
    """Of the same bytes: what nothing can be faster than, by two to an envelope."""


def verification(passes: int) -> Verified:
    """Verify envelopes of about 300 bytes and put them into Arrow columns, in this process, by CPU time."""
    dice = random.Random(1)
    raws = []
    for number in range(ENVELOPES):
        ttl = 50
        expiry, nonce = _bytes(SENT + number + ttl), _bytes(dice.getrandbits(63))
        raws.append(rlp.encode([expiry, _bytes(ttl), dice.randbytes(4), dice.randbytes(280), nonce]))
    latest = np.full(ROWS, SENT + 10 * ENVELOPES)
    origin = Origin("bench", "f", "", FIRST_DAY)
    took, hashed = [], []
    for _ in range(passes):
        start = time.process_time()
        for first in range(0, ENVELOPES, ROWS):
            made = batch(
                Found(raws[first : first + ROWS], np.arange(first, first + ROWS), None, Stored(latest)), origin
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
    """All of a hundred days."""
    next: float
    """After one more, and some that were late."""


def next_day(spark: SparkSession, folder: Path, write: Callable[[Path, int, int], None], rows: int) -> Day:
    """Build the tables of mailboxes of a hundred days; then take one more in and build what that changed.

    A tenth of the next day's rows are late: they began on one of the three days before.
    """
    builds = {name: each for name, each in BUILDS.items() if "mailboxes" in each.inputs}
    with Lake.open(folder / "lake", write=True, make=True) as lake:
        run = Run(lake, "bench", time.time, lambda: spark, Quiet("bench"), folder)
        took = []
        for files, first, count in (("old", 0, rows), ("new", DAYS, rows // DAYS)):
            write(folder / files, first, count)
            table = lake.table(MAILBOXES)
            read = spark.read.schema(MAILBOXES.ddl).parquet(str(folder / files))
            staged = table.stage(read.hint("rebalance", "day"))
            table.commit([staged], note=Note(run="bench", table="mailboxes", finished=time.time()))
            start = time.perf_counter()
            built = build(run, builds=builds)
            took.append(time.perf_counter() - start)
            assert {len(each.days) for each in built} == {DAYS if not first else 1 + LATE_DAYS}, built
    return Day(*took)


def usage_days(folder: Path, first: int, count: int) -> None:
    """Write mailboxes: of a hundred days, or of the one behind them, a tenth of these late."""
    dice = np.random.default_rng(first)
    apps = np.array([f"application {number}" for number in range(40)])
    results = np.array(["happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded"])
    for part, start in enumerate(range(0, count, 250_000)):
        number = min(250_000, count - start)
        day = dice.integers(0, DAYS, number) if not first else np.full(number, first)
        if first:
            late = dice.random(number) < 0.1
            day[late] -= dice.integers(1, LATE_DAYS + 1, int(late.sum()))
        time_of_day = dice.integers(0, 86_400_000_000, number).astype("timedelta64[us]")
        started = np.datetime64("2026-03-09T00:00:00", "us") + day.astype("timedelta64[D]") + time_of_day
        waiting = (1e6 * dice.lognormal(3, 2, number)).astype(np.int64)
        columns = {
            "id": pa.array(np.arange(start, start + number)),
            "origin": pa.array(np.full(number, "")),
            "app_id": pa.array(apps[dice.zipf(1.5, number) % 40]),
            "for_nameplate": pa.array(dice.random(number) < 0.8),
            "started": pa.array(started, pa.timestamp("us", "UTC")),
            "waiting_us": pa.array(waiting, mask=dice.random(number) < 0.2),
            "total_us": pa.array(waiting + (1e6 * dice.lognormal(2, 1, number)).astype(np.int64)),
            "result": pa.array(results[dice.integers(0, len(results), number)]),
            "blur_us": pa.nulls(number, pa.int64()),
            "day": pc.cast(pa.array(started.astype("datetime64[D]")), pa.date32()),
        }
        file = folder / "source=main" / f"part-{part:05}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), file, compression="zstd")


class Quiet(Steps):
    """Says nothing."""

    def say(self, words: str) -> None:
        """Keep it."""
