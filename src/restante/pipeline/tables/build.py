"""The description of a built table: its schema, its inputs, the function that makes it, and the reach of a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from restante.pipeline.lake.columns import row_schema
from restante.pipeline.schemas import SOURCE_COLUMN, Table, day_of
from restante.pipeline.spark.small_jobs import is_small

FOLDERS: Final = Table(
    "folders",
    "folder that a table must have, whether or not it has rows for it",
    (day_of("the folder"), SOURCE_COLUMN),
)
"""The frame that `make` gets for Build.folders, as if it were an input."""

NOT_OF_A_LAKE: Final = (FOLDERS.name, "ledgers")
"""Frames that `make` gets as if they were inputs. No lake contains them."""

Folder = tuple[date, str]
"""A day and a source."""

Partition = Mapping[str, str | None]
"""Partition column → value as text."""


class Build(NamedTuple):
    """A built table.

    `make` takes the inputs' rows of the days that `reads` returns: its parameters have the names of the inputs. It
    returns rows of the requested days, and of others, which the caller drops because rows of days that were not read
    are missing there. It uses only DataFrames and SQL functions, so it runs wherever Spark does.
    """

    table: Table
    make: Callable[..., DataFrame]
    reach: Mapping[str, tuple[int, int]] = {}
    """Input → how many days before and after a day must be read to build that day. Of others only the day is read."""
    task_per_folder: bool = False
    """Whether `make` returns all rows of a folder in one task, as they are to be written."""
    folders: Callable[[Iterable[Partition]], set[Folder]] | None = None
    """Returns the folders that the table must have, given the partitions of all days of its inputs. A day that lacks
    one is not up to date. `make` gets the folders of the days to build as the frame FOLDERS."""
    growth: int = 1
    """How many rows of a day `make` returns at most, roughly, for each row that the inputs have of it. `build`
    estimates with it the rows of a table that others are built from."""
    relevant_rows: Callable[[str, DataFrame, date], DataFrame] | None = None
    """Returns the rows of an input on which the days from a given one on may depend. `make` gets no others: it reads
    days whose rows might reach into those to build, and most do not."""
    definition: int = 1
    """Number of the definition. Increment it when `make` returns other rows for the same inputs: then all days are
    built again."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the input tables."""
        return tuple(name for name in _parameters(self.make) if name not in NOT_OF_A_LAKE)

    def reads(self, name: str, days: Collection[date]) -> set[date]:
        """Return the days of an input that must be read to build these days."""
        before, after = self.reach.get(name, (0, 0))
        return {day + timedelta(offset) for day in days for offset in range(-before, after + 1)}

    def touches(self, name: str, days: Collection[date]) -> set[date]:
        """Return the days that must be built again after these days of an input have changed."""
        before, after = self.reach.get(name, (0, 0))
        return {day + timedelta(offset) for day in days for offset in range(-after, before + 1)}

    def folders_frame(self, spark: SparkSession, folders: Collection[Folder]) -> DataFrame:
        """Return folders as the frame FOLDERS."""
        rows = [{"day": day, "source": source} for day, source in sorted(folders)]
        return spark.createDataFrame(
            pa.Table.from_pylist(rows, row_schema(FOLDERS.columns)),
            "day DATE, source STRING",  # Connect cannot infer it if there are no folders
        )

    def rows(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Return the table's rows, with the columns in the order and the types of its schema."""
        made = self.make(**inputs)
        return made.selectExpr(*(f"CAST(`{c.name}` AS {c.type}) AS `{c.name}`" for c in self.table.columns))

    def rows_to_write(self, inputs: Mapping[str, DataFrame], days: Sequence[date]) -> DataFrame:
        """Return the rows of these days, distributed so that a folder does not get many small files."""
        if self.relevant_rows is not None:
            inputs = {name: self.relevant_rows(name, frame, min(days)) for name, frame in inputs.items()}
        rows = self.rows(inputs)
        if any(map(any, self.reach.values())):
            rows = rows.where(f.col("day").isin(list(days)))
        # Spark puts small tasks together, so a month is cut into several files only if its days are large.
        if self.task_per_folder or is_small(rows.sparkSession):
            return rows
        return rows.hint("rebalance", *(("day",) if self.table.by_month else self.table.partitions))


@cache
def _parameters(make: Callable[..., DataFrame]) -> tuple[str, ...]:
    return tuple(inspect.signature(make).parameters)
