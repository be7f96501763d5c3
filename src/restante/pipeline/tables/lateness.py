"""How late envelopes arrived at each mailserver, and what that says about clocks."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import SOURCE_COLUMN, SOURCE_KIND_ARCHIVE, Column, Table
from restante.pipeline.tables import buckets
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.envelopes import SENT_DAY_COLUMN

LATENESS: Final = Table(
    "lateness",
    "mailserver, day, measure and bucket",
    (
        Column(
            "measure",
            "STRING",
            "What was measured. late: from the time at which an envelope was sent, by the sender's clock and in whole"
            " seconds, to its arrival; ahead: from its arrival to that time, if the arrival was earlier, because the"
            " clocks differ; after first: from the first arrival at any mailserver to the arrival at this one, if"
            " several mailservers have the envelope.",
        ),
        buckets.KNOWN_BUCKET_COLUMN,
        buckets.KNOWN_FROM_COLUMN,
        Column("count", "BIGINT", "Envelopes in the bucket, each counted once: by its first arrival."),
        SENT_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariants: `late` and `ahead` together add up to the mailserver's `envelopes` in coverage, `after first` to those
that are not `alone`."""


def lateness(archived: DataFrame) -> DataFrame:
    """Return the counts of the three measures by bucket.

    One shuffle by hash puts the copies of an envelope together, at one mailserver and at several.
    """
    copies = archived.where((f.col("source_kind") == SOURCE_KIND_ARCHIVE) & f.col("arrived").isNotNull()).select(
        "day", "hash", "source", f.unix_micros("arrived").alias("at"), f.unix_micros("sent").alias("sent")
    )
    once = copies.repartition("day", "hash").groupBy("day", "hash", "source")
    arrivals = once.agg(f.min("at").alias("at"), f.min("sent").alias("sent"))
    everywhere = Window.partitionBy("day", "hash")
    late = f.col("at") - f.col("sent")
    after = f.struct(f.lit("after first").alias("measure"), (f.col("at") - f.col("first")).alias("us"))
    measures = f.array(
        f.struct(f.when(late < 0, "ahead").otherwise("late").alias("measure"), f.abs(late).alias("us")),
        f.when(f.col("mailservers") > 1, after),
    )
    rows = arrivals.select(
        "day",
        "source",
        "at",
        "sent",
        f.min("at").over(everywhere).alias("first"),
        f.count("*").over(everywhere).alias("mailservers"),
    ).select("day", "source", f.explode(measures).alias("measured"))
    measured = rows.where(f.col("measured").isNotNull()).select("day", "source", "measured.*")
    return buckets.counts_by_bucket(measured, "day", "source", "measure")


BUILDS: Final = (Build(LATENESS, lateness),)
