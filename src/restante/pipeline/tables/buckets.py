"""Histograms of durations: logarithmic buckets, each 2 % wider than the one before.

Bucket k counts durations from 1.02^k milliseconds up to, but not including, 1.02^(k+1): floor(log(ms) / log(1.02)).
The middle of a bucket differs by at most 1 % from any duration in it. Histograms are merged by adding their counts,
in any order, and any program can read them, because they are plain rows.

The last bit of a logarithm differs between machines. So an edge is a whole microsecond, computed here in integers;
the logarithm only gives a first guess at the bucket.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.pipeline.schemas import Column, us_column

ZERO_BUCKET: Final = -350
"""The bucket of durations of zero or less (a clock was set back): one below the bucket of a microsecond."""

LAST_BUCKET: Final = 1300
"""The last bucket, from four years and nine months on. It also counts everything longer."""

BUCKET_COLUMN: Final = Column(
    "bucket",
    "INT",
    f"Bucket of the duration: floor(log(milliseconds) / log(1.02)); {ZERO_BUCKET}: a duration of 0 or"
    " less. NULL: the duration is not known, or there is none.",
    null=True,
)
FROM_COLUMN: Final = us_column("from_us", "Shortest duration of the bucket. NULL: the bucket is NULL.", null=True)

KNOWN_BUCKET_COLUMN: Final = Column(
    "bucket",
    "INT",
    f"Bucket of the duration: floor(log(milliseconds) / log(1.02)); {ZERO_BUCKET}: a duration of 0.",
)
KNOWN_FROM_COLUMN: Final = us_column("from_us", "Shortest duration of the bucket.")


def counts_by_bucket(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the number of rows with the same keys and the same bucket of `us`; with the columns of a histogram."""
    counts = rows.groupBy(*keys, bucket(f.col("us")).alias("bucket")).agg(f.count("*").alias("count"))
    return counts.withColumn("from_us", bucket_start(f.col("bucket")))


@cache
def bucket_edges() -> tuple[int, ...]:
    """Return the least microseconds of buckets -349 to LAST_BUCKET: the ceiling of 1000 * 1.02^k, exactly."""
    return tuple(math.ceil(1000 * Fraction(51, 50) ** k) for k in range(ZERO_BUCKET + 1, LAST_BUCKET + 1))


def bucket(us: Expression) -> Expression:
    """Return the bucket of a duration in microseconds; NULL for NULL."""
    guess = f.floor(f.log(us / f.lit(1000.0)) / f.lit(math.log(1.02)))
    near = f.least(f.greatest(guess, f.lit(ZERO_BUCKET + 1)), f.lit(LAST_BUCKET)).cast("int")
    right = (
        f.when(us < _bucket_edge(near), near - 1)
        .when((near < LAST_BUCKET) & (us >= _bucket_edge(near + 1)), near + 1)
        .otherwise(near)
    )
    return f.when(us.isNull(), None).when(us <= 0, ZERO_BUCKET).otherwise(right).cast("int")


def bucket_start(number: Expression) -> Expression:
    """Return the least microseconds of a bucket."""
    return f.when(number == ZERO_BUCKET, 0).otherwise(_bucket_edge(number)).cast("bigint")


def _bucket_edge(number: Expression) -> Expression:
    # One text, which Spark turns into an array once, when it plans: 1650 literals, several times, take it seconds.
    edge = f.split(f.lit(",".join(map(str, bucket_edges()))), ",").cast("array<bigint>")
    return f.get(edge, number - (ZERO_BUCKET + 1))
