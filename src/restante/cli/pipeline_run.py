"""A run of the pipeline from the command line: the lake, Spark when it is needed, and how a signal ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from restante.common.plural import counted
from restante.pipeline.ingest import IngestResult, Run, ingest
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.lake import Lake
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.scratch import scratch
from restante.pipeline.sources.source import Source
from restante.pipeline.spark import session
from restante.pipeline.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from restante.pipeline.build.freshness import DayRange
    from restante.pipeline.build.run import BuildResult


@contextmanager
def open_run(
    what: str,
    lake: Path,
    *,
    write: bool,
    memory: str,
    verbose: bool,
    make: bool = False,
    master: str = session.LOCAL_MASTER,
    remote: str | None = None,
) -> Iterator[Run]:
    """Open the lake, and `make` it if there is none. Spark is started when the run first needs it.

    A run on a cluster also has a session on this machine. One of the two exists at a time.
    """
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Lake.open(lake, write=write, make=make))
        place = stack.enter_context(scratch())
        sessions = stack.enter_context(contextlib.ExitStack())
        begun: dict[tuple[str, str | None], SparkSession] = {}

        def spark(master_: str, remote_: str | None) -> SparkSession:
            where = master_, remote_
            if where not in begun:
                begun.clear()
                sessions.close()
                settings = {"spark.driver.memory": memory}
                with steps.step("Spark" if where == (master, remote) else "Spark on this machine") as step:
                    begun[where] = sessions.enter_context(
                        session.session(master_, remote_, settings=settings, folder=place, verbose=verbose)
                    )
                    step.done("ready")
                _end_at_once(place)  # Spark has set a handler of its own
            return begun[where]

        steps = Steps(what)
        _end_at_once(place)
        here = None if is_local(master, remote) else partial(spark, session.LOCAL_MASTER, None)
        yield Run(opened, uuid.uuid4().hex, time.time, partial(spark, master, remote), steps, place, here)


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


def is_local(master: str, remote: str | None) -> bool:
    """Return whether a session with this master, or on this Connect server, runs in this process and its Java."""
    return remote is None and session.is_local_master(master)


def ingest_into(run: Run, sources: Sequence[Source], kept: Mapping[str, int], *, plan: bool) -> list[IngestResult]:
    """Ingest the sources, and drop the old days of the clean tables that are `kept` for some days."""
    found = ingest(run, sources, plan=plan)
    if not plan:
        _drop_old(run, {name: days for name, days in kept.items() if name in CLEAN_TABLES})
    return found


def build_into(
    run: Run, kept: Mapping[str, int], only: DayRange | None = None, *, plan: bool
) -> list[tuple[BuildResult, Sequence[str]]]:
    """Build the tables, and drop the old days of those that are `kept` for some days.

    Return each result with the clean tables that the lake lacks, if nothing was built because of that.
    """
    from restante.pipeline.build.run import build, missing_inputs  # imports pyspark
    from restante.pipeline.build.sources import build_sources
    from restante.pipeline.tables import BUILDS, BUILT_TABLES
    from restante.pipeline.tables.sources import SOURCES_TABLE

    found = build(run, only, plan=plan)
    first = _first_day(run, kept[SOURCES_TABLE.name]) if SOURCES_TABLE.name in kept else ""
    of_all = [] if only else [build_sources(run, first, plan=plan)]  # it is always built whole
    if not plan:
        _drop_old(run, {name: days for name, days in kept.items() if name in BUILT_TABLES})
    missing = [() if each.days else missing_inputs(run.lake, BUILDS[each.table]) for each in found]
    return [*zip(found, missing, strict=True), *((each, ()) for each in of_all)]


def _drop_old(run: Run, kept: Mapping[str, int]) -> None:
    """Drop the days of each table that are older than it is kept."""
    from restante.pipeline.tables import TABLES

    for name, days in kept.items():
        first = _first_day(run, days)
        dropped = run.lake.table(TABLES[name]).keep(first, CommitInfo(run=run.name, table=name, finished=run.now()))
        if dropped:
            run.steps.say(f"{name}: {counted(dropped, 'row')} from before {first} dropped")


def _first_day(run: Run, days: int) -> str:
    """Return the first day (ISO) that is kept by a table that is kept for so many days."""
    return (datetime.fromtimestamp(run.now(), UTC).date() - timedelta(days)).isoformat()
