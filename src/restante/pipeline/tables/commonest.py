"""What strangers say, in bounds: names that any client may choose are counted one by one only where they are common.

A name of which there are a hundred thousand tells nothing by itself, and would make a table as long as its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT: Final = 1000
"""Names a server and day: the public server has dozens of applications and some hundred versions of clients."""

OTHER: Final = "other"
"""Stands for the rest of a day; something that calls itself so is among them."""


def grouped(rows: DataFrame, weight: str, *names: str) -> DataFrame:
    """Put OTHER for what is beyond the KEPT commonest by source and day; the text decides between equals.

    `weight` is the column that says how many a row stands for; `names` are the columns that make one name together.
    Rows that were different may have become the same: what comes after adds them up.
    """
    total, place = "_total", "_place"
    day = Window.partitionBy("source", "day")
    ranked = rows.withColumn(total, f.sum(weight).over(Window.partitionBy("source", "day", *names)))
    ranked = ranked.withColumn(place, f.dense_rank().over(day.orderBy(f.desc(total), *names)))
    kept = f.col(place) <= KEPT
    put = {name: f.when(kept, f.col(name)).otherwise(OTHER) for name in names}
    return ranked.withColumns(put).drop(total, place)
