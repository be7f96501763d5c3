"""Builds that need no Spark: what tests of days, freshness and commits build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import DataFrame

from restante.pipeline.lake.data_files import Where
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Column
from restante.pipeline.tables import BUILDS
from restante.pipeline.tables.build import FOLDERS, Build, Folder
from support.pipeline.lakes import contents, held
from support.pipeline.runs import LakeWorld
from support.pipeline.tables import dicts

EMPTY: Final[Mapping[str, Any]] = {"STRING": "", "INT": 0, "DOUBLE": 0.0, "BOOLEAN": False, "BINARY": b""}


class Counting(Build):
    """A table with a row for each day and source of its inputs. Its whole numbers are all how many rows these have.

    A table that must have folders has those, and no others.
    """

    def written(self, inputs: Mapping[str, Any], days: Sequence[date]) -> DataFrame:
        """Make the rows of these days, from the inputs' rows as dictionaries."""
        of_source = any(column.name == "source" for column in self.table.columns)
        rows = [row for name in self.inputs for row in inputs[name]]
        counts = Counter((row["day"], row["source"] if of_source else "") for row in rows)
        if FOLDERS.name in inputs:
            counts = Counter({tuple(row.values()): counts[tuple(row.values())] for row in inputs[FOLDERS.name]})
        return held(
            [
                {column.name: _value(column, day, source, number) for column in self.table.columns}
                for (day, source), number in counts.items()
                if day in days
            ],
            self.table,
        )

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

    session: Any = SimpleNamespace()
    with patch.object(LakeTable, "read", read), patch.object(world, "spark", lambda: session):
        yield
