"""Traffic of envelopes by topic, and which of them each Mailserver lacks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

from restante.pipeline.report.model import (
    CoverageMap,
    Fact,
    Figure,
    RankedBars,
    ReportColumn,
    ReportTable,
    Section,
    StackedBars,
    ValueKind,
)
from restante.pipeline.report.periods import PeriodKind
from restante.pipeline.report.sections.subject import (
    ALL_OTHERS,
    DAY_COLUMN,
    DAYS,
    HOUR_COLUMN,
    MAILSERVER_COLUMN,
    NAMES_COLUMN,
    Rows,
    Scope,
    Subject,
    count_column,
    daily,
    hourly,
    moment,
    share_of,
    text_column,
)
from restante.pipeline.report.top_rows import top_rows

TRAFFIC_QUERIES: Final[Mapping[str, str]] = {
    "days": f"SELECT day, sum(envelopes), sum(bytes) FROM traffic WHERE {DAYS} GROUP BY day ORDER BY day",  # noqa: S608
    "hours": "SELECT hour, max(total) FROM (SELECT hour, source, sum(envelopes + missing) AS total"  # noqa: S608
    f" FROM hourly_coverage WHERE {DAYS} GROUP BY hour, source) GROUP BY hour ORDER BY hour",
    "topics": f"SELECT topic, sum(envelopes), sum(bytes) FROM traffic WHERE {DAYS}"  # noqa: S608 - constants
    " GROUP BY topic ORDER BY topic",
}

_ENVELOPES: Final = count_column("envelopes", "Envelopes", "Envelopes that were sent, each counted once.")
_BYTES: Final = ReportColumn("bytes", "Size", ValueKind.BYTES)


def traffic_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section of traffic."""
    if not rows["topics"]:
        return Section("traffic", "Traffic by topic")
    envelopes, size = (sum(row[index] for row in rows["days"]) for index in (1, 2))
    ranked = top_rows([((topic,), counts) for topic, *counts in rows["topics"]], 0)
    return Section(
        "traffic",
        "Traffic by topic",
        (
            *_envelopes_by_time(rows, scope),
            Figure(
                "envelopes-by-topic",
                "Envelopes by topic",
                "Each bar is the number of envelopes of a topic, the largest first.",
                ReportTable(
                    (text_column("topic", "Topic"), NAMES_COLUMN, _ENVELOPES, _BYTES),
                    tuple((row.name[0] if row.name else ALL_OTHERS, row.names, *row.counts) for row in ranked),
                ),
                RankedBars(("topic",), "envelopes"),
            ),
        ),
        (
            Fact("Envelopes", envelopes, ValueKind.COUNT),
            Fact("Size", size, ValueKind.BYTES),
            Fact("Topics", len(rows["topics"]), ValueKind.COUNT),
        ),
        terms="An envelope is an encrypted message of the Waku network. Its topic, four bytes, is what clients choose"
        " messages by.",
    )


def _envelopes_by_time(rows: Mapping[str, Rows], scope: Scope) -> tuple[Figure, ...]:
    """Return the chart of the period. If no Mailserver has envelopes of a day, its hours are not known."""
    if scope.period.kind is not PeriodKind.DAY:
        return (
            Figure(
                "envelopes-by-day",
                "Envelopes by day",
                "Each bar is the number of envelopes that were sent on a day and that any source has.",
                ReportTable((DAY_COLUMN, _ENVELOPES, _BYTES), tuple(daily(rows["days"], scope, 2))),
                StackedBars("day", ("envelopes",)),
            ),
        )
    if not rows["hours"]:
        return ()
    return (
        Figure(
            "envelopes-by-hour",
            "Envelopes by hour",
            "Each bar is the number of envelopes that were sent in an hour (UTC) and that any source has."
            " ? is an hour that had not begun.",
            ReportTable((HOUR_COLUMN, _ENVELOPES), tuple(hourly(rows["hours"], scope, 1))),
            StackedBars("hour", ("envelopes",)),
        ),
    )


MAX_GAPS: Final = 100
"""Rows of gaps: one a day and Mailserver for a month of three of them. `restante pipeline gaps` lists them all."""

