"""The files of a report: the page, the JSON file, and a folder of CSV files; and how they are written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from restante.common.atomic_file import mode_of_umask, write_output
from restante.common.errors import Misuse, StoreError, plain
from restante.common.terminal import excerpt, say
from restante.pipeline.report.changes_table import changes_table
from restante.pipeline.report.csv_json import as_csv, as_json
from restante.pipeline.report.links import (
    INDEX,
    INDEX_MARK,
    index_page,
    neighbours,
    page_links,
    periods_of_pages,
    replace_links,
)
from restante.pipeline.report.model import Report, figures
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import Period

CHANGES_FILE: Final = "changes.csv"
"""No figure has this name."""

FIGURE_IDS: Final = (
    "results-by-hour",
    "guesses-by-hour",
    "relay-results-by-hour",
    "relay-bytes-by-hour",
    "envelopes-by-hour",
    "results-by-day",
    "results-by-kind",
    "results-by-server",
    "results-by-application",
    "waiting-by-kind",
    "waiting-by-server",
    "versions",
    "attributions",
    "busy-hours",
    "live-nameplates",
    "live-mailboxes",
    "guesses-by-day",
    "guesses-that-stand-out",
    "relay-results-by-day",
    "relay-bytes-by-day",
    "relay-durations",
    "relays",
    "envelopes-by-day",
    "envelopes-by-topic",
    "coverage",
    "gaps",
    "timing-by-phase",
    "sources",
    "quarantine",
)
"""All figures that a report of this version or an earlier one can have. Only their files are removed."""

CSV_FILES: Final = (CHANGES_FILE, *(f"{id_}.csv" for id_ in FIGURE_IDS))
"""All CSV files that a report of this version or an earlier one can have."""

NO_FOLDER: Final = "cannot be made, because a file has its name: name another folder"


def page_name(period: Period) -> str:
    """Return the name of the page of a period in a folder of reports."""
    return f"{period.name}.html"


def json_name(period: Period) -> str:
    """Return the name of the JSON file of a period in a folder of reports."""
    return f"{period.name}.json"


def report_files(report: Report, page_periods: Collection[Period] = ()) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the name of each file, relative to the folder of reports, and its content.

    The page is the last one, so the files that it mentions are there when it is. It links to the pages
    of `page_periods`.
    """
    name = report.period.name
    for _, figure in figures(report):
        yield PurePosixPath(name) / f"{figure.id}.csv", as_csv(figure.table)
    if report.changes:
        yield PurePosixPath(name) / CHANGES_FILE, as_csv(changes_table(report.changes))
    yield PurePosixPath(json_name(report.period)), as_json(report)
    yield PurePosixPath(page_name(report.period)), page(report, page_links(report.period, page_periods))


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
        say(f"restante: {excerpt(str(index))} is not a list of reports that this program wrote: it stays as it is")


def write_report(report: Report, folder: Path) -> Path:
    """Write the files of a report, and return the page's path. The umask limits who may read new files.

    Then link to it in the pages around it and in the list of all reports. Afterwards remove the CSV files that an
    earlier report of the period has and this one does not, but none through a link.
    Raises Misuse if the folder is a file, StoreError if it cannot be written.
    """
    csv_folder = folder / report.period.name
    _make_folder(csv_folder)
    page_periods = periods_of_pages(_file_names(folder)) | {report.period}
    files = {folder / name: content for name, content in report_files(report, page_periods)}
    for path, content in files.items():
        _write_file(path, content)
    _update_links(report.period, folder, page_periods)
    if not csv_folder.is_symlink():
        _remove_old_files({csv_folder / name for name in CSV_FILES} - {*files})
    return folder / page_name(report.period)


def _file_names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise StoreError(f"cannot read the folder {folder}: {plain(error)}") from error


def _write_file(path: Path, content: bytes) -> None:
    try:
        write_output(path, content, new_mode=mode_of_umask())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {plain(error)}") from error


def _update_links(period: Period, folder: Path, page_periods: set[Period]) -> None:
    """Write the links of the pages around a new one again, and the list of all reports."""
    for other in page_periods - {period}:
        if period in neighbours(other):
            path = folder / page_name(other)
            content = _read_file(path)
            linked = replace_links(content, other, page_periods)
            if linked != content:
                _write_file(path, linked)
    list_path = folder / INDEX
    if _is_replaceable(list_path):
        _write_file(list_path, index_page(page_periods))


def _is_replaceable(list_path: Path) -> bool:
    """Return whether a list of reports may be written: there is no file, or one that this program wrote."""
    content = _read_file(list_path)
    return not content or INDEX_MARK in content


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise StoreError(f"cannot read {path}: {plain(error)}") from error


def _remove_old_files(paths: Iterable[Path]) -> None:
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
