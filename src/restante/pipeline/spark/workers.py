"""Checks what Spark's workers on other machines have, before a job needs it there.

A job that runs our code on a worker needs a Python of the same minor version there, this version of Restante with its
libraries, and the files that it reads. A worker that a check does not reach fails in the job itself; `worker_failure`
explains both failures in one sentence.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from restante import __version__
from restante.pipeline.spark.errors import SparkError, job_failure
from restante.pipeline.spark.session import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK_TASKS: Final = 16
"""Tasks of a check, each of which checks one worker: more than a small cluster runs at once. A check takes seconds
and need not reach every worker of a large cluster."""

MAX_CHECKED_FILES: Final = 100
"""Files that each task looks for. If a folder is not mounted, all files in it are missing; a source may have a
hundred thousand."""

_MODULES: Final = tuple(f"restante.pipeline.sources.{name}" for name in ("files", "logs", "tasks"))
"""What tasks import. These modules import the compiled libraries."""


class SharedFile(NamedTuple):
    """A file that workers are to read where it is."""

    path: str
    size: int
    """Bytes at least; a trace grows."""
    inode_number: int
    """A network file system gives all machines the same."""


class _Worker(NamedTuple):
    """The result of a task's check of its worker."""

    host: str
    version: str
    """The version of Restante; "" if there is none."""
    fault: str
    """Why our modules cannot be imported; "" if they can."""
    unseen: str
    """The path of the first file that is not there as it is here; "" if all are."""


def check_workers(spark: SparkSession, files: Sequence[SharedFile] = ()) -> str:
    """Return which worker does not see which of the files, as text; "" if they see them.

    Raises SparkError if a worker lacks our Python, our modules or this version of them.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    look = f.udf(
        _look_function(_MODULES, [(file.path, file.size, file.inode_number) for file in _sample(files)]),
        "string",
        useArrow=False,
    )
    try:
        rows = spark.range(0, CHECK_TASKS, 1, CHECK_TASKS).select(look("id").alias("worker")).collect()
    except (PySparkException, Py4JError) as error:
        raise SparkError(
            worker_failure(str(error)) or f"the workers could not be checked: {job_failure(str(error))}"
        ) from error
    workers = sorted({_Worker(*json.loads(row["worker"])) for row in rows})
    for worker in workers:
        if fault := _worker_fault(worker):
            raise SparkError(fault)
    return next(
        (
            f"the worker on {worker.host} does not see {worker.unseen} as this machine does"
            for worker in workers
            if worker.unseen
        ),
        "",
    )


def _worker_fault(worker: _Worker) -> str:
    """Return what a worker lacks, and what to do about it; "" if it lacks nothing."""
    if worker.version and worker.version != __version__:
        return (
            f"the worker on {worker.host} has Restante {worker.version}, and this machine has {__version__}: install"
            " the same version on all machines"
        )
    return f"the worker on {worker.host} cannot run Restante: {worker.fault}: {_ADVICE}" if worker.fault else ""


_ADVICE: Final = (
    f"install Restante {__version__} with the extra 'pipeline' there, or set PYSPARK_PYTHON to a Python of the"
    " workers that has it"
)


def _sample(files: Sequence[SharedFile]) -> Sequence[SharedFile]:
    """Return files from all parts of the list, at most MAX_CHECKED_FILES."""
    return files[:: len(files) // MAX_CHECKED_FILES + 1]


def _look_function(modules: Sequence[str], files: Sequence[tuple[str, int, int]]) -> Callable[[int], str]:
    """Return the function that a worker runs. It is sent whole, because the worker may lack our modules.

    PySpark sends functions of a module by name only, but a function within another one whole (cloudpickle), so it
    uses no other name of this module.
    """

    def look(_: int) -> str:
        import importlib
        import json
        import os
        import socket

        version = fault = unseen = ""
        try:
            version = importlib.import_module("restante").__version__
            for name in modules:
                importlib.import_module(name)
        except (ImportError, OSError, AttributeError) as error:
            fault = str(error)
        for path, size, inode_number in files:
            try:
                status = os.stat(path)  # noqa: PTH116 - Path has a name more
                seen = status.st_size >= size and status.st_ino == inode_number
            except OSError:
                seen = False
            if not seen:
                unseen = path
                break
        return json.dumps([socket.gethostname(), version, fault, unseen])

    return look


def worker_failure(message: str) -> str:
    """Return why a job could not run our code on a worker, from Spark's message; "" if it is something else."""
    if match := re.search(r'Cannot run program "([^"]+)"', message):
        return f"the workers cannot start the Python {match[1]}: {_ADVICE}"
    if match := re.search(r"Python in worker has different version: ([\d.]+)", message):
        return (
            f"the workers have Python {match[1]}, and this machine has {sys.version_info[0]}.{sys.version_info[1]}:"
            " set PYSPARK_PYTHON to a Python of the same version that all machines have"
        )
    if match := re.search(r"ModuleNotFoundError: (No module named '[^']+')", message):
        return f"a worker cannot run Restante: {match[1]} in {worker_python()}: {_ADVICE}"
    return ""
