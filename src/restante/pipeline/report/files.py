"""The files of a report: the page, the JSON file, and a folder of CSV files. Pure, but for the page's template."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from restante.pipeline.report.changes_table import changes_table
from restante.pipeline.report.csv_file import as_csv
from restante.pipeline.report.json_file import as_json
from restante.pipeline.report.links import links
from restante.pipeline.report.model import Report, figures
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import Period

CHANGES_FILE: Final = "changes.csv"
"""No figure has this name."""

FIGURE_IDS: Final = (
    *("results-by-hour", "guesses-by-hour", "envelopes-by-hour"),
    *("results-by-day", "results-by-kind", "results-by-server", "results-by-application"),
    *("waiting-by-kind", "waiting-by-server", "versions", "attributions", "busy-hours"),
    *("live-nameplates", "live-mailboxes", "guesses-by-day", "guesses-that-stand-out"),
    *("envelopes-by-day", "envelopes-by-topic", "coverage", "gaps", "timing-by-phase", "sources", "quarantine"),
)
"""All figures that a report of this version or an earlier one can have. Only their files are removed."""


def page_name(period: Period) -> str:
    """Return the name of the page of a period in a folder of reports."""
    return f"{period.name}.html"


def json_name(period: Period) -> str:
    """Return the name of the JSON file of a period in a folder of reports."""
    return f"{period.name}.json"


def report_files(report: Report, there: Collection[Period] = ()) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the name of each file, relative to the folder of reports, and its content.

    The page is the last one, so the files that it mentions are there when it is. It links to pages of the periods
    that are `there`.
    """
    name = report.period.name
    for _, figure in figures(report):
        yield PurePosixPath(name) / f"{figure.id}.csv", as_csv(figure.table)
    if report.changes:
        yield PurePosixPath(name) / CHANGES_FILE, as_csv(changes_table(report.changes))
    yield PurePosixPath(json_name(report.period)), as_json(report)
    yield PurePosixPath(page_name(report.period)), page(report, links(report.period, there))
