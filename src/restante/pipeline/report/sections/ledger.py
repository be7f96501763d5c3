"""The sources: how recent they are, what was read of each, and what was rejected. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from restante.pipeline.report.model import (
    Fact,
    Figure,
    RankedBars,
    ReportColumn,
    ReportRow,
    ReportTable,
    Section,
    ValueKind,
)
from restante.pipeline.report.sections.subject import (
    ALL_OTHERS,
    DAYS,
    NAMES_COLUMN,
    Rows,
    Scope,
    Subject,
    count_column,
    moment,
    text_column,
)
from restante.pipeline.report.top_rows import top_rows

STALE: Final = timedelta(days=2)
"""Age of a source's last row from which on it is a warning. A pipeline that runs once a day has rows of yesterday."""

SOURCE_QUERIES: Final[Mapping[str, str]] = {
    "sources": "SELECT source, kind, epoch_us(last_row), epoch_us(last_ingest), lag_us, read, clean, duplicate,"
    " quarantined, missed, in_quarantine, epoch_us(counted_since) FROM sources ORDER BY read DESC, source",
}


def sources_section(rows: Mapping[str, Rows], scope: Scope) -> Section:
    """Return the section of sources. They are as of the last build, whatever the period is."""
    source_rows = [
        (name, kind, moment(last_row), moment(ingest), *counts[:-1], moment(counts[-1]))
        for name, kind, last_row, ingest, *counts in rows["sources"]
    ]
    if not source_rows:
        return Section("sources", "Sources", nothing="The lake has no sources yet.")
    missed = sum(row[9] for row in source_rows)
    stale = sum(row[2] is None or scope.made - row[2] > STALE for row in source_rows)
    return Section(
        "sources",
        "Sources",
        (
            Figure(
                "sources",
                "Sources and their ledger",
                "Each bar is the number of rows that were read of a source since its counts began, whatever the"
                " period of this report is. The marked part was rejected. Clean, duplicate and rejected rows add up"
                " to those that were read.",
                ReportTable(
                    (
                        text_column("source", "Source"),
                        text_column("kind", "Kind"),
                        ReportColumn("last_row", "Last row", ValueKind.MOMENT, "Time of the latest row.", "none"),
                        ReportColumn(
                            "last_ingest",
                            "Last ingest",
                            ValueKind.MOMENT,
                            "When new rows were read for the last time.",
                        ),
                        ReportColumn("lag_us", "Lag", ValueKind.DURATION, "From the last row to the last ingest."),
                        count_column("read", "Read"),
                        count_column("clean", "Clean"),
                        count_column("duplicate", "Duplicate", "Rows that another row in the lake represents."),
                        count_column("quarantined", "Rejected"),
                        count_column("missed", "Missed", "Rows that the source had deleted before they were read."),
                        count_column("in_quarantine", "In quarantine", "Different rejected rows."),
                        ReportColumn("counted_since", "Counted since", ValueKind.MOMENT),
                    ),
                    tuple(source_rows),
                ),
                RankedBars(("source",), "read", "quarantined"),
            ),
        ),
        (
            Fact("Sources", len(source_rows), ValueKind.COUNT),
            Fact("Sources without rows of the last 2 days", stale, ValueKind.COUNT, warns=stale > 0),
            Fact("Missed rows", missed, ValueKind.COUNT, warns=missed > 0),
        ),
        terms="A source is what the pipeline reads: the usage records of a mailbox server or a transit relay, the"
        " archive of a Mailserver, or a folder of logs or envelopes.",
    )


QUARANTINE_QUERIES: Final[Mapping[str, str]] = {
    "reasons": f'SELECT source, "table", reason, count(*) FROM quarantine WHERE {DAYS}'  # noqa: S608 - constants
    " GROUP BY ALL ORDER BY ALL",
}


def quarantine_section(rows: Mapping[str, Rows], _scope: Scope) -> Section:
    """Return the section of rejected rows."""
    if not rows["reasons"]:
        return Section("quarantine", "Quarantine", nothing="No row was rejected in the period.")
    reasons = top_rows([((source, table, reason), (count,)) for source, table, reason, count in rows["reasons"]], 0)
    table: tuple[ReportRow, ...] = tuple(
        (*(row.name or (ALL_OTHERS, "", "")), row.names, row.counts[0]) for row in reasons
    )
    rejected = sum(row.counts[0] for row in reasons)
    return Section(
        "quarantine",
        "Quarantine",
        (
            Figure(
                "quarantine",
                "Rejected rows by reason",
                "Each bar is the number of rows of a source that ingest rejected for a reason, in the period.",
                ReportTable(
                    (
                        text_column("source", "Source"),
                        text_column("table", "Table", "Table that the row was meant for."),
                        text_column("reason", "Reason"),
                        NAMES_COLUMN,
                        count_column("rows", "Rows"),
                    ),
                    table,
                ),
                RankedBars(("source", "table", "reason"), "rows"),
            ),
        ),
        (Fact("Rejected rows", rejected, ValueKind.COUNT, warns=True),),
        terms="The quarantine says of each row that breaks a rule of the lake why it was rejected.",
    )


SOURCES_SUBJECT: Final = Subject(("sources",), SOURCE_QUERIES, sources_section)
QUARANTINE_SUBJECT: Final = Subject(("quarantine",), QUARANTINE_QUERIES, quarantine_section)