COVERAGE_QUERIES: Final[Mapping[str, str]] = {
    "days": "SELECT source, day, sum(envelopes), sum(missing), sum(alone)"  # noqa: S608 - constants
    f" FROM coverage WHERE {DAYS} GROUP BY ALL ORDER BY ALL",
    "hours": "SELECT source, hour, sum(envelopes), sum(missing), sum(alone)"  # noqa: S608
    f" FROM hourly_coverage WHERE {DAYS} GROUP BY ALL ORDER BY ALL",
    "gaps": "SELECT source, day, epoch_us(min(first)), epoch_us(max(last)), count(DISTINCT topic), sum(missing)"  # noqa: S608
    f" FROM gaps WHERE {DAYS} GROUP BY source, day ORDER BY sum(missing) DESC, source, day LIMIT {MAX_GAPS}",
    "number_of_gaps": f"SELECT count(*) FROM (SELECT DISTINCT source, day FROM gaps WHERE {DAYS})",  # noqa: S608
}


def coverage_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section of coverage: by hour, if the period is a day, else by day."""
    if not rows["days"]:
        return Section(
            "coverage", "Coverage and gaps", nothing="The lake has no Mailserver's envelopes of the period."
        )
    is_day = scope.period.kind is PeriodKind.DAY
    unit, time_column = ("hour", HOUR_COLUMN) if is_day else ("day", DAY_COLUMN)
    present, missing = (sum(row[index] for row in rows["days"]) for index in (2, 3))
    return Section(
        "coverage",
        "Coverage and gaps",
        (
            Figure(
                "coverage",
                f"Envelopes that each Mailserver has, by {unit}",
                f"Each cell is one {unit} of a Mailserver. The striped part at its top is the share of envelopes that"
                " the Mailserver lacks and another source has. ? is a cell before the Mailserver's first envelope, or"
                " without records.",
                ReportTable(
                    (
                        MAILSERVER_COLUMN,
                        time_column,
                        count_column("envelopes", "There", "Envelopes that the Mailserver has."),
                        count_column("missing", "Missing", "Envelopes that it lacks and another source has."),
                        count_column("alone", "Alone", "Envelopes that no other Mailserver has."),
                    ),
                    tuple(_cells(rows[f"{unit}s"], scope, unit)),
                ),
                CoverageMap(time_column.name, "source", "envelopes", "missing"),
            ),
            _gaps(rows["gaps"], rows["number_of_gaps"][0][0]),
        ),
        (
            Fact("Covered, of all Mailservers together", share_of(present, present + missing), ValueKind.SHARE),
            Fact("Missing envelopes", missing, ValueKind.COUNT, warns=missing > 0),
        ),
        terms="A Mailserver is a node that stores envelopes, the encrypted messages of the Waku network, for clients"
        " that were offline.",
    )


def _cells(rows: Rows, scope: Scope, unit: str) -> list[tuple[Any, ...]]:
    """Return a row for each Mailserver and time. An hour without a row has no envelopes; a day is not known."""
    by_cell = {(row[0], row[1]): row for row in rows}
    sources = sorted({row[0] for row in rows})
    times: list[Any] = list(range(24)) if unit == "hour" else list(scope.period.days)
    nothing = (0 if unit == "hour" else None,) * 3
    return [by_cell.get(cell, (*cell, *nothing)) for cell in product(sources, times)]


def _gaps(rows: Rows, number: int) -> Figure:
    sentences = []
    if not rows:
        sentences.append("No Mailserver has a gap.")
    if number > len(rows):
        sentences.append(f"There are {number:,} such rows. Those with the most missing envelopes are shown.")
    return Figure(
        "gaps",
        "Gaps",
        "Each row is a Mailserver and day with missing envelopes, the largest number first. The command"
        " restante pipeline gaps says what to request.",
        ReportTable(
            (
                MAILSERVER_COLUMN,
                DAY_COLUMN,
                ReportColumn("first", "First", ValueKind.MOMENT, "When the first missing envelope was sent."),
                ReportColumn("last", "Last", ValueKind.MOMENT, "When the last missing envelope was sent."),
                count_column("topics", "Topics", "Different topics with rows of their own in the table gaps."),
                count_column("missing", "Missing"),
            ),
            tuple(
                (source, day, moment(first_sent), moment(last_sent), topics, missing)
                for source, day, first_sent, last_sent, topics, missing in rows
            ),
        ),
        remarks=tuple(sentences),
    )


TRAFFIC_SUBJECT: Final = Subject(("traffic", "hourly_coverage"), TRAFFIC_QUERIES, traffic_section)
COVERAGE_SUBJECT: Final = Subject(("coverage", "hourly_coverage", "gaps"), COVERAGE_QUERIES, coverage_section)
