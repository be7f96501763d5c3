"""What transit relays relayed, and how long connections waited for their partner, by relay, day, hour and result.

A transfer is counted whole in the hour in which its first side connected, as long as it may have lasted.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.pipeline.schemas import (
    BYTES,
    SOURCE_COLUMN,
    TRANSFER_RESULT_COLUMN,
    Column,
    Table,
    day_of,
    us_column,
)
from restante.pipeline.tables import buckets
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.hours import HOUR_COLUMN, known_hour

_BEGAN_DAY_COLUMN: Final = day_of("the connection of the first side")

RELAY_HOURS: Final = Table(
    "relay_hours",
    "relay, day, hour and result",
    (
        HOUR_COLUMN,
        TRANSFER_RESULT_COLUMN,
        Column(
            "ended",
            "BIGINT",
            "Transfers, or connections without a partner, that ended with this result. They began in this hour.",
        ),
        Column("bytes", "BIGINT", "Bytes that they relayed, of both directions.", unit=BYTES),
        us_column(
            "waiting_us", "Time from the first side to the second, or to the end if no second side came, added up."
        ),
        us_column("relaying_us", "Time from the second side to the end, added up. 0: no second side came."),
        _BEGAN_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariants: `ended` adds up to the rows of relay_transfers, `bytes` to their total_bytes, and `waiting_us` and
`relaying_us` together to their total_us, unless a clock was set back."""


def _waiting() -> Expression:
    return f.coalesce("waiting_us", "total_us")


def _relaying() -> Expression:
    """Return how long bytes could be relayed; NULL if no second side came."""
    took = f.col("total_us") - f.col("waiting_us")
    return f.when(took > 0, took).when(took.isNotNull(), 0)


def relay_hours(relay_transfers: DataFrame) -> DataFrame:
    """Return the sums of each hour and result."""
    rows = relay_transfers.withColumn("hour", known_hour("started"))
    return rows.groupBy("source", "day", "hour", "result").agg(
        f.count("*").alias("ended"),
        f.sum("total_bytes").alias("bytes"),
        f.sum(_waiting()).alias("waiting_us"),
        f.sum(f.coalesce(_relaying(), f.lit(0))).alias("relaying_us"),
    )


RELAY_DURATIONS: Final = Table(
    "relay_durations",
    "relay, day, result, measure and bucket",
    (
        TRANSFER_RESULT_COLUMN,
        Column(
            "measure",
            "STRING",
            "What was measured. waiting: from the first side to the second, or to the end if no second side came;"
            " relaying: from the second side to the end.",
        ),
        buckets.KNOWN_BUCKET_COLUMN,
        buckets.KNOWN_FROM_COLUMN,
        Column("count", "BIGINT", "Transfers, or connections without a partner, in the bucket."),
        _BEGAN_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariants: of waiting, `count` adds up to the rows of relay_transfers; of relaying, to those with waiting_us."""


def relay_durations(relay_transfers: DataFrame) -> DataFrame:
    """Return the counts of both measures by bucket."""
    measures = f.array(
        f.struct(f.lit("waiting").alias("measure"), _waiting().alias("us")),
        f.struct(f.lit("relaying").alias("measure"), _relaying().alias("us")),
    )
    rows = relay_transfers.select("source", "day", "result", f.inline(measures)).where("us IS NOT NULL")
    return buckets.counts_by_bucket(rows, "source", "day", "result", "measure")


BUILDS: Final = (Build(RELAY_HOURS, relay_hours), Build(RELAY_DURATIONS, relay_durations))
