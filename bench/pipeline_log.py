"""What a build with nothing to do costs when tables have had many commits. See bench/README.md.

python bench/pipeline_log.py [--commits N] [--scratch DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa

from host import facts, scratch_root
from pipeline_day import TABLES, USAGE, Quiet
from restante.pipeline.build.run import build
from restante.pipeline.ingest import Run
from restante.pipeline.lake import columns, data_files, staging
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.commit_info import CommitInfo, Ledger, Mark
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.staging import Staged
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Table
from restante.pipeline.spark.session import session

FIRST = date(2026, 3, 9)
A_DAY = 24
"""Commits of a table: an ingest an hour."""
CHECKPOINT = 5
"""Commits between checkpoints while the lake is made: deltalake takes the longer for a commit the more there were
since the last. What is timed is mostly what Restante itself reads of the log."""
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--commits", type=int, default=3000, help="of each clean table")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the lake is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-", dir=scratch_root(options.scratch)) as scratch:
        folder = Path(scratch)
        for name, value in facts(folder).items():
            print(f"{name:10} {value}")
        with Lake.open(folder / "lake", write=True, make=True) as lake:
            checkpoint, lake_table.COMMITS_PER_CHECKPOINT = lake_table.COMMITS_PER_CHECKPOINT, CHECKPOINT  # type: ignore[misc]
            for table in USAGE:
                ingest(lake.table(table), options.commits)
            lake_table.COMMITS_PER_CHECKPOINT = checkpoint  # type: ignore[misc]
            with session("local[2]") as spark:
                run = Run(lake, "bench", time.time, lambda: spark, Quiet("bench"), folder)
                build(run, builds=TABLES)
                idle = [nothing(run) for _ in range(ROUNDS)]
        entries = list((folder / "lake").glob("*/_delta_log/*.json"))
        size = sum(entry.stat().st_size for entry in entries)
        print(f"{len(entries):,} log entries, {size / 2**20:.0f} MiB")
        print(
            f"build of {len(TABLES)} tables, nothing to do: {median(idle):.2f} s ({min(idle):.2f} to {max(idle):.2f})"
        )


def nothing(run: Run) -> float:
    """Build what is up to date, and return how long that took, in seconds."""
    start = time.perf_counter()
    built = build(run, builds=TABLES)
    took = time.perf_counter() - start
    assert not any(each.days for each in built)
    return took


def ingest(table: LakeTable, commits: int) -> None:
    """Commit so many times, as an ingest of every hour does, one of a day with a row: files cost deltalake time."""
    for number in range(commits):
        day = FIRST + timedelta(number // A_DAY)
        staged = [one_row(table.folder, table.table, number, day)] if number % A_DAY == 0 else []
        marks = {"": Mark(number + 1, "0" * 64, 1, "0" * 64)}
        ledger = Ledger(read=1, clean=1, counted=1)
        info = CommitInfo(
            run="bench", table=table.table.name, finished=time.time(), source="main", ledger=ledger, marks=marks
        )
        table.commit(staged, info=info, transactions={"main": number + 1})


def one_row(folder: Path, table: Table, number: int, day: date) -> Staged:
    """Stage a row without Spark."""
    moment = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    values = {"BIGINT": number, "INT": 1, "DOUBLE": 1.0, "BOOLEAN": True, "STRING": "happy", "TIMESTAMP": moment}
    given = {each.name: [None if each.null else values.get(each.type)] for each in table.columns}
    row = given | {"day": [day], "source": ["main"]}
    partition = {"month": day.replace(day=1).isoformat()}
    job = folder / f"{staging.RUN_PREFIX}{uuid.uuid4().hex}"
    path = job / data_files.folder(partition.items()) / f"{number}.parquet"
    [batch] = pa.table(row, columns.arrow(table)).to_batches()
    return Staged(job, (staging.write(path, partition, batch.schema, [batch]),))


if __name__ == "__main__":
    main()
