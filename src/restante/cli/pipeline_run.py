"""A run of the pipeline from the command line: the lake, Spark when it is needed, and how a signal ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from restante.common.plural import counted
from restante.pipeline.ingest import Run
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.lake import Lake
from restante.pipeline.sources.scratch import scratch
from restante.pipeline.spark import session
from restante.pipeline.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def open_run(
    what: str,
    lake: Path,
    *,
    write: bool,
    memory: str,
    verbose: bool,
    local: bool = False,
    master: str = session.LOCAL_MASTER,
    remote: str | None = None,
) -> Iterator[Run]:
    """Open the lake. Spark is started when the run first needs it."""
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Lake.open(lake, write=write, make=local))
        begun: list[SparkSession] = []

        def spark() -> SparkSession:
            if not begun:
                settings = {"spark.driver.memory": memory}
                with steps.step("Spark") as step:
                    begun.append(
                        stack.enter_context(
                            session.session(master, remote, settings=settings, folder=place, verbose=verbose)
                        )
                    )
                    step.done("ready")
                _end_at_once(place)  # Spark has set a handler of its own
            return begun[0]

        steps = Steps(what)
        place = stack.enter_context(scratch())
        _end_at_once(place)
        yield Run(opened, uuid.uuid4().hex, time.time, spark, steps, place)


def _end_at_once(scratch: Path) -> None:
    """Handle SIGINT and SIGTERM: remove the copies, print one sentence and end.

    A run may be killed at any moment, so there is nothing to undo. If Spark stopped its jobs first, that would take
    seconds, and its threads would print errors. Its Java ends when this process has ended.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        # Clear the last live line and show the cursor again. Write to the descriptor: the live lines hold sys.stderr.
        live = "\r\x1b[J\x1b[?25h" if os.isatty(2) else ""
        words = "stopped; committed rows stay; run this again to do the rest"
        os.write(2, f"{live}restante: {words}\n".encode())
        os._exit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)


def drop_old(run: Run, kept: Mapping[str, int]) -> None:
    """Drop the days of each table that are older than it is kept."""
    from restante.pipeline.tables import TABLES

    for name, days in kept.items():
        first = (datetime.fromtimestamp(run.now(), UTC).date() - timedelta(days)).isoformat()
        dropped = run.lake.table(TABLES[name]).keep(first, CommitInfo(run=run.name, table=name, finished=run.now()))
        if dropped:
            run.steps.say(f"{name}: {counted(dropped, 'row')} from before {first} dropped")
