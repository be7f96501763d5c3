"""A lake, the runs that write to it, and what everybody sees there."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from restante.pipeline.build.freshness import DayRange
from restante.pipeline.build.run import BuildResult, build_tables
from restante.pipeline.ingest import IngestResult, Run
from restante.pipeline.ingest import ingest as ingest_sources
from restante.pipeline.lake.commit_info import CommitInfo, Ledger
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.data_files import DataFile, Where
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Column
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.steps import Steps
from restante.pipeline.tables import BUILDS, TABLES
from restante.pipeline.tables.build import FOLDERS, Build, Folder
from support.pipeline import lakes
from support.pipeline.lakes import contents, held, infos, seen
from support.pipeline.servers import NOW
from support.pipeline.source_reads import read
from support.pipeline.tables import dicts
from support.pipeline.tables import rows as filled
from support.processes import called

Row = dict[str, Any]


def no_spark(*_: object, **_others: object) -> NoReturn:
    pytest.fail("Spark was asked for")


def command(*arguments: str | Path, ends: int = 0, session: Any = no_spark) -> subprocess.CompletedProcess[str]:
    """Run a command of the pipeline in this process; it must not start Spark."""
    with patch("restante.pipeline.spark.session.session", session):
        done = called("pipeline", *arguments)
    assert done.returncode == ends, done.stderr
    return done


def spark_command(spark: SparkSession, *arguments: str | Path, ends: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of the pipeline in this process, on the shared session."""
    return command(*arguments, ends=ends, session=lambda *_, **_others: nullcontext(spark))


class LakeWorld:
    """One lake, on the shared session, or without any."""

    def __init__(self, spark: SparkSession | None, folder: Path) -> None:
        self.spark: Callable[[], SparkSession] = no_spark if spark is None else lambda: spark
        self.folder = folder
        self.path = folder / "lake"
        self.now = NOW
        self.messages: list[str] = []
        self.steps = Steps("test", itertools.count().__next__)
        self.steps.say = self.messages.append  # type: ignore[assignment]
        self._runs = itertools.count(1)

    @contextmanager
    def run(self, *, write: bool = True) -> Iterator[Run]:
        (self.folder / "scratch").mkdir(exist_ok=True)
        with Lake.open(self.path, write=write, make=True) as lake:
            name = f"run {next(self._runs)}"
            yield Run(lake, name, lambda: self.now, self.spark, self.steps, self.folder / "scratch")

    def ingest(self, *specs: str, plan: bool = False) -> list[IngestResult]:
        with self.run() as run:
            return ingest_sources(run, [recognise(spec) for spec in specs], plan=plan)

    def ledger(self, table: str, *specs: str) -> Ledger:
        """Ingest, and give what came of a table of the last source."""
        return next(result.ledger for result in self.ingest(*specs) if result.table == table and result.ledger)

    def build(
        self,
        first: str = "",
        last: str = "",
        builds: Mapping[str, Build] = BUILDS,
        *,
        plan: bool = False,
        only: str = "",
    ) -> dict[str, BuildResult]:
        days = DayRange(date.fromisoformat(first), date.fromisoformat(last)) if first else None
        chosen = {name: build for name, build in builds.items() if name == only or not only}
        with self.run() as run:
            return {built.table: built for built in build_tables(run, days, plan=plan, builds=chosen)}

    def info(self) -> CommitInfo:
        return CommitInfo(run="by hand", finished=self.now)

    def keep(self, table: str, first: str) -> int:
        with self.run() as run:
            return run.lake.table(TABLES[table]).drop_before(first, self.info())

    def rows(self, table: str) -> list[Row]:
        """Return a table's rows, in an order that has nothing to do with how they came."""
        return sorted(contents(seen(self.path, TABLES[table])).to_pylist(), key=repr)

    def infos(self, table: str) -> list[CommitInfo]:
        return infos(seen(self.path, TABLES[table]))

    def version(self, table: str) -> int | None:
        return seen(self.path, TABLES[table]).version

    def add(self, table: str, rows: list[Row], *, replace: Where | None = None, **fields: Any) -> None:
        """Commit rows without Spark, as if an ingest had taken them."""
        with self.run() as run:
            target = run.lake.table(TABLES[table])
            info = lakes.info("by hand", self.now, **fields)
            staged = target.stage(held(rows, target.table))
            target.commit([staged], info=info, replace=replace)

    def write(self, table: str, *records: Mapping[str, Any], **fields: Any) -> None:
        """Commit such rows, filled up from the base row of their table."""
        self.add(table, dicts(table, filled(table, records)), **fields)

    def lived(self, *days: str, table: str = "nameplates", **fields: Any) -> None:
        """Commit a nameplate, or a mailbox, of each of these days."""
        self.write(table, *({"started": f"{day}T22:13:20"} for day in days), **fields)

    def merge(self, table: str) -> list[DataFile]:
        """Merge the files of a table; return those that there are then."""
        with self.run() as run:
            merged = run.lake.table(TABLES[table])
            assert compact(merged, "merge", run.now) != []
            return merged.files()

    def take(self, spec: str, *tables: str) -> None:
        """Commit what is new at a server's usage records without Spark, as if an ingest had taken it."""
        source, _, _ = spec.partition("=")
        with self.run() as run:
            marks = {table: dict(run.lake.table(TABLES[table]).marks(source)) for table in tables}
        for table, new in read(spec, self.folder / "scratch", marks).items():
            ledger = Ledger(read=len(new.rows), clean=len(new.clean))
            if table in tables:
                self.add(table, new.clean, source=source, ledger=ledger, marks=dict(new.span.marks))

    def bytes(self) -> bytes:
        """Return all that is in the lake's files, Parquet unpacked."""
        parts = []
        for path in self.path.rglob("*"):
            parts += [path.name.encode(), path.read_bytes() if path.is_file() else b""]
            if path.suffix == ".parquet":
                parts.append(repr(pq.read_table(path, partitioning=None).to_pylist()).encode())
        return b"\n".join(parts)


