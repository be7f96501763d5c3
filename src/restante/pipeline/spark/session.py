"""Starts and ends Spark sessions.

A session is local by default (`local[*]`: everything in this process and its Java), on a master, or on a Spark
Connect server. No code outside this module uses a SparkContext, because Connect has none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from restante.common.errors import Misuse
from restante.pipeline.spark import errors, java
from restante.pipeline.spark.errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"

SESSION_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the type of Delta tables
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    # Small pieces are merged up to 64 MiB, not only until there is one for each core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # This rule loses the observations (DataFrame.observe) of rows if a filter removes all of them.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
    # We name the files of a table. With more than 32 Spark would list them in a job of one task per file (4.3.0:
    # HadoopFSUtils.parallelListLeafFiles), which takes longer than to list them in this process.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": str((1 << 31) - 1),
}
"""Settings of every session, on any machine: the tables' rows and files depend on them."""

CONNECT_SETTINGS: Final = {
    # As a number: PySpark since 4.2 cannot read the default of a server of 4.1, which is "3221225472b".
    "spark.sql.session.localRelationSizeLimit": str(3 << 30),
}
"""Settings of a session of a Spark Connect server, which may run another version of Spark."""

CONTEXT_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # The queries of usage's tables alone are 164 classes, which later days reuse; by default Spark keeps a hundred.
    "spark.sql.codegen.cache.maxEntries": "2000",
}
"""Settings of a session that we start with a master."""

HEARTBEAT_TIMEOUT: Final = "spark.storage.blockManagerHeartbeatTimeoutMs"

LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # After two minutes without a heartbeat, as on a suspended machine, Spark removes the executor, which is Java
    # itself. It cannot register again, and after 60 failed heartbeats Java exits (4.3.0: BlockManagerMasterEndpoint
    # .register asks a scheduler that a local master does not have).
    HEARTBEAT_TIMEOUT: "3650d",
}
"""Settings of a session whose master is this machine."""

_OPERATOR_ADDRESS: Final = os.environ.get("SPARK_LOCAL_IP")
"""The operator's address for sessions on other machines. A local session has its own."""

LOCAL_JAVA_MEMORY: Final = "1g"
"""Heap size of a local session's Java, enough for the largest job of bench/pipeline.py."""

PARTITIONS_PER_CORE: Final = 16
"""Partitions of a shuffle per core; Spark merges small ones (adaptive execution). With fewer, a sort spills to disk:
five million envelopes in four partitions do not fit into a gigabyte of Java."""

CONNECT_PORT: Final = 15002
"""The port of Spark Connect if the address names none (its documentation, "Connection string")."""

MASTER_PORT: Final = 7077
"""The port of a standalone cluster's master if the address names none (its documentation, "Spark Standalone
Mode")."""

MIN_CONNECT_VERSION: Final = 4, 1
"""The oldest version of Spark that a Connect server may run. One of 4.0 lacks settings that PySpark asks for, and
returns no counts of the rows that `ingest` reads (DataFrame.observe)."""

CONNECT_TIMEOUT: Final = 10.0
"""Seconds within which a Spark server must accept a connection."""

NOISY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's loggers that write each failed query to standard error as JSON (pyspark.errors.exceptions.base)."""

JAVA_OPTIONS_SETTING: Final = "spark.driver.extraJavaOptions"

SMALL_JOBS_SETTING: Final = "spark.restante.smallJobs"
"""Our own setting: whether a Java was started for small jobs."""


