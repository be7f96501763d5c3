"""Versions of clients and their failures, and codes that somebody may have guessed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from restante.common.texts import counted
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
    OTHER_VERSION,
    RESULT_COLUMNS,
    RESULT_SUMS,
    Rows,
    Scope,
    Subject,
    count_column,
    daily,
    hourly,
    name_remarks,
    number_of_names,
    share_of,
    text_column,
)
from restante.pipeline.report.top_rows import NamedCounts, top_rows
from restante.pipeline.tables.top_n import MAX_NAMES

VERSION_QUERIES: Final[Mapping[str, str]] = {
    "versions": f"SELECT implementation, version, sum(mailboxes), sum(connections), {RESULT_SUMS}"  # noqa: S608
    f" FROM versions WHERE {DAYS} AND attribution = 'version' GROUP BY ALL ORDER BY ALL",
    "attributions": f"SELECT attribution, sum(mailboxes) FROM versions WHERE {DAYS}"  # noqa: S608
    " GROUP BY attribution ORDER BY attribution",
}

_ATTRIBUTIONS: Final[Mapping[str, str]] = {
    "version": "the version is known",
    "mixed": "clients of several versions had just bound",
    "unbound": "no client had just bound",
    "blurred": "the times are too coarse to decide",
}


def versions_section(rows: Mapping[str, Rows], _scope: Scope) -> Section:
    """Return the section of versions."""
    if not rows["versions"]:
        return Section("versions", "Versions and their failures")
    ranked = top_rows(
        [((name, version), counts) for name, version, *counts in rows["versions"]], 0, other=OTHER_VERSION
    )
    mailboxes: dict[str, int] = dict(rows["attributions"])
    return Section(
        "versions",
        "Versions and their failures",
        (
            Figure(
                "versions",
                "Results by version",
                "Each bar is the number of mailboxes that clients of a version opened and that have ended, the"
                " largest first. The marked part failed. A version with a larger marked part than others may have"
                " a fault.",
                ReportTable(
                    (
                        text_column("implementation", "Client", "Name of the client program."),
                        text_column("version", "Version"),
                        NAMES_COLUMN,
                        count_column("mailboxes", "Mailboxes"),
                        count_column("failed", "Failed", "Mailboxes that did not end happy, also lonely ones."),
                        ReportColumn("failed_share", "Share failed", ValueKind.SHARE, absent="-"),
                        count_column("connections", "Connections", "A client that reconnects counts again."),
                        *RESULT_COLUMNS,
                    ),
                    tuple(map(_version_row, ranked)),
                ),
                RankedBars(("implementation", "version"), "mailboxes", "failed"),
                name_remarks(ranked),
            ),
            Figure(
                "attributions",
                "Whether the version of a mailbox is known",
                "Each bar is a number of mailboxes that ended. A usage record does not name the version. It is that"
                " of the client that bound just before.",
                ReportTable(
                    (text_column("attribution", "Version"), count_column("mailboxes", "Mailboxes")),
                    tuple((text, mailboxes[key]) for key, text in _ATTRIBUTIONS.items() if key in mailboxes),
                ),
                RankedBars(("attribution",), "mailboxes"),
            ),
        ),
        (number_of_names("Versions", ranked),),
        terms="A mailbox is where the two sides of a code exchange messages. Each one that does not end happy counts"
        " as failed, also if only one side came. Clients name their versions themselves, and nobody checks them.",
    )


def _version_row(row: NamedCounts) -> ReportRow:
    mailboxes, connections, *results = row.counts
    failed = sum(results[1:])
    name = row.name or (ALL_OTHERS, "")
    return (*name, row.names, mailboxes, failed, share_of(failed, mailboxes), connections, *results)


MAX_SUSPICIOUS_ROWS: Final = 50
"""Rows of days that stand out. In an attack on all servers and applications of a month there are more; the first ones
then say enough."""

GUESS_QUERIES: Final[Mapping[str, str]] = {
    "days": f"SELECT day, sum(crowded_nameplates), sum(scary) FROM guesses WHERE {DAYS}"  # noqa: S608 - constants
    " GROUP BY day ORDER BY day",
    "hours": "SELECT hour, coalesce(sum(crowded) FILTER (kind = 'nameplate'), 0),"  # noqa: S608 - constants
    f" coalesce(sum(scary) FILTER (kind <> 'nameplate'), 0) FROM failures WHERE {DAYS} GROUP BY hour ORDER BY hour",
    "judged": "SELECT count(*), count(stands_out), count(*) FILTER (stands_out)"  # noqa: S608 - constants
    f" FROM guesses WHERE {DAYS}",
    "stand_out": "SELECT day, source, app_id, suspects, threshold, crowded_nameplates, scary"  # noqa: S608
    f" FROM guesses WHERE {DAYS} AND stands_out ORDER BY suspects - threshold DESC, day, source, app_id"
    f" LIMIT {MAX_SUSPICIOUS_ROWS}",
}

_CROWDED: Final = count_column(
    "crowded_nameplates", "Crowded nameplates", "A third side tried to claim the nameplate."
)
_SCARY: Final = count_column("scary", "Scary mailboxes", "The two sides had different codes.")


def guesses_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section of guesses."""
    [(counted_rows, judged, stand_out)] = rows["judged"]
    if not counted_rows:
        return Section("guesses", "Guessing")
    not_judged = counted_rows - judged
    return Section(
        "guesses",
        "Guessing",
        (
            _wrong_codes(rows, scope),
            Figure(
                "guesses-that-stand-out",
                "Days that stand out",
                "Each row is a server, day and application with more suspects than the threshold, which follows from"
                " the seven days before.",
                ReportTable(
                    (
                        DAY_COLUMN,
                        MAILBOX_SERVER_COLUMN,
                        text_column(
                            "app_id",
                            "Application",
                            f"{ALL_OTHERS}: those that are not among the {MAX_NAMES:,} most frequent of the server"
                            " and day.",
                        ),
                        count_column("suspects", "Suspects", "Crowded nameplates and scary mailboxes together."),
                        count_column("threshold", "Threshold"),
                        _CROWDED,
                        _SCARY,
                    ),
                    tuple(map(_suspicious_row, rows["stand_out"])),
                ),
                remarks=_guess_remarks(stand_out, not_judged),
            ),
        ),
        (Fact("Days and applications that stand out", stand_out, ValueKind.COUNT, warns=stand_out > 0),),
        terms="Somebody who guesses codes of others leaves crowded nameplates, which a third side tried to claim, and"
        " scary mailboxes, whose two sides had different codes.",
    )


