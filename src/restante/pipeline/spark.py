"""The Spark session: everything that knows how one is begun, watched and ended.

Local by default (`local[*]`: all in this process and its Java), a master's, or a Spark Connect server's. Nothing
outside this module touches a SparkContext, since Connect has none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from restante.errors import Misuse, RestanteError
from restante.pipeline import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what Delta tables hold
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
}
"""Of every session, wherever it runs: what the tables' rows and files depend on."""

CONTEXT: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Of a session that we begin with a master."""

MEMORY: Final = "1g"
"""Of a local session's Java; the largest job of bench/pipeline.py is done in it."""


class SparkError(RestanteError):
    """Spark could not be started, or a job failed on it."""


@contextmanager
def session(
    master: str = LOCAL, remote: str | None = None, *, settings: dict[str, str] | None = None, verbose: bool = False
) -> Iterator[SparkSession]:
    """Begin a session, and end it.

    `remote` is the address of a Spark Connect server (sc://HOST:PORT); else one is begun with the master. Raises
    Misuse where there is no Java, SparkError where it does not start.
    """
    spark = _connected(remote) if remote else _begun(master, settings or {}, verbose=verbose)
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        spark.stop()


def _connected(remote: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_REMOTE", remote)
    try:
        return SparkSession.builder.remote(remote).getOrCreate()
    except PySparkException as error:
        raise SparkError(f"no Spark Connect server answers at {remote} (--remote)") from error


def _begun(master: str, settings: dict[str, str], *, verbose: bool) -> SparkSession:
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Misuse("Spark is not installed: install restante[pipeline], or start with ./run pipeline") from error

    os.environ["JAVA_HOME"] = str(jvm.home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    chosen: dict[str, str] = {**CONTEXT, "spark.master": master, "spark.app.name": "restante"}
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        cores = os.cpu_count() or 1
        chosen |= {"spark.driver.memory": MEMORY, "spark.sql.shuffle.partitions": str(max(4, min(2 * cores, 64)))}
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen |= SETTINGS | settings
    if not verbose:
        quiet = Path(__file__).with_name("log4j2.properties")
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
    conf = SparkConf(loadDefaults=False)
    for name, value in chosen.items():
        conf.set(name, value)
    with tempfile.TemporaryFile() as noise:  # Java's own warnings: shown where it does not start
        popen: dict[str, Any] = {} if verbose else {"stderr": noise, "stdout": noise}
        try:
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
            context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkException, OSError) as error:
            noise.seek(0)
            said = noise.read().decode(errors="replace").strip().splitlines()
            why = said[-1] if said else str(error)
            raise SparkError(
                f"Spark did not start with master {master}: {why} (-v shows all that it says)"
            ) from error
    return SparkSession(context)
