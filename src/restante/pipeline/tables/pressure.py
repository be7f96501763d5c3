"""Live nameplates and mailboxes, by server, day and hour (UTC)."""

from __future__ import annotations

from datetime import date
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import (
    LIVE,
    LIVE_MAILBOX,
    LIVE_NAMEPLATE,
    SOURCE_COLUMN,
    Column,
    Table,
    us_column,
)
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.hours import HOUR_COLUMN, HOUR_DAY_COLUMN, HOUR_US, hour_is_known

MAX_LIFE_DAYS: Final = 7
"""Days for which a nameplate or mailbox counts as live. Idle ones are pruned within minutes, but one whose sender
stays connected may wait for days. With each additional day, a late row would cause one more day to be built again."""

MAX_LIFE_US: Final = MAX_LIFE_DAYS * 24 * HOUR_US


def _pressure_table(name: str, singular: str, plural: str) -> Table:
    """Return the schema of a table of what was live, given the singular and the plural of its name."""
    return Table(
        name,
        f"server, day and hour in which a {singular} was live",
        (
            HOUR_COLUMN,
            Column(
                "started",
                "BIGINT",
                f"{plural.capitalize()} that started, with those that were live when ingest last read the server's"
                " database.",
            ),
            Column(
                "peak",
                "BIGINT",
                f"Largest number of {plural} that were live at the same time. NULL: the hour is not known.",
                null=True,
            ),
            us_column(
                "live_us",
                f"Time for which {plural} were live in this hour, added up. NULL: the hour is not known.",
                null=True,
            ),
            Column(
                "cut",
                "BIGINT",
                f"How many of those that started lived longer than {MAX_LIFE_DAYS} days."
                f" They count as live for only {MAX_LIFE_DAYS} days.",
            ),
            HOUR_DAY_COLUMN,
            SOURCE_COLUMN,
        ),
    )


PRESSURE: Final = _pressure_table("pressure", "nameplate", "nameplates")
"""Invariants: `started` adds up to the rows of nameplates and the counts of nameplates in live; `live_us` adds up to
their lives, limited to MAX_LIFE_DAYS, where the hour is known; `peak` is at least `live_us` in hours."""

MAILBOX_PRESSURE: Final = _pressure_table("mailbox_pressure", "mailbox", "mailboxes")
"""The same of mailboxes."""


def pressure(nameplates: DataFrame, live: DataFrame) -> DataFrame:
    """Return the nameplates that lived in each hour."""
    return _pressure(nameplates, live.where(f.col("kind") == LIVE_NAMEPLATE))


def mailbox_pressure(mailboxes: DataFrame, live: DataFrame) -> DataFrame:
    """Return the mailboxes that lived in each hour."""
    return _pressure(mailboxes, live.where(f.col("kind") == LIVE_MAILBOX))


def _pressure(ended_rows: DataFrame, live_rows: DataFrame) -> DataFrame:
    """Return what lived in each hour, counted from starts and ends within the hour, and from what lived before it.

    What is still live counts as if it had ended when its server last wrote to its database. What began at an unknown
    hour counts as having no life, and is counted apart, at the first hour of its day.
    """
    start = f.unix_micros("started").alias("at")
    so_far = _so_far().alias("total_us")
    rows = ended_rows.select("source", "total_us", "blur_us", start, f.lit(1).cast("bigint").alias("count"))
    rows = rows.unionAll(live_rows.select("source", so_far, "blur_us", start, "count"))
    return _filled(_by_hour(_events(rows)))


def _so_far() -> Expression:
    """Return how long a nameplate or mailbox of `live` has lived."""
    return f.unix_micros("as_of") - f.unix_micros("started")


def live_since(name: str, rows: DataFrame, first_day: date) -> DataFrame:
    """Return the rows of an input that were live on the first day, or started later (Build.relevant_rows)."""
    total = _so_far() if name == LIVE.name else f.col("total_us")
    end = f.unix_micros("started") + f.greatest(total, f.lit(0))
    return rows.where(end >= f.unix_micros(f.lit(first_day).cast("timestamp")))


