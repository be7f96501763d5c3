"""Tables of envelopes: each envelope once, whichever mailservers have it, and counts by topic and by mailserver."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.common.texts import counted
from restante.pipeline.schemas import (
    ARCHIVED,
    BYTES,
    SOURCE_COLUMN,
    SOURCE_KIND_ARCHIVE,
    TOPIC_COLUMN,
    Column,
    Table,
    day_of,
)
from restante.pipeline.tables.build import Build, Folder, Partition
from restante.pipeline.tables.hours import hour_of_day

MIN_HOUR_ROWS: Final = 20_000
"""Rows from which an hour gets its own folder. That many make a file of about 6 MB; an hour of a thousand rows would
make one of 300 KB, which `compact` cannot merge with those of other hours. The other hours of a day are sorted by one
task, which so gets less than half a million rows."""

SENT_DAY_COLUMN: Final = day_of("the time at which the envelopes were sent")

_COPY_COLUMN_NAMES: Final = frozenset({"file", "arrival", *ARCHIVED.partitions})

_SHARED_COLUMNS: Final = tuple(column for column in ARCHIVED.columns if column.name not in _COPY_COLUMN_NAMES)

ENVELOPES: Final = Table(
    "envelopes",
    "envelope",
    (
        *_SHARED_COLUMNS,
        Column(
            "holder",
            "STRING",
            "Source whose copy this row is. Mailservers are preferred to exported files; among several, the source"
            " whose name sorts first.",
        ),
        Column("holders", "INT", "Mailservers that have the envelope. 0: only exported files have it."),
        Column(
            "hour",
            "INT",
            "Hour in which the envelope was sent (UTC), 0 to 23."
            f" NULL: the table archived has fewer than {counted(MIN_HOUR_ROWS, 'row')} of that hour.",
            null=True,
        ),
        SENT_DAY_COLUMN,
    ),
    ("day", "hour"),
)
"""Invariants: one row for each hash of archived; `holders` adds up to the pairs of hash and mailserver in
archived."""


def envelopes(archived: DataFrame) -> DataFrame:
    """Return one row per hash: a mailserver's before that of exported files, then by least source and arrival.

    Only a mailserver's archive has the time at which the envelope arrived.

    Equal hashes were sent in the same hour. So one shuffle by hour suffices, which the folders need anyway, followed
    by one sort; the folders' order is a prefix of the sort order. No step needs a folder's rows in memory, whatever
    the share of duplicates.
    """
    hour = hour_of_day("sent")
    busy = archived.select("day", hour).groupBy("day", "hour").agg((f.count("*") >= MIN_HOUR_ROWS).alias("many"))
    columns = ["day", "source", "file", "arrival", *(column.name for column in _SHARED_COLUMNS)]
    in_archive = (f.col("source_kind") == SOURCE_KIND_ARCHIVE).alias("in_archive")
    rows = archived.select(*columns, in_archive, hour).join(f.broadcast(busy), ["day", "hour"])
    rows = rows.withColumn("hour", f.when(f.col("many"), f.col("hour"))).drop("many").repartition("day", "hour")
    same = Window.partitionBy("day", "hour", "hash")
    # The last row in this order is kept. By then every mailserver has been counted, at the first of its copies.
    order = same.orderBy("in_archive", *(f.desc(name) for name in ("source", "arrival", "file", "arrived")))
    rows = rows.withColumn("after", f.lead(f.lit(1)).over(order))
    is_first_copy = ~f.col("source").eqNullSafe(f.lag("source").over(order))
    rows = rows.withColumn("counts", (is_first_copy & f.col("in_archive")).cast("int"))
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("holders", f.sum("counts").over(so_far))
    return rows.where(f.col("after").isNull()).withColumnRenamed("source", "holder")


TRAFFIC: Final = Table(
    "traffic",
    "topic and day",
    (
        TOPIC_COLUMN,
        Column("envelopes", "BIGINT", "Envelopes, each counted once."),
        Column("bytes", "BIGINT", "Size of these envelopes.", unit=BYTES),
        Column("first", "TIMESTAMP", "When the first of them was sent."),
        Column("last", "TIMESTAMP", "When the last of them was sent."),
        SENT_DAY_COLUMN,
    ),
)
"""Invariants: `envelopes` adds up to the rows of envelopes, `bytes` to their size."""


def traffic(envelopes: DataFrame) -> DataFrame:
    """Return the number and size of the envelopes per topic and day."""
    return envelopes.groupBy("day", "topic").agg(
        f.count("*").alias("envelopes"),
        f.sum(f.col("size").cast("bigint")).alias("bytes"),
        f.min("sent").alias("first"),
        f.max("sent").alias("last"),
    )


COVERAGE: Final = Table(
    "coverage",
    "mailserver and day",
    (
        Column("envelopes", "BIGINT", "Envelopes that the mailserver has, each counted once."),
        Column("alone", "BIGINT", "Of these: envelopes that no other mailserver has."),
        Column(
            "missing",
            "BIGINT",
            "Envelopes that the mailserver lacks and another source has: a mailserver or exported files.",
        ),
        SENT_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariant: in each row, `envelopes` and `missing` add up to the day's rows of envelopes.

A mailserver has a row for each day on which any source has envelopes, starting with the first day of its own ones.
"""


