"""Spark's errors in one sentence each."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from restante.common.errors import RestanteError

JAVA_ENDED: Final = (
    "Spark's Java has ended: the machine may have too little memory for it (--memory); run this again to do the rest"
)

MEMORY_ENDED: Final = (
    "Spark has too little memory: give it more (--memory; on a cluster spark.executor.memory as well)"
)

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""How a Python exception begins in a traceback. Its text may span several lines."""

NO_CONNECTOR: Final = "Spark has no connector for the URL of the lake or of the extracts"

_CONNECTOR: Final = re.compile(r'Class org\.apache\.hadoop\.fs\.\S+ not found|No FileSystem for scheme "\w+"')
"""What Hadoop says of a URL whose file system no jar has."""

_CONNECTORS: Final = (("s3", "hadoop-aws"), ("Azure", "hadoop-azure"), ("abfs", "hadoop-azure"), ("gs", "hadoop-gcp"))
"""A part of that → Hadoop's package that has it."""

JAVA_END_SECONDS: Final = 1.0
"""Seconds within which a process ends after its connections did."""


class SparkError(RestanteError):
    """Spark could not be started, or a job failed on it."""


def start_failure(text: str) -> str:
    """Return the most useful line of the output of a Java that did not start.

    It is the text of its first exception or error, with that of its cause; else the first line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Picked up ")]
    errors = [line for line in lines if re.search(r"(Exception|Error)\b.*: |^Invalid |^Unrecognized ", line)]
    texts = [re.sub(r"^.*?(Exception|Error)[^:]*: ", "", line) for line in [*errors, *lines, "Spark gives no reason"]]
    has_cause = len(errors) > 1 and errors[1].startswith("Caused by: ") and texts[1] not in texts[0]
    return f"{texts[0]} ({texts[1]})" if has_cause else texts[0]


def job_failure(message: str) -> str:
    """Return the cause from the message of a job that failed, which may have stack traces of Java and Python."""
    lines = [line for line in message.splitlines() if line.strip() and not line[0].isspace()]
    if match := _CONNECTOR.search(message):
        return f"{NO_CONNECTOR} ({match[0]}): {_connector_advice(match[0])}"
    if "java.lang.OutOfMemoryError" in message:
        return MEMORY_ENDED
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1]
    if "Traceback (most recent call last):" in lines:
        return next((line for line in reversed(lines) if _RAISED.match(line)), lines[-1])
    texts = (line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling"))
    return next(texts, "Spark gives no reason")


def _connector_advice(missing: str) -> str:
    """Return how to get a connector that is missing, of the version of the installed Spark's Hadoop."""
    from pyspark.find_spark_home import _find_spark_home

    jars = [jar.stem.rpartition("-")[2] for jar in Path(_find_spark_home()).glob("jars/hadoop-client-api-*.jar")]
    names = [f"org.apache.hadoop:{package}:{'/'.join(jars)}" for part, package in _CONNECTORS if part in missing]
    package = names[0] if names else "with its package"
    return f"add --packages {package}, or give the cluster or the Connect server its jar"


def java_has_ended(error: BaseException) -> bool:
    """Return whether this process's Java has ended, and caused the error so."""
    if "py4j" not in sys.modules:  # none was started
        return False
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or not any(
        isinstance(link, (Py4JError, ConnectionError)) and not isinstance(link, Py4JJavaError)
        for link in error_chain(error)
    ):
        return False
    try:
        process.wait(JAVA_END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those while whose handling it was raised. These may refer to one another in a circle."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise SparkError for an error of Spark, or of the connection to its Java, that no other code has translated."""
    try:
        yield
    except Exception as error:
        if java_has_ended(error):
            raise SparkError(JAVA_ENDED) from error
        if _is_of_spark(error):
            raise SparkError(f"a job failed: {job_failure(str(error))}") from error
        raise


def _is_of_spark(error: BaseException) -> bool:
    if "pyspark" not in sys.modules:
        return False
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, (Py4JError, PySparkException))
