"""The session of Spark: what is asked for, and what is said where it cannot be had or fails."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NoReturn, cast
from unittest.mock import Mock, call, patch

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from restante.common.errors import Misuse, RestanteError, StoreError
from restante.pipeline.spark import errors, java
from restante.pipeline.spark import java as java_opts
from restante.pipeline.spark import session as spark_module
from restante.pipeline.spark.errors import SparkError
from restante.pipeline.spark.java import COLLECTOR_OPTION, COMPILER_OPTIONS, JAVA_OPTIONS_VARIABLES, java_options
from restante.pipeline.spark.session import CONTEXT_SETTINGS, LOCAL_SETTINGS, SESSION_SETTINGS, is_local, session
from support.bounds import PATIENCE
from support.pipeline.runs import LakeWorld
from support.pipeline.sessions import INTERPRETED, environment
from support.processes import RESTANTE, process_group, run


@pytest.mark.parametrize(
    ("options", "addresses", "sentence"),
    [
        ({"remote": "http://there"}, [], "--remote: 'http://there' is not a URL like sc://HOST:PORT"),
        ({"remote": "sc://there"}, [("there", 15002)], "no Spark Connect server answers at sc://there (--remote)"),
        ({"master": "spark://a,b:1"}, [("a", 7077), ("b", 1)], "no Spark master answers at spark://a,b:1 (--master)"),
    ],
    ids=["no Spark URL", "Connect", "masters"],
)
def test_an_unreachable_spark_is_reported_at_once(
    options: dict[str, Any], addresses: list[tuple[str, int]], sentence: str
) -> None:
    refused = patch("socket.create_connection", side_effect=ConnectionRefusedError)
    with refused as connect, pytest.raises(RestanteError) as refusal, session(**options):
        pass
    assert str(refusal.value) == sentence
    assert [attempt.args[0] for attempt in connect.call_args_list] == addresses


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
    ("options", "sentence"),
    [
        ({"settings": {"spark.driver.memory": "12x"}}, "Invalid maximum heap size: -Xmx12x"),
        ({"master": "nonsense"}, "Master must either be yarn or start with spark, k8s, or local"),
    ],
)
def test_an_error_of_java_is_reported_in_one_line(options: dict[str, Any], sentence: str) -> None:
    done = run(sys.executable, "-c", BEGINS.format(options))
    assert sentence in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


class Asked(Exception):  # noqa: N818 - it is no error
    """Raised where a Java would be started."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    confs: list[SparkConf] = []

    def launch(conf: SparkConf, _popen: object) -> NoReturn:
        confs.append(conf)
        raise Asked

    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", *JAVA_OPTIONS_VARIABLES):
        monkeypatch.setenv(name, "" if name in JAVA_OPTIONS_VARIABLES else os.environ.get(name, ""))
    for name in ("_gateway", "_jvm"):  # PySpark has no public way to begin anew
        monkeypatch.setattr(SparkContext, name, None)
    home = tmp_path / "java"
    monkeypatch.setattr(java, "find_home", lambda: home)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)

    def begin(master: str, **others: Any) -> dict[str, str]:
        with pytest.raises(Asked), session(master, **others):
            pass
        assert (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"]) == (str(home), sys.executable)
        return dict(confs.pop().getAll())

    return begin


@pytest.mark.parametrize(("master", "small"), [("local[2]", True), ("local-cluster[2,1,1024]", False)])
def test_a_master_on_this_machine_gets_an_address_memory_and_java_options(
    asked: Callable[..., dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, small: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = {"spark.driver.extraJavaOptions": "-Dx=1", "spark.sql.shuffle.partitions": "7"}
    conf = asked(master, settings=settings, folder=tmp_path, small_jobs=small, archive_classes=small)
    assert conf["spark.local.dir"] == str(tmp_path)
    assert conf.items() >= (SESSION_SETTINGS | CONTEXT_SETTINGS | LOCAL_SETTINGS).items()
    assert (conf["spark.master"], conf["spark.driver.memory"]) == (master, spark_module.LOCAL_JAVA_MEMORY)
    assert conf["spark.sql.shuffle.partitions"] == "7", "what is given comes first"
    options = conf["spark.driver.extraJavaOptions"]
    assert f'"-Djava.io.tmpdir={tmp_path}"' in options
    assert options.split()[-2] == "-Dx=1"
    of_small = (
        java_opts.SMALL_JOBS_COLLECTOR_OPTION,
        java_opts.SMALL_JOBS_COMPILER_OPTIONS,
        f'"-XX:ArchiveClassesAtExit={java.our_archive()}"',
    )
    assert [option in options for option in of_small] == [small] * 3
    assert [option in options for option in (COLLECTOR_OPTION, COMPILER_OPTIONS)] == [not small] * 2
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    masters = ("local", "local[*]", "local[2]", "local-cluster[2,1,1024]", "yarn")
    assert [name for name in masters if spark_module.is_local_master(name)] == [*masters[:3]], "its workers are ours"


@pytest.mark.parametrize("master", ["spark://{}", "spark://127.0.0.1:1,{}", "k8s://https://somewhere", "yarn"])
def test_a_remote_master_keeps_settings(asked: Callable[..., dict[str, str]], tmp_path: Path, master: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = master.format(f"127.0.0.1:{server.getsockname()[1]}")
        conf = asked(url, folder=tmp_path, archive_classes=True)
    assert conf["spark.master"] == url
    assert conf.items() >= (SESSION_SETTINGS | CONTEXT_SETTINGS).items()
    assert not conf.keys() & (LOCAL_SETTINGS | {"spark.driver.memory": "", "spark.sql.shuffle.partitions": ""}).keys()
    for option in (COMPILER_OPTIONS, "Class"):
        assert option not in conf["spark.driver.extraJavaOptions"]


@pytest.fixture
def address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"sc://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("version", "refused"), [("4.1.0", False), ("5.0.0-SNAPSHOT", False), ("4.0.4", True), ("3.5.6", True)]
)
def test_a_connect_server_gives_our_session_unless_it_is_too_old(address: str, version: str, refused: bool) -> None:
    client = Mock(spec=["version", "conf", "stop"], version=version)
    chosen = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "32"}
    settings = SESSION_SETTINGS | spark_module.CONNECT_SETTINGS | chosen
    too_old = f"server at {address} runs Spark {re.escape(version)}: it must run 4.1 or newer$"
    with patch.object(SparkSession.Builder, "create", autospec=True, return_value=client) as create:
        expected = pytest.raises(SparkError, match=too_old) if refused else nullcontext()
        with expected, session(remote=address, settings=chosen | {"spark.driver.memory": "1g"}) as spark:
            assert cast(object, spark) is client
            assert client.conf.set.call_args_list == [call(*setting) for setting in settings.items()]
            client.stop.assert_not_called()
            assert not is_local(spark)
            spark_module.name_jobs(spark, "anything")  # it has none
    [builder] = create.call_args.args
    assert builder._options["spark.remote"] == address  # PySpark has no public way to read them
    client.stop.assert_called_once_with()


def test_a_connect_server_that_opens_no_session_is_reported(address: str) -> None:
    error = PySparkException("java.lang.Error: it is full\nand more")
    message = f"server at {address} opened no session: it is full$"
    full = patch.object(SparkSession.Builder, "create", side_effect=error)
    with full, pytest.raises(SparkError, match=message), session(remote=address):
        pass


def test_garbage_collection_uses_all_cores_unless_the_environment_or_a_setting_says_otherwise() -> None:
    serial = "-XX:+UseSerialGC"
    others = {"JAVA_TOOL_OPTIONS": "-XX:+UseStringDeduplication", "PATH": serial}
    assert COLLECTOR_OPTION in java_options("-Xss4m", others)
    assert COLLECTOR_OPTION not in java_options(serial, {})
    for variable in JAVA_OPTIONS_VARIABLES:
        assert COLLECTOR_OPTION not in java_options("", {variable: f"-Dx=1 {serial}"})


def test_jobs_have_the_name_of_their_step(spark: SparkSession) -> None:
    spark_module.name_jobs(spark, "work")
    spark.range(3).collect()
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("work")
    spark.sparkContext.setJobGroup("", "")


def test_a_failed_query_is_only_an_error(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AnalysisException):
        spark.range(3).select("nothing").collect()
    with pytest.raises(AnalysisException):
        spark.sql("SELECT 1 / nothing").collect()
    assert capfd.readouterr() == ("", "")


@pytest.mark.thorough
def test_a_run_whose_java_is_killed_says_so_in_one_sentence(tmp_path: Path) -> None:
    """As the kernel does if memory runs out."""
    lake = LakeWorld(None, tmp_path)
    lake.write("nameplates", *[{}] * 100)
    line = [*RESTANTE, "pipeline", "build", "--lake", str(lake.path)]
    with process_group(line, env=environment(INTERPRETED), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        ready = running.stderr.readline()
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        [java] = [child for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"]
        os.kill(int(java), signal.SIGKILL)
        _, output = running.communicate(timeout=PATIENCE)
    assert re.fullmatch(r"build: Spark: ready, [\d.]+ s\n", ready)
    assert running.returncode == 1
    assert output.splitlines()[-1].startswith(f"restante: {errors.JAVA_ENDED}")
    assert "Traceback" not in output
    assert "ERROR" not in output


SUSPENDED: Final = """
import os, signal, time
from restante.pipeline.spark.session import session
settings = {
    "spark.executor.heartbeatInterval": "999ms",
    "spark.network.timeout": "1s",
    "spark.network.timeoutInterval": "1ms",
    "spark.rpc.askTimeout": "600s",
}
with session("local[1]", settings=settings, verbose=True) as spark:
    java = spark.sparkContext._gateway.proc.pid
    os.kill(java, signal.SIGSTOP)
    time.sleep(2)
    os.kill(java, signal.SIGCONT)
    print(spark.range(3).count())
"""


@pytest.mark.thorough
def test_a_session_goes_on_after_the_machine_was_suspended() -> None:
    """Spark removes an executor that was silent, and Java exits after 60 more heartbeats of it."""
    done = run(sys.executable, "-c", SUSPENDED, bound=PATIENCE)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert "no recent heartbeats" not in done.stderr


@pytest.mark.parametrize(
    ("error", "raised", "sentence"),
    [
        (PySparkException("the table is gone\n  at Table.scala"), SparkError, "^a job failed: the table is gone$"),
        (Misuse("not Spark's"), Misuse, "^not Spark's$"),
    ],
    ids=["Spark's", "other"],
)
def test_an_untranslated_error_is_one_sentence(error: Exception, raised: type[Exception], sentence: str) -> None:
    with pytest.raises(raised, match=sentence), errors.translated_errors():
        raise error


@pytest.mark.parametrize("java_ended", [True, False])
def test_a_lost_connection_means_that_java_ended_if_it_did(monkeypatch: pytest.MonkeyPatch, java_ended: bool) -> None:
    wait = Mock(side_effect=None if java_ended else subprocess.TimeoutExpired("java", 1))
    monkeypatch.setattr("pyspark.SparkContext._gateway", Mock(proc=Mock(wait=wait)))
    lost = Py4JNetworkError("Answer from Java side is empty")
    during = ConnectionRefusedError()
    during.__context__ = lost
    assert errors.java_has_ended(lost) is java_ended
    assert errors.java_has_ended(during) is java_ended
    assert not errors.java_has_ended(StoreError("the disk is full"))
    first, second = StoreError("the disk is full"), OSError("no space")
    first.__cause__, second.__context__ = second, first
    assert not errors.java_has_ended(first), "errors may refer to one another in a circle"
    assert not errors.java_has_ended(Py4JJavaError.__new__(Py4JJavaError)), "Java has said what failed"
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    assert not errors.java_has_ended(ConnectionResetError()), "this process has none"


def test_too_little_memory_and_a_cause_are_told() -> None:
    """Spark 4.3.0 said the second with a Kubernetes master that nobody serves."""
    assert errors.job_failure("Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n") == (
        "Spark has too little memory: give it more (--memory; on a cluster spark.executor.memory as well)"
    )
    output = (
        "io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.\n"
        "\tat io.fabric8.kubernetes.client.dsl.internal.OperationSupport.waitForResult(OperationSupport.java:504)\n"
        "Caused by: java.io.IOException: Connection refused: /127.0.0.1:1\n"
        "Caused by: java.net.ConnectException: Connection refused\n"
    )
    assert errors.start_failure(output) == "An error has occurred. (Connection refused: /127.0.0.1:1)"


@pytest.mark.parametrize(
    ("missing", "package"),
    [
        ("Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "hadoop-aws"),
        ("Class org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem not found", "hadoop-azure"),
        ('No FileSystem for scheme "gs"', "hadoop-gcp"),
    ],
)
def test_a_missing_connector_is_named_with_its_package(missing: str, package: str) -> None:
    failure = errors.job_failure(f"Job aborted\nCaused by: java.lang.ClassNotFoundException: {missing}\n\tat a.b")
    sentence = rf"Spark has no connector .* \({missing}\): add --packages org.apache.hadoop:{package}:3\.\d+\.\d+, or"
    assert re.match(sentence, failure), failure
