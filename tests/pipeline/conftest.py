"""What the pipeline's tests share: one Spark session, since each takes seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.spark.session import session
from support.pipeline.runs import LakeWorld, without_spark
from support.pipeline.sessions import INTERPRETED, SETTINGS


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine, in this process. It interprets its queries."""
    with session("local[2]", settings=SETTINGS | INTERPRETED) as started:
        yield started
        java = started.sparkContext._gateway.proc  # type: ignore[union-attr]
        assert java.poll() is None, f"Spark's Java ended with {java.returncode} while tests went on"


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> LakeWorld:
    """A lake that is not there yet."""
    return LakeWorld(spark, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[LakeWorld]:
    """A lake that is not there yet, which plain Python builds (`COUNTING`)."""
    world = LakeWorld(None, tmp_path)
    with without_spark(world):
        yield world