def coverage(archived: DataFrame, folders: DataFrame) -> DataFrame:
    """Return how many envelopes each mailserver has and lacks."""
    mailservers = archived.groupBy("day", "hash").agg(_mailservers())
    alone = (f.size("mailservers") == 1).cast("bigint").alias("alone")
    copies = mailservers.select("day", f.explode("mailservers").alias("source"), f.lit(1).alias("envelopes"), alone)
    nothing = folders.select("day", "source", f.lit(0).alias("envelopes"), f.lit(0).alias("alone"))
    counts = copies.unionAll(nothing).groupBy("day", "source")
    own = counts.agg(f.sum("envelopes").alias("envelopes"), f.sum("alone").alias("alone"))
    totals = mailservers.groupBy("day").agg(f.count("*").alias("all"))
    return own.join(f.broadcast(totals), "day").withColumn("missing", f.col("all") - f.col("envelopes"))


def mailserver_days(partitions: Iterable[Partition]) -> set[Folder]:
    """Return the days and mailservers of which coverage has a row, given the partitions of archived."""
    days: set[date] = set()
    first_days: dict[str, date] = {}
    for partition in partitions:
        day, source = date.fromisoformat(partition["day"] or ""), partition["source"] or ""
        days.add(day)
        if partition["source_kind"] == SOURCE_KIND_ARCHIVE:
            first_days[source] = min(day, first_days.get(source, day))
    return {(day, source) for source, first_day in first_days.items() for day in days if day >= first_day}


HOURLY_COVERAGE: Final = Table(
    "hourly_coverage",
    "mailserver, day and hour in which any source has an envelope",
    (
        Column("hour", "INT", "Hour of the day (UTC), 0 to 23, in which the envelopes were sent."),
        *COVERAGE.columns,
    ),
)
"""Invariant: the counts of a mailserver's hours add up to its row of the day in coverage."""


def hourly_coverage(archived: DataFrame, coverage: DataFrame) -> DataFrame:
    """Return how many envelopes of each hour each mailserver has and lacks. The mailservers are those of coverage.

    Hashes that the same mailservers have are counted together before they are compared with each mailserver: there
    are many hashes, and few sets of mailservers.
    """
    # Equal hashes have the same time.
    mailservers = archived.groupBy("day", "hash").agg(_mailservers(), f.max("sent").alias("sent"))
    counts = mailservers.groupBy("day", hour_of_day("sent"), f.sort_array("mailservers").alias("mailservers")).agg(
        f.count("*").alias("count")
    )
    rows = counts.join(f.broadcast(coverage.select("day", "source")), "day")
    has = f.array_contains("mailservers", f.col("source"))
    conditions = {"envelopes": has, "alone": has & (f.size("mailservers") == 1), "missing": ~has}
    return rows.groupBy("source", "day", "hour").agg(
        *(f.sum(f.when(condition, f.col("count")).otherwise(0)).alias(name) for name, condition in conditions.items())
    )


def _mailservers() -> Expression:
    """Return the aggregate of the mailservers among the sources that have an envelope; exported files are none."""
    mailserver = f.when(f.col("source_kind") == SOURCE_KIND_ARCHIVE, f.col("source"))
    return f.collect_set(mailserver).alias("mailservers")


BUILDS: Final = (
    Build(ENVELOPES, envelopes, task_per_folder=True, definition=2),
    Build(TRAFFIC, traffic),
    Build(COVERAGE, coverage, folders=mailserver_days),
    Build(HOURLY_COVERAGE, hourly_coverage),
)
