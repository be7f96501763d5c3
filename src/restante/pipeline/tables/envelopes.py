"""Each envelope once, whichever mailservers have it; and what there is by topic and by mailserver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import ARCHIVED, SOURCE, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.hours import HOUR_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANY: Final = 1000
"""Rows from which an hour is a folder by itself: fewer make files so small that opening them is the work."""

DAY: Final = Column("day", "DATE", "the UTC day of sent")

_SAME: Final = tuple(each for each in ARCHIVED.columns if each.name not in {"file", "arrival", "day", "source"})

ENVELOPES: Final = Table(
    "envelopes",
    "envelope",
    (
        *_SAME,
        Column(
            "holder",
            "STRING",
            "whose copy this is: the source of the least name, and there of the least arrival, then file",
        ),
        Column("holders", "INT", "how many sources have it"),
        Column("hour", "INT", f"of sent, where the archives have {MANY} rows of that hour; else NULL", null=True),
        DAY,
    ),
    ("day", "hour"),
)
"""Invariant: one row for each hash of archived; `holders` adds up to its pairs of hash and source."""

TRAFFIC: Final = Table(
    "traffic",
    "topic and day",
    (
        Column("topic", "STRING", "its four bytes: 0x and eight hexadecimal digits"),
        Column("envelopes", "BIGINT", "how many, each once"),
        Column("bytes", "BIGINT", "of them"),
        Column("first", "TIMESTAMP", "when the first was sent"),
        Column("last", "TIMESTAMP", "when the last was sent"),
        DAY,
    ),
    ("day",),
)
"""Invariants: `envelopes` adds up to the rows of envelopes, `bytes` to their size."""

COVERAGE: Final = Table(
    "coverage",
    "mailserver and day",
    (
        Column("envelopes", "BIGINT", "how many it has, each once"),
        Column("alone", "BIGINT", "of these, how many nobody else has"),
        Column("missing", "BIGINT", "how many others have and it has not"),
        DAY,
        SOURCE,
    ),
)
"""Invariant: `envelopes` and `missing` together are the day's rows of envelopes, for every mailserver of that day."""


def envelopes(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Keep one row of each hash: of the least source, then of the least arrival.

    Equal hashes were sent in the same hour, so rows go by hour once, which the folders want anyway, and are sorted
    there once: the folders' order is the beginning of that order. Whatever share of them is double, nothing has to
    fit into memory.
    """
    archived = inputs["archived"]
    hour = f.pmod(f.floor(f.unix_micros("sent") / HOUR_US), f.lit(24)).cast("int").alias("hour")
    busy = archived.select("day", hour).groupBy("day", "hour").agg((f.count("*") >= MANY).alias("many"))
    columns = ["day", "source", "file", "arrival", *(each.name for each in _SAME)]
    rows = archived.select(*columns, hour).join(f.broadcast(busy), ["day", "hour"])
    rows = rows.withColumn("hour", f.when(f.col("many"), f.col("hour"))).drop("many").repartition("day", "hour")
    same = Window.partitionBy("day", "hour", "hash")
    # Last in this order is the least; by then every source has been counted.
    order = same.orderBy(*(f.desc(each) for each in ("source", "arrival", "file", "arrived")))
    rows = rows.withColumn("after", f.lead(f.lit(1)).over(order))
    rows = rows.withColumn("holders", f.dense_rank().over(same.orderBy(f.desc("source"))))
    return rows.where(f.col("after").isNull()).withColumnRenamed("source", "holder").drop("after", "file", "arrival")


def traffic(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Add up each topic's day."""
    return (
        inputs["envelopes"]
        .groupBy("day", "topic")
        .agg(
            f.count("*").alias("envelopes"),
            f.sum(f.col("size").cast("bigint")).alias("bytes"),
            f.min("sent").alias("first"),
            f.max("sent").alias("last"),
        )
    )


def coverage(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Count what each has, and lacks."""
    held = inputs["archived"].groupBy("day", "hash").agg(f.collect_set("source").alias("sources"))
    alone = (f.size("sources") == 1).cast("bigint").alias("alone")
    each = held.select("day", alone, f.explode("sources").alias("source")).groupBy("day", "source")
    own = each.agg(f.count("*").alias("envelopes"), f.sum("alone").alias("alone"))
    all_ = held.groupBy("day").agg(f.count("*").alias("all"))
    return own.join(f.broadcast(all_), "day").withColumn("missing", f.col("all") - f.col("envelopes"))


BUILDS: Final = (
    Build(ENVELOPES, {"archived": (0, 0)}, envelopes, placed=True),
    Build(TRAFFIC, {"envelopes": (0, 0)}, traffic),
    Build(COVERAGE, {"archived": (0, 0)}, coverage),
)
