"""Gaps: when a mailserver lacks envelopes of a topic that another source has.

Hours are joined to ranges. An exact range would end at each envelope that the mailserver does have, so a mailserver
that lacks every second envelope would have a row for each one that it lacks. By hours a topic has at most 12 rows a
day. The ends of a row are exact all the same: they are the times of the first and the last missing envelope.

`restante pipeline gaps` reads this table (restante.pipeline.gaps).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import SOURCE_COLUMN, Column, Table
from restante.pipeline.tables import top_n
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.envelopes import SENT_DAY_COLUMN
from restante.pipeline.tables.hours import HOUR_US

GAPS: Final = Table(
    "gaps",
    "mailserver, topic and range of hours in which it lacks envelopes",
    (
        Column(
            "topic",
            "STRING",
            "Topic of the envelopes: 0x and the eight hexadecimal digits of its four bytes. NULL: all topics together"
            f" that are not among the {top_n.MAX_NAMES:,} of which the mailserver lacks the most on this day.",
            null=True,
        ),
        Column("first", "TIMESTAMP", "When the first missing envelope was sent."),
        Column(
            "last",
            "TIMESTAMP",
            "When the last missing envelope was sent. Each hour from the first to the last has a missing envelope.",
        ),
        Column("missing", "BIGINT", "Envelopes that the mailserver lacks and another source has."),
        Column(
            "holders",
            "STRING",
            "Sources that have at least one of them, mailservers and exported files, sorted and separated by commas.",
        ),
        SENT_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariant: for each day and mailserver, `missing` adds up to `missing` of coverage."""


def gaps(archived: DataFrame, coverage: DataFrame) -> DataFrame:
    """Return what each mailserver lacks. coverage says which mailservers lack anything on a day.

    Hashes that the same sources have are counted together before they are compared with each mailserver: there are
    many hashes, and few sets of sources.
    """
    lacking = coverage.where("missing > 0").groupBy("day").agg(f.collect_set("source").alias("mailservers"))
    # Equal hashes have the same topic and time.
    envelopes = archived.groupBy("day", "hash").agg(
        f.max("topic").alias("topic"),
        f.max("sent").alias("sent"),
        f.sort_array(f.collect_set("source")).alias("sources"),
    )
    hour = f.floor(f.unix_micros("sent") / HOUR_US).alias("hour")
    counts = envelopes.groupBy("day", "topic", hour, "sources").agg(
        f.count("*").alias("missing"), f.min("sent").alias("first"), f.max("sent").alias("last")
    )
    missing = counts.join(f.broadcast(lacking), "day").withColumn(
        "source", f.explode(f.array_except("mailservers", "sources"))
    )
    by_topic = top_n.group_rare(top_n.task_per_day(_together(missing, "hour")), "missing", "topic")
    by_topic = by_topic.withColumn("topic", f.nullif("topic", f.lit(top_n.OTHER_NAME)))
    # In a run of successive hours, the hour less its number in the order is the same.
    in_order = Window.partitionBy("source", "day", "topic").orderBy("hour")
    ranges = _together(by_topic, "hour").withColumn("run", f.col("hour") - f.row_number().over(in_order))
    return _together(ranges, "run").withColumn("holders", f.array_join("sources", ","))


def _together(rows: DataFrame, time: str) -> DataFrame:
    """Add up the rows of each mailserver, topic and hour, or run of hours."""
    return rows.groupBy("source", "day", "topic", time).agg(
        f.sum("missing").alias("missing"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.array_sort(f.array_distinct(f.flatten(f.collect_list("sources")))).alias("sources"),
    )


BUILDS: Final = (Build(GAPS, gaps),)
