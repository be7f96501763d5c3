"""What the pipeline's tests share: one Spark session, since each takes seconds to start."""

import contextlib
import os
import shlex
import signal
import subprocess
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
from support.documents import Document
from support.pipeline.runs import LakeWorld, spark_command, without_spark
from support.pipeline.servers import client, current, mailbox, nameplate, ours
from support.pipeline.sessions import INTERPRETED, SETTINGS


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine, in this process. It interprets its queries."""
    with session("local[2]", settings=SETTINGS | INTERPRETED) as started:
        yield started
        java = started.sparkContext._gateway.proc  # type: ignore[union-attr]
        assert java.poll() is None, f"Spark's Java ended with {java.returncode} while tests went on"


@pytest.fixture(scope="session")
def first_lake(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return a folder with a server's data and the lake that the guide's first run makes of them, for copies."""
    folder = tmp_path_factory.mktemp("first lake")
    [line, _] = Document("docs/pipeline/first-lake.md").commands("first lake", "run --source", "sql")
    with ours(folder / "restante-data", nameplate(1), mailbox(2), client(3), current(None)), contextlib.chdir(folder):
        return folder, spark_command(spark, *shlex.split(line.removeprefix("./run pipeline ")))


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
