"""The session of Spark: what is asked for, and what is said where it cannot be had."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from restante.common.errors import RestanteError
from restante.pipeline.spark import class_archive, java
from restante.pipeline.spark import session as spark_module
from restante.pipeline.spark.errors import SparkError
from restante.pipeline.spark.java_options import (
    COLLECTOR_OPTION,
    COMPILER_OPTIONS,
    JAVA_OPTIONS_VARIABLES,
    SMALL_JOBS_COLLECTOR_OPTION,
    SMALL_JOBS_COMPILER_OPTIONS,
    java_options,
)
from restante.pipeline.spark.session import (
    CONNECT_SETTINGS,
    CONTEXT_SETTINGS,
    LOCAL_JAVA_MEMORY,
    LOCAL_SETTINGS,
    SESSION_SETTINGS,
    disconnect,
    local,
    session,
    watch_tasks,
)
from support.ports import nobodys_port
from support.processes import run

SERIAL = "-XX:+UseSerialGC"


NOBODY = f"127.0.0.1:{nobodys_port()}"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"remote": f"http://{NOBODY}"}, f"--remote: 'http://{NOBODY}' is not a URL like sc://HOST:PORT"),
        ({"remote": f"sc://{NOBODY}"}, f"no Spark Connect server answers at sc://{NOBODY} (--remote)"),
        ({"master": f"spark://{NOBODY}"}, f"no Spark master answers at spark://{NOBODY} (--master)"),
    ],
    ids=["no Spark URL", "Connect", "master"],
)
def test_an_unreachable_spark_is_reported_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RestanteError) as refusal, session(**given):
        pass
    assert str(refusal.value) == words


BEGINS = """
from restante.common.errors import RestanteError
from restante.pipeline.spark.session import session
try:
    with session(**{}):
        pass
except RestanteError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"settings": {"spark.driver.memory": "12x"}}, "Invalid maximum heap size: -Xmx12x"),
        ({"master": "nonsense"}, "Master must either be yarn or start with spark, k8s, or local"),
    ],
)
def test_an_error_of_java_is_reported_in_one_line(given: dict[str, Any], words: str) -> None:
    done = run(sys.executable, "-c", BEGINS.format(given))
    assert words in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


