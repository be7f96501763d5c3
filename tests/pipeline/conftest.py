"""What the pipeline's tests share: one Spark session, since each takes seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.runs import SMALL_JOBS, World
from restante.pipeline.spark import session

SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": SMALL_JOBS,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine, in this process."""
    with session("local[2]", settings=SETTINGS) as started:
        yield started


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    """A lake that is not there yet."""
    return World(spark, tmp_path)
