"""Hours: a partition for each hour of a day that has many envelopes, and none for the others. Pure.

A history of an hour then reads that hour's files, and a quiet day is not cut into two dozen small ones.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

MANY: Final = 1_000
"""Envelopes of a source in an hour; with fewer, opening a file costs more than reading the rows one does not want."""


def by_hour(df: DataFrame) -> DataFrame:
    """Fill in `hour` where rows of that source, day and hour are many: in this DataFrame, one pass over it.

    The rows of an hour come together for it, so what writes them makes one file an hour.
    """
    hour = f.hour("sent")
    count = f.count(f.lit(1)).over(Window.partitionBy("day", "source", hour))
    return df.withColumn("hour", f.when(count >= MANY, hour))