def _wrong_codes(rows: Mapping[str, Rows], scope: Scope) -> Figure:
    is_day = scope.period.kind is PeriodKind.DAY
    unit, time_column = ("hour", HOUR_COLUMN) if is_day else ("day", DAY_COLUMN)
    counts = hourly(rows["hours"], scope, 2) if is_day else daily(rows["days"], scope, 2)
    return Figure(
        f"guesses-by-{unit}",
        f"Results of wrong codes by {unit}",
        "Each bar is the number of nameplates and mailboxes that ended as they do after a guess of a code."
        " Mistyped codes end in the same way, so a few on each day are normal.",
        ReportTable((time_column, _CROWDED, _SCARY), tuple(counts)),
        StackedBars(unit, (_CROWDED.name, _SCARY.name)),
    )


def _suspicious_row(row: ReportRow) -> ReportRow:
    day, source, app_id, *counts = row
    return (day, source, ALL_OTHERS if (app_id,) == OTHER_APPLICATION else app_id, *counts)


def _guess_remarks(stand_out: int, not_judged: int) -> tuple[str, ...]:
    sentences = []
    if not stand_out:
        sentences.append("No day stands out.")
    if stand_out > MAX_SUSPICIOUS_ROWS:
        sentences.append(f"There are {stand_out:,} such rows. The first {MAX_SUSPICIOUS_ROWS} are shown.")
    if not_judged:
        sentences.append(
            f"{counted(not_judged, 'row')} of the period could not be judged: the lake has too few days before."
        )
    return tuple(sentences)


VERSIONS_SUBJECT: Final = Subject(("versions",), VERSION_QUERIES, versions_section)
GUESSES_SUBJECT: Final = Subject(("guesses", "failures"), GUESS_QUERIES, guesses_section)
