"""What the pipeline's tests share: one Spark session, since each takes seconds to start."""

import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from restante.pipeline.spark.session import session
from support.bounds import BOUND
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
    return LakeWorld(spark, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[LakeWorld]:
    world = LakeWorld(None, tmp_path)
    with without_spark(world):
        yield world


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, object, object]:
    """When a test's time is over, print what Java's threads do, and kill Java: PySpark would wait for its answer."""
    result = yield
    end_test = signal.getsignal(signal.SIGALRM)

    def end_java_and_test(number: int, frame: FrameType | None) -> None:
        if SparkContext._gateway is not None:  # PySpark has no public name of its Java
            java = SparkContext._gateway.proc.pid
            sys.stdout.write(java_threads(java))
            os.kill(java, signal.SIGKILL)
        if callable(end_test):
            end_test(number, frame)

    signal.signal(signal.SIGALRM, end_java_and_test)
    return result


def java_threads(pid: int) -> str:
    """Make Java print what its threads do; return all that it has printed so far."""
    os.kill(pid, signal.SIGQUIT)
    end = time.monotonic() + BOUND
    while "JNI global refs" not in (printed := Path(f"/proc/{pid}/fd/1").read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    return printed
