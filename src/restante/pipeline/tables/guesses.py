"""What guesses of codes look like, by day, compared with the days before."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from restante.pipeline.schemas import APP_COLUMN, SOURCE_COLUMN, Column, Table
from restante.pipeline.tables.build import Build
from restante.pipeline.tables.outcomes import STARTED_DAY_COLUMN

COMPARED_DAYS: Final = 7
"""Days before a day with which it is compared: each day of the week once. With each additional day, a late row would
cause one more day to be built again."""

MIN_COMPARED_DAYS: Final = 4
"""Days of these of which the lake must have rows: the median of three is one bad day away from nonsense."""

MADS: Final = 6
"""Median absolute deviations by which a day must exceed the median. If counts were distributed normally, these were
four standard deviations: one day in 30,000."""

MIN_EXCESS: Final = 10
"""Number by which a day must exceed the median. A person who mistypes codes causes a few results like a guess."""

MIN_EXCESS_SHARE: Final = 2
"""A day must exceed the median by the median divided by this: on busy servers, counts that are almost the same each
day have a tiny deviation."""

GUESSES: Final = Table(
    "guesses",
    "server, day and application",
    (
        APP_COLUMN,
        Column("nameplates", "BIGINT", "Nameplates that ended."),
        Column(
            "lonely",
            "BIGINT",
            "Nameplates that ended lonely: one side claimed it and released it again. That is how the claim of an"
            " unknown nameplate ends, but also a code that nobody used. No server records which it was.",
        ),
        Column(
            "pruney",
            "BIGINT",
            "Nameplates that ended pruney, among them claims of unknown nameplates by clients that just left.",
        ),
        Column("crowded_nameplates", "BIGINT", "Nameplates that ended crowded: a third side tried to claim it."),
        Column("mailboxes", "BIGINT", "Mailboxes that ended."),
        Column(
            "crowded_mailboxes",
            "BIGINT",
            "Mailboxes that ended crowded. A third side that is refused at a nameplate is refused at its mailbox,"
            " too.",
        ),
        Column("scary", "BIGINT", "Mailboxes that ended scary: the two sides had different codes."),
        Column("suspects", "BIGINT", "The sum of crowded_nameplates and scary."),
        Column(
            "compared_days",
            "INT",
            f"Of the {COMPARED_DAYS} days before: days on which the table outcomes has rows of the server.",
        ),
        Column(
            "median",
            "BIGINT",
            "Median of suspects on these days, which is 0 for a day without a row of the application. Of an even"
            " number of days it is the greater one of the two in the middle."
            f" NULL: compared_days is less than {MIN_COMPARED_DAYS}.",
            null=True,
        ),
        Column(
            "mad",
            "BIGINT",
            "Median absolute deviation: the median, taken in the same way, of the distances of these days' suspects"
            " from the median. NULL: the median is NULL.",
            null=True,
        ),
        Column(
            "threshold",
            "BIGINT",
            f"The median plus the greatest of: {MADS} times the MAD; {MIN_EXCESS}; the median divided by"
            f" {MIN_EXCESS_SHARE}, rounded down. NULL: the median is NULL.",
            null=True,
        ),
        Column(
            "stands_out",
            "BOOLEAN",
            "Whether suspects is greater than the threshold. NULL: the median is NULL.",
            null=True,
        ),
        STARTED_DAY_COLUMN,
        SOURCE_COLUMN,
    ),
)
"""Invariants: `nameplates` and `mailboxes` add up to `ended` of outcomes."""


def guesses(outcomes: DataFrame) -> DataFrame:
    """Return the results of each day that guesses cause, and those of the days before it."""
    nameplate = f.col("kind") == "nameplate"

    def added(name: str, condition: Expression) -> Expression:
        return f.sum(f.when(condition, f.col(name)).otherwise(0))

    counted = (
        outcomes.groupBy("source", "day", "app_id")
        .agg(
            added("ended", nameplate).alias("nameplates"),
            added("lonely", nameplate).alias("lonely"),
            added("pruney", nameplate).alias("pruney"),
            added("crowded", nameplate).alias("crowded_nameplates"),
            added("ended", ~nameplate).alias("mailboxes"),
            added("crowded", ~nameplate).alias("crowded_mailboxes"),
            added("scary", ~nameplate).alias("scary"),
        )
        .select(
            "*", (f.col("crowded_nameplates") + f.col("scary")).alias("suspects"), f.unix_date("day").alias("number")
        )
    )
    # Both windows, and the folders, are then without another shuffle.
    rows = counted.repartition("source")
    by_server = Window.partitionBy("source").orderBy("number").rangeBetween(-COMPARED_DAYS, -1)
    by_app = Window.partitionBy("source", "app_id").orderBy("number").rangeBetween(-COMPARED_DAYS, -1)
    rows = rows.withColumn("compared_days", f.size(f.collect_set("number").over(by_server)))
    rows = rows.withColumn("earlier", f.collect_list("suspects").over(by_app))
    absent = f.array_repeat(f.lit(0).cast("bigint"), f.col("compared_days") - f.size("earlier"))
    rows = rows.withColumn("before", f.when(f.col("compared_days") >= MIN_COMPARED_DAYS, f.concat("earlier", absent)))
    rows = rows.withColumn("median", _median(f.col("before")))
    rows = rows.withColumn("mad", _median(f.transform("before", lambda count: f.abs(count - f.col("median")))))
    excess = f.greatest(MADS * f.col("mad"), f.lit(MIN_EXCESS), f.floor(f.col("median") / MIN_EXCESS_SHARE))
    rows = rows.withColumn("threshold", f.when(f.col("median").isNotNull(), f.col("median") + excess))
    return rows.withColumn("stands_out", f.col("suspects") > f.col("threshold"))


def _median(numbers: Expression) -> Expression:
    """Return the median of an array; of an even number, the greater one of the two in the middle."""
    return f.get(f.sort_array(numbers), f.floor(f.size(numbers) / 2).cast("int"))


BUILDS: Final = (Build(GUESSES, guesses, {"outcomes": (COMPARED_DAYS, 0)}, task_per_folder=True),)