@contextmanager
def session(
    master: str = LOCAL_MASTER,
    remote: str | None = None,
    *,
    settings: dict[str, str] | None = None,
    folder: Path | None = None,
    verbose: bool = False,
    small_jobs: bool = False,
    archive_classes: bool = False,
) -> Iterator[SparkSession]:
    """Start a session, and end it afterwards.

    `remote` is the address of a Spark Connect server (sc://HOST:PORT); without it, a session is started with the
    master. Temporary files of PySpark, and of a local master's Java, are in `folder`, so that the caller can remove
    what a killed process left. `small_jobs` starts a local master's Java with the first compiler only. Large jobs
    then run, but slower. `archive_classes`: this Java makes an archive of its classes when it ends, unless there is
    one. Raises Misuse if there is no Java, SparkError if the session does not start.
    """
    chosen = settings or {}
    if remote:
        spark = _connect(remote)
    else:
        _check_master(master)
        _set_environment(master)
        spark = _start(
            _start_settings(
                master, chosen, folder, verbose=verbose, small_jobs=small_jobs, archive_classes=archive_classes
            ),
            folder,
            verbose=verbose,
        )
    try:
        if remote:
            _check_version(spark, remote)
        if not verbose:
            _silence()
        of_session = {name: value for name, value in chosen.items() if name.startswith("spark.sql.")}
        for name, value in (SESSION_SETTINGS | (CONNECT_SETTINGS if remote else {}) | of_session).items():
            spark.conf.set(name, value)
        yield spark
    finally:
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError, OSError):  # its Java has ended, and another error has the reason
            spark.stop()
        if remote:  # or PySpark's functions would still be those of Connect (4.3.0: pyspark/sql/utils.py:270)
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def _silence() -> None:
    """Keep libraries from writing to standard error about errors that are raised as well."""
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger

    for name in NOISY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    root = logging.getLogger()
    if not root.handlers:  # else Py4J's call of logging.exception adds one (0.10.9.9: java_gateway.py:1059)
        root.addHandler(logging.NullHandler())
    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:  # its connection to a Java that has ended is lost, too (4.3.0: accumulators.py)
        server.handle_error = lambda *_: None


def _connect(remote: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    url = urlsplit(remote)
    if url.scheme != "sc" or not url.hostname:
        raise Misuse(f"--remote: '{remote}' is not a URL like sc://HOST:PORT")
    if not _is_listening(url.hostname, url.port or CONNECT_PORT):
        raise SparkError(f"no Spark Connect server answers at {remote} (--remote)")
    try:
        return SparkSession.builder.remote(remote).create()
    except PySparkException as error:
        raise SparkError(
            f"the Spark Connect server at {remote} opened no session: {errors.start_failure(str(error))}"
        ) from error


def _check_version(spark: SparkSession, remote: str) -> None:
    """Raise SparkError if a Connect server runs a version of Spark that is too old."""
    version = spark.version
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < MIN_CONNECT_VERSION:
        oldest = ".".join(map(str, MIN_CONNECT_VERSION))
        raise SparkError(f"the Spark Connect server at {remote} runs Spark {version}: it must run {oldest} or newer")


def _start_settings(
    master: str,
    chosen: Mapping[str, str],
    folder: Path | None,
    *,
    verbose: bool,
    small_jobs: bool,
    archive_classes: bool,
) -> dict[str, str]:
    """Return all settings of a session with a master, among them the `chosen` ones."""
    settings = {**CONTEXT_SETTINGS, "spark.master": master, "spark.app.name": "restante"}
    options = [chosen.get(JAVA_OPTIONS_SETTING, "")]
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS | {
            SMALL_JOBS_SETTING: str(small_jobs).lower(),
            "spark.driver.memory": LOCAL_JAVA_MEMORY,
            "spark.sql.shuffle.partitions": str(min(PARTITIONS_PER_CORE * (os.cpu_count() or 1), 512)),
        }
        ours = [java.java_options(options[0], os.environ, small_jobs=small_jobs)]
        if archive := java.our_archive():
            ours.append(java.archive_option(archive, java.find_home(), make=archive_classes))
        if folder is not None:
            settings["spark.local.dir"] = str(folder)
            ours.append(f'"-Djava.io.tmpdir={folder}"')
        options = [*ours, *options]
    if not verbose:
        quiet = Path(__file__).with_name("log4j2.properties")
        options.append(f"-Dlog4j2.configurationFile={quiet.as_uri()}")
    settings |= {**SESSION_SETTINGS, **chosen}
    if joined := " ".join(option for option in options if option):
        settings[JAVA_OPTIONS_SETTING] = joined
    return settings


def _start(settings: Mapping[str, str], folder: Path | None, *, verbose: bool) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _end_other_java(settings)  # before a SparkConf, which is in this process's Java
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    master = settings["spark.master"]
    with _temporary_files_in(folder), tempfile.TemporaryFile() as java_output:  # it is shown if Java does not start
        popen: dict[str, Any] = {} if verbose else {"stderr": java_output, "stdout": java_output}
        try:
            # A process has one Java, which its later sessions use, too (4.3.0: SparkContext._ensure_initialized).
            gateway = SparkContext._gateway or launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError, OSError) as error:
            java_output.seek(0)
            output = str(error) if isinstance(error, Py4JError) else java_output.read().decode(errors="replace")
            reason = _start_failure(master, output or str(error))
            raise SparkError(f"Spark did not start with master {master}: {reason} (-v shows Spark's log)") from error


