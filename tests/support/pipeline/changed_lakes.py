"""Lakes of equal days, in which tests change one thing, and what a report says has changed in them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from restante.pipeline.report.making import made_report
from restante.pipeline.report.model import Changes, Report, ReportChange
from restante.pipeline.report.periods import parse
from support.pipeline.report_lakes import LakeTables, Row

FIRST = date(2026, 10, 12)
DAYS = [FIRST + timedelta(number) for number in range(35)]
LAST = DAYS[-1]
WHEN = datetime(2026, 11, 20, 6, tzinfo=UTC)
NONE = {"lonely": 0, "errory": 0, "scary": 0, "pruney": 0, "crowded": 0}


def lake(change: Callable[[str, Row], Any] = lambda _name, _row: None, days: list[date] = DAYS) -> LakeTables:
    """Return a lake of equal days. `change` may change a row of a table."""
    found: dict[str, list[Row]] = {}

    def row(name: str, **values: Any) -> None:
        change(name, values)
        if "ended" in values:
            values["ended"] = sum(values[each] for each in ("happy", *NONE))
        found.setdefault(name, []).append(values)

    for day in days:
        for source in ("north", "east"):
            key = {"day": day, "source": source, "app_id": "app"}
            row("outcomes", **key, kind="claimed", ended=0, happy=90, **(NONE | {"lonely": 10}))
            for hour in range(24):
                counts = {"connections": 9, "mailboxes": 4, "nameplates": 4}
                row("busy_hours", day=day, source=source, hour=hour, **counts)
            row("guesses", **key, lonely=10, suspects=2, threshold=12, median=2, stands_out=False,
                nameplates=90, crowded_nameplates=1, scary=1)  # fmt: skip
            for version in ("1.0", "1.1"):
                row("versions", **key, attribution="version", implementation="phone", version=version,
                    connections=90, mailboxes=50, happy=45, **(NONE | {"lonely": 5}))  # fmt: skip
        for source in ("alpha", "beta"):
            row("coverage", day=day, source=source, envelopes=600, alone=0, missing=0)
    row("sources", source="north", kind="usage", last_ingest=WHEN, counted_since=WHEN, read=0, clean=0, duplicate=0,
        quarantined=0, missed=0, in_quarantine=0, day=WHEN.date())  # fmt: skip
    return LakeTables({name: [row for row in rows if not row.pop("gone", None)] for name, rows in found.items()})


def report(tables: LakeTables, period: str = LAST.isoformat()) -> Report:
    return made_report(tables.fetch, parse(period), WHEN.date(), WHEN)


def changes(tables: LakeTables, period: str = LAST.isoformat()) -> Changes:
    found = report(tables, period).changes
    assert found is not None
    return found


def only(tables: LakeTables, period: str = LAST.isoformat()) -> ReportChange:
    [found] = changes(tables, period).found
    return found


LAKE = lake()


def fails(name: str, row: Row) -> None:
    if name == "outcomes" and row["source"] == "east" and row["day"] == LAST:
        row |= {"happy": 60, "errory": 30}


def bad_version(name: str, row: Row) -> None:
    if name == "versions" and row["version"] == "1.1" and row["day"] == LAST:
        row |= {"version": '1.2"\n', "happy": 10, "errory": 35}


def outage(name: str, row: Row) -> None:
    row["gone"] = (
        name == "busy_hours" and row["source"] == "east" and row["day"] == LAST and row["hour"] in range(8, 14)
    )


def gap(name: str, row: Row) -> None:
    if name == "coverage" and row["source"] == "beta" and row["day"] == LAST:
        row |= {"envelopes": 500, "missing": 100}


def guessed(name: str, row: Row) -> None:
    if name == "guesses" and row["source"] == "east" and row["day"] == LAST:
        row |= {"suspects": 40, "stands_out": True}


def tried(name: str, row: Row) -> None:
    if name == "guesses" and row["source"] == "east" and row["day"] == LAST:
        row |= {"lonely": 400}


def stopped(name: str, row: Row) -> None:
    row["gone"] = name == "coverage" and row["source"] == "beta" and row["day"] == LAST
