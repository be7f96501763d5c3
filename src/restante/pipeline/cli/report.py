"""`restante pipeline report`: what the lake says about a day, a week or a month, as a page and in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from restante.common.terminal import excerpt
from restante.common.texts import counted
from restante.pipeline.cli.options import DEFAULT_LAKE, LakeAddress

if TYPE_CHECKING:
    from restante.pipeline.ingest import Run
    from restante.pipeline.report.model import Report
    from restante.pipeline.report.periods import Period

app = typer.Typer()

DEFAULT_FOLDER: Final = Path("restante-reports")
DEFAULT_PERIOD: Final = "month"
SUMMARY_WIDTH: Final = 80
"""Columns of a summary that is not for a terminal."""


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
    lake: LakeAddress = DEFAULT_LAKE,
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
    from restante.pipeline.cli.output import lake_to_read
    from restante.pipeline.report.files import check_reports, write_report
    from restante.pipeline.report.periods import choose_period

    now = datetime.now(UTC)
    chosen_periods = dict.fromkeys(choose_period(text, now.date()) for text in periods or [DEFAULT_PERIOD])
    check_reports(chosen_periods, output)
    with lake_to_read(lake) as (opened, temporary):
        from restante.pipeline.report.reading import read_report

        for period in chosen_periods:
            content = read_report(opened, period, now, temporary)
            print_summary(content, write_report(content, output))


def write_reports(run: Run, periods: Sequence[Period], folder: Path) -> list[Path]:
    """Write the reports of periods from the lake of a run, and return the paths of their pages.

    Raises Misuse and StoreError as `write_report` and `read_report` do.
    """
    from restante.pipeline.report.files import write_report
    from restante.pipeline.report.reading import read_report

    made = datetime.fromtimestamp(run.now(), UTC)
    with run.steps.step("reports") as step:
        pages = [write_report(read_report(run.lake, period, made, run.scratch), folder) for period in periods]
        step.done(counted(len(pages), "page"))
    return pages


def print_summary(report: Report, page: Path) -> None:
    """Print the summary of a report, and where its page is. Raises StoreError."""
    from restante.pipeline.cli.output import write_output_lines
    from restante.pipeline.report.summary import summary_lines

    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else SUMMARY_WIDTH
    lines = [*summary_lines(report, width), "", f"The page is {excerpt(str(page))}", ""]
    write_output_lines((f"{line}\n" for line in lines), "summary")
