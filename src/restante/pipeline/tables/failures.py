"""What did not end happy, by hour.

A failure is a nameplate or a mailbox whose result is one of FAILURES. The tables `outcomes` and `versions` have the
same results in the same columns.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.pipeline.schemas import APP_COLUMN, SOURCE_COLUMN, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.hours import HOUR_COLUMN, known_hour
from restante.pipeline.tables.outcomes import (
    FAILURES,
    KIND_COLUMN,
    RESULT_COUNT_COLUMNS,
    RESULTS,
    STARTED_DAY_COLUMN,
    ended_rows,
    result_counts,
)
from restante.pipeline.tables.top_n import group_rare, task_per_day

FAILED: Final = Table(
    "failures",
    "server, day, hour, application and kind",
    (
        HOUR_COLUMN,
        APP_COLUMN,
        KIND_COLUMN,
        Column("ended", "BIGINT", "Nameplates or mailboxes that started in this hour and have ended."),
        Column("failed", "BIGINT", f"How many of them failed: the sum of {', '.join(FAILURES)}."),
        *(column for column in RESULT_COUNT_COLUMNS if column.name in FAILURES),
        STARTED_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariants: for each server, day, application and kind, all columns add up over the hours to those of outcomes, and
`failed` to its `ended` less its `happy`."""


def failures(nameplates: DataFrame, mailboxes: DataFrame) -> DataFrame:
    """Return the count of each failure by the hour of the start."""
    keys = ("source", "day", "hour", "app_id", "kind")
    rows = ended_rows(nameplates, mailboxes, "result", "started", "blur_us").select(
        *(key for key in keys if key != "hour"), "result", known_hour("started")
    )
    counted = rows.groupBy(*keys).agg(f.count("*").alias("ended"), *result_counts())
    together = group_rare(task_per_day(counted), "ended", "app_id").groupBy(*keys)
    sums = together.agg(*(f.sum(name).alias(name) for name in ("ended", *RESULTS)))
    return sums.withColumn("failed", f.col("ended") - f.col("happy"))


BUILDS: Final = (Build(FAILED, failures, task_per_folder=True),)
