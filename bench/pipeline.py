"""The pipeline's heaviest tables beside DuckDB and Polars making the same ones. See bench/README.md.

python bench/pipeline.py [--rows N] [--rounds N] [--only NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from host import facts, scratch_root
from pipeline_day import next_day, verification
from restante.pipeline.lake.staging import stage
from restante.pipeline.schemas import ARCHIVED, MAILBOXES, SOURCE_KIND_ARCHIVE
from restante.pipeline.spark.session import session
from restante.pipeline.tables import BUILDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY = "1g"
DAYS = 3
MONTH = 30
FIRST = np.datetime64("2026-03-09T00:00:00", "us")
PART = 250_000
NAMES = ("verification", "next-day", "envelopes", "outcomes")


class Job(NamedTuple):
    """What each engine makes from the same files; `at_least` and `aim` are times DuckDB's time, at most."""

    title: str
    at_least: float
    aim: float
    run: dict[str, Callable[[Path, Path], None]]
    compare: str
    """SQL over what an engine wrote ({out}), by which the results are compared."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of envelopes, and of mailboxes")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each engine, by turns, after one that is not counted"
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of Spark")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the files are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds to FILE")
    return parser.parse_args()


# What is read.


def envelope_files(folder: Path, rows: int) -> None:
    """Write envelopes of 300 bytes, a tenth of them from a second mailserver, where they came in another order."""
    dice = np.random.default_rng(7)
    own = rows - rows // 10
    seeds = np.concatenate([np.arange(own), dice.permutation(own)[: rows - own]])
    for part, start in enumerate(range(0, rows, PART)):
        of = seeds[start : start + PART]
        second = np.arange(start, start + len(of)) >= own
        for source, chosen in (("one", ~second), ("two", second)):
            if chosen.any():
                _envelopes(folder / f"source={source}" / f"part-{part:05}.parquet", of[chosen], start)


def _envelopes(file: Path, seeds: np.ndarray[Any, Any], arrival: int) -> None:
    number = len(seeds)
    blobs = np.stack([_mixed(seeds, lane) for lane in range(38)], axis=1).view(np.uint8).reshape(number, 304)[:, :300]
    hashes = np.stack([_mixed(seeds, lane) for lane in range(40, 44)], axis=1).view(np.uint8)
    second = _mixed(seeds, 50) % np.uint64(DAYS * 86_400)
    sent = FIRST + second.astype("timedelta64[s]").astype("timedelta64[us]")
    topics = pc.binary_join_element_wise(
        "0x", pa.array([f"{each:08x}" for each in (_mixed(seeds, 51) % np.uint64(400)).tolist()]), ""
    )
    columns = {
        "hash": _binary(hashes, 32),
        "topic": topics,
        "sent": pa.array(sent, pa.timestamp("us", "UTC")),
        "expiry": pa.array(sent + np.timedelta64(50, "s"), pa.timestamp("us", "UTC")),
        "ttl": pa.array(np.full(number, 50)),
        "size": pa.array(np.full(number, 300), pa.int32()),
        "pow": pa.array(np.full(number, 0.002)),
        "file": pa.array(np.full(number, "f")),
        "arrival": pa.array(np.arange(arrival, arrival + number)),
        "arrived": pa.array(sent + np.timedelta64(1, "s"), pa.timestamp("us", "UTC")),
        "raw": _binary(blobs, 300),
        "source_kind": pa.array(np.full(number, SOURCE_KIND_ARCHIVE)),
        "day": pa.array(sent.astype("datetime64[D]")),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file, compression="zstd", row_group_size=125_000)


def _mixed(seeds: np.ndarray[Any, Any], lane: int) -> np.ndarray[Any, Any]:
    """Return eight bytes a seed that look like chance (splitmix64)."""
    mixed = seeds.astype(np.uint64) * np.uint64(64) + np.uint64(lane)
    mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _binary(blobs: np.ndarray[Any, Any], size: int) -> pa.Array:
    fixed = pa.Array.from_buffers(pa.binary(size), len(blobs), [None, pa.py_buffer(np.ascontiguousarray(blobs))])
    return fixed.cast(pa.binary())


def usage_files(folder: Path, rows: int) -> None:
    """Write mailboxes of a month at two servers, of forty applications."""
    dice = np.random.default_rng(8)
    apps = np.array([f"application {number}" for number in range(40)])
    results = np.array(["happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded"])
    for part, start in enumerate(range(0, rows, PART)):
        number = min(PART, rows - start)
        started = FIRST + dice.integers(0, MONTH * 86_400_000_000, number).astype("timedelta64[us]")
        waiting = (1e6 * dice.lognormal(3, 2, number)).astype(np.int64)
        columns = {
            "id": pa.array(np.arange(start, start + number)),
            "app_id": pa.array(apps[dice.zipf(1.5, number) % 40]),
            "for_nameplate": pa.array(dice.random(number) < 0.8),
            "started": pa.array(started, pa.timestamp("us", "UTC")),
            "waiting_us": pa.array(waiting, mask=dice.random(number) < 0.2),
            "total_us": pa.array(waiting + (1e6 * dice.lognormal(2, 1, number)).astype(np.int64)),
            "result": pa.array(results[dice.integers(0, len(results), number)]),
            "day": pa.array(started.astype("datetime64[D]")),
        }
        file = folder / f"source={('main', 'second')[part % 2]}" / f"part-{part:05}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), file, compression="zstd")


# Who makes it.


def by_spark(spark: SparkSession, name: str) -> Callable[[Path, Path], None]:
    build = BUILDS[name]

    def run(into: Path, out: Path) -> None:
        inputs = {}
        for each, schema in (("archived", ARCHIVED), ("mailboxes", MAILBOXES)):
            if each in build.inputs:
                inputs[each] = spark.read.schema(schema.ddl).parquet(str(into))
        if "nameplates" in build.inputs:
            inputs["nameplates"] = inputs["mailboxes"].limit(0).drop("for_nameplate")
        days = (FIRST.astype("datetime64[D]") + np.arange(MONTH)).astype(date).tolist()
        stage(build.written(inputs, days), out, build.table, "bench")

    return run


def envelopes_by_duckdb(into: Path, out: Path) -> None:
    with connection(out) as db:
        rows = f"read_parquet('{into}/*/*.parquet', hive_partitioning=true)"
        db.execute(f"""
            COPY (
                WITH numbered AS (SELECT *, file_row_number AS place, filename AS origin FROM read_parquet(
                    '{into}/*/*.parquet', hive_partitioning=true, file_row_number=true, filename=true)),
                busy AS (SELECT day, hour(sent) AS hour FROM {rows} GROUP BY ALL HAVING count(*) >= 1000),
                kept AS (SELECT arg_min(struct_pack(f := origin, p := place), (source, arrival)) AS at,
                        min(source) AS holder, count(DISTINCT source)::INT AS holders FROM numbered GROUP BY hash)
                SELECT n.hash, topic, sent, expiry, ttl, size, pow, arrived, raw, holder, holders,
                        busy.hour AS hour, n.day
                FROM numbered n JOIN kept ON kept.at.f = n.origin AND kept.at.p = n.place
                LEFT JOIN busy ON busy.day = n.day AND busy.hour = hour(n.sent)
            ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour))""")


def envelopes_by_duckdb_plainly(into: Path, out: Path) -> None:
    """Keep the first of each hash, as one would write it by hand."""
    with connection(out) as db:
        rows = f"read_parquet('{into}/*/*.parquet', hive_partitioning=true)"
        db.execute(f"""
            COPY (
                WITH busy AS (SELECT day, hour(sent) AS hour FROM {rows} GROUP BY ALL HAVING count(*) >= 1000),
                kept AS (SELECT *, count(*) OVER same AS holders_, row_number() OVER first AS place FROM {rows}
                    WINDOW same AS (PARTITION BY hash), first AS (PARTITION BY hash ORDER BY source, arrival))
                SELECT hash, topic, sent, expiry, ttl, size, pow, arrived, raw, source AS holder,
                    holders_::INT AS holders, busy.hour AS hour, kept.day
                FROM kept LEFT JOIN busy ON busy.day = kept.day AND busy.hour = hour(kept.sent)
                WHERE place = 1
            ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour))""")


@contextmanager
def connection(out: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    out.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        yield db


def envelopes_by_polars(into: Path, out: Path) -> None:
    rows = pl.scan_parquet(f"{into}/*/*.parquet", hive_partitioning=True)
    busy = (
        rows.group_by("day", pl.col("sent").dt.hour().cast(pl.Int32).alias("h")).len().filter(pl.col("len") >= 1000)
    )
    kept = (
        rows.sort("source", "arrival")
        .group_by("hash", maintain_order=True)
        .agg(
            pl.all().exclude("source", "source_kind", "file", "arrival").first(),
            holder=pl.col("source").first(),
            holders=pl.col("source").n_unique().cast(pl.Int32),
        )
        .with_columns(h=pl.col("sent").dt.hour().cast(pl.Int32))
        .join(busy.select("day", "h", hour=pl.col("h")), on=["day", "h"], how="left")
        .drop("h")
    )
    kept.sink_parquet(pl.PartitionBy(out, key=["day", "hour"], include_key=False), compression="zstd", mkdir=True)


OUTCOMES_SQL = """
    SELECT app_id, CASE WHEN for_nameplate THEN 'claimed' ELSE 'opened' END AS kind, count(*) AS ended,
        {counts}, source, day
    FROM read_parquet('{into}/*/*.parquet', hive_partitioning=true) GROUP BY ALL"""


def outcomes_by_duckdb(into: Path, out: Path) -> None:
    results = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
    counts = ", ".join(f"count(*) FILTER (result = '{each}') AS {each}" for each in results)
    with connection(out) as db:
        query = OUTCOMES_SQL.format(into=into, counts=counts)
        db.execute(f"COPY ({query}) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, source))")


def outcomes_by_polars(into: Path, out: Path) -> None:
    results = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
    kind = pl.when("for_nameplate").then(pl.lit("claimed")).otherwise(pl.lit("opened")).alias("kind")
    made = (
        pl.scan_parquet(f"{into}/*/*.parquet", hive_partitioning=True)
        .group_by("app_id", kind, "source", "day")
        .agg(
            ended=pl.len().cast(pl.Int64),
            **{each: (pl.col("result") == each).sum().cast(pl.Int64) for each in results},
        )
    )
    made.sink_parquet(pl.PartitionBy(out, key=["day", "source"], include_key=False), compression="zstd", mkdir=True)


# How they are compared.


def timed(run: Callable[[Path, Path], None], into: Path, out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    run(into, out)
    return time.perf_counter() - start


def digest(out: Path, compare: str) -> tuple[Any, ...]:
    """Sum up a table in any order of its rows."""
    files = f"read_parquet('{out}/**/*.parquet', hive_partitioning=true, hive_types_autocast=false)"
    with duckdb.connect() as db:
        found = db.execute(compare.format(files=files)).fetchone()
    assert found is not None
    return tuple(found)


def jobs(spark: SparkSession) -> dict[str, Job]:
    envelopes = "hash::BLOB, topic, epoch_us(sent), epoch_us(expiry), ttl, size, pow, epoch_us(arrived), raw, holder"
    outcomes = "app_id, kind, ended, happy, lonely, errory, scary, pruney, crowded, day::VARCHAR, source"
    summed = "SELECT count(*), sum(hash({columns})::HUGEINT) FROM {{files}}"
    blank = "nullif(hour::VARCHAR, '__HIVE_DEFAULT_PARTITION__')"
    return {
        "envelopes": Job(
            "envelopes: dedupe, partition, write", 2.4, 1.6,
            {"restante": by_spark(spark, "envelopes"), "duckdb": envelopes_by_duckdb, "polars": envelopes_by_polars,
             "duckdb plainly": envelopes_by_duckdb_plainly},
            summed.format(columns=f"{envelopes}, holders, {blank}, day::VARCHAR"),
        ),
        "outcomes": Job(
            "outcomes by server, app and day", 5.5, 3,
            {"restante": by_spark(spark, "outcomes"), "duckdb": outcomes_by_duckdb, "polars": outcomes_by_polars},
            summed.format(columns=outcomes),
        ),
    }  # fmt: skip


def judged(at_least: float, aim: float, figure: float, *, sign: int = 1) -> str:
    """Judge a figure that is to be small, or, with its sign turned, large."""
    return "aim" if figure <= sign * aim else "enough" if figure <= sign * at_least else "MISSED"


def table(seconds: dict[str, dict[str, list[float]]], chosen: dict[str, Job]) -> str:
    rows = [("table", "engine", "s, median", "times DuckDB", "at least", "aim", "verdict")]
    for name, engines in seconds.items():
        job = chosen[name]
        for engine, took in engines.items():
            times = median(a / b for a, b in zip(took, engines["duckdb"], strict=True))
            ours = engine == "restante"
            verdict = judged(job.at_least, job.aim, times)
            bounds = (f"{job.at_least:g}x", f"{job.aim:g}x", verdict) if ours else ("", "", "")
            rows.append((job.title, engine, f"{median(took):.2f}", f"{times:.2f}x", *bounds))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    options = arguments()
    failures = []
    seconds: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-", dir=scratch_root(options.scratch)) as scratch:
        folder = Path(scratch)
        machine = facts(folder)
        inputs = {"envelopes": folder / "archived", "outcomes": folder / "mailboxes"}
        names = options.only or list(NAMES)
        others = []
        if "verification" in names:
            done = verification()
            share = done.envelopes_per_second / done.hashes_per_second
            words = f"{share:.2f} of the host's hash rate"
            words += f" ({done.envelopes_per_second:,.0f} of {done.hashes_per_second:,.0f} a second of a core's time)"
            others.append(("verification", words, 0.36, 0.42, judged(0.36, 0.42, -share, sign=-1)))
        for name, write in (("envelopes", envelope_files), ("outcomes", usage_files)):
            if name in names:
                write(inputs[name], options.rows)
        start = time.perf_counter()
        settings = {"spark.driver.memory": MEMORY, "spark.local.dir": scratch}
        settings |= dict(each.split("=", 1) for each in options.set)
        with session(settings=settings) as spark:
            spark.range(1).count()
            print(f"Spark and its first query: {time.perf_counter() - start:.1f} s", file=sys.stderr)
            if "next-day" in names:
                (folder / "days").mkdir()
                day = next_day(spark, folder / "days", options.rows, options.rounds)
                for title, took in (
                    ("the next day's build", median(day.next)),
                    ("  of the month's end", day.next[-1]),
                ):
                    words = f"{took:.1f} s, {took / day.full:.1%} of the {day.full:.1f} s of a hundred days"
                    others.append((title, words, 6.6, 4, judged(6.6, 4, took)))
            chosen = {name: job for name, job in jobs(spark).items() if name in names}
            for name, job in chosen.items():
                seconds[name] = {engine: [] for engine in job.run}
                for round_ in range(options.rounds + 1):
                    digests = {}
                    for engine, run in job.run.items():
                        out = folder / f"{name} by {engine}"
                        took = timed(run, inputs[name], out)
                        print(f"{name}, round {round_}, {engine}: {took:.2f} s", file=sys.stderr)
                        if round_:
                            seconds[name][engine].append(took)
                        else:
                            digests[engine] = digest(out, job.compare)
                        shutil.rmtree(out)
                    if len(set(digests.values())) > 1:
                        failures.append(f"{name}: not the same rows: {digests}")
    for fact, value in machine.items():
        print(f"{fact:10} {value}")
    print(f"\n{options.rows:,} rows, spark.driver.memory={MEMORY}\n\n{table(seconds, chosen)}\n")
    for name, words, at_least, aim, verdict in others:
        print(f"{name}: {words}: {verdict} (at least {at_least:g}, aim {aim:g})")
    for failure in failures:
        print(f"FAILED  {failure}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "seconds": seconds})))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
