"""What workers on other machines need, and what is said when they lack it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from restante import __version__
from restante.pipeline.spark import workers
from restante.pipeline.spark.errors import SparkError
from restante.pipeline.spark.workers import SharedFile, check, reason
from support.bounds import PATIENCE
from support.pipeline.clusters import cluster_environment
from support.processes import run

ADVICE: Final = (
    f"install Restante {__version__} with the extra 'pipeline' there, or set PYSPARK_PYTHON to a Python of the"
    " workers that has it"
)


@pytest.fixture(autouse=True)
def one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check one worker; all are alike here."""
    monkeypatch.setattr(workers, "CHECK_TASKS", 1)


def shared(path: Path) -> SharedFile:
    found = path.stat()
    return SharedFile(str(path), found.st_size, found.st_ino)


def test_a_file_that_workers_do_not_see_is_named(spark: SparkSession, tmp_path: Path) -> None:
    file, gone = tmp_path / "file", tmp_path / "gone"
    for path in (file, gone):
        path.write_bytes(b"1")
    seen, unseen = shared(file), shared(gone)
    gone.unlink()
    with file.open("ab") as growing:
        growing.write(b"2")
    assert check(spark, [seen]) == "", "a trace may grow"
    words = f"the worker on {socket.gethostname()} does not see {{}} as this machine does"
    for other in (seen._replace(size=3), seen._replace(number=1)):
        assert check(spark, [seen, other]) == words.format(file)
    assert check(spark, [seen] * 12_000 + [unseen] * 300) == words.format(gone), (
        "of many files some of all parts are checked"
    )


def test_a_worker_without_a_library_is_reported(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_MODULES", ["restante.nothing"])
    with pytest.raises(SparkError) as refusal:
        check(spark)
    assert str(refusal.value) == (
        f"the worker on {socket.gethostname()} cannot run Restante: No module named 'restante.nothing': {ADVICE}"
    )
    # So does a job that fails on a worker that no check has met.
    assert reason("Task 0 failed\nModuleNotFoundError: No module named 'restante'\n") == (
        f"a worker cannot run Restante: No module named 'restante' in {sys.executable}: {ADVICE}"
    )
    assert reason("java.lang.OutOfMemoryError: Java heap space") == ""


FITNESS: Final = """
import json, sys
from restante.pipeline.spark import session, workers

workers.CHECK_TASKS = 1
given = json.load(sys.stdin)
session._GIVEN["PYSPARK_PYTHON"] = given[0]
with session.session("local-cluster[1,1,1024]") as spark:
    for python in given:
        spark.sparkContext.pythonExec = python
        try:
            print(repr(workers.check(spark)))
        except session.SparkError as error:
            print(error)
"""
"""A session reads PYSPARK_PYTHON once, when it starts, into `pythonExec`, which Spark reads for each job: one session
and its executor have all of these Pythons, since each session more takes ten seconds to start."""


OLDER: Final = """
import collections, sys
names = ["major", "minor", "micro", "releaselevel", "serial"]
sys.version_info = collections.namedtuple("version_info", names)(3, 99, 0, "final", 0)
"""


@pytest.mark.thorough
def test_what_executors_lack_is_said_in_one_sentence(tmp_path: Path) -> None:
    other, older = tmp_path / "other", tmp_path / "older"
    (other / "restante").mkdir(parents=True)
    (other / "restante" / "__init__.py").write_text('__version__ = "9.9"\n')
    older.mkdir()
    (older / "sitecustomize.py").write_text(OLDER)
    python = sys.executable
    pythons = {
        "without": f'exec "{python}" -S "$@"',
        "another": f'PYTHONPATH="{other}:$PYTHONPATH" exec "{python}" "$@"',
        "later": f'PYTHONPATH="{older}:$PYTHONPATH" exec "{python}" "$@"',
    }
    for name, line in pythons.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    given = json.dumps([python, *(str(tmp_path / name) for name in ("missing", *pythons))])
    done = run(python, "-c", FITNESS, variables=cluster_environment(), stdin=given, bound=PATIENCE)
    host = socket.gethostname()
    another = f"the worker on {host} has Restante 9.9, and this machine has {__version__}:"
    later = f"the workers have Python 3.99, and this machine has {'.'.join(map(str, sys.version_info[:2]))}:"
    assert done.stdout.splitlines() == [
        "''",
        f"the workers cannot start the Python {tmp_path / 'missing'}: {ADVICE}",
        f"the worker on {host} cannot run Restante: No module named 'restante': {ADVICE}",
        f"{another} install the same version on all machines",
        f"{later} set PYSPARK_PYTHON to a Python of the same version that all machines have",
    ], done.stderr
