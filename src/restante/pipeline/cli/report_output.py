"""Reports as commands write them: the files of a period, and a summary on standard output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from restante.common.atomic_file import mode_of_umask, write_output
from restante.common.errors import Misuse, StoreError, plain
from restante.common.terminal import excerpt
from restante.common.texts import counted
from restante.pipeline.cli.output import write_output_lines
from restante.pipeline.ingest import Run
from restante.pipeline.report.files import CHANGES_FILE, FIGURE_IDS, json_name, page_name, report_files
from restante.pipeline.report.links import INDEX, INDEX_MARK, index_page, neighbours, periods_of_pages, with_links
from restante.pipeline.report.model import Report
from restante.pipeline.report.periods import Period
from restante.pipeline.report.reading import read_report
from restante.pipeline.report.summary import summary

SUMMARY_WIDTH: Final = 80
"""Columns of a summary that is not for a terminal."""

CSV_FILES: Final = (CHANGES_FILE, *(f"{id_}.csv" for id_ in FIGURE_IDS))
"""All CSV files that a report of this version or an earlier one can have."""

NO_FOLDER: Final = "cannot be made, because a file has its name: name another folder"


def check_reports(periods: Collection[Period], folder: Path) -> None:
    """Check what has the names of the files of reports, before anything else is done.

    Say that the list of all reports stays as it is, if it is not ours. Raises Misuse if a file cannot have its name,
    StoreError if the folder cannot be read.
    """
    index = folder / INDEX
    files = [index]
    try:
        for path in [folder, *(folder / period.name for period in periods)]:
            if path.exists() and not path.is_dir():
                raise Misuse(f"{path} {NO_FOLDER}")
        for period in periods:
            files += [folder / page_name(period), folder / json_name(period)]
            files += [folder / period.name / name for name in CSV_FILES]
        for path in files:
            if path.exists() and not path.is_file():
                raise Misuse(
                    f"{path} is not a file, so no report can have its name: move it away, or name another folder"
                )
    except OSError as error:
        raise StoreError(f"cannot read the folder {folder}: {plain(error)}") from error
    if not _is_replaceable(index):
        shown = excerpt(str(index))
        print(
            f"restante: {shown} is not a list of reports that this program wrote: it stays as it is", file=sys.stderr
        )


def write_report(report: Report, folder: Path) -> Path:
    """Write the files of a report, and return the page's path. The umask limits who may read new files.

    Then link to it in the pages around it and in the list of all reports. Afterwards remove the CSV files that an
    earlier report of the period has and this one does not, but none through a link.
    Raises Misuse if the folder is a file, StoreError if it cannot be written.
    """
    csv_folder = folder / report.period.name
    _make_folder(csv_folder)
    there = periods_of_pages(_names(folder)) | {report.period}
    files = {folder / name: content for name, content in report_files(report, there)}
    for path, content in files.items():
        _write(path, content)
    _link(report.period, folder, there)
    if not csv_folder.is_symlink():
        _remove_old({csv_folder / name for name in CSV_FILES} - {*files})
    return folder / page_name(report.period)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise StoreError(f"cannot read the folder {folder}: {plain(error)}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        write_output(path, content, new_mode=mode_of_umask())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {plain(error)}") from error


def _link(period: Period, folder: Path, there: set[Period]) -> None:
    """Write the links of the pages around a new one again, and the list of all reports."""
    for other in there - {period}:
        if period in neighbours(other):
            path = folder / page_name(other)
            page = _content(path)
            linked = with_links(page, other, there)
            if linked != page:
                _write(path, linked)
    index = folder / INDEX
    if _is_replaceable(index):
        _write(index, index_page(there))


def _is_replaceable(index: Path) -> bool:
    """Return whether a list of reports may be written: nothing is there, or one that this program wrote."""
    before = _content(index)
    return not before or INDEX_MARK in before


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise StoreError(f"cannot read {path}: {plain(error)}") from error


def _remove_old(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            if path.is_file() and not path.is_symlink():
                path.unlink()
        except OSError as error:
            raise StoreError(f"cannot remove the old file {path}: {plain(error)}") from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise Misuse(f"{path} {NO_FOLDER}") from error
    except OSError as error:
        raise StoreError(f"cannot make the folder {path}: {plain(error)}") from error


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
    """Print the summary of a report, and where its page is. Raises StoreError."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else SUMMARY_WIDTH
    lines = [*summary(report, width), "", f"The page is {excerpt(str(page))}", ""]
    write_output_lines((f"{line}\n" for line in lines), "summary")
