"""Reads a report from a lake, with DuckDB. Spark is not started, and nothing is written to the lake."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from restante.pipeline.lake.lake import Lake
from restante.pipeline.query import database
from restante.pipeline.report.making import TABLES_READ, made_report
from restante.pipeline.report.model import Report
from restante.pipeline.report.periods import Period
from restante.pipeline.tables import TABLES


def read_report(lake: Lake, period: Period, made: datetime, scratch: Path) -> Report:
    """Return the report of a period, as of one version of each table. `scratch` is a folder for temporary files.

    Raises StoreError if a table is damaged, or `vacuum` removed files while they were read.
    """
    with database(lake, "", scratch, [TABLES[name] for name in TABLES_READ]) as opened:
        return made_report(opened.fetch, period, made.astimezone(UTC).date(), made)
