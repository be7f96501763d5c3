"""The pipeline's heaviest tables beside DuckDB and Polars, which make the same ones; a day more; its runs.

See bench/README.md.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import harness
from harness import Figure, Results, own
from restante.common.usage_records import ClientVersion
from restante.mailbox.core.model import Now
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import SqliteStore
from restante.pipeline.build.freshness import DayRange
from restante.pipeline.build.run import build_tables
from restante.pipeline.clean.envelopes import StoredValues
from restante.pipeline.cli.run import descendants
from restante.pipeline.extract import extract, recognise
from restante.pipeline.ingest import Run
from restante.pipeline.lake.columns import spark_schema
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.staging import stage_rows
from restante.pipeline.schemas import (
    ARCHIVED,
    CLIENT_VERSIONS,
    MAILBOXES,
    NAMEPLATES,
    SOURCE_KIND_ARCHIVE,
    Table,
)
from restante.pipeline.sources.archived import BATCH_ENVELOPES, EnvelopeBatch, Origin, verify_batch
from restante.pipeline.sources.extract_files import ExtractFolder
from restante.pipeline.sources.paths import STABLE_AFTER_SECONDS
from restante.pipeline.sources.source import IngestContext
from restante.pipeline.sources.usage import OpenedUsage
from restante.pipeline.spark.session import session
from restante.pipeline.steps import Steps
from restante.pipeline.tables import BUILDS
from restante.pipeline.tables.envelopes import MIN_HOUR_ROWS
from restante.waku.envelope import rlp
from restante.waku.envelope.keccak import keccaks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIBRARIES = ("restante", "pyspark", "duckdb", "polars", "pyarrow")
FIGURES = {
    "envelopes": own("envelopes: dedupe, partition, write, times DuckDB's time", 2.4, 1.6),
    "envelopes_seconds": Figure("  s; DuckDB"),
    "envelopes_over_polars": Figure("  times Polars' time"),
    "envelopes_polars_seconds": Figure("  s; Polars"),
    "outcomes": own("outcomes by server, app and day, times DuckDB's time", 5.5, 3),
    "outcomes_seconds": Figure("  s; DuckDB"),
    "outcomes_over_polars": Figure("  times Polars' time"),
    "outcomes_polars_seconds": Figure("  s; Polars"),
    "verification": own("envelopes verified, times the host's hash rate", 0.36, 0.42, higher_is_better=True),
    "verification_rate": Figure("  a second of a core's time", higher_is_better=True),
    "next_day": own("build of the next day, median, s", 6.6, 4),
    "month_end": own("build of a month's end, s", 6.6, 4),
    "hundred_days": Figure("  build of the hundred days before, s"),
    "day": own("run with a day of 10,000 usage rows, s", 15, 10),
    "day_cpu": Figure("  CPU time of its processes, s"),
    "day_memory": own("  peak memory of its processes (PSS), GB", 2.5, 1.8),
    "fleet": own("run with the same rows as extracts of 40 servers, s", 30, 20),
    "fleet_cpu": Figure("  CPU time of its processes, s"),
    "fleet_memory": own("  peak memory of its processes (PSS), GB", 2.5, 1.8),
    "quiet": own("run with nothing new of 40 servers and 3,000 logs, s", 2, 1),
    "quiet_cpu": Figure("  CPU time of its processes, s"),
    "new_rows": own("10,000 new rows of a database of {database_rows:,}: copied and cleaned, s", 1, 0.3),
    "slowest_commit": Figure("slowest commit of a server's store in 6 s, one every 5 ms, ms"),
    "slowest_commit_read": own("  more while its million rows are copied again and again, ms", 10, 3),
}
MEMORY = "1g"
ENVELOPE_DAYS = 3
MONTH_DAYS = 30
START = np.datetime64("2026-03-09T00:00:00", "us")
FILE_ROWS = 250_000
RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
LAKE_DAYS = 100
LATE_DAYS = 3
MONTH_END = date(2026, 6, 30)
VERIFIED = 20_000
PASSES = 20
"""Of the verification. One takes a tenth of a second, and with few of them the best one depends on chance."""
SENT = 1_770_000_000
USAGE = {MAILBOXES: 4, NAMEPLATES: 3, CLIENT_VERSIONS: 3}
"""Tables, and how many tenths of the rows are theirs."""
DAY_ROWS = 10_000
SERVERS = 40
LOGS = 3_000
DATABASE_ROWS = 25_000_000
READ_ROWS = 1_000_000
COMMIT_SECONDS = 6.0
RECORDS = {
    "usage_mailboxes (app_id, for_nameplate, started, waiting_time, total_time, result, visitors, blur_time)": (
        "'application ' || i % 40, i % 5 > 0, :start + i * :step, 1.5, 9, 'happy', 0, 0",
        4,
    ),
    "usage_nameplates (app_id, started, waiting_time, total_time, result, blur_time)": (
        "'application ' || i % 40, :start + i * :step, 1.5, 9, 'happy', 0",
        3,
    ),
    "usage_client_versions (app_id, side, connect_time, implementation, version, blur_time)": (
        "'application ' || i % 40, i, :start + i * :step, 'python', '0.' || i % 30, 0",
        3,
    ),
}
"""Usage records of a server: columns of a table, their values for the record `i`, and how many tenths they are."""
TABLES = {name: table for name, table in BUILDS.items() if set(table.inputs) <= {usage.name for usage in USAGE}}


# ── Inputs ──


def write_envelope_files(folder: Path, rows: int) -> None:
    """Write envelopes of 300 bytes, a tenth of them from a second mailserver, where they arrived in another order."""
    dice = np.random.default_rng(7)
    own_rows = rows - rows // 10
    seeds = np.concatenate([np.arange(own_rows), dice.permutation(own_rows)[: rows - own_rows]])
    for part, start in enumerate(range(0, rows, FILE_ROWS)):
        batch = seeds[start : start + FILE_ROWS]
        second = np.arange(start, start + len(batch)) >= own_rows
        for source, chosen in (("one", ~second), ("two", second)):
            if chosen.any():
                _envelopes(folder / f"source={source}" / f"part-{part:05}.parquet", batch[chosen], start)


def _envelopes(file: Path, seeds: np.ndarray[Any, Any], arrival: int) -> None:
    number = len(seeds)
    blobs = np.stack([_mix(seeds, lane) for lane in range(38)], axis=1).view(np.uint8).reshape(number, 304)[:, :300]
    hashes = np.stack([_mix(seeds, lane) for lane in range(40, 44)], axis=1).view(np.uint8)
    second = _mix(seeds, 50) % np.uint64(ENVELOPE_DAYS * 86_400)
    sent = START + second.astype("timedelta64[s]").astype("timedelta64[us]")
    topics = pc.binary_join_element_wise(
        "0x", pa.array([f"{topic:08x}" for topic in (_mix(seeds, 51) % np.uint64(400)).tolist()]), ""
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


def _mix(seeds: np.ndarray[Any, Any], lane: int) -> np.ndarray[Any, Any]:
    """Return eight bytes a seed that look like chance (splitmix64)."""
    mixed = seeds.astype(np.uint64) * np.uint64(64) + np.uint64(lane)
    mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _binary(blobs: np.ndarray[Any, Any], size: int) -> pa.Array:
    fixed = pa.Array.from_buffers(pa.binary(size), len(blobs), [None, pa.py_buffer(np.ascontiguousarray(blobs))])
    return fixed.cast(pa.binary())


def write_month_files(folder: Path, rows: int) -> None:
    """Write mailboxes of a month at two servers."""
    dice = np.random.default_rng(8)
    start_day = START.astype("datetime64[D]")
    write_usage_files(
        folder,
        MAILBOXES,
        rows,
        dice,
        lambda count: start_day + dice.integers(0, MONTH_DAYS, count),
        ("main", "second"),
    )


def write_usage_files(
    folder: Path,
    table: Table,
    rows: int,
    dice: np.random.Generator,
    draw_days: Callable[[int], np.ndarray[Any, Any]],
    sources: tuple[str, ...] = ("main",),
    start_id: int = 0,
) -> None:
    """Write usage records of forty applications and thirty versions."""
    apps = np.array([f"application {number}" for number in range(40)])
    results = np.array(["happy", "happy", *RESULTS])
    versions = np.array([f"0.{number}.0" for number in range(30)])
    for part, start in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - start)
        day = draw_days(count).astype("datetime64[D]")
        started = day.astype("datetime64[us]") + dice.integers(0, 86_400_000_000, count).astype("timedelta64[us]")
        waiting = (1e6 * dice.lognormal(3, 2, count)).astype(np.int64)
        moment = pa.array(started, pa.timestamp("us", "UTC"))
        columns = {
            "id": pa.array(start_id + np.arange(start, start + count)),
            "origin": pa.array(np.full(count, "")),
            "app_id": pa.array(apps[dice.zipf(1.5, count) % 40]),
            "for_nameplate": pa.array(dice.random(count) < 0.8),
            "started": moment,
            "connect_time": moment,
            "implementation": pa.array(np.full(count, "python")),
            "version": pa.array(versions[dice.zipf(1.5, count) % 30]),
            "waiting_us": pa.array(waiting, mask=dice.random(count) < 0.2),
            "total_us": pa.array(waiting + (1e6 * dice.lognormal(2, 1, count)).astype(np.int64)),
            "result": pa.array(results[dice.integers(0, len(results), count)]),
            "blur_us": pa.nulls(count, pa.int64()),
            "day": pc.cast(pa.array(day), pa.date32()),
        }
        file = folder / f"source={sources[part % len(sources)]}" / f"part-{part:05}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        written = {column.name: columns[column.name] for column in table.columns if column.name in columns}
        pq.write_table(pa.table(written), file, compression="zstd")


# ── The same tables by Spark, DuckDB and Polars ──


def by_spark(spark: SparkSession, table: str) -> Callable[[Path, Path], None]:
    build = BUILDS[table]

    def run(into: Path, out: Path) -> None:
        inputs = {}
        for name, schema in (("archived", ARCHIVED), ("mailboxes", MAILBOXES)):
            if name in build.inputs:
                inputs[name] = spark.read.schema(spark_schema(schema)).parquet(str(into))
        if "nameplates" in build.inputs:
            inputs["nameplates"] = inputs["mailboxes"].limit(0).drop("for_nameplate")
        days = (START.astype("datetime64[D]") + np.arange(MONTH_DAYS)).astype(date).tolist()
        stage_rows(build.rows_to_write(inputs, days), out, build.table, "bench")

    return run


def envelopes_by_duckdb(into: Path, out: Path) -> None:
    with connection(out) as db:
        rows = f"read_parquet('{into}/*/*.parquet', hive_partitioning=true)"
        db.execute(f"""
            COPY (
                WITH numbered AS (SELECT *, file_row_number AS position, filename AS origin FROM read_parquet(
                    '{into}/*/*.parquet', hive_partitioning=true, file_row_number=true, filename=true)),
                busy AS (SELECT day, hour(sent) AS hour FROM {rows} GROUP BY ALL HAVING count(*) >= {MIN_HOUR_ROWS}),
                chosen AS (SELECT arg_min(struct_pack(f := origin, p := position), (source, arrival)) AS at,
                        min(source) AS holder, count(DISTINCT source)::INT AS holders FROM numbered GROUP BY hash)
                SELECT n.hash, topic, sent, expiry, ttl, size, pow, arrived, raw, holder, holders,
                        busy.hour AS hour, n.day
                FROM numbered n JOIN chosen ON chosen.at.f = n.origin AND chosen.at.p = n.position
                LEFT JOIN busy ON busy.day = n.day AND busy.hour = hour(n.sent)
            ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour))""")


@contextmanager
def connection(out: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    out.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        yield db


OUTCOMES_SQL = """
    SELECT app_id, CASE WHEN for_nameplate THEN 'claimed' ELSE 'opened' END AS kind, count(*) AS ended,
        {counts}, source, day
    FROM read_parquet('{into}/*/*.parquet', hive_partitioning=true) GROUP BY ALL"""


def outcomes_by_duckdb(into: Path, out: Path) -> None:
    counts = ", ".join(f"count(*) FILTER (result = '{result}') AS {result}" for result in RESULTS)
    with connection(out) as db:
        query = OUTCOMES_SQL.format(into=into, counts=counts)
        db.execute(f"COPY ({query}) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, source))")


def envelopes_by_polars(into: Path, out: Path) -> None:
    rows = pl.scan_parquet(f"{into}/*/*.parquet", hive_partitioning=True, row_index_name="row")
    rows = rows.with_columns(sent_hour=pl.col("sent").dt.hour())
    many = rows.group_by("day", "sent_hour").len().filter(pl.col("len") >= MIN_HOUR_ROWS)
    chosen = rows.group_by("hash").agg(
        pl.col("row").min_by(pl.struct("source", "arrival")),
        holder=pl.col("source").min(),
        holders=pl.col("source").n_unique().cast(pl.Int32),
    )
    joined = rows.join(chosen.drop("hash"), "row").join(
        many.select("day", "sent_hour", hour="sent_hour"), ["day", "sent_hour"], "left"
    )
    _write_by_polars(joined.drop("row", "sent_hour", "file", "arrival", "source_kind", "source"), out, "day", "hour")


def outcomes_by_polars(into: Path, out: Path) -> None:
    kind = pl.when("for_nameplate").then(pl.lit("claimed")).otherwise(pl.lit("opened")).alias("kind")
    counts = {result: (pl.col("result") == result).sum().cast(pl.Int64) for result in RESULTS}
    groups = pl.scan_parquet(f"{into}/*/*.parquet", hive_partitioning=True).group_by("app_id", kind, "source", "day")
    _write_by_polars(groups.agg(ended=pl.len().cast(pl.Int64), **counts), out, "day", "source")


def _write_by_polars(rows: pl.LazyFrame, out: Path, *partitions: str) -> None:
    rows.sink_parquet(pl.PartitionBy(out, key=partitions), maintain_order=False, mkdir=True)


# ── The next day, and the verification of envelopes ──


def verify(results: Results) -> None:
    """Verify envelopes of about 300 bytes and put them into Arrow columns, in this process.

    It is compared with the hashes that a core computes of the same bytes. Each is the best of some passes.
    """
    dice, ttl = random.Random(1), 50
    raws = []
    for number in range(VERIFIED):
        expiry, nonce = _to_bytes(SENT + number + ttl), _to_bytes(dice.getrandbits(63))
        raws.append(rlp.encode([expiry, _to_bytes(ttl), dice.randbytes(4), dice.randbytes(280), nonce]))
    latest = np.full(BATCH_ENVELOPES, SENT + 10 * VERIFIED)
    origin = Origin("bench", SOURCE_KIND_ARCHIVE, "f", "")
    verified, hashed = [], []
    for _ in range(PASSES):
        start = time.process_time()
        for number in range(0, VERIFIED, BATCH_ENVELOPES):
            ids = np.arange(number, number + BATCH_ENVELOPES)
            batch = EnvelopeBatch(raws[number : number + BATCH_ENVELOPES], ids, None, StoredValues(latest))
            columns = verify_batch(batch, origin)
            assert columns.column("fault").null_count == columns.num_rows
        verified.append(time.process_time() - start)
        start = time.process_time()
        keccaks(raws)
        hashed.append(time.process_time() - start)
    results.add("verification", min(hashed) / min(verified))
    results.add("verification_rate", VERIFIED / min(verified))


def _to_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8)


def build_next_days(spark: SparkSession, folder: Path, rows: int, rounds: int, results: Results) -> None:
    """Build all tables of usage of a hundred days, then add one day after another, and build what that changed.

    Of the rows four tenths are mailboxes, three each nameplates and binds. A tenth of a day's are late: they are of
    one of the three days before. The last day is the last of a month, whose files then have the most rows.
    """
    all_days = DayRange(date.min, date.max)
    start_day = MONTH_END - timedelta(LAKE_DAYS + rounds)
    folder.mkdir()
    with Lake.open(folder / "lake", write=True, make=True) as lake:
        run = Run(lake, "bench", time.time, lambda: spark, Quiet("bench"), folder)
        _ingest(run, folder / "old", 0, rows, start_day)
        build_tables(run, builds=TABLES)
        results.add("hundred_days", _time_build(run, all_days)[0])  # a second time: the first warms the session
        seconds = []
        for day in range(LAKE_DAYS, LAKE_DAYS + rounds + 1):
            _ingest(run, folder / f"day {day}", day, rows // LAKE_DAYS, start_day)
            took, days = _time_build(run)
            seconds.append(took)
            assert days.keys() == TABLES.keys(), days
            assert days["outcomes"] == 1 + LATE_DAYS, days
    results.add("next_day", median(seconds[1:]))
    results.add("month_end", seconds[-1])


def _ingest(run: Run, folder: Path, new_day: int, rows: int, start_day: date) -> None:
    """Add rows to the clean tables: of the hundred days from `start_day` on, or of a day after them."""
    for seed, (table, share) in enumerate(USAGE.items()):
        dice = np.random.default_rng([new_day, seed])

        def draw_days(count: int, dice: np.random.Generator = dice) -> np.ndarray[Any, Any]:
            day = np.full(count, new_day) if new_day else dice.integers(0, LAKE_DAYS, count)
            if new_day:
                late = dice.random(count) < 0.1
                day[late] -= dice.integers(1, LATE_DAYS + 1, int(late.sum()))
            return np.datetime64(start_day, "D") + day

        write_usage_files(folder / table.name, table, rows * share // 10, dice, draw_days, start_id=new_day * 10**8)
        target = run.lake.table(table)
        read = run.spark().read.schema(spark_schema(table)).parquet(str(folder / table.name))
        staged = target.stage(read.hint("rebalance", "day"))
        target.commit([staged], info=CommitInfo(run="bench", finished=time.time()))


def _time_build(run: Run, only: DayRange | None = None) -> tuple[float, dict[str, int]]:
    """Build. Return how long it took, and how many days of which tables were built."""
    start = time.perf_counter()
    tables = build_tables(run, only, builds=TABLES)
    return time.perf_counter() - start, {table.table: len(table.days) for table in tables if table.days}


class Quiet(Steps):
    """Steps that print nothing."""

    def say(self, words: str) -> None:
        """Print nothing."""


# ── Runs of the command, and databases in use ──


def add_records(data: Path, rows: int, day: date, only: str = "") -> None:
    """Add usage records of a day to the database of a mailbox server, in a new data directory if there is none."""
    if not data.exists():
        asyncio.run(SqliteStore.open(data).close())
    start = datetime.combine(day, datetime.min.time(), UTC).timestamp()
    with closing(sqlite3.connect(data / FILE)) as database, database:
        for columns, (values, tenths) in RECORDS.items():
            count = rows if only else rows * tenths // 10
            numbers = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)"
            if columns.startswith(only):
                insert = f"INSERT INTO {columns} {numbers} SELECT {values} FROM n"
                database.execute(insert, {"count": count, "start": start, "step": 86_400 / count})


def run_command(results: Results | None, name: str, *arguments: object) -> None:
    """Run `restante pipeline run`. Add its time from exec to exit, and its processes' CPU time and memory."""
    command = [sys.executable, "-m", "restante", "pipeline", "run", *map(str, arguments)]
    start, peak, cpu = time.perf_counter(), 0, dict[int, float]()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            processes = (process.pid, *descendants(process.pid))
            peak = max(peak, sum(map(_pss, processes)))
            cpu |= {number: max(_cpu_seconds(number), cpu.get(number, 0)) for number in processes}
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.25)
    if process.returncode:
        raise harness.BenchError(f"{command} ended with {process.returncode}")
    if results is not None:
        results.add(name, time.perf_counter() - start)
        results.add(f"{name}_cpu", sum(cpu.values()))
        if name != "quiet":
            results.add(f"{name}_memory", peak / 1e9)


