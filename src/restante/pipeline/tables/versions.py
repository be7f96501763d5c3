"""Connections and outcomes of mailboxes, by server, day, application and client version.

A mailbox's usage record does not say which client opened it. But its first side binds, then claims or opens
immediately. So if all clients that bound for its application at its server in the two seconds before it had the same
version, the mailbox is attributed to that version. If they had several versions, if none bound, or if times are
blurred by more than that, the mailbox is attributed to no version and counted separately.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import APP_COLUMN, SOURCE_COLUMN, Column, Table, day_of
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.outcomes import RESULT_COUNT_COLUMNS, RESULTS, result_counts
from restante.pipeline.tables.top_n import OTHER_NAME, group_rare, task_per_day

BIND_WINDOW_US: Final = 2_000_000
"""Microseconds from a bind to the claim or open that follows: one or two round trips, and the blur of a second that
some operators choose."""

VERSIONS: Final = Table(
    "versions",
    "server, day, application, attribution, implementation and version",
    (
        APP_COLUMN,
        Column(
            "attribution",
            "STRING",
            "Whether the version of the mailboxes is known. version: it is; mixed: clients of several versions had"
            " just bound; unbound: no client had just bound; blurred: the times are too coarse to decide.",
        ),
        Column(
            "implementation",
            "STRING",
            f"Name of the client program, as clients sent it; {OTHER_NAME}: not among the most frequent."
            " NULL: none, or not known.",
            null=True,
        ),
        Column(
            "version",
            "STRING",
            f"Version of the client program, as clients sent it; {OTHER_NAME}: not among the most frequent."
            " NULL: none, or not known.",
            null=True,
        ),
        Column(
            "connections", "BIGINT", "Connections of this version that bound; a client that reconnects counts again."
        ),
        Column("mailboxes", "BIGINT", "Mailboxes that started: the sum of the results."),
        *(
            Column(column.name, column.type, f"How many of these mailboxes ended {column.name}.")
            for column in RESULT_COUNT_COLUMNS
        ),
        day_of("the binds and of the start of the mailboxes"),
        SOURCE_COLUMN,
    ),
)
"""Invariants: `connections` adds up to the rows of client_versions, `mailboxes` to those of mailboxes."""

_CLIENT_COLUMNS: Final = ("implementation", "version")
_NUMBERS: Final = ("connections", "mailboxes", *RESULTS)
_VERSION_KEY: Final = ("source", "day", "app_id", "attribution", *_CLIENT_COLUMNS)


def versions(client_versions: DataFrame, mailboxes: DataFrame) -> DataFrame:
    """Return the number of binds and the results of mailboxes by version."""
    binds = client_versions.withColumn("attribution", f.lit("version")).groupBy(*_VERSION_KEY)
    bound = binds.agg(f.count("*").alias("connections"))
    attributed = _attributed(mailboxes, client_versions).groupBy(*_VERSION_KEY)
    results = attributed.agg(f.count("*").alias("mailboxes"), *result_counts())
    rows = _sums(task_per_day(bound.unionByName(results, allowMissingColumns=True).fillna(0, _NUMBERS)))
    weighed = group_rare(rows.withColumn("weight", f.col("connections") + f.col("mailboxes")), "weight", "app_id")
    return _sums(group_rare(weighed, "weight", *_CLIENT_COLUMNS, where=f.col("attribution") == "version"))


def _sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy(*_VERSION_KEY).agg(*(f.sum(name).alias(name) for name in _NUMBERS))


def _attributed(mailboxes: DataFrame, binds: DataFrame) -> DataFrame:
    """Return each mailbox's result and the version that it is attributed to."""
    sharp = f.coalesce(f.col("blur_us") <= BIND_WINDOW_US, f.lit(True))
    mailboxes = mailboxes.select(
        "source", "day", "app_id", "result", f.unix_micros("started").alias("at"), sharp.alias("sharp")
    )
    blurred = mailboxes.where(~f.col("sharp"))
    no_version = [f.lit(None).cast("string").alias(name) for name in _CLIENT_COLUMNS]
    blurred = blurred.select("source", "day", "app_id", "result", f.lit("blurred").alias("attribution"), *no_version)
    return _with_versions(mailboxes.where("sharp"), binds.where(sharp)).unionAll(blurred)


def _with_versions(mailboxes: DataFrame, binds: DataFrame) -> DataFrame:
    """Return the attribution of mailboxes whose times are precise enough.

    Mailboxes are sorted among the binds of their slot of two seconds and of the previous slot, so that the work of
    one busy application is divided into many tasks. The latest bind gives the version; a different recent one makes
    it mixed.
    """
    slot = f.floor(f.col("at") / BIND_WINDOW_US)
    asked = mailboxes.select("source", "app_id", "at", slot.alias("slot"), f.lit(None).alias("who"), "day", "result")
    bound = binds.withColumn("at", f.unix_micros("connect_time")).select(
        "source",
        "app_id",
        "at",
        f.explode(f.array(slot, slot + 1)).alias("slot"),
        f.struct(*_CLIENT_COLUMNS).alias("who"),
        *(f.lit(None).alias(name) for name in ("day", "result")),
    )
    rows = asked.unionAll(bound)
    # A bind at a mailbox's own time counts as before it.
    order = Window.partitionBy("slot", "source", "app_id").orderBy("at", f.col("who").isNull())
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last_bind = f.last(f.when(f.col("who").isNotNull(), f.struct("at", "who")), ignorenulls=True)
    rows = rows.withColumn("before", last_bind.over(before))
    other = f.col("who").isNotNull() & ~f.col("who").eqNullSafe(f.col("before")["who"])
    rows = rows.withColumn("last", last_bind.over(so_far))
    rows = rows.withColumn("other", f.max(f.when(other, f.col("before")["at"])).over(so_far))
    since = f.col("at") - BIND_WINDOW_US
    unbound = f.col("last").isNull() | (f.col("last")["at"] < since)
    mixed = f.coalesce(f.col("other") >= since, f.lit(False))
    how = f.when(unbound, "unbound").when(mixed, "mixed").otherwise("version")
    whose = [f.when(how == "version", f.col("last")["who"][name]).alias(name) for name in _CLIENT_COLUMNS]
    attributed = rows.where(f.col("who").isNull())
    return attributed.select("source", "day", "app_id", "result", how.alias("attribution"), *whose)


BUILDS: Final = (Build(VERSIONS, versions, {"client_versions": (1, 0)}, task_per_folder=True),)
