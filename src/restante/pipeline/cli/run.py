"""A run of the pipeline from the command line: the lake, Spark when it is needed, and how a signal ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

from restante.common.line_writer import LAST_LINES_SECONDS, unblock_standard_error
from restante.common.terminal import SHOW_CURSOR, can_rewrite
from restante.common.texts import counted
from restante.pipeline.cli.options import RunOptions
from restante.pipeline.ingest import IngestResult, Run, ingest
from restante.pipeline.ingest_extracts import ingest_extracts
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LISTING_AT_URL
from restante.pipeline.lake.url_path import LakePath, UrlPath
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.scratch import scratch
from restante.pipeline.sources.source import Source
from restante.pipeline.spark import java, session
from restante.pipeline.spark.errors import translated_errors
from restante.pipeline.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from restante.pipeline.build.freshness import DayRange
    from restante.pipeline.build.run import BuildResult


class Sessions:
    """The sessions of a run: one where the operator wants it, and for a run on a cluster another one on this machine.

    At most one of the two exists at a time. Java on this machine is started for small jobs until `large_jobs` is
    called (restante.pipeline.spark.small_jobs). As a context manager, this ends the session that exists.
    """

    def __init__(
        self,
        options: RunOptions,
        folder: Path,
        steps: Steps,
        started: Callable[[], None],
        *,
        settings: dict[str, str],
        archive_classes: bool,
    ) -> None:
        """Start nothing yet. `started` is called after each start. The rest is for session.session."""
        self._options, self._folder, self._steps, self._started = options, folder, steps, started
        self._settings, self._archive_classes = settings, archive_classes
        self._all_here = options.remote is None and session.is_local_master(options.master)
        self._small_jobs = True
        self._here = True
        self._spark: SparkSession | None = None
        """The session that exists. It is on this machine if `_here`."""
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def spark(self) -> SparkSession:
        """Return the session on this machine or on the master that the operator named. Start it at the first call."""
        return self._session(here=self._all_here)

    @property
    def local(self) -> Callable[[], SparkSession] | None:
        """Return a function for a session on this machine, or None if `spark` returns that one."""
        return None if self._all_here else partial(self._session, here=True)

    def large_jobs(self) -> None:
        """End a session whose Java was started for small jobs. Sessions from now on are for large jobs, too."""
        if self._small_jobs and self._here:
            self._end()
        self._small_jobs = False

    def _session(self, *, here: bool) -> SparkSession:
        if self._spark is not None and self._here is here:
            return self._spark
        self._end()
        is_second = here and not self._all_here
        with self._steps.step("Spark on this machine" if is_second else "Spark") as step:
            self._spark = self._open.enter_context(
                session.session(
                    session.LOCAL_MASTER if is_second else self._options.master,
                    None if is_second else self._options.remote,
                    settings=self._settings,
                    folder=self._folder,
                    verbose=self._options.verbose,
                    small_jobs=self._small_jobs and here,
                    archive_classes=self._archive_classes and here,
                )
            )
            step.done("ready")
        self._here = here
        self._started()
        return self._spark

    def _end(self) -> None:
        self._spark = None
        self._open.close()


@contextmanager
def open_run(
    what: str,
    options: RunOptions,
    *,
    make: bool = False,
    extracts: LakePath | None = None,
    archive_classes: bool = False,
) -> Iterator[Run]:
    """Open the lake, and `make` it if there is none. Spark is started when the run first needs it.

    A run on a cluster also has a session on this machine. One of the two exists at a time. `extracts` is where the
    run reads extracts, if it does. `archive_classes`: if the run started Java on this machine, that makes an archive
    of its classes for later runs when it ends, unless there is one. By then the run is done: others may write to the
    lake, and a signal only stops the archive.
    """
    unblock_pipe()
    steps = Steps(what)
    settings = {"spark.driver.memory": options.memory}
    settings |= {"spark.jars.packages": options.packages} if options.packages else {}
    if "://" in options.lake or isinstance(extracts, UrlPath):
        settings |= LISTING_AT_URL
    with scratch() as folder, contextlib.ExitStack() as stack:
        opened = stack.enter_context(Lake.open(options.lake, write=not options.plan, make=make))
        handle_signals = partial(end_run_on_signals, folder)
        handle_signals()
        sessions = Sessions(
            options,
            folder,
            steps,
            handle_signals,  # Spark has set a handler of its own
            settings=settings,
            archive_classes=archive_classes,
        )
        stack.enter_context(sessions)
        stack.enter_context(translated_errors())
        yield Run(
            opened, uuid.uuid4().hex, time.time, sessions.spark, steps, folder, sessions.local, sessions.large_jobs
        )
        stack.close()
        if archive_classes and (archive := session.archive_to_make()):
            _end_java(steps, archive)


def _end_java(steps: Steps, archive: Path) -> None:
    """End Java, which makes an archive of its classes. The run is done, so a signal only stops the archive."""

    def stop(*_: object) -> None:
        for process in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with steps.step("archive of Java's classes") as step:
        session.end_java()
        if java.is_whole(archive):
            step.done("made, so that later runs start faster")
        else:
            steps.say(f"Java could not make {archive}, so later runs start as slowly as this one (XDG_CACHE_HOME)")


def unblock_pipe() -> None:
    """Let a thread write to standard error, unless that is a terminal: a run holds the lock of its lake.

    If the reader of a pipe stopped reading, the run would wait for it, and all later runs for the lake.
    """
    if not sys.stderr.isatty():
        unblock_standard_error()


def end_run_on_signals(scratch: Path) -> None:
    """Handle SIGINT and SIGTERM: kill Java and what else was started, remove the copies, print one sentence and end.

    A run may be killed at any moment, so there is nothing to undo. If Spark stopped its jobs first, that would take
    seconds, and its threads would print errors. Java that is still starting would not end by itself: it would wait
    for ever if its temporary files are gone.
    """
    # Clears the last live line, and shows the cursor again.
    clear = f"\r\x1b[J{SHOW_CURSOR}" if can_rewrite(sys.stderr) else ""

    def end(number: int, _frame: FrameType | None) -> None:
        for process in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(scratch, ignore_errors=True)
        # Write to the descriptor: the live lines lock sys.stderr.
        message = "stopped; committed rows stay; run this again to do the rest"
        writer = threading.Thread(target=os.write, args=(2, f"{clear}restante: {message}\n".encode()), daemon=True)
        writer.start()
        writer.join(LAST_LINES_SECONDS)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def descendants(ancestor: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started (proc_pid_stat(5))."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    processes = list(children.get(ancestor, ()))
    for process in processes:
        processes += children.get(process, ())
    return processes


def ingest_into(
    run: Run, sources: Sequence[Source], keep_days: Mapping[str, int], *, extracts: LakePath | None = None, plan: bool
) -> list[IngestResult]:
    """Ingest the sources and extracts, and drop the days of clean tables that are older than `keep_days`."""
    results = ingest(run, sources, plan=plan) if sources else []
    if extracts is not None:
        results += ingest_extracts(run, extracts, {source.name for source in sources}, plan=plan)
    if not plan:
        _drop_old(run, {name: count for name, count in keep_days.items() if name in CLEAN_TABLES})
    return results


def show_failures(results: Sequence[IngestResult]) -> bool:
    """Print why sources were not read. Return whether there are such sources."""
    failures = [result.failure for result in results if result.failure]
    for failure in failures:
        print(f"restante: {failure}", file=sys.stderr)
    return bool(failures)


def build_into(
    run: Run, keep_days: Mapping[str, int], days: DayRange | None = None, *, plan: bool, planned: Collection[str] = ()
) -> list[BuildResult]:
    """Build the tables, and drop the days of built tables that are older than `keep_days`.

    `planned` are the clean tables into which the run would read rows, if it only plans.
    """
    from restante.pipeline.build.run import build_tables  # imports pyspark
    from restante.pipeline.build.sources import build_sources
    from restante.pipeline.tables import BUILT_TABLES
    from restante.pipeline.tables.sources import SOURCES_TABLE

    results = build_tables(run, days, plan=plan, planned=planned)
    if not days:  # it is always built whole
        first_day = _first_day(run, keep_days[SOURCES_TABLE.name]) if SOURCES_TABLE.name in keep_days else ""
        results.append(build_sources(run, first_day, plan=plan, planned=planned))
    if not plan:
        _drop_old(run, {name: count for name, count in keep_days.items() if name in BUILT_TABLES})
    return results


def _drop_old(run: Run, keep_days: Mapping[str, int]) -> None:
    """Drop the days of each table that are older than it is kept."""
    from restante.pipeline.tables import TABLES

    for name, days in keep_days.items():
        first_day = _first_day(run, days)
        dropped = run.table(TABLES[name]).drop_before(first_day, CommitInfo(run=run.name, finished=run.now()))
        if dropped:
            run.steps.say(f"{name}: {counted(dropped, 'row')} from before {first_day} dropped")


def _first_day(run: Run, days: int) -> str:
    """Return the first day (ISO) that is kept by a table that is kept for so many days."""
    return (datetime.fromtimestamp(run.now(), UTC).date() - timedelta(days)).isoformat()
