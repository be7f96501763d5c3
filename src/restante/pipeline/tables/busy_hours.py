"""The load of each hour (UTC), by server and day."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.pipeline.schemas import SOURCE_COLUMN, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.hours import HOUR_COLUMN, HOUR_DAY_COLUMN, known_hour

BUSY_HOURS: Final = Table(
    "busy_hours",
    "server, day and hour in which something began",
    (
        HOUR_COLUMN,
        Column("connections", "BIGINT", "Connections that bound; a client that reconnects counts again."),
        Column("mailboxes", "BIGINT", "Mailboxes that started."),
        Column("nameplates", "BIGINT", "Nameplates that started."),
        HOUR_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariant: each count adds up to the rows of its input."""


def busy_hours(client_versions: DataFrame, mailboxes: DataFrame, nameplates: DataFrame) -> DataFrame:
    """Return how many connections, mailboxes and nameplates began in each hour."""
    began = (
        client_versions.select("source", "day", known_hour("connect_time"), f.lit("connections").alias("what"))
        .unionAll(mailboxes.select("source", "day", known_hour("started"), f.lit("mailboxes")))
        .unionAll(nameplates.select("source", "day", known_hour("started"), f.lit("nameplates")))
    )
    counts = (f.count_if(f.col("what") == name).alias(name) for name in ("connections", "mailboxes", "nameplates"))
    return began.groupBy("source", "day", "hour").agg(*counts)


BUILDS: Final = (Build(BUSY_HOURS, busy_hours),)
