"""What a built table is: its schema, its inputs, the function that makes it, and how far a row's effect reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as f

from restante.pipeline.schemas import SOURCE_COLUMN, Table, day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDERS: Final = Table(
    "folders",
    "folder that a table must have, whether or not it has rows for it",
    (day_of("the folder"), SOURCE_COLUMN),
)
"""What `make` gets of Build.folders, as if it were an input. It is in no lake."""

Folder = tuple[date, str]
"""A day and a source."""

Partition = Mapping[str, str | None]
"""Partition column → value as text."""


class Build(NamedTuple):
    """A built table.

    `make` takes the inputs' rows of the days that `reads` names, and gives rows of the days that were asked for, and
    of others, which the caller drops: those lack rows of days that were not read. It is DataFrames and SQL functions
    alone, and runs wherever Spark does.
    """

    table: Table
    reach: Mapping[str, tuple[int, int]]
    """Of each input: how many days before and after a day must be read to build that day."""
    make: Callable[[Mapping[str, DataFrame]], DataFrame]
    placed: bool = False
    """What `make` gives is together as it is to be written: all rows of a folder in one task."""
    folders: Callable[[Iterable[Partition]], set[Folder]] | None = None
    """From the partitions of all days of its inputs, returns the folders that the table must have. A day that lacks
    one is not up to date. `make` gets those of the days to build as the frame FOLDERS."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tables that it is made of."""
        return tuple(self.reach)

    def reads(self, name: str, days: Collection[date]) -> set[date]:
        """Tell which days of an input must be read to build these days."""
        before, after = self.reach[name]
        return {day + timedelta(offset) for day in days for offset in range(-before, after + 1)}

    def touches(self, name: str, days: Collection[date]) -> set[date]:
        """Tell which days must be built anew where these days of an input have changed."""
        before, after = self.reach[name]
        return {day + timedelta(offset) for day in days for offset in range(-after, before + 1)}

    def folders_frame(self, spark: SparkSession, folders: Collection[Folder]) -> DataFrame:
        """Return folders as the frame FOLDERS."""
        ordered = sorted(folders)
        days = pa.array([day for day, _ in ordered], pa.date32())
        return spark.createDataFrame(
            pa.table({"day": days, "source": pa.array([s for _, s in ordered], pa.string())})
        )

    def rows(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Make it, in the order and the types of its schema."""
        return self.make(inputs).selectExpr(
            *(f"CAST(`{c.name}` AS {c.type}) AS `{c.name}`" for c in self.table.columns)
        )

    def written(self, inputs: Mapping[str, DataFrame], days: Sequence[date]) -> DataFrame:
        """Make the rows of these days, as they are to be written: not many small files to a folder."""
        rows = self.rows(inputs)
        if any(map(any, self.reach.values())):
            rows = rows.where(f.col("day").isin(list(days)))
        return rows if self.placed else rows.hint("rebalance", *self.table.partitions)
