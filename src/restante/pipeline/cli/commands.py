"""`restante pipeline`: its commands. `demo`, `report`, `query`, `tables` and `gaps` are in files of their own.

What a subcommand needs is imported when it runs.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from restante.cli.extra_commands import group_that_needs
from restante.common.errors import Misuse
from restante.common.texts import counted
from restante.pipeline.cli import demo, gaps, query, report, tables
from restante.pipeline.cli.options import DEFAULT_LAKE, LakeAddress, RunOptions, day_option, with_run_options

if TYPE_CHECKING:
    from restante.pipeline.build.run import BuildResult
    from restante.pipeline.ingest import IngestResult, Run

app = typer.Typer(
    name="pipeline",
    help="Turn usage records and logs into tables, with Spark.",
    no_args_is_help=True,
    cls=group_that_needs("pipeline"),
)
app.command()(demo.demo)  # the first one of the help: it is the first to try


Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="NAME[@SERVER]=PATH|URL",
        help="Source to read, and the name that you choose for it; repeatable. A URL is that of a PostgreSQL"
        " database.",
    ),
]
Extracts = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|URL",
        help="Folder or URL with the extracts of all hosts, as restante extract writes them; their sources have the"
        " names that they have there.",
    ),
]

MIN_GRACE_AT_URL: Final = 24
"""Hours for which files are kept at a URL, because a run may still commit them."""


@app.command()
@with_run_options
def ingest(options: RunOptions, source: Sources = None, extracts: Extracts = None) -> None:
    """Copy what is new in the sources into the lake.

    A source is a database of usage records, a timing log, a trace, a Waku archive, or a file of envelopes. Extracts
    are what `restante extract` wrote on other hosts. With --master or --remote the cluster reads the extracts; this
    machine reads the sources.
    """
    from restante.pipeline.cli.options import check_names, read_extracts, read_keep
    from restante.pipeline.cli.run import ingest_into, open_run, show_failures
    from restante.pipeline.ingest import recognise_sources
    from restante.pipeline.schemas import CLEAN_TABLES

    folder = read_extracts(extracts)
    sources, unread = recognise_sources(check_names(source, folder))
    keep_days = read_keep(options.keep, CLEAN_TABLES)
    with open_run("ingest", options, make=True, extracts=folder) as run:
        results = [*ingest_into(run, sources, keep_days, extracts=folder, plan=options.plan), *unread]
    _show_ingested(results, extracts=folder is not None, plan=options.plan)
    if show_failures(results):
        sys.exit(1)


@app.command()
@with_run_options
def build(
    options: RunOptions,
    from_day: Annotated[date | None, day_option("--from", "First day to build, like 2026-11-21.")] = None,
    to_day: Annotated[date | None, day_option("--to", "Last day to build.")] = None,
) -> None:
    """Build the report tables, for every day that changed.

    With --from or --to it builds these days, even if nothing changed, and no others.
    """
    from restante.pipeline.cli.options import read_days, read_keep
    from restante.pipeline.cli.run import build_into, open_run
    from restante.pipeline.tables import BUILT_TABLES

    days = read_days(from_day, to_day)
    keep_days = read_keep(options.keep, BUILT_TABLES)
    with open_run("build", options) as run:
        built = build_into(run, keep_days, days, plan=options.plan)
    _show_built(built, plan=options.plan)


@app.command("run")
@with_run_options
def ingest_and_build(
    options: RunOptions,
    source: Sources = None,
    extracts: Extracts = None,
    reports: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="At the end write the reports of the last day, week and month into this folder, if they are missing"
            " or older than the tables.",
        ),
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(
            "--date",
            metavar="DAY",
            help="With --reports: write those that are due when this day is over. Default: yesterday.",
        ),
    ] = None,
) -> None:
    """Run ingest, build and report in one Spark session, for cron.

    If a source cannot be read, the others are read and the tables are built; the exit code is then 1.
    """
    from restante.pipeline.cli.options import check_names, read_extracts, read_keep
    from restante.pipeline.cli.run import build_into, ingest_into, open_run, show_failures
    from restante.pipeline.ingest import recognise_sources
    from restante.pipeline.report.periods import parse_period
    from restante.pipeline.tables import TABLES

    if day is not None and reports is None:
        raise Misuse(f"--date {day} chooses reports: name their folder (--reports), or leave it out")
    due = None if day is None else parse_period(day).after.first
    if reports is not None:
        _check_reports(reports, due or datetime.now(UTC).date())
    folder = read_extracts(extracts)
    sources, unread = recognise_sources(check_names(source, folder))
    keep_days = read_keep(options.keep, TABLES)
    with open_run("run", options, make=True, extracts=folder, archive_classes=True) as run:
        results = [*ingest_into(run, sources, keep_days, extracts=folder, plan=options.plan), *unread]
        _show_ingested(results, extracts=folder is not None, plan=options.plan)
        planned = {result.table for result in results if options.plan and result.span is not None}
        built = build_into(run, keep_days, plan=options.plan, planned=planned)
        _show_built(built, plan=options.plan)
        failed = show_failures(results)
        if reports is not None:
            _write_outdated_reports(run, built, reports, due, plan=options.plan)
        sys.stdout.flush()  # making an archive of Java's classes takes a while
    if failed:
        sys.exit(1)


def _check_reports(folder: Path, due: date) -> None:
    """Check the names of all files that `_write_outdated_reports` may write."""
    from restante.pipeline.report.files import check_reports
    from restante.pipeline.report.periods import due_periods

    over = due_periods(due, None)
    check_reports([*over, *(period.after for period in over)], folder)


def _write_outdated_reports(
    run: Run, built: Sequence[BuildResult], folder: Path, due: date | None, *, plan: bool
) -> None:
    """Write the reports of the last day, week and month: those that are missing or older than the tables.

    They are the last ones that are over when the day `due` begins; None: today.
    """
    from restante.pipeline.report.periods import due_periods
    from restante.pipeline.report.reading import days_of, outdated_periods  # imports DuckDB

    today = datetime.fromtimestamp(run.now(), UTC).date()
    periods = due_periods(due or today, days_of(run.lake, run.scratch))
    if not (plan and any(result.days for result in built)):  # else the tables have not changed yet
        periods = outdated_periods(run.lake, periods, folder, today)
    if not periods:
        print("reports: nothing new")
    elif plan:
        print(f"reports: {', '.join(period.name for period in periods)} to write")
    else:
        from restante.pipeline.cli.report import write_reports

        for period, page in zip(periods, write_reports(run, periods, folder), strict=True):
            print(f"reports: {page} written{f'; the {period.kind} is not over' if period.last >= today else ''}")


@app.command()
def sql(lake: LakeAddress = DEFAULT_LAKE) -> None:
    """Print views of all tables, for DuckDB.

    They show the tables as they are now: restante pipeline sql > lake.sql
    """
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.views import all_views

    with Lake.open(lake, write=False) as opened:
        for statement in all_views(opened):
            print(statement)


app.add_typer(report.app)
app.add_typer(query.app)
app.add_typer(tables.app)
app.add_typer(gaps.app)


@app.command()
def vacuum(
    lake: LakeAddress = DEFAULT_LAKE,
    grace: Annotated[
        float, typer.Option(metavar="HOURS", help="Keep files that were replaced in the last HOURS hours.")
    ] = 24.0,
    plan: Annotated[bool, typer.Option("--plan", help="Only print what would be removed.")] = False,
) -> None:
    """Remove files that no table uses any more. It also removes what killed runs left."""
    from restante.pipeline.lake.delta_log import LOG_RETENTION_SECONDS
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.lake.vacuum import vacuum as vacuum_table
    from restante.pipeline.lake.vacuum import vacuum_probes
    from restante.pipeline.tables import TABLES

    # After that the log no longer has the time at which a file was replaced.
    max_grace = int(LOG_RETENTION_SECONDS / 3600)
    if not 0 <= grace <= max_grace:
        raise Misuse(f"--grace: {grace:g} is not a number of hours from 0 to {max_grace}")
    if "://" in lake and grace < MIN_GRACE_AT_URL:
        raise Misuse(
            f"--grace {grace:g}: at a URL, where no lock shows whether a run is active, files are kept for at least"
            f" {MIN_GRACE_AT_URL} hours: no run may take longer"
        )
    seconds, now = grace * 3600, time.time()
    with Lake.open(lake, write=True) as opened:
        files = vacuum_probes(opened, grace=seconds, now=now, plan=plan)
        for table in TABLES.values():
            files += vacuum_table(opened.table(table), grace=seconds, now=now, plan=plan)
    size = sum(file.size for file in files)
    print(f"{counted(len(files), 'file')} {'to remove' if plan else 'removed'}, {counted(size, 'byte')}")


@app.command()
def compact(
    lake: LakeAddress = DEFAULT_LAKE,
    plan: Annotated[bool, typer.Option("--plan", help="Only print what would be merged.")] = False,
) -> None:
    """Merge the small files of each table into few large ones.

    It does not start Spark. The old files stay until vacuum removes them.
    """
    from restante.pipeline.lake.compact import compact as merge_files
    from restante.pipeline.lake.compact import planned_merges
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.tables import TABLES

    with Lake.open(lake, write=not plan) as opened:
        for table in TABLES.values():
            opened_table = opened.table(table)
            groups = planned_merges(opened_table) if plan else merge_files(opened_table, uuid.uuid4().hex, time.time)
            files = counted(sum(len(group.files) for group in groups), "file")
            if groups:
                print(f"{table.name}: {files} {'to merge' if plan else 'merged'} into {len(groups):,}")
            else:
                print(f"{table.name}: nothing to merge")


def _show_ingested(results: Sequence[IngestResult], *, extracts: bool, plan: bool) -> None:
    """Print a line for each table of a source: how many rows were read, and what became of them."""
    from restante.pipeline.cli.output import row_counts

    if not results and extracts:
        print("extracts: nothing new")
    for result in results:
        if result.failure:
            continue
        if result.span is None:
            print(f"{result.source}: {result.table}: nothing new")
        elif plan or result.ledger is None:
            anew = f"; all rows again, because {result.span.reason}" if result.span.reason else ""
            print(f"{result.source}: {result.table}: {counted(result.span.counted, 'row')} to read{anew}")
        else:
            ledger = result.ledger
            others = {"duplicate": ledger.duplicate, "in quarantine": ledger.quarantined}
            text = row_counts(ledger.clean, others, ledger.missed)
            print(f"{result.source}: {result.table}: {counted(ledger.read, 'row')} read: {text}")


def _show_built(built: Sequence[BuildResult], *, plan: bool) -> None:
    """Print a line for each table that was built, or has rows to build from, and one for all others of a source."""
    others: dict[str, list[str]] = {}
    for result in built:
        if result.missing:
            others.setdefault(_sources_of(result.missing), []).append(result.table)
            continue
        days = counted(len(result.days), "day")
        span = f" ({result.days[0]} to {result.days[-1]})" if result.days else ""
        print(
            f"{result.table}: "
            + (f"{days} to build{span}" if plan else f"{days} built{span}, {counted(result.rows, 'row')}")
        )
    for sources, names in others.items():
        print(f"{', '.join(names)}: nothing to build until you ingest {sources}")


def _sources_of(tables: Sequence[str]) -> str:
    """Return which sources have rows of clean tables."""
    from restante.pipeline.schemas import SOURCES

    return " or ".join(dict.fromkeys(SOURCES[name] for name in tables))
