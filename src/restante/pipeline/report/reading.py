"""Reads a report from a lake, with DuckDB, and finds outdated ones. Spark is not started; the lake is only read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from restante.pipeline.lake.lake import Lake
from restante.pipeline.query import Database
from restante.pipeline.report.files import json_name, page_name
from restante.pipeline.report.lacking import LakeState
from restante.pipeline.report.making import DATED, TABLES_READ, lake_days, make_report
from restante.pipeline.report.model import Report
from restante.pipeline.report.periods import LakeDays, Period
from restante.pipeline.schemas import CLEAN_TABLES, SOURCES
from restante.pipeline.tables import BUILT_TABLES, TABLES, clean_inputs


def read_report(lake: Lake, period: Period, made: datetime, scratch: Path) -> Report:
    """Return the report of a period, as of one version of each table. `scratch` is a folder for temporary files.

    Raises StoreError if a table is damaged, or `vacuum` removed files while they were read.
    """
    was_written = lake.is_written_by_another()
    with Database(lake, "", scratch, [TABLES[name] for name in TABLES_READ]) as opened:
        state = lake_state(lake)._replace(is_written=was_written or lake.is_written_by_another())
        return make_report(opened.fetch, period, made.astimezone(UTC).date(), made, state)


def days_of(lake: Lake, scratch: Path) -> LakeDays | None:
    """Return the days of which a lake has records, or None. Raises StoreError as `read_report` does."""
    with Database(lake, "", scratch, [TABLES[name] for name in DATED]) as opened:
        return lake_days(opened.fetch)


def lake_state(lake: Lake) -> LakeState:
    """Return which tables of a report the lake does not have. Raises StoreError if a table is damaged."""
    tables = set(lake.tables())
    unbuilt, without_rows = [], {}
    for name in TABLES_READ:
        if name in tables or name not in BUILT_TABLES:  # rows that are rejected make the table `quarantine`
            continue
        inputs = [clean for clean in clean_inputs(name) if clean in SOURCES]
        if any(input_name in tables and lake.table(CLEAN_TABLES[input_name]).files() for input_name in inputs):
            unbuilt.append(name)
        else:
            without_rows[name] = " or ".join(dict.fromkeys(SOURCES[input_name] for input_name in inputs))
    return LakeState(unbuilt, without_rows)


class _Made(msgspec.Struct):
    """What is read of a report's JSON file."""

    made: datetime


def outdated_periods(lake: Lake, periods: Sequence[Period], folder: Path, today: date) -> list[Period]:
    """Return the periods whose report is missing, cannot be read, or was made before a table's last commit.

    A report that was made before its period was over is returned when the period is over.

    Raises StoreError if a table is damaged.
    """
    commits = [lake.table(TABLES[name]).last_commit for name in TABLES_READ]
    changed = datetime.fromtimestamp(max((commit for commit in commits if commit is not None), default=0), UTC)
    return [
        period
        for period in periods
        if (made := _made(period, folder)) is None or made < changed or made.date() <= period.last < today
    ]


def _made(period: Period, folder: Path) -> datetime | None:
    """Return when a report was made, or None if it is missing or cannot be read."""
    try:
        content = (folder / json_name(period)).read_bytes()
        (folder / page_name(period)).stat()  # written last
        return msgspec.json.decode(content, type=_Made).made.astimezone(UTC)
    except (OSError, msgspec.MsgspecError):
        return None
