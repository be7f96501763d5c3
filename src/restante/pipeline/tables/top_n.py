"""Bounds the names that clients choose freely: only the most frequent ones are counted by name.

A hundred thousand rare names are of no use, and would make a table as long as its input.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

MAX_NAMES: Final = 1000
"""Names per server and day. The public server has dozens of applications and a few hundred client versions."""

OTHER_NAME: Final = "other"
"""The name of all other names of a day. A client that itself uses this name is counted with them."""


def task_per_day(counts: DataFrame) -> DataFrame:
    """Return the rows with each server and day in one task: windows, sums and folders then need no more shuffle.

    The rows must already be counted, since one task handles a whole day.
    """
    return counts.repartition("source", "day")


def group_rare(rows: DataFrame, weight: str, *names: str, where: Column | None = None) -> DataFrame:
    """Replace all but the MAX_NAMES most frequent names of a source and day by OTHER_NAME.

    The text decides between equally frequent names. `weight` is the column with the number that a row stands for;
    `names` are the columns that form a name together. Rows for which `where` is not true have no name, and stay as
    they are. Rows that differed may have become equal: the caller adds them up.
    """
    total, rank, has_name = "_total", "_rank", "_has_name"
    ranked = rows.withColumn(has_name, f.lit(True) if where is None else f.coalesce(where, f.lit(False)))
    alike = Window.partitionBy("source", "day", has_name, *names)
    # A day's named rows come first, so that the others do not take a rank.
    order = Window.partitionBy("source", "day").orderBy(f.desc(has_name), f.desc(total), *names)
    ranked = ranked.withColumn(total, f.sum(weight).over(alike)).withColumn(rank, f.dense_rank().over(order))
    frequent = (f.col(rank) <= MAX_NAMES) | ~f.col(has_name)
    replaced = {name: f.when(frequent, f.col(name)).otherwise(OTHER_NAME) for name in names}
    return ranked.withColumns(replaced).drop(total, rank, has_name)
