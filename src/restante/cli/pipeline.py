"""`restante pipeline`: the data pipeline's commands. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from restante.common.errors import Misuse
from restante.common.plural import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from restante.pipeline.build.freshness import DayRange
    from restante.pipeline.ingest import IngestResult, Run

app = typer.Typer(no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Make tables of what servers leave behind, on Spark."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("deltalake") is None:
        raise Misuse("this needs the extra 'pipeline': pip install 'restante[pipeline]'")


LakeDir = Annotated[Path, typer.Option("--lake", metavar="DIR", envvar="RESTANTE_LAKE", help="Where the tables are.")]
Plan = Annotated[bool, typer.Option("--plan", help="Only tell what would be done; Spark is not started.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what Spark says of itself.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Of a local Spark's Java, like 512m or 4g.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TABLE=]DAYS", help="Then drop what is older, of all tables it writes or of one; repeatable."
    ),
]
DEFAULT_LAKE = Path("restante-lake")
DEFAULT_MEMORY = "1g"


@app.command()
def ingest(
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME[@SERVER]=PATH", help="What to read, and its name; repeatable.")
    ] = None,
    lake: LakeDir = DEFAULT_LAKE,
    keep: Keep = None,
    plan: Plan = False,
    memory: Memory = DEFAULT_MEMORY,
    verbose: Verbose = False,
) -> None:
    """Take what is new at servers' databases, timing logs, archives and envelope files into the lake."""
    from restante.pipeline import ingest as ingesting
    from restante.pipeline.schemas import CLEAN_TABLES
    from restante.pipeline.sources.source import parse

    if not source:
        raise Misuse("nothing to read: name a source, --source NAME=PATH")
    names = [parse(each).name for each in source]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Misuse(f"--source: {min(twice)} is named twice; every source needs a name of its own")
    sources, unread = ingesting.recognise_all(source)
    kept = _kept(keep, CLEAN_TABLES)
    with _run("ingest", lake, write=not plan, local=True, memory=memory, verbose=verbose) as run:
        found = [*ingesting.ingest(run, sources, plan=plan), *unread]
        if not plan:
            _drop(run, kept)
    for line in _shown(found, plan=plan):
        print(line)
    failures = [result.failure for result in found if result.failure]
    for failure in failures:
        print(f"restante: {failure}", file=sys.stderr)
    if failures:
        sys.exit(1)


@app.command()
def build(
    lake: LakeDir = DEFAULT_LAKE,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="Build from this day on, anew.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Up to this day, included.")] = None,
    keep: Keep = None,
    plan: Plan = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's: local[N], spark://…, yarn, k8s://…")
    ] = "local[*]",
    remote: Annotated[
        str | None, typer.Option(metavar="URL", help="Of a Spark Connect server: sc://HOST:PORT.")
    ] = None,
    memory: Memory = DEFAULT_MEMORY,
    verbose: Verbose = False,
) -> None:
    """Make the tables of reports, of all days that changed; with --from or --to of these days, changed or not."""
    from restante.pipeline.build.run import build as build_tables
    from restante.pipeline.schemas import CLEAN_TABLES
    from restante.pipeline.tables import TABLES

    only = _days(first, last)
    kept = _kept(keep, {name: table for name, table in TABLES.items() if name not in CLEAN_TABLES})
    with _run("build", lake, write=not plan, master=master, remote=remote, memory=memory, verbose=verbose) as run:
        found = build_tables(run, only, plan=plan)
        if not plan:
            _drop(run, kept)
    for each in found:
        days = counted(len(each.days), "day")
        span = f" ({each.days[0]} to {each.days[-1]})" if each.days else ""
        print(
            f"{each.table}: "
            + (f"{days} to build{span}" if plan else f"{days} built{span}, {counted(each.rows, 'row')}")
        )


@app.command()
def sql(lake: LakeDir = DEFAULT_LAKE) -> None:
    """Print views of the lake's tables as they are now, for DuckDB: restante pipeline sql > lake.sql."""
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.tables import TABLES
    from restante.pipeline.views import views

    with Lake.open(lake, write=False) as opened:
        for statement in views(opened, TABLES.values()):
            print(statement)


@app.command()
def vacuum(
    lake: LakeDir = DEFAULT_LAKE,
    grace: Annotated[
        float, typer.Option(metavar="HOURS", help="Leave what was replaced later than that ago.")
    ] = 24.0,
    plan: Plan = False,
) -> None:
    """Remove files of no version: what was replaced or dropped, and what killed runs left."""
    from restante.pipeline.lake import vacuum as vacuuming
    from restante.pipeline.lake.delta_log import LOG_RETENTION_SECONDS
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.tables import TABLES

    longest = int(LOG_RETENTION_SECONDS / 3600)  # later it is not in the log any more when a file was replaced
    if not 0 <= grace <= longest:
        raise Misuse(f"--grace: a number of hours, from 0 to {longest}")
    act = vacuuming.waste if plan else vacuuming.vacuum
    files = size = 0
    with Lake.open(lake, write=True) as opened:
        for table in TABLES.values():
            found = act(opened.table(table), grace=grace * 3600, now=time.time())
            files, size = files + len(found), size + sum(each.size for each in found)
    print(f"{counted(files, 'file')} {'to remove' if plan else 'removed'}, {counted(size, 'byte')}")


