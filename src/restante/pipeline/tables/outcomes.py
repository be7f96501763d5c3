"""How nameplates and mailboxes ended, and how long they waited and lived, by server, application and day."""

from __future__ import annotations

from typing import Final, get_args

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.common.usage_records import Result
from restante.pipeline.schemas import APP_COLUMN, SOURCE_COLUMN, Column, Table, day_of
from restante.pipeline.tables import buckets
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.top_n import group_rare, task_per_day

RESULTS: Final[tuple[str, ...]] = get_args(Result)
FAILURES: Final = tuple(result for result in RESULTS if result != "happy")
"""The results of a nameplate or mailbox that failed. This is the only definition of a failure."""

STARTED_DAY_COLUMN: Final = day_of("the start of the nameplates or mailboxes")
KIND_COLUMN: Final = Column(
    "kind",
    "STRING",
    "nameplate: a nameplate; claimed: a mailbox that the claim of a nameplate made;"
    " opened: a mailbox that an open made.",
)
RESULT_COUNT_COLUMNS: Final = tuple(Column(result, "BIGINT", f"How many ended {result}.") for result in RESULTS)

OUTCOMES: Final = Table(
    "outcomes",
    "server, day, application and kind",
    (
        APP_COLUMN,
        KIND_COLUMN,
        Column("ended", "BIGINT", "How many ended: the sum of the results."),
        *RESULT_COUNT_COLUMNS,
        Column(
            "visited",
            "BIGINT",
            "Mailboxes that had visitors (a column of the table mailboxes). NULL: the server did not count visitors.",
            null=True,
        ),
        STARTED_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariants: `ended` adds up to the rows of nameplates and mailboxes, `visited` to mailboxes with a visitor."""


def result_counts() -> list[Expression]:
    """Return one count per result, in a column of its name."""
    return [f.count_if(f.col("result") == result).alias(result) for result in RESULTS]


def ended_rows(nameplates: DataFrame, mailboxes: DataFrame, *columns: str) -> DataFrame:
    """Return nameplates and mailboxes with their kind. A column that only mailboxes have is NULL for nameplates."""
    claimed = f.when(f.col("for_nameplate"), "claimed").otherwise("opened")
    plates = nameplates.withColumn("visitors", f.lit(None).cast("bigint"))
    plates = plates.select("source", "day", "app_id", f.lit("nameplate").alias("kind"), *columns)
    return plates.unionAll(mailboxes.select("source", "day", "app_id", claimed.alias("kind"), *columns))


def outcomes(nameplates: DataFrame, mailboxes: DataFrame) -> DataFrame:
    """Return the count of each result."""
    keys = ("source", "day", "app_id", "kind")
    visited = f.sum((f.col("visitors") > 0).cast("bigint")).alias("visited")  # NULL if all are
    rows = ended_rows(nameplates, mailboxes, "result", "visitors").groupBy(*keys)
    counted = rows.agg(f.count("*").alias("ended"), *result_counts(), visited)
    together = group_rare(task_per_day(counted), "ended", "app_id").groupBy(*keys)
    return together.agg(*(f.sum(name).alias(name) for name in ("ended", *RESULTS, "visited")))


DURATIONS: Final = Table(
    "durations",
    "server, day, application, kind, measure and bucket",
    (
        APP_COLUMN,
        KIND_COLUMN,
        Column(
            "measure",
            "STRING",
            "What was measured, from the first side on. waiting: until the second side joined; total: until the end.",
        ),
        buckets.BUCKET_COLUMN,
        buckets.FROM_COLUMN,
        Column("count", "BIGINT", "Nameplates or mailboxes in the bucket."),
        STARTED_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariant: for each measure, `count` adds up to the rows of nameplates and mailboxes."""


def durations(nameplates: DataFrame, mailboxes: DataFrame) -> DataFrame:
    """Return the counts of both durations by bucket."""
    keys = ("source", "day", "app_id", "kind")
    waiting, total = (
        f.struct(f.lit(name).alias("measure"), f.col(f"{name}_us").alias("us")) for name in ("waiting", "total")
    )
    rows = ended_rows(nameplates, mailboxes, "waiting_us", "total_us")
    measured = rows.select(*keys, f.inline(f.array(waiting, total)))
    counts = task_per_day(buckets.counts_by_bucket(measured, *keys, "measure"))
    together = group_rare(counts, "count", "app_id").groupBy(*keys, "measure", "bucket", "from_us")
    return together.agg(f.sum("count").alias("count"))


BUILDS: Final = (
    Build(OUTCOMES, outcomes, task_per_folder=True),
    Build(DURATIONS, durations, task_per_folder=True),
)
