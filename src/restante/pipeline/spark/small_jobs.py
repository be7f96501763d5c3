"""Small jobs: their rows are read and written by this process, and Spark runs each as one task, without new code.

With few rows most of a job's time is for its preparation: Python workers that import libraries, code that is
generated and compiled for each query, and a stage for each shuffle (docs/decisions/small-jobs.md). Small jobs have a
session of their own, with other settings. Code that makes, reads or writes a DataFrame asks its session (`is_small`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from restante.pipeline.spark.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SMALL_JOB_ROWS: Final = 100_000
"""Rows that a small job reads. The main process has all of them in memory, as Arrow: some tens of MB."""

MAX_SMALL_JOB_FILE_ROWS: Final = 1_000_000
"""Rows of the files that a small job opens. Of a month's merged file one task reads all groups of rows in which a
selected day may be."""

MAX_SMALL_JOB_FILE_BYTES: Final = 32 << 20
"""Bytes of the files that a small job opens. What they contain must fit into this process's memory."""

SMALL_JOB_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings of the session of small jobs. They change no row."""

_lock: Final = threading.Lock()
_sessions: Final[WeakKeyDictionary[SparkSession, SparkSession]] = WeakKeyDictionary()
"""Session → the one for its small jobs."""


class JobSize(NamedTuple):
    """What a job reads."""

    rows: int
    file_rows: int = 0
    """Rows of the files that it opens, also those that it does not need."""
    file_bytes: int = 0

    @property
    def small(self) -> bool:
        """Return whether a job of this size is small."""
        return (
            self.rows <= MAX_SMALL_JOB_ROWS
            and self.file_rows <= MAX_SMALL_JOB_FILE_ROWS
            and self.file_bytes <= MAX_SMALL_JOB_FILE_BYTES
        )


def session_for(spark: SparkSession, size: JobSize) -> SparkSession:
    """Return the session for a job of this size: the given one, unless the job is small and runs on this machine."""
    if not size.small or not is_local(spark):
        return spark
    with _lock:  # tables are built in several threads
        if spark not in _sessions:
            session = spark.newSession()
            for name, value in SMALL_JOB_SETTINGS.items():
                session.conf.set(name, value)
            _sessions[spark] = session
        return _sessions[spark]


def is_small(spark: SparkSession) -> bool:
    """Return whether the jobs of a session are small."""
    with _lock:
        return any(session is spark for session in _sessions.values())


def one_task(frame: DataFrame) -> DataFrame:
    """Return a frame whose rows one task reads, if the jobs of its session are small; else the frame."""
    return frame.coalesce(1) if is_small(frame.sparkSession) else frame
