"""`restante pipeline report`: what the lake says about a day, a week or a month, as a page and in the terminal."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from restante.pipeline.cli.options import DEFAULT_LAKE, LakeDir
from restante.pipeline.cli.output import ending_on_signals

app = typer.Typer()

DEFAULT_FOLDER: Final = Path("restante-reports")
DEFAULT_PERIOD: Final = "month"


@app.command()
def report(
    periods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PERIOD]...",
            help="2026-11-21, 2026-W47 or 2026-11; or day, week or month: the last one that is over. Default: month.",
            show_default=False,
        ),
    ] = None,
    lake: LakeDir = DEFAULT_LAKE,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder for the reports; the files of an earlier report of the same period are replaced.",
        ),
    ] = DEFAULT_FOLDER,
) -> None:
    """Write a page about each period, with charts and tables.

    The tables are written as CSV and JSON, too, and a summary is printed. Every figure comes from the tables of the
    lake: run build first. Spark is not started.
    """
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(ending_on_signals())  # before a library starts threads

        from restante.pipeline.cli.report_output import check_reports, print_summary, write_report
        from restante.pipeline.lake.lake import Lake
        from restante.pipeline.report.periods import chosen
        from restante.pipeline.report.reading import read_report
        from restante.pipeline.sources.scratch import scratch

        now = datetime.now(UTC)
        wanted = dict.fromkeys(chosen(text, now.date()) for text in periods or [DEFAULT_PERIOD])
        check_reports(wanted, output)
        temporary = stack.enter_context(scratch())
        places.append(temporary)
        opened = stack.enter_context(Lake.open(lake, write=False))
        for period in wanted:
            found = read_report(opened, period, now, temporary)
            print_summary(found, write_report(found, output))
