"""Success by result: of mailboxes by day, and by kind, server and application. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from restante.pipeline.report.model import (
    Fact,
    Figure,
    RankedBars,
    ReportColumn,
    ReportRow,
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
    MAILBOX_SERVER_COLUMN,
    NAMES_COLUMN,
    OTHER_APPLICATION,
    RESULT_COLUMNS,
    RESULT_MEANINGS,
    RESULT_SUMS,
    Rows,
    Scope,
    Subject,
    blurred_remarks,
    count_column,
    daily,
    hourly,
    name_remarks,
    share_of,
    text_column,
)
from restante.pipeline.report.top_rows import RowName, top_rows

_MAILBOXES: Final = f"FROM outcomes WHERE {DAYS} AND kind <> 'nameplate'"

QUERIES: Final[Mapping[str, str]] = {
    "days": f"SELECT day, {RESULT_SUMS} {_MAILBOXES} GROUP BY day ORDER BY day",
    "hours": "SELECT hour, sum(ended - failed), "  # noqa: S608 - constants
    f"{', '.join(f'sum({name})' for name in tuple(RESULT_MEANINGS)[1:])}"
    f" FROM failures WHERE {DAYS} AND kind <> 'nameplate' GROUP BY hour ORDER BY hour",
    "guesses": f"SELECT coalesce(sum(scary + crowded_mailboxes), 0) FROM guesses WHERE {DAYS} AND stands_out",  # noqa: S608
    "kinds": f"SELECT kind, {RESULT_SUMS} FROM outcomes WHERE {DAYS} GROUP BY kind ORDER BY kind",  # noqa: S608
    "servers": f"SELECT source, {RESULT_SUMS} {_MAILBOXES} GROUP BY source ORDER BY source",
    "applications": f"SELECT app_id, {RESULT_SUMS} {_MAILBOXES} GROUP BY app_id ORDER BY app_id",
}

_ENDED: Final = count_column("ended", "Ended", "The sum of the results.")
_FAILED: Final = count_column("failed", "Failed", "Those that did not end happy, also lonely ones.")
_SHARE: Final = ReportColumn("happy_share", "Share happy", ValueKind.SHARE, "Those that ended happy, of all.", "-")

_KINDS: Final[Mapping[str, str]] = {
    "nameplate": "nameplates",
    "claimed": "mailboxes of a nameplate",
    "opened": "mailboxes without a nameplate",
}
"""The words for the kinds of the table outcomes."""


def results_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section."""
    totals = [sum(row[index] for row in rows["days"]) for index in range(1, len(RESULT_MEANINGS) + 1)]
    total, failed = sum(totals), sum(totals[1:])
    if not rows["kinds"]:
        return Section("results", "Success")
    [(wrong_codes,)] = rows["guesses"]
    lonely = totals[tuple(RESULT_MEANINGS).index("lonely")]
    guesses = wrong_codes + min(scope.lonely_guesses, lonely)
    return Section(
        "results",
        "Success",
        (_by_time(rows, scope), _by_kind(rows["kinds"]), *_by_name(rows)),
        (
            Fact("Mailboxes that ended", total, ValueKind.COUNT),
            Fact(
                "Happy, without suspected guesses" if guesses else "Happy",
                share_of(totals[0], total - guesses),
                ValueKind.SHARE,
            ),
            Fact("Failed", failed, ValueKind.COUNT),
            *((Fact("Suspected guesses among them", guesses, ValueKind.COUNT),) if guesses else ()),
        ),
        terms="A mailbox is where the two sides of a code exchange messages. Each one that does not end happy counts"
        " as failed, also if only one side came."
        + (
            " Suspected guesses are the scary and crowded ones of applications and days that stand out by the rule of"
            " the table guesses, and as many lonely ones as there are nameplates of one side beyond the usual, if"
            " these are listed as a change."
            if guesses
            else ""
        ),
    )


