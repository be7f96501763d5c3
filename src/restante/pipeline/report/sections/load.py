"""The load of mailbox servers: busy hours, and how much was live at the same time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from restante.pipeline.report.charts.step_lines import MAX_LANES
from restante.pipeline.report.model import (
    Fact,
    Figure,
    PunchCard,
    ReportColumn,
    ReportRow,
    ReportTable,
    Section,
    StepLines,
    ValueKind,
)
from restante.pipeline.report.periods import WEEKDAYS, PeriodKind
from restante.pipeline.report.sections.subject import (
    DAY_COLUMN,
    DAYS,
    HOUR_COLUMN,
    HOURS_A_DAY,
    MAILBOX_SERVER_COLUMN,
    Rows,
    Scope,
    Subject,
    blurred_remarks,
    count_column,
    text_column,
)

_TERMS: Final = (
    "A nameplate is the number in a code, and a mailbox is where the two sides of the code exchange messages."
)

BUSY_QUERIES: Final[Mapping[str, str]] = {
    "hours": "SELECT isodow(day), hour, sum(connections), sum(mailboxes), sum(nameplates)"  # noqa: S608 - constants
    f" FROM busy_hours WHERE {DAYS} AND hour IS NOT NULL GROUP BY ALL ORDER BY ALL",
    "blurred": f"SELECT coalesce(sum(connections), 0) FROM busy_hours WHERE {DAYS} AND hour IS NULL",  # noqa: S608
}


def busy_hours_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section of busy hours."""
    counts_by_hour = {(weekday, hour): tuple(counts) for weekday, hour, *counts in rows["hours"]}
    [(blurred,)] = rows["blurred"]
    if not counts_by_hour:
        return Section("busy-hours", "Busy hours")
    weekdays = Counter(day.isoweekday() for day in scope.period.days if scope.has(day))
    table = tuple(
        _busy_hour(weekday, hour, weekdays[weekday], counts_by_hour.get((weekday, hour), (0, 0, 0)))
        for weekday in sorted(weekdays)
        for hour in range(HOURS_A_DAY)
    )
    return Section(
        "busy-hours",
        "Busy hours",
        (
            Figure(
                "busy-hours",
                "Connections by weekday and hour",
                "Each square is an hour (UTC) of a weekday. Its area is the number of connections that bound in this"
                " hour, on average over all such weekdays of the period. Large squares are busy hours. One day with"
                " very many connections makes the squares of its weekday large, and all others small.",
                ReportTable(
                    (
                        text_column("weekday", "Weekday"),
                        HOUR_COLUMN,
                        count_column(
                            "days", "Days", "Such weekdays in the period of which the lake may have records."
                        ),
                        ReportColumn(
                            "connections_a_day",
                            "Connections a day",
                            ValueKind.AVERAGE,
                            "Connections in this hour, divided by the days.",
                        ),
                        count_column("connections", "Connections", "A client that reconnects counts again."),
                        count_column("mailboxes", "Mailboxes", "Mailboxes that started."),
                        count_column("nameplates", "Nameplates", "Nameplates that started."),
                    ),
                    table,
                ),
                PunchCard("weekday", "hour", "connections_a_day"),
                blurred_remarks(blurred, "connection"),
            ),
        ),
        (Fact("Connections", sum(counts[0] for counts in counts_by_hour.values()), ValueKind.COUNT),),
        terms=_TERMS,
    )


def _busy_hour(weekday: int, hour: int, days: int, counts: tuple[int, ...]) -> ReportRow:
    return (WEEKDAYS[weekday - 1], hour, days, counts[0] / days, *counts)


def _pressure_sql(table: str, unit: str) -> str:
    return (
        f"SELECT source, {unit}, max(peak), sum(started), sum(live_us), sum(cut)"  # noqa: S608 - constants
        f" FROM {table} WHERE {DAYS} GROUP BY ALL ORDER BY ALL"
    )


PRESSURE_QUERIES: Final[Mapping[str, str]] = {
    f"{kind}_by_{unit}": _pressure_sql(table, unit)
    for kind, table in (("nameplates", "pressure"), ("mailboxes", "mailbox_pressure"))
    for unit in ("day", "hour")
}


def pressure_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section of pressure: by hour, if the period is a day, else by day."""
    figures = {
        kind: _pressure(kind, rows[f"{kind}_by_{_unit(scope)}"], scope)
        for kind in ("nameplates", "mailboxes")
        if rows[f"{kind}_by_day"]
    }
    return Section(
        "pressure",
        "Pressure",
        tuple(figures.values()),
        tuple(
            Fact(f"Most {kind} live at once, at one server", _highest(figure), ValueKind.COUNT)
            for kind, figure in figures.items()
        ),
        terms=f"{_TERMS} Both are live from their start to their end.",
    )


def _highest(figure: Figure) -> int | None:
    peaks = [int(peak) for peak in figure.table.numbers("peak") if peak is not None]
    return max(peaks, default=None)


def _unit(scope: Scope) -> str:
    return "hour" if scope.period.kind is PeriodKind.DAY else "day"


def _pressure(kind: str, rows: Rows, scope: Scope) -> Figure:
    unit, servers = _unit(scope), len({row[0] for row in rows})
    time_column = HOUR_COLUMN if unit == "hour" else DAY_COLUMN
    return Figure(
        f"live-{kind}",
        f"Live {kind} by {unit}",
        f"Each line is the largest number of {kind} of a server that were live at the same time, by {unit}. A line"
        " that rises without falling again is a server that fills up.",
        ReportTable(
            (
                MAILBOX_SERVER_COLUMN,
                time_column,
                count_column("peak", "Peak", f"Largest number of live {kind}."),
                count_column("started", "Started"),
                ReportColumn("live_us", "Live time", ValueKind.DURATION, "Time for which they were live, added up."),
                count_column(
                    "cut", "Cut", "Those that were live for more than 7 days. Only their first 7 days are counted."
                ),
            ),
            tuple(_filled(rows, scope, unit)),
        ),
        StepLines(time_column.name, "source", "peak"),
        (f"The chart has the {MAX_LANES} servers with the highest peaks. The table has all {servers}.",)
        if servers > MAX_LANES
        else (),
    )


def _filled(rows: Rows, scope: Scope, unit: str) -> list[tuple[Any, ...]]:
    """Return a row for each server and time, the highest peaks first. Where there is no row, nothing was live."""
    with_time = {(row[0], row[1]): row for row in rows if row[1] is not None}
    peaks: dict[str, int] = {}
    for source, _, peak, *_ in rows:
        peaks[source] = max(peaks.get(source, 0), peak or 0)
    times: list[int | date] = [*range(HOURS_A_DAY)] if unit == "hour" else [*scope.period.days]
    return [
        with_time.get((source, time), (source, time, *(0 if isinstance(time, int) or scope.has(time) else None,) * 4))
        for source in sorted(peaks, key=lambda source: (-peaks[source], source))
        for time in times
    ]


BUSY_SUBJECT: Final = Subject(("busy_hours",), BUSY_QUERIES, busy_hours_section)
PRESSURE_SUBJECT: Final = Subject(("pressure", "mailbox_pressure"), PRESSURE_QUERIES, pressure_section)
