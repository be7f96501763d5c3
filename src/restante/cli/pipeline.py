"""`restante pipeline`: the data pipeline's commands. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restante.common.errors import Misuse
from restante.common.plural import counted

if TYPE_CHECKING:
    from restante.pipeline.ingest import IngestResult

app = typer.Typer(no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Raise Misuse if the extra is not installed."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("deltalake") is None:
        raise Misuse("this command needs the extra 'pipeline': pip install 'restante[pipeline]'")


LakeDir = Annotated[
    Path,
    typer.Option(
        "--lake", metavar="DIR", envvar="RESTANTE_LAKE", help="Folder of the lake, in which the tables are."
    ),
]
Plan = Annotated[bool, typer.Option("--plan", help="Only print what would be done; Spark is not started.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's own log messages.")]
Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="Memory of Spark's Java process on this machine, like 512m or 4g.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TABLE=]DAYS",
        help="Afterwards delete older days from every table that the command writes, or from one table; repeatable.",
    ),
]
DEFAULT_LAKE = Path("restante-lake")
DEFAULT_MEMORY = "1g"


@app.command()
def ingest(
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[@SERVER]=PATH", help="Source to read, and the name that you choose for it; repeatable."
        ),
    ] = None,
    lake: LakeDir = DEFAULT_LAKE,
    keep: Keep = None,
    plan: Plan = False,
    memory: Memory = DEFAULT_MEMORY,
    verbose: Verbose = False,
) -> None:
    """Copy what is new in the sources into the lake.

    A source is a database of usage records, a timing log, a trace, a Waku archive, or a file of envelopes.
    """
    from restante.cli.pipeline_arguments import check_names, read_keep
    from restante.cli.pipeline_run import drop_old, open_run
    from restante.pipeline.ingest import ingest as ingest_sources
    from restante.pipeline.ingest import recognise_all
    from restante.pipeline.schemas import CLEAN_TABLES

    sources, unread = recognise_all(check_names(source))
    kept = read_keep(keep, CLEAN_TABLES)
    with open_run("ingest", lake, write=not plan, local=True, memory=memory, verbose=verbose) as run:
        found = [*ingest_sources(run, sources, plan=plan), *unread]
        if not plan:
            drop_old(run, kept)
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
    first: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="First day to build, like 2026-11-21.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day to build.")] = None,
    keep: Keep = None,
    plan: Plan = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark master: local[N], spark://…, yarn, k8s://…")
    ] = "local[*]",
    remote: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark Connect server to use instead of --master: sc://HOST:PORT."),
    ] = None,
    memory: Memory = DEFAULT_MEMORY,
    verbose: Verbose = False,
) -> None:
    """Build the report tables, for every day that changed.

    With --from or --to it builds these days, even if nothing changed, and no others.
    """
    from restante.cli.pipeline_arguments import read_days, read_keep
    from restante.cli.pipeline_run import drop_old, open_run
    from restante.pipeline.build.run import build as build_tables
    from restante.pipeline.build.run import missing_inputs
    from restante.pipeline.schemas import CLEAN_TABLES
    from restante.pipeline.tables import BUILDS, TABLES

    only = read_days(first, last)
    kept = read_keep(keep, {name: table for name, table in TABLES.items() if name not in CLEAN_TABLES})
    with open_run("build", lake, write=not plan, master=master, remote=remote, memory=memory, verbose=verbose) as run:
        found = build_tables(run, only, plan=plan)
        if not plan:
            drop_old(run, kept)
        missing = {each.table: missing_inputs(run.lake, BUILDS[each.table]) for each in found if not each.days}
    for each in found:
        days = counted(len(each.days), "day")
        span = f" ({each.days[0]} to {each.days[-1]})" if each.days else ""
        print(
            f"{each.table}: "
            + (f"{days} to build{span}" if plan else f"{days} built{span}, {counted(each.rows, 'row')}")
            + _why_nothing(missing.get(each.table, ()))
        )


@app.command()
def sql(lake: LakeDir = DEFAULT_LAKE) -> None:
    """Print views of all tables, for DuckDB.

    They show the tables as they are now: restante pipeline sql > lake.sql
    """
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
        float, typer.Option(metavar="HOURS", help="Keep files that were replaced in the last HOURS hours.")
    ] = 24.0,
    plan: Annotated[bool, typer.Option("--plan", help="Only print what would be removed.")] = False,
) -> None:
    """Remove files that no table uses any more. It also removes what killed runs left."""
    from restante.pipeline.lake.delta_log import LOG_RETENTION_SECONDS
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.lake.vacuum import vacuum as remove_waste
    from restante.pipeline.lake.vacuum import waste
    from restante.pipeline.tables import TABLES

    max_grace = int(
        LOG_RETENTION_SECONDS / 3600
    )  # after that the log no longer has the time at which a file was replaced
    if not 0 <= grace <= max_grace:
        raise Misuse(f"--grace: {grace:g} is not a number of hours from 0 to {max_grace}")
    act = waste if plan else remove_waste
    files = size = 0
    with Lake.open(lake, write=True) as opened:
        for table in TABLES.values():
            found = act(opened.table(table), grace=grace * 3600, now=time.time())
            files, size = files + len(found), size + sum(each.size for each in found)
    print(f"{counted(files, 'file')} {'to remove' if plan else 'removed'}, {counted(size, 'byte')}")


def _why_nothing(missing: Sequence[str]) -> str:
    """Return which clean tables are missing, and what to ingest; "" if none is."""
    from restante.pipeline.schemas import SOURCES

    if not missing:
        return ""
    sources = " or ".join(dict.fromkeys(SOURCES[name] for name in missing))
    return f"; the lake has no table {' and no '.join(missing)} yet: ingest rows from {sources}"


def _shown(found: Sequence[IngestResult], *, plan: bool) -> Iterator[str]:
    """Yield a line for each table of a source: how many rows were read, and what became of them."""
    for result in found:
        if result.failure:
            continue
        if result.span is None:
            yield f"{result.source}: {result.table}: nothing new"
        elif plan or result.ledger is None:
            anew = f"; all rows again, because {result.span.why}" if result.span.why else ""
            yield f"{result.source}: {result.table}: {counted(result.span.counted, 'row')} to read{anew}"
        else:
            ledger = result.ledger
            parts = [
                f"{count:,} {words}"
                for count, words in (
                    (ledger.clean, "clean"),
                    (ledger.duplicate, "duplicate"),
                    (ledger.quarantined, "in quarantine"),
                    (ledger.missed, "deleted before they were read"),
                )
                if count or words == "clean"
            ]
            yield f"{result.source}: {result.table}: {counted(ledger.read, 'row')} read: {', '.join(parts)}"