@contextmanager
def _run(
    what: str,
    lake: Path,
    *,
    write: bool,
    memory: str,
    verbose: bool,
    local: bool = False,
    master: str = "local[*]",
    remote: str | None = None,
) -> Iterator[Run]:
    """Open the lake, with Spark at hand: it is begun when something is to be done."""
    from restante.pipeline.ingest import Run
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.sources.scratch import scratch
    from restante.pipeline.spark.session import session
    from restante.pipeline.steps import Steps

    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Lake.open(lake, write=write, make=local))
        begun: list[SparkSession] = []

        def spark() -> SparkSession:
            if not begun:
                settings = {"spark.driver.memory": memory}
                with steps.step("Spark") as step:
                    begun.append(stack.enter_context(session(master, remote, settings=settings, verbose=verbose)))
                    step.done("ready")
                _end_at_once(place)  # Spark has set a handler of its own
            return begun[0]

        steps = Steps(what)
        place = stack.enter_context(scratch())
        _end_at_once(place)
        yield Run(opened, uuid.uuid4().hex, time.time, spark, steps, place)


def _end_at_once(scratch: Path) -> None:
    """On SIGINT and SIGTERM remove the copies, say one sentence and end.

    A run may be killed at any moment, so there is nothing to undo. To have Spark stop its jobs first would take
    seconds and print what its threads think of it; its Java ends when we are gone.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        # Live lines are left as they are, but for the last, and show the cursor again. sys.stderr is theirs as long.
        live = "\r\x1b[J\x1b[?25h" if os.isatty(2) else ""
        words = "stopped; what is committed stays, the rest is done when this is run again"
        os.write(2, f"{live}restante: {words}\n".encode())
        os._exit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)


def _kept(keep: Sequence[str] | None, tables: Mapping[str, object]) -> dict[str, int]:
    """Read --keep: for how many days each table is kept. Raises Misuse."""
    found: dict[str, int] = {}
    for each in keep or ():
        table, _, days = each.rpartition("=")
        if table and table not in tables:
            raise Misuse(f"--keep {each}: there is no table {table} here: there are {', '.join(tables)}")
        if not days.isascii() or not days.isdigit() or not 0 < int(days) <= 36525:
            raise Misuse(f"--keep {each}: a number of days, from 1 to 36525")
        found |= dict.fromkeys([table] if table else tables, int(days))
    return found


def _drop(run: Run, kept: Mapping[str, int]) -> None:
    """Drop what is older than each table is kept."""
    from restante.pipeline.lake.commit_info import CommitInfo
    from restante.pipeline.tables import TABLES

    for name, days in kept.items():
        first = (datetime.fromtimestamp(run.now(), UTC).date() - timedelta(days)).isoformat()
        dropped = run.lake.table(TABLES[name]).keep(first, CommitInfo(run=run.name, table=name, finished=run.now()))
        if dropped:
            run.steps.say(f"{name}: {counted(dropped, 'row')} of before {first} dropped")


def _days(first: str | None, last: str | None) -> DayRange | None:
    """Read --from and --to. Raises Misuse."""
    from restante.pipeline.build.freshness import DayRange

    if first is None and last is None:
        return None
    days = DayRange(_day("--from", first) if first else date.min, _day("--to", last) if last else date.max)
    if days.first > days.last:
        raise Misuse(f"--from {first} is after --to {last}")
    return days


def _day(flag: str, said: str) -> date:
    try:
        return date.fromisoformat(said)
    except ValueError as error:
        raise Misuse(f"{flag} {said}: a day looks like 2026-11-21") from error


def _shown(found: Sequence[IngestResult], *, plan: bool) -> Iterator[str]:
    """Tell what came of each source's tables, a line each."""
    for result in found:
        if result.failure:
            continue
        if result.span is None:
            yield f"{result.source}: {result.table}: nothing new"
        elif plan or result.ledger is None:
            anew = f"; all of it anew, since {result.span.why}" if result.span.why else ""
            yield f"{result.source}: {result.table}: {counted(result.span.counted, 'row')} to read{anew}"
        else:
            ledger = result.ledger
            parts = [
                f"{count:,} {words}"
                for count, words in (
                    (ledger.clean, "clean"),
                    (ledger.duplicate, "duplicate"),
                    (ledger.quarantined, "in quarantine"),
                    (ledger.missed, "gone unread"),
                )
                if count or words == "clean"
            ]
            yield f"{result.source}: {result.table}: {counted(ledger.read, 'row')} read: {', '.join(parts)}"