EMPTY: Final[Mapping[str, Any]] = {"STRING": "", "INT": 0, "DOUBLE": 0.0, "BOOLEAN": False, "BINARY": b""}


class Counting(Build):
    """A table of its inputs' days and sources, whose whole numbers are how many rows these have; with its folders."""

    def rows_to_write(self, inputs: Mapping[str, Any], days: Sequence[date]) -> DataFrame:
        """Make the rows of these days, from the inputs' rows as dictionaries."""
        of_source = any(column.name == "source" for column in self.table.columns)
        rows = [row for name in self.inputs for row in inputs[name]]
        counts = Counter((row["day"], row["source"] if of_source else "") for row in rows)
        if FOLDERS.name in inputs:
            counts = Counter({tuple(row.values()): counts[tuple(row.values())] for row in inputs[FOLDERS.name]})
        made = [
            {column.name: _value(column, day, source, number) for column in self.table.columns}
            for (day, source), number in counts.items()
            if day in days
        ]
        return held(made, self.table)

    def folders_frame(self, spark: Any, folders: Collection[Folder]) -> Any:
        """Return folders as dictionaries."""
        return dicts(FOLDERS.name, folders)


def _value(column: Column, day: date, source: str, number: int) -> Any:
    if column.name in {"day", "source"}:
        return day if column.name == "day" else source
    if column.type == "BIGINT":
        return number
    if column.null:
        return None
    return datetime.combine(day, time(), UTC) if column.type == "TIMESTAMP" else EMPTY[column.type]


COUNTING: Final[Mapping[str, Build]] = {name: Counting(*build) for name, build in BUILDS.items()}


@contextmanager
def without_spark(world: LakeWorld) -> Iterator[None]:
    """Make the builds of COUNTING in this lake read their inputs without Spark."""

    def read(table: LakeTable, _session: object, where: Where | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = contents(table, where).to_pylist()
        return rows

    with patch.object(LakeTable, "read", read), patch.object(world, "spark", SimpleNamespace):
        yield
