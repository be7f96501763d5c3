"""The hour (UTC) of a row.

Servers may blur their times: they round them down to a multiple of some seconds. If the blur is an hour or less, a
row is counted in the hour that its time shows, which may be the hour before its true one. If the blur is longer, the
row has no hour.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import functions as f

from restante.pipeline.schemas import Column, day_of

HOUR_US: Final = 3_600_000_000

HOUR_DAY_COLUMN: Final = day_of("the hour")
HOUR_COLUMN: Final = Column(
    "hour",
    "INT",
    "Hour of the day (UTC), 0 to 23. NULL: the row counts everything of the day whose blur is more than an hour.",
    null=True,
)


def hour_is_known() -> Expression:
    """Return whether the hour of a row is known: its blur is at most an hour, so the time is off by at most that."""
    return f.col("blur_us").isNull() | (f.col("blur_us") <= HOUR_US)


def hour_of_day(time: str) -> Expression:
    """Return the hour of a time, 0 to 23, in a column of this name."""
    return f.pmod(f.floor(f.unix_micros(time) / HOUR_US), f.lit(24)).cast("int").alias("hour")


def known_hour(time: str) -> Expression:
    """Return the hour of a time, or NULL if it is not known, in a column of this name."""
    return f.when(hour_is_known(), hour_of_day(time)).alias("hour")
