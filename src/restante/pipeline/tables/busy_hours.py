"""The load of each hour (UTC), by server and day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from restante.pipeline.schemas import SOURCE_COLUMN, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.hours import HOUR_COLUMN, HOUR_DAY_COLUMN, known_hour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def busy_hours(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return how many connections, mailboxes and nameplates began in each hour."""
    times = {"client_versions": "connect_time", "mailboxes": "started", "nameplates": "started"}
    counts = ("connections", "mailboxes", "nameplates")
    parts = []
    for (name, time), counted in zip(times.items(), counts, strict=True):
        ones = [(f.count("*") if name == counted else f.lit(0)).cast("bigint").alias(name) for name in counts]
        rows = inputs[name].select("source", "day", known_hour(time))
        parts.append(rows.groupBy("source", "day", "hour").agg(*ones))
    together = parts[0].unionAll(parts[1]).unionAll(parts[2]).groupBy("source", "day", "hour")
    return together.agg(*(f.sum(name).alias(name) for name in counts))


BUILDS: Final = (
    Build(BUSY_HOURS, {"client_versions": (0, 0), "mailboxes": (0, 0), "nameplates": (0, 0)}, busy_hours),
)