_EVENT: Final = ("at", "hour", "change", "started", "cut")


def _events(rows: DataFrame) -> DataFrame:
    """Return starts and ends. A nameplate is live until just before its end, so one of no duration never is."""
    at, count = f.col("at"), f.col("count")
    life = f.when(hour_is_known(), f.least(f.greatest("total_us", f.lit(0)), f.lit(MAX_LIFE_US))).otherwise(0)
    lived = f.when(life > 0, count).otherwise(0)
    cut = f.when(f.col("total_us") > MAX_LIFE_US, count).otherwise(0)
    hour = f.floor(at / HOUR_US)
    hour = f.when(hour_is_known(), hour).otherwise(hour - f.pmod(hour, f.lit(24)))
    end, nothing = at + life, f.lit(0).cast("bigint")
    begins, ends = (
        f.struct(*(value.alias(name) for name, value in zip(_EVENT, values, strict=True)))
        for values in (
            (at, hour, lived, count, cut),
            (end, f.floor((end - 1) / HOUR_US), -lived, nothing, nothing),
        )
    )
    event = f.explode(f.array(begins, f.when(life > 0, ends))).alias("event")
    events = rows.select("source", hour_is_known().alias("known"), event).where("event IS NOT NULL")
    return events.select("source", "known", "event.*")


def _by_hour(events: DataFrame) -> DataFrame:
    """Return each hour's sums, as if no nameplate had lived before it."""
    running = f.sum("change").over(Window.partitionBy("source", "known", "hour").orderBy("at", "change"))
    remaining = (f.col("hour") + 1) * HOUR_US - f.col("at")
    return (
        events.select("*", running.alias("running"), (f.col("change") * remaining).alias("lived"))
        .groupBy("source", "known", "hour")
        .agg(
            f.sum("started").alias("started"),
            f.sum("cut").alias("cut"),
            f.sum("change").alias("net"),
            f.sum("lived").alias("lived"),
            f.greatest(f.max("running"), f.lit(0)).alias("top"),
        )
    )


def _filled(hours: DataFrame) -> DataFrame:
    """Add the nameplates that were live before, and hours without a start or end in which some were live."""
    in_order = Window.partitionBy("source", "known").orderBy("hour")
    after = f.sum("net").over(in_order)
    following = f.lead("hour").over(in_order)
    carried = hours.select("*", after.alias("after"), following.alias("following"))
    until = f.when(f.col("after") > 0, f.col("following") - 1).otherwise(f.col("hour"))
    filled = carried.withColumn("live_hour", f.explode(f.sequence("hour", until)))
    known, own = f.col("known"), f.col("live_hour") == f.col("hour")
    before = f.when(own, f.col("after") - f.col("net")).otherwise(f.col("after"))
    return filled.select(
        "source",
        f.date_add(f.lit("1970-01-01").cast("date"), f.floor(f.col("live_hour") / 24).cast("int")).alias("day"),
        f.when(known, f.pmod("live_hour", f.lit(24))).alias("hour"),
        f.when(own, f.col("started")).otherwise(0).alias("started"),
        f.when(known, before + f.when(own, f.col("top")).otherwise(0)).alias("peak"),
        f.when(known, before * HOUR_US + f.when(own, f.col("lived")).otherwise(0)).alias("live_us"),
        f.when(own, f.col("cut")).otherwise(0).alias("cut"),
    )


_LIFE: Final = (MAX_LIFE_DAYS, 0)

BUILDS: Final = (
    Build(PRESSURE, pressure, {"nameplates": _LIFE, "live": _LIFE}, relevant_rows=live_since, definition=2),
    Build(
        MAILBOX_PRESSURE,
        mailbox_pressure,
        {"mailboxes": _LIFE, "live": _LIFE},
        relevant_rows=live_since,
        definition=2,
    ),
)