def _with_ended(counts: Sequence[Any]) -> ReportRow:
    """Return the sum of results, the results, and the share of the first."""
    total = None if None in counts else sum(counts)
    return (total, *counts, share_of(counts[0], total))


def _by_time(rows: Mapping[str, Rows], scope: Scope) -> Figure:
    if scope.period.kind is not PeriodKind.DAY:
        return _by_day(rows["days"], scope)
    return Figure(
        "results-by-hour",
        "Results of mailboxes by hour",
        "Each bar is the number of mailboxes that started in an hour (UTC) and have ended, by result. An hour in"
        " which something failed has a large part above happy. ? is an hour that had not begun.",
        ReportTable(
            (HOUR_COLUMN, _ENDED, *RESULT_COLUMNS, _SHARE),
            tuple((at, *_with_ended(counts)) for at, *counts in hourly(rows["hours"], scope, len(RESULT_MEANINGS))),
        ),
        StackedBars("hour", tuple(RESULT_MEANINGS)),
        blurred_remarks(sum(sum(counts) for hour, *counts in rows["hours"] if hour is None), "result"),
    )


def _by_day(rows: Rows, scope: Scope) -> Figure:
    return Figure(
        "results-by-day",
        "Results of mailboxes by day",
        "Each bar is the number of mailboxes that started on a day and have ended, by result. A day with few users"
        " has a low bar. A day on which something failed has a large part above happy. ? is a day without records.",
        ReportTable(
            (DAY_COLUMN, _ENDED, *RESULT_COLUMNS, _SHARE),
            tuple((day, *_with_ended(counts)) for day, *counts in daily(rows, scope, len(RESULT_MEANINGS))),
        ),
        StackedBars("day", tuple(RESULT_MEANINGS)),
    )


def _by_kind(rows: Rows) -> Figure:
    columns = (text_column("kind", "Kind"), _ENDED, *RESULT_COLUMNS, _SHARE)
    return Figure(
        "results-by-kind",
        "Results by kind",
        "Each bar is the number of nameplates or mailboxes of a kind that ended. A nameplate is the number in a"
        " code. The claim of a nameplate makes a mailbox, too, so the kinds must not be added up.",
        ReportTable(
            (*columns[:2], _FAILED, *columns[2:]),
            tuple(_with_failed((_KINDS.get(kind, kind),), tuple(counts)) for kind, *counts in rows),
        ),
        RankedBars(("kind",), "ended", "failed"),
    )


def _with_failed(name: ReportRow, counts: tuple[int, ...]) -> ReportRow:
    return (*name, sum(counts), sum(counts[1:]), *counts, share_of(counts[0], sum(counts)))


def _by_name(rows: Mapping[str, Rows]) -> tuple[Figure, ...]:
    return (
        _ranked("server", MAILBOX_SERVER_COLUMN, rows["servers"]),
        _ranked("application", text_column("app_id", "Application"), rows["applications"], OTHER_APPLICATION),
    )


def _ranked(unit: str, column: ReportColumn, rows: Rows, other: RowName | None = None) -> Figure:
    counted = [((name,), (sum(counts), *counts)) for name, *counts in rows]
    ranked = top_rows(counted, 0, other=other)
    return Figure(
        f"results-by-{unit}",
        f"Results of mailboxes by {unit}",
        f"Each bar is the number of mailboxes of one {unit} that ended, the largest first. The marked part failed.",
        ReportTable(
            (column, NAMES_COLUMN, _ENDED, _FAILED, *RESULT_COLUMNS, _SHARE),
            tuple(
                _with_failed((row.name[0] if row.name else ALL_OTHERS, row.names), row.counts[1:]) for row in ranked
            ),
        ),
        RankedBars((column.name,), "ended", "failed"),
        name_remarks(ranked),
    )


RESULTS_SUBJECT: Final = Subject(("outcomes", "failures", "guesses"), QUERIES, results_section)
