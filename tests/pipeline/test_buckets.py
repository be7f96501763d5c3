"""Buckets of durations."""

from bisect import bisect_right
from itertools import pairwise

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from restante.pipeline.tables import buckets

EDGES = buckets.edges()
BY_HAND = {1: -349, 2: -314, 3: -294, 999: -1, 1000: 0, 1001: 0, 1019: 0, 1020: 1, 1021: 1}


def test_every_edge_and_its_neighbours_are_in_their_bucket(spark: SparkSession) -> None:
    assert all(before <= after for before, after in pairwise(EDGES))
    around = (edge + by for edge in EDGES for by in (-1, 0, 1))
    values = [None, 0, -5, -(10**15), 10**17, 2**63 - 1, *BY_HAND, *around]
    frame = spark.createDataFrame([(us,) for us in dict.fromkeys(values)], "us BIGINT").coalesce(1)
    bucket = buckets.bucket(f.col("us"))
    rows = frame.select("us", bucket.alias("bucket"), buckets.least(bucket).alias("least")).collect()
    assert {row["us"]: row["bucket"] for row in rows if row["us"] in BY_HAND} == BY_HAND
    for us, number, least in rows:
        if us is None:
            assert (number, least) == (None, None)
        elif us <= 0:
            assert (number, least) == (buckets.ZERO_BUCKET, 0)
        else:
            assert number == min(bisect_right(EDGES, us) + buckets.ZERO_BUCKET, buckets.LAST_BUCKET)
            assert least == EDGES[number - buckets.ZERO_BUCKET - 1]
