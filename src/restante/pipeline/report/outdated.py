"""Which reports in a folder are missing, or older than the tables that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from restante.pipeline.lake.lake import Lake
from restante.pipeline.report.files import json_name, page_name
from restante.pipeline.report.making import TABLES_READ
from restante.pipeline.report.periods import Period
from restante.pipeline.tables import TABLES


class _Made(msgspec.Struct):
    """What is read of a report's JSON file."""

    made: datetime


def outdated(lake: Lake, periods: Sequence[Period], folder: Path, today: date) -> list[Period]:
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
