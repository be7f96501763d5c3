"""What a command says if Spark, or its Java, fails in the middle of a run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from random import Random

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from restante.common.errors import Misuse, StoreError
from restante.pipeline.spark import errors
from restante.pipeline.spark.errors import JAVA_ENDED, SparkError, in_one_sentence, of_job, of_start
from support.bounds import PATIENCE
from support.pipeline.busy_week import busy_week
from support.pipeline.runs import LakeWorld
from support.pipeline.sessions import INTERPRETED, environment
from support.pipeline.tables import dicts
from support.processes import RESTANTE, process_group


def java_of(process: int) -> int:
    """Return the Java that a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    [java] = [each for each in children if Path(f"/proc/{each}/comm").read_text() == "java\n"]
    return int(java)


@pytest.mark.thorough
def test_a_run_whose_java_is_killed_says_so_in_one_sentence(tmp_path: Path) -> None:
    """As the kernel does if memory runs out."""
    lake = LakeWorld(None, tmp_path)
    lake.add("nameplates", dicts("nameplates", busy_week(Random(1), 100)["nameplates"]))
    with process_group(
        [*RESTANTE, "pipeline", "build", "--lake", str(lake.path)],
        env=environment(INTERPRETED),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stderr is not None
        ready = running.stderr.readline()
        os.kill(java_of(running.pid), signal.SIGKILL)
        _, said = running.communicate(timeout=PATIENCE)
    assert re.fullmatch(r"build: Spark: ready, [\d.]+ s\n", ready)
    assert running.returncode == 1
    assert said.splitlines()[-1].startswith(f"restante: {JAVA_ENDED}")
    assert "Traceback" not in said
    assert "ERROR" not in said


def test_an_error_of_spark_that_nothing_else_translates_is_one_sentence() -> None:
    with pytest.raises(SparkError, match=r"^a job failed: the table is gone$"), in_one_sentence():
        raise PySparkException("the table is gone\n  at Table.scala")
    with pytest.raises(Misuse), in_one_sentence():
        raise Misuse("not Spark's")
    with pytest.raises(StoreError), in_one_sentence():
        raise StoreError("not Spark's")
    with pytest.raises(ZeroDivisionError), in_one_sentence():
        1 / 0  # noqa: B018 - it raises


class Process:
    """Stands for a Java."""

    def __init__(self, ended: bool) -> None:
        self._ended = ended

    def wait(self, seconds: float) -> int:
        if not self._ended:
            raise subprocess.TimeoutExpired("java", seconds)
        return -9


@pytest.mark.parametrize("ended", [True, False])
def test_a_lost_connection_is_put_down_to_java_only_if_java_has_ended(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    gateway = type("Gateway", (), {"proc": Process(ended)})
    monkeypatch.setattr("pyspark.SparkContext._gateway", gateway)
    lost = Py4JNetworkError("Answer from Java side is empty")
    during = ConnectionRefusedError()
    during.__context__ = lost
    assert errors.java_has_ended(lost) is ended
    assert errors.java_has_ended(during) is ended
    assert not errors.java_has_ended(StoreError("the disk is full"))
    assert not errors.java_has_ended(Py4JJavaError.__new__(Py4JJavaError)), "Java has said what failed"


def test_without_a_java_of_this_process_no_error_is_put_down_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    assert not errors.java_has_ended(ConnectionResetError())


def test_too_little_memory_is_told_with_what_to_do() -> None:
    said = "Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n"
    assert of_job(said) == (
        "Spark has too little memory: give it more (--memory; on a cluster spark.executor.memory as well)"
    )


def test_an_error_without_a_reason_is_reported_with_what_caused_it() -> None:
    """Spark 4.3.0 said this with a Kubernetes master that nobody serves."""
    said = (
        "io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.\n"
        "\tat io.fabric8.kubernetes.client.dsl.internal.OperationSupport.waitForResult(OperationSupport.java:504)\n"
        "Caused by: java.io.IOException: Connection refused: /127.0.0.1:1\n"
        "Caused by: java.net.ConnectException: Connection refused\n"
    )
    assert of_start(said) == "An error has occurred. (Connection refused: /127.0.0.1:1)"