def _pss(process: int) -> int:
    """Return the bytes of a process's memory, with its share of what it shares (proc_pid_smaps_rollup(5))."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def _cpu_seconds(process: int) -> float:
    """Return the user and system time of a process (proc_pid_stat(5))."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_days(folder: Path, rounds: int, results: Results) -> None:
    """Run with a day of a server, and of a fleet's extracts. A run before the first that counts makes the lake."""
    today = datetime.now(UTC).date()
    (folder / "extracts").mkdir(parents=True)
    extracts = ExtractFolder(str(folder / "extracts"))
    for number in range(rounds + 1):
        day = today - timedelta(rounds + 1 - number)
        add_records(folder / "one", DAY_ROWS, day)
        for server in range(SERVERS):
            add_records(folder / f"server {server}", DAY_ROWS // SERVERS, day)
        night = datetime.combine(day + timedelta(1), datetime.min.time(), UTC).timestamp()
        specs = [f"s{server}={folder}/server {server}" for server in range(SERVERS)]
        errors = [r for r in extract(specs, extracts, folder, night, print) if isinstance(r, Exception)]
        assert not errors, errors
        counted = results if number else None
        run_command(counted, "day", "--lake", folder / "lake", "--source", f"one={folder / 'one'}")
        run_command(counted, "fleet", "--lake", folder / "fleet", "--extracts", folder / "extracts")


def run_quiet(folder: Path, rounds: int, results: Results) -> None:
    """Run with nothing new. A run before makes the lake, and another one finds that the files do not change."""
    (folder / "logs").mkdir(parents=True)
    day = datetime.now(UTC).date() - timedelta(1)
    sources: list[object] = ["--source", f"logs={folder / 'logs'}"]
    for server in range(SERVERS):
        add_records(folder / f"server {server}", 100, day)
        sources += ["--source", f"s{server}={folder}/server {server}"]
    for number in range(LOGS):
        event = f'[{{"name": "import", "start": {time.time() - 3600 + number / 100}}}]'
        (folder / "logs" / f"{number}.json").write_text(event)
    for number in range(rounds + 2):
        run_command(results if number > 1 else None, "quiet", "--lake", folder / "lake", *sources)
        time.sleep(0 if number else STABLE_AFTER_SECONDS)


def _opened(data: Path) -> AbstractContextManager[OpenedUsage]:
    opened = recognise(f"main={data}").opened(data.parent / "copies", print, IngestContext(time.time()))
    return cast("AbstractContextManager[OpenedUsage]", opened)


def read_new_rows(folder: Path, rows: int, rounds: int, results: Results) -> None:
    """Copy and clean the new rows of a large database."""
    table, day = CLIENT_VERSIONS.name, datetime.now(UTC).date() - timedelta(1)
    add_records(folder, rows, day, f"usage_{table} ")
    for _ in range(rounds):
        with _opened(folder) as opened:
            _, mark = opened._ends[table]  # what a run would have from the one before
        add_records(folder, DAY_ROWS, day, f"usage_{table} ")
        start = time.perf_counter()
        with _opened(folder) as opened:
            span = opened.find_new(table, {"": mark})
            assert span is not None
            cleaned = sum(batch.num_rows for task in span.tasks for batch in task())
        results.add("new_rows", time.perf_counter() - start)
        assert cleaned == DAY_ROWS, cleaned


def commit_while_read(folder: Path, rounds: int, results: Results) -> None:
    """Commit to a server's store, with and without another process that reads its rows."""
    add_records(folder, READ_ROWS, datetime.now(UTC).date() - timedelta(1), "usage_client_versions ")
    for _ in range(rounds):
        alone = asyncio.run(_slowest_commit(folder))
        reader = multiprocessing.Process(target=_read_again_and_again, args=(folder,))
        reader.start()
        try:
            beside = asyncio.run(_slowest_commit(folder))
        finally:
            reader.terminate()
            reader.join()
        results.add("slowest_commit", 1000 * alone)
        results.add("slowest_commit_read", 1000 * (beside - alone))


def _read_again_and_again(data: Path) -> None:
    while True:
        with _opened(data) as opened:
            opened.find_new(CLIENT_VERSIONS.name, {})


async def _slowest_commit(data: Path) -> float:
    store, slowest, end = SqliteStore.open(data), 0.0, time.monotonic() + COMMIT_SECONDS
    while time.monotonic() < end:
        await asyncio.sleep(0.005)
        start = time.perf_counter()
        await store.apply([ClientVersion("x", "s", time.time(), "python", "1", None, 0.0)], Now(time.time(), 0.0))
        slowest = max(slowest, time.perf_counter() - start)
    await store.close()
    return slowest


# ── What is compared ──


class Job(NamedTuple):
    """What all make from the same files."""

    write_inputs: Callable[[Path, int], None]
    by_duckdb: Callable[[Path, Path], None]
    by_polars: Callable[[Path, Path], None]
    columns: str
    """SQL expressions by which the results are compared."""


JOBS = {
    "envelopes": Job(
        write_envelope_files,
        envelopes_by_duckdb,
        envelopes_by_polars,
        "hash::BLOB, topic, epoch_us(sent), epoch_us(expiry), ttl, size, pow, epoch_us(arrived), raw, holder,"
        " holders, nullif(hour::VARCHAR, '__HIVE_DEFAULT_PARTITION__'), day::VARCHAR",
    ),
    "outcomes": Job(
        write_month_files,
        outcomes_by_duckdb,
        outcomes_by_polars,
        f"app_id, kind, ended, {', '.join(RESULTS)}, day::VARCHAR, source",
    ),
}


def compare_engines(spark: SparkSession, name: str, folder: Path, rows: int, rounds: int, results: Results) -> None:
    """Let all make a table, in turns. One round runs before the first that counts: its results are compared."""
    job, inputs = JOBS[name], folder / f"{name} inputs"
    job.write_inputs(inputs, rows)
    engines = {"restante": by_spark(spark, name), "DuckDB": job.by_duckdb, "Polars": job.by_polars}
    for number in range(rounds + 1):
        seconds, sums = {}, {}
        for engine, make in engines.items():
            out = folder / f"{name} by {engine}"
            os.sync()
            start = time.perf_counter()
            make(inputs, out)
            seconds[engine] = time.perf_counter() - start
            if not number:
                sums[engine] = sum_of_hashes(out, job.columns)
            shutil.rmtree(out)
        if number:
            results.add(f"{name}_seconds", seconds["restante"])
            results.add(f"{name}_seconds", seconds["DuckDB"], "reference")
            results.add(f"{name}_polars_seconds", seconds["Polars"], "reference")
            results.add(name, seconds["restante"] / seconds["DuckDB"])
            results.add(f"{name}_over_polars", seconds["restante"] / seconds["Polars"])
        elif len(set(sums.values())) > 1:
            results.failures.append(f"{name}: not the same rows: {sums}")


def sum_of_hashes(out: Path, columns: str) -> Any:
    """Return the number of rows of a table and the sum of their hashes, which do not depend on their order."""
    files = f"read_parquet('{out}/**/*.parquet', hive_partitioning=true, hive_types_autocast=false)"
    with duckdb.connect() as db:
        return db.execute(f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM {files}").fetchone()


def main() -> int:
    parser = harness.parser(
        __doc__, ("verification", "next-day", *JOBS, "days", "quiet", "new-rows", "commits"), rounds=3
    )
    parser.add_argument("--rows", type=int, default=5_000_000, metavar="N", help="of envelopes, and of mailboxes")
    options = parser.parse_args()
    rows, rounds = (300_000, 1) if options.quick else (options.rows, options.rounds)
    database_rows = 1_000_000 if options.quick else DATABASE_ROWS
    results = Results(FIGURES, {"database_rows": database_rows}, peer="peer")

    def measure(scratch: Path) -> None:
        if "verification" in options.only:
            verify(results)
        if "commits" in options.only:
            commit_while_read(scratch / "read", rounds, results)
        if "new-rows" in options.only:
            read_new_rows(scratch / "large", database_rows, rounds, results)
            shutil.rmtree(scratch / "large")
        if "days" in options.only:
            run_days(scratch / "runs", rounds, results)
        if "quiet" in options.only:
            run_quiet(scratch / "quiet", rounds, results)
        if not {"next-day", *JOBS}.intersection(options.only):
            return
        settings = {"spark.driver.memory": MEMORY, "spark.local.dir": str(scratch)}
        start = time.perf_counter()
        with session(settings=settings) as spark:
            spark.range(1).count()
            print(f"Spark and its first query: {time.perf_counter() - start:.1f} s", file=sys.stderr)
            if "next-day" in options.only:
                build_next_days(spark, scratch / "days", rows, rounds, results)
            for name in JOBS:
                if name in options.only:
                    compare_engines(spark, name, scratch, rows, rounds, results)

    return harness.main(options, results, measure, LIBRARIES, {"rows": f"{rows:,}, spark.driver.memory={MEMORY}"})


if __name__ == "__main__":
    sys.exit(main())
