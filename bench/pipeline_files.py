"""How many files a year of forty servers leaves in a lake, and how fast DuckDB reads them. See bench/README.md.

python bench/pipeline_files.py [--servers N] [--days N] [--rows N] [--scratch DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from host import facts, scratch_root
from restante.pipeline.lake import columns, data_files, staging
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.staging import Staged
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import CLIENT_VERSIONS, LIVE, MAILBOXES, NAMEPLATES, Table
from restante.pipeline.tables import addresses, envelopes, failures, gaps, hours, lateness, outcomes, versions
from restante.pipeline.views import views

CLEAN = (NAMEPLATES, MAILBOXES, CLIENT_VERSIONS)
"""A daily run adds a file of each server to each of these: a commit per source."""
USAGE = (outcomes, hours, failures, versions, addresses)
MAILSERVERS = (envelopes, gaps, lateness)
BUILT = tuple(build.table for module in (*USAGE, *MAILSERVERS) for build in module.BUILDS if build.table.by_month)
"""A daily run adds one file to each of these."""
BUILT_ROWS = {envelopes.COVERAGE: 1, gaps.GAPS: 5, envelopes.TRAFFIC: 10}
"""Rows of a server and a day in a built table; of each other table there are 24."""
FIRST = date(2026, 1, 1)
APPLICATIONS = np.array([f"app.example.org/{number}" for number in range(10)])
WORDS = np.array(["happy", "lonely", "nameplate", "claimed", "waiting", "version"])
ROUNDS = 7

QUERIES = {
    "success by month": """
        SELECT date_trunc('month', day) AS month, sum(happy) / sum(ended) FROM outcomes GROUP BY ALL ORDER BY ALL
    """,
    "what each Mailserver lacks, by month": """
        SELECT date_trunc('month', day) AS month, source, sum(missing) FROM coverage GROUP BY ALL ORDER BY ALL
    """,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--servers", type=int, default=40)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rows", type=int, default=100, help="of a server and a day in each clean table")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the lake is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-", dir=scratch_root(options.scratch)) as scratch:
        folder = Path(scratch)
        for name, value in facts(folder).items():
            print(f"{name:10} {value}")
        with Lake.open(folder / "lake", write=True, make=True) as lake:
            tables = [lake.table(each) for each in (*CLEAN, LIVE, *BUILT)]
            print(f"{len(tables)} tables: {', '.join(table.table.name for table in tables)}")
            for table in tables:
                rows = options.rows if table.table in CLEAN else BUILT_ROWS.get(table.table, 24)
                # Each ingest replaces a source's rows of `live`.
                fill(table, options.servers, 1 if table.table == LIVE else options.days, rows)
            show("before compact", lake, tables)
            start = time.perf_counter()
            for table in tables:
                compact(table, "bench", time.time)
            print(f"compact: {time.perf_counter() - start:.1f} s")
            show("after compact", lake, tables)


def fill(table: LakeTable, servers: int, days: int, rows: int) -> None:
    """Commit what so many daily runs write, a month's files in one commit: it makes no difference to the files."""
    dice = np.random.default_rng(7)
    sources = [f"server-{number:02}" for number in range(servers)]
    months: dict[date, list[date]] = {}
    for day in (FIRST + timedelta(number) for number in range(days)):
        months.setdefault(day.replace(day=1), []).append(day)
    for month, those in months.items():
        job = table.job_folder()
        partition = {"month": month.isoformat()}
        files = []
        for day in those:
            for number, some in enumerate(parts(table.table, sources)):
                place = job / data_files.folder(partition.items()) / f"{day}-{number}.parquet"
                batch = made(table.table, dice, day, some, rows)
                files.append(staging.write(place, partition, batch.schema, [batch]))
        table.commit(
            [Staged(job, tuple(files))],
            info=CommitInfo(run="bench", table=table.table.name, finished=time.time()),
        )


def parts(table: Table, sources: list[str]) -> Iterator[list[str]]:
    """Yield the sources of each file of a daily run."""
    if table in (*CLEAN, LIVE):
        yield from ([source] for source in sources)
    else:
        yield sources


def made(table: Table, dice: np.random.Generator, day: date, sources: list[str], rows: int) -> pa.RecordBatch:
    """Return so many rows of each source."""
    count = rows * len(sources)
    midnight = np.datetime64(datetime(day.year, day.month, day.day, tzinfo=UTC).replace(tzinfo=None), "us")

    def values(name: str, kind: str) -> Any:
        if name == "source":
            return np.repeat(sources, rows)
        if name == "app_id":
            return dice.choice(APPLICATIONS, count)
        by_type: dict[str, Callable[[], Any]] = {
            "STRING": lambda: dice.choice(WORDS, count),
            "DATE": lambda: np.full(count, np.datetime64(day)),
            "TIMESTAMP": lambda: midnight + dice.integers(0, 86_400_000_000, count).astype("timedelta64[us]"),
            "BOOLEAN": lambda: dice.random(count) < 0.5,
        }
        return by_type.get(kind, lambda: dice.integers(0, 1 << 20, count))()

    schema = columns.arrow(table)
    arrays = [pa.array(values(each.name, each.type)).cast(schema.field(each.name).type) for each in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def show(when: str, lake: Lake, tables: list[LakeTable]) -> None:
    """Print the number of files, and how long each query takes in a new DuckDB."""
    files = [file for table in tables for file in table.files()]
    script = "".join(views(lake, [table.table for table in tables]))
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    print(f"{when}: {len(files):,} files, {rows:,} rows, {size / 2**20:.0f} MiB")
    for name, query in QUERIES.items():
        took = []
        for _ in range(ROUNDS):
            with duckdb.connect() as database:
                database.execute(script)
                start = time.perf_counter()
                database.execute(query).fetchall()
                took.append(time.perf_counter() - start)
        print(f"  {name}: {median(took):.3f} s ({min(took):.3f} to {max(took):.3f})")


if __name__ == "__main__":
    main()