class Asked(Exception):  # noqa: N818 - it is no error
    """Raised where a Java would be started."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return the settings with which a process without a Java would begin a session.

    This process may have one already, with the session of all tests.
    """
    found: list[dict[str, str]] = []

    def launch(conf: SparkConf, _popen: object) -> NoReturn:
        found.append(dict(conf.getAll()))
        raise Asked

    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    for name in ("_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(java, "find_home", lambda: Path("/java"))
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)

    def begin(*given: str, **others: Any) -> dict[str, str]:
        with pytest.raises(Asked), session(*given, **others):
            pass
        assert (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"]) == ("/java", sys.executable)
        return found.pop()

    return begin


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_master_on_this_machine_gets_an_address_memory_and_java_options(
    asked: Callable[..., dict[str, str]], tmp_path: Path, master: str
) -> None:
    settings = {"spark.driver.extraJavaOptions": "-Dx=1", "spark.sql.shuffle.partitions": "7"}
    conf = asked(master, settings=settings, folder=tmp_path)
    assert conf["spark.local.dir"] == str(tmp_path)
    assert f'"-Djava.io.tmpdir={tmp_path}"' in conf["spark.driver.extraJavaOptions"]
    assert conf.items() >= (SESSION_SETTINGS | CONTEXT_SETTINGS | LOCAL_SETTINGS).items()
    assert (conf["spark.master"], conf["spark.driver.memory"]) == (master, LOCAL_JAVA_MEMORY)
    assert conf["spark.sql.shuffle.partitions"] == "7", "what is given comes first"
    assert conf["spark.driver.extraJavaOptions"].split()[-2:][0] == "-Dx=1"
    assert COMPILER_OPTIONS in conf["spark.driver.extraJavaOptions"]
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize("small_jobs", [True, False])
def test_a_java_of_small_jobs_has_one_compiler_and_collects_garbage_in_one_thread(
    asked: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, small_jobs: bool
) -> None:
    for variable in JAVA_OPTIONS_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    options = asked("local[2]", small_jobs=small_jobs)["spark.driver.extraJavaOptions"]
    assert (SMALL_JOBS_COLLECTOR_OPTION in options) is small_jobs
    assert (COLLECTOR_OPTION in options) is not small_jobs
    assert (SMALL_JOBS_COMPILER_OPTIONS in options) is small_jobs
    assert (COMPILER_OPTIONS in options) is not small_jobs


def test_java_lists_its_classes_if_asked_and_starts_from_an_archive_of_them(
    asked: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def options(**others: Any) -> str:
        return asked("local[2]", folder=tmp_path, **others)["spark.driver.extraJavaOptions"]

    assert f'"-XX:DumpLoadedClassList={tmp_path / "classes"}"' in options(list_classes=True)
    assert "Class" not in options()
    archive = class_archive.ours()
    archive.parent.mkdir(parents=True)
    archive.touch()
    for list_classes in (True, False):
        assert f'"-XX:SharedArchiveFile={archive}"' in options(list_classes=list_classes)
    assert "Archive" not in asked("yarn", folder=tmp_path, list_classes=True)["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("master", ["spark://{}", "spark://127.0.0.1:1,{}", "k8s://https://somewhere", "yarn"])
def test_a_remote_master_keeps_the_operator_s_settings(asked: Callable[..., dict[str, str]], master: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        named = master.format(f"127.0.0.1:{there.getsockname()[1]}")
        conf = asked(named)
    assert conf["spark.master"] == named
    assert conf.items() >= (SESSION_SETTINGS | CONTEXT_SETTINGS).items()
    assert not conf.keys() & (LOCAL_SETTINGS | {"spark.driver.memory": "", "spark.sql.shuffle.partitions": ""}).keys()
    assert COMPILER_OPTIONS not in conf["spark.driver.extraJavaOptions"]


class Connected:
    """Stands for a session of a Spark Connect server."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.conf = self
        self.settings: dict[str, str] = {}
        self.stopped = 0

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a server that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        yield f"sc://127.0.0.1:{there.getsockname()[1]}"


@pytest.mark.parametrize("version", ["4.1.0", "5.0.0-SNAPSHOT"])
def test_a_connect_server_gives_a_session_with_our_settings(
    monkeypatch: pytest.MonkeyPatch, address: str, version: str
) -> None:
    given = Connected(version)
    addresses = []

    def create(builder: Any) -> Connected:
        addresses.append(builder._options["spark.remote"])
        return given

    monkeypatch.setattr(SparkSession.Builder, "create", create)
    with session(remote=address) as spark:
        assert cast(object, spark) is given
        assert (given.settings, given.stopped) == (SESSION_SETTINGS | CONNECT_SETTINGS, 0)
        assert not local(spark)
        assert watch_tasks(spark, "anything")() is None
        disconnect(spark)
    assert addresses == [address]
    assert given.stopped == 1


def test_a_connect_server_that_opens_no_session_is_reported(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    def create(_builder: object) -> NoReturn:
        raise PySparkException("java.lang.Error: it is full\nand more")

    monkeypatch.setattr(SparkSession.Builder, "create", create)
    message = f"server at {address} opened no session: it is full$"
    with pytest.raises(SparkError, match=message), session(remote=address):
        pass


@pytest.mark.parametrize("version", ["4.0.4", "3.5.6"])
def test_a_connect_server_whose_spark_is_too_old_is_reported(
    monkeypatch: pytest.MonkeyPatch, address: str, version: str
) -> None:
    given = Connected(version)
    monkeypatch.setattr(SparkSession.Builder, "create", lambda _builder: given)
    message = f"server at {address} runs Spark {re.escape(version)}: it must run 4.1 or newer$"
    with pytest.raises(SparkError, match=message), session(remote=address):
        pass
    assert given.stopped == 1


def test_the_port_of_a_server_that_names_none_is_spark_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(spark_module, "_answers", lambda host, port: found.append((host, port)))
    cases: tuple[dict[str, Any], ...] = ({"remote": "sc://there"}, {"master": "spark://there"})
    for given in cases:
        with pytest.raises(SparkError), session(**given):
            pass
    assert found == [("there", 15002), ("there", 7077)]


@pytest.mark.parametrize(
    ("master", "here"),
    [("local", True), ("local[*]", True), ("local[2]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_only_a_local_master_s_workers_are_this_process_s_children(master: str, here: bool) -> None:
    assert local(cast(SparkSession, SimpleNamespace(_sc=SimpleNamespace(master=master)))) is here


def test_garbage_collection_uses_all_cores_unless_the_environment_or_a_setting_says_otherwise() -> None:
    assert COLLECTOR_OPTION in java_options(
        "-Xss4m", {"JAVA_TOOL_OPTIONS": "-XX:+UseStringDeduplication", "PATH": SERIAL}
    )
    assert COLLECTOR_OPTION not in java_options(SERIAL, {})
    for variable in JAVA_OPTIONS_VARIABLES:
        assert COLLECTOR_OPTION not in java_options("", {variable: f"-Dx=1 {SERIAL}"})


def test_running_tasks_are_counted_per_thread(spark: SparkSession, tmp_path: Path) -> None:
    counts: list[Callable[[], tuple[int, int] | None]] = []

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not (tmp_path / "go on").exists():
            time.sleep(0.01)
        yield from batches

    def work() -> None:
        counts.append(watch_tasks(spark, "work"))
        spark.range(0, 4, 1, 4).mapInArrow(wait, "id BIGINT").collect()

    idle = watch_tasks(spark, "idle")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        while not counts or counts[0]() != (0, 4):
            assert not job.done()
        assert idle() == (0, 0)
        (tmp_path / "go on").touch()
        job.result()
    assert counts[0]() == (0, 0)
    spark.sparkContext.setJobGroup("", "")


def test_a_thread_that_ends_can_close_its_connection_to_java(spark: SparkSession) -> None:
    client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]

    def work() -> list[socket.socket]:
        sockets = []
        for _ in range(2):
            assert spark.range(3).count() == 3
            connection = client.get_thread_connection()
            sockets.append(connection.socket)
            disconnect(spark)
            assert connection not in client.deque
        disconnect(spark)  # there is none
        return sockets

    with ThreadPoolExecutor(1) as pool:
        sockets = pool.submit(work).result()
    assert sockets[0] is not sockets[1]
    assert [each.fileno() for each in sockets] == [-1, -1]
    assert spark.range(3).count() == 3


def test_a_failed_query_is_reported_by_its_error_alone(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException):
        spark.range(3).select("nothing").collect()
    with pytest.raises(AnalysisException):
        spark.sql("SELECT 1 / nothing").collect()
    assert capfd.readouterr() == ("", "")
