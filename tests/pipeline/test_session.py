import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from restante.errors import RestanteError
from restante.pipeline.spark import COLLECTOR, JAVA_READS, counter, java_options, session

SERIAL = "-XX:+UseSerialGC"


def test_a_session_counts_days_in_utc_and_guesses_no_type_of_a_partition(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled") == "false"
    assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"remote": "http://127.0.0.1:1"}, "--remote must look like sc://HOST:PORT, not http://127.0.0.1:1"),
        ({"remote": "sc://127.0.0.1:1"}, "no Spark Connect server answers at sc://127.0.0.1:1 (--remote)"),
        ({"master": "spark://127.0.0.1:1"}, "no Spark master answers at spark://127.0.0.1:1 (--master)"),
    ],
)
def test_where_spark_cannot_be_had_it_is_said_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RestanteError) as refusal, session(**given):
        pass
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"master": "nonsense"}, "Master must either be yarn or start with spark, k8s, or local"),
        ({"settings": {"spark.driver.memory": "12x"}}, "Invalid maximum heap size: -Xmx12x"),
    ],
)
def test_what_java_said_is_told_in_one_line(given: dict[str, object], words: str) -> None:
    code = f"""
from restante.errors import RestanteError
from restante.pipeline.spark import session
try:
    with session(**{given}): pass
except RestanteError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert words in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_garbage_is_collected_by_all_cores_or_as_the_environment_or_a_setting_says() -> None:
    assert COLLECTOR in java_options("-Xss4m", {"JAVA_TOOL_OPTIONS": "-XX:+UseStringDeduplication", "PATH": SERIAL})
    assert COLLECTOR not in java_options(SERIAL, {})
    for variable in JAVA_READS:
        assert COLLECTOR not in java_options("", {variable: f"-Dx=1 {SERIAL}"})


def test_the_tasks_of_what_runs_are_told_of_each_thread_by_itself(spark: SparkSession) -> None:
    idle = counter(spark, "idle")
    spark.range(0, 8, 1, 4).selectExpr("sum(id)").collect()

    def work() -> set[tuple[int, int] | None]:
        count = counter(spark, "work")
        query = spark.range(0, 100_000_000, 1, 4).selectExpr("max(hash(id))")
        with ThreadPoolExecutor(1) as watchers:
            over = threading.Event()
            watched = watchers.submit(lambda: {count() for _ in iter(over.is_set, True)})
            query.collect()
            over.set()
            return watched.result()

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(work)
        seen = set()
        while not busy.done():
            seen.add(idle())
    assert (0, 4) in busy.result()
    assert seen == {(0, 0)}
    spark.sparkContext.setJobGroup("", "")


def test_a_query_that_fails_is_told_by_its_error_alone(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException):
        spark.range(3).select("nothing").collect()
    with pytest.raises(AnalysisException):
        spark.sql("SELECT 1 / nothing").collect()
    assert capfd.readouterr() == ("", "")
