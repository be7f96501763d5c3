"""Compares all CSV files of a demo's reports with what its sources say."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from support.pipeline.raw_changes import changes
from support.pipeline.raw_periods import Period, period_of
from support.pipeline.raw_report import FIGURES, NOT_IN_SOURCES, Row, Rows
from support.pipeline.raw_sources import RawSources, opened

RECOMPUTED: Mapping[str, Callable[[RawSources, Period], Rows]] = {**FIGURES, "changes": changes}
"""The name of a CSV file, and the function that returns its rows."""

UNORDERED = {"timing-by-phase"}
"""Tables whose order is that of percentiles, which the report knows to within 1 % only."""

PERCENTILE = re.compile(r"p\d+_us")
EXACT_TO = 0.01
"""The relative error that a percentile of a report may have."""


def compare(demo: Path) -> dict[str, int]:
    """Compare each file of each report in the folder of a demo. Return the number of rows of each file name."""
    compared: dict[str, int] = {}
    with opened(demo / "sources") as raw:
        for folder in sorted(path for path in (demo / "reports").iterdir() if path.is_dir()):
            period = period_of(folder.name)
            found = {path.stem: path for path in folder.iterdir()}
            assert found.keys() <= RECOMPUTED.keys(), "a file without a recomputation"
            for name, recompute in RECOMPUTED.items():
                rows = recompute(raw, period)
                if name in found:
                    _same(found[name], rows)
                    compared[name] = compared.get(name, 0) + len(rows)
                else:  # the report leaves out tables without numbers
                    assert not any(any(row[1:]) for row in rows), f"{folder.name} has no {name}"
    return compared


def _same(path: Path, expected: Rows) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        columns, *reported = csv.reader(file)
    wanted = expected
    if path.stem in UNORDERED:
        medians = [float(row[columns.index("p50_us")] or 0) for row in reported]
        assert medians == sorted(medians, reverse=True)
        reported, wanted = sorted(reported), sorted(expected, key=lambda row: str(row[0]))
    wrong = [
        f"{path.parent.name}/{path.name}, row {number}: {row} is reported, the sources say {_texts(right)}"
        for number, (row, right) in enumerate(zip(reported, wanted, strict=False), 1)
        if len(row) != len(right) or not all(map(_equal, columns, row, right))
    ]
    assert not wrong, "\n".join(wrong)
    assert len(reported) == len(wanted), f"{path}: {len(reported)} rows; the sources say {len(wanted)}"
    if path.stem == "sources":
        for row in reported:
            _check_times_of_ingest(dict(zip(columns, row, strict=True)))


def _equal(column: str, reported: str, right: Any) -> bool:
    if right is NOT_IN_SOURCES:
        return True
    if right is None or reported == "":
        return right is None and reported == ""
    if PERCENTILE.fullmatch(column):  # bounds of buckets are rounded to microseconds
        return bool(abs(float(reported) - right) <= EXACT_TO * right + 1)
    if isinstance(right, float):
        return abs(float(reported) - right) <= 1e-12
    return reported == _text(right)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def _texts(row: Row) -> list[str]:
    return ["(any)" if each is NOT_IN_SOURCES else _text(each) for each in row]


def _check_times_of_ingest(row: Mapping[str, str]) -> None:
    """Check what must be true of the times that the sources do not have."""
    last_row, last_ingest, since = (
        datetime.fromisoformat(row[name]) for name in ("last_row", "last_ingest", "counted_since")
    )
    assert since <= last_ingest
    assert int(row["lag_us"]) == (last_ingest - last_row) // timedelta(microseconds=1) > 0
