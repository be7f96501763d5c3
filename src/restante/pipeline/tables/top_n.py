"""What strangers say, in bounds: names that any client may choose are counted one by one only where they are common.

A name of which there are a hundred thousand tells nothing by itself, and would make a table as long as its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_NAMES: Final = 1000
"""Names a server and day: the public server has dozens of applications and some hundred versions of clients."""

OTHER_NAME: Final = "other"
"""Stands for the rest of a day; something that calls itself so is among them."""


def by_day(counts: DataFrame) -> DataFrame:
    """Bring a server's day together, once: windows over parts of it, sums and the folders then need no shuffle.

    For what has been counted already: a day is one task's.
    """
    return counts.repartition("source", "day")


def grouped(rows: DataFrame, weight: str, *names: str, where: Column | None = None) -> DataFrame:
    """Put OTHER_NAME for what is beyond the MAX_NAMES commonest by source and day; the text decides between equals.

    `weight` is the column that says how many a row stands for; `names` are the columns that make one name together.
    Rows of which `where` is not true have no name: they stay as they are. Rows that were different may have become
    the same: what comes after adds them up.
    """
    total, place, named = "_total", "_place", "_named"
    ranked = rows.withColumn(named, f.lit(True) if where is None else f.coalesce(where, f.lit(False)))
    alike = Window.partitionBy("source", "day", named, *names)
    # A day's named rows come first, so the others take nobody's place.
    order = Window.partitionBy("source", "day").orderBy(f.desc(named), f.desc(total), *names)
    ranked = ranked.withColumn(total, f.sum(weight).over(alike)).withColumn(place, f.dense_rank().over(order))
    kept = (f.col(place) <= MAX_NAMES) | ~f.col(named)
    put = {name: f.when(kept, f.col(name)).otherwise(OTHER_NAME) for name in names}
    return ranked.withColumns(put).drop(total, place, named)
