"""Buckets of durations."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from restante.pipeline.tables import buckets
from support.effort import examples


def exact(us: int) -> int:
    """Count buckets in fractions, where nothing is rounded."""
    if us <= 0:
        return buckets.ZERO_BUCKET
    k, edge = buckets.ZERO_BUCKET + 1, Fraction(1000) * Fraction(51, 50) ** (buckets.ZERO_BUCKET + 1)
    while k < buckets.LAST_BUCKET and us >= edge * Fraction(51, 50):
        k, edge = k + 1, edge * Fraction(51, 50)
    return k


def found(spark: SparkSession, values: list[int | None]) -> list[tuple[int | None, int | None]]:
    frame = spark.createDataFrame([(place, us) for place, us in enumerate(values)], "place INT, us BIGINT").coalesce(
        1
    )
    in_bucket = frame.withColumn("bucket", buckets.bucket(f.col("us")))
    of = in_bucket.select("place", "bucket", buckets.least(f.col("bucket")).alias("least")).collect()
    return [(row["bucket"], row["least"]) for row in sorted(of, key=lambda row: int(row["place"]))]


def test_every_edge_and_its_neighbours_are_in_their_bucket(spark: SparkSession) -> None:
    by_hand = {1, 2, 3, 999, 1000, 1001, 1019, 1020, 1021, 60_000_000}
    beyond = {-(10**15), 10**17, 2**63 - 1}
    values = sorted({each + by for each in buckets.edges() for by in (-1, 0, 1)} | by_hand | beyond)
    of: dict[int, int] = {}
    number = buckets.ZERO_BUCKET
    exactly = buckets.edges()
    for us in values:  # the same edges, by counting: values go up
        while number < buckets.LAST_BUCKET and us >= exactly[number - buckets.ZERO_BUCKET]:
            number += 1
        of[us] = number if us > 0 else buckets.ZERO_BUCKET
    assert [bucket for bucket, _ in found(spark, list(values))] == [of[us] for us in values]
    for us in by_hand:
        assert of[us] == exact(us)


def test_null_has_no_bucket_and_zero_is_below_a_microsecond(spark: SparkSession) -> None:
    assert found(spark, [None, 0, -5, 1]) == [(None, None), (-350, 0), (-350, 0), (-349, 1)]


@given(st.lists(st.integers(1, 10**14), min_size=1, max_size=200))
@examples(3)
def test_the_middle_of_a_bucket_is_off_by_at_most_one_percent(spark: SparkSession, values: list[int]) -> None:
    edges = dict(enumerate(buckets.edges(), buckets.ZERO_BUCKET + 1))
    for us, (bucket, least) in zip(values, found(spark, [*values]), strict=True):
        assert bucket is not None
        assert least == edges[bucket] <= us < edges[bucket + 1]
        low = Fraction(1000) * Fraction(51, 50) ** bucket
        middle = 2 * low * Fraction(51, 50) / (1 + Fraction(51, 50))
        assert abs(us - middle) <= us / Fraction(100)


def test_edges_never_go_down() -> None:
    assert all(before <= after for before, after in pairwise(buckets.edges()))