def _check_master(master: str) -> None:
    """Raise SparkError if no standalone cluster's master answers."""
    if master.startswith("spark://"):
        urls = (urlsplit(f"spark://{address}") for address in master.removeprefix("spark://").split(","))
        if not any(_is_listening(url.hostname or "", url.port or MASTER_PORT) for url in urls):
            raise SparkError(f"no Spark master answers at {master} (--master)")


def _set_environment(master: str) -> None:
    """Set the variables that Spark reads when a session with this master starts."""
    os.environ["JAVA_HOME"] = str(java.find_home())
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"] = sys.executable
    address = "127.0.0.1" if master.startswith("local") else _OPERATOR_ADDRESS
    if address:
        os.environ["SPARK_LOCAL_IP"] = address
    else:
        os.environ.pop("SPARK_LOCAL_IP", None)


def _end_other_java(settings: Mapping[str, str]) -> None:
    """End this process's Java if it was started for another master or other jobs, and has no session.

    It keeps the settings and the environment that it was started with. The address of a local session's Java, for
    example, is one that other machines cannot reach.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None or SparkContext._active_spark_context is not None:
        return
    property_ = gateway.jvm.System.getProperty
    if any(property_(name) != settings.get(name) for name in ("spark.master", SMALL_JOBS_SETTING)):
        end_java()


def archive_to_make() -> Path | None:
    """Return the path of the archive that this process's Java makes when it ends; None if it makes none."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    try:
        gateway = SparkContext._gateway
        path = gateway.jvm.System.getProperty(java.ARCHIVE_PROPERTY) if gateway else None
    except (Py4JError, OSError):  # it has ended
        return None
    return Path(path) if path else None


def end_java() -> None:
    """End this process's Java, and wait until it has ended, and made an archive of its classes. It has no session."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Py4JError, OSError):  # it has ended
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends it (4.3.0: java_gateway.py:90)
    gateway.proc.wait()


@contextmanager
def _temporary_files_in(folder: Path | None) -> Iterator[None]:
    """Make Python create temporary files in a folder. PySpark has no parameter for it (4.3.0: java_gateway.py:79)."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder) if folder is not None else before
    try:
        yield
    finally:
        tempfile.tempdir = before


def _is_listening(host: str, port: int) -> bool:
    """Return within seconds whether a server listens at an address.

    Spark itself tries for a minute, and its client for ten.
    """
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _start_failure(master: str, message: str) -> str:
    """Return why a session did not start. A master of another version of Spark does not answer for a minute."""
    if master.startswith("spark://") and "stopped SparkContext" in message:
        from pyspark import __version__ as version

        return f"it does not accept this program: it must run Spark {version}, as this machine does"
    return errors.start_failure(message)


def is_local(spark: SparkSession) -> bool:
    """Return whether the session's workers are child processes of this one, with our modules."""
    context = getattr(spark, "_sc", None)  # None on Connect
    return context is not None and is_local_master(context.master)


def is_local_master(master: str) -> bool:
    """Return whether a master runs everything in one Java. local-cluster, for example, starts executors."""
    return bool(re.fullmatch(r"local(\[.*\])?", master))


def name_jobs(spark: SparkSession, name: str) -> None:
    """Name the jobs that this thread starts from now on, as Spark's pages and logs of events show them."""
    context = getattr(spark, "_sc", None)  # None on Connect
    if context is not None:
        context.setJobGroup(name, name)
