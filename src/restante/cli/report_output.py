"""Reports as commands write them: the files of a period, and a summary on standard output."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from restante.cli.terminal import excerpt
from restante.common.atomic_file import write_output
from restante.common.errors import Misuse, StoreError, plain
from restante.common.plural import counted
from restante.pipeline.ingest import Run
from restante.pipeline.report.files import page_name, report_files
from restante.pipeline.report.model import Report
from restante.pipeline.report.periods import Period
from restante.pipeline.report.reading import read_report
from restante.pipeline.report.summary import summary

SUMMARY_WIDTH: Final = 80
"""Columns of a summary that is not for a terminal."""


def write_report(report: Report, folder: Path) -> Path:
    """Write the files of a report, and return the page's path.

    Raises Misuse if the folder is a file, StoreError if it cannot be written.
    """
    path = folder
    try:
        for name, content in report_files(report):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_output(path, content)
    except (FileExistsError, NotADirectoryError) as error:
        raise Misuse(f"{path.parent} cannot be made, because a file has its name: name another folder") from error
    except OSError as error:
        raise StoreError(f"cannot write {path}: {plain(error)}") from error
    return folder / page_name(report.period)


def write_reports(run: Run, periods: Sequence[Period], folder: Path) -> list[Path]:
    """Write the reports of periods from the lake of a run, and return the paths of their pages.

    Raises Misuse and StoreError as `write_report` and `read_report` do.
    """
    made = datetime.fromtimestamp(run.now(), UTC)
    with run.steps.step("reports") as step:
        pages = [write_report(read_report(run.lake, period, made, run.scratch), folder) for period in periods]
        step.done(counted(len(pages), "page"))
    return pages


def print_summary(report: Report, page: Path) -> None:
    """Print the summary of a report, and where its page is, in UTF-8 whatever the locale is. Raises StoreError."""
    if sys.stdout is None:
        raise StoreError("cannot write the summary: standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else SUMMARY_WIDTH
    try:
        for line in summary(report, width):
            print(line)
        print(f"\nThe page is {excerpt(str(page))}\n", flush=True)
    except BrokenPipeError:
        raise  # nobody reads the rest; typer ends the process without a word
    except OSError as error:
        raise StoreError(f"cannot write the summary: {plain(error)}") from error
