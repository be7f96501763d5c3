"""The sources of the lake: what was read of each, when, and how recent its last row is.

The counts are those of the ledgers, which ingest stores with its commits. The commits also say which sources there
are. So `build` passes them to Spark as a frame (LEDGERS), as it does with the folders of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from restante.pipeline.schemas import (
    CLIENT_EVENTS,
    CLIENT_VERSIONS,
    MAILBOXES,
    NAMEPLATES,
    RELAY_TRANSFERS,
    SERVER_COMMANDS,
    SOURCE_COLUMN,
    SOURCE_KIND_ARCHIVE,
    SOURCE_KIND_FILES,
    Column,
    Table,
    day_of,
    us_column,
)
from restante.pipeline.tables.build import Build

KIND_USAGE: Final = "usage"
KIND_TRANSIT: Final = "transit"
KIND_LOGS: Final = "logs"
SOURCE_KINDS: Final[Mapping[str, str]] = {
    NAMEPLATES.name: KIND_USAGE,
    MAILBOXES.name: KIND_USAGE,
    CLIENT_VERSIONS.name: KIND_USAGE,
    RELAY_TRANSFERS.name: KIND_TRANSIT,
    SERVER_COMMANDS.name: KIND_LOGS,
    CLIENT_EVENTS.name: KIND_LOGS,
}
"""Clean table → the kind of the sources that feed it. The marks of `archived` say which of two kinds a source is."""

COUNT_COLUMNS: Final = (
    Column("read", "BIGINT", "Rows that were read: the sum of clean, duplicate and quarantined."),
    Column(
        "clean",
        "BIGINT",
        "Rows that were written to the clean tables, including those that --keep has dropped since.",
    ),
    Column("duplicate", "BIGINT", "Rows that were left out, because another row in the lake represents them."),
    Column(
        "quarantined",
        "BIGINT",
        "Rows that were rejected. A row that was read again counts again, and is in the table quarantine once.",
    ),
    Column("missed", "BIGINT", "Rows that the source had deleted before they were read."),
)
LAST_INGEST_COLUMN: Final = Column(
    "last_ingest",
    "TIMESTAMP",
    "When ingest last read new rows. A run that finds nothing new does not change it.",
)
COUNTED_SINCE_COLUMN: Final = Column(
    "counted_since",
    "TIMESTAMP",
    "When the first ingest that the counts include ended. Counts begin again when all rows of a source are replaced.",
)
SOURCE_KIND_COLUMN: Final = Column(
    "kind",
    "STRING",
    f"{KIND_USAGE}: usage records of a mailbox server; {KIND_TRANSIT}: usage records of a transit relay;"
    f" {KIND_LOGS}: timing logs and traces; {SOURCE_KIND_ARCHIVE}: archive of a mailserver; {SOURCE_KIND_FILES}:"
    " exported envelope files.",
)

SOURCES_TABLE: Final = Table(
    "sources",
    "source",
    (
        SOURCE_COLUMN,
        SOURCE_KIND_COLUMN,
        Column(
            "last_row",
            "TIMESTAMP",
            "Time of the latest row in the clean tables: the start of a nameplate, mailbox or transfer, a bind, the"
            " arrival of a command, an event of a client, or the sending of an envelope. NULL: the lake has no row of"
            " the source.",
            null=True,
        ),
        LAST_INGEST_COLUMN,
        us_column(
            "lag_us",
            "Time from last_row to last_ingest. Below 0: the row's clock was ahead. NULL: last_row is NULL.",
            null=True,
        ),
        COUNTED_SINCE_COLUMN,
        *COUNT_COLUMNS,
        Column("in_quarantine", "BIGINT", "Rows of the source in the table quarantine."),
        day_of("last_ingest"),
    ),
)
"""Invariants: one row for each source that has a ledger in a clean table other than `live`; `read` is the sum of
`clean`, `duplicate` and `quarantined`."""

LEDGERS: Final = Table(
    "ledgers",
    "source and clean table",
    (SOURCE_COLUMN, SOURCE_KIND_COLUMN, LAST_INGEST_COLUMN, COUNTED_SINCE_COLUMN, *COUNT_COLUMNS),
    (),
)
"""The frame with the sums of the ledgers, which `make` gets as if it were an input. No lake contains it."""


def sources(
    nameplates: DataFrame,
    mailboxes: DataFrame,
    client_versions: DataFrame,
    relay_transfers: DataFrame,
    server_commands: DataFrame,
    client_events: DataFrame,
    archived: DataFrame,
    quarantine: DataFrame,
    ledgers: DataFrame,
) -> DataFrame:
    """Return a row for each source of `ledgers`. Of a clean table each source's latest day suffices.

    One aggregation computes all columns of a source, so this is one job with one shuffle.
    """
    times = [
        (nameplates, "started"),
        (mailboxes, "started"),
        (client_versions, "connect_time"),
        (relay_transfers, "started"),
        (server_commands, "timestamp_micros(floor(server_rx * 1e6D + 0.5D))"),
        (client_events, "timestamp_micros(floor(start * 1e6D + 0.5D))"),
        (archived, "sent"),
    ]
    rows = quarantine.selectExpr("source", "CAST(NULL AS TIMESTAMP) AS at", "1L AS rejected")
    for clean, time in times:  # of a row, which is that of its day
        rows = rows.unionAll(clean.selectExpr("source", time, "0L"))
    together = rows.unionByName(ledgers, allowMissingColumns=True).groupBy("source")
    sums = together.agg(
        *(f.max(name).alias(name) for name in ("kind", "last_ingest")),
        f.min("counted_since").alias("counted_since"),
        *(f.sum(column.name).alias(column.name) for column in COUNT_COLUMNS),
        f.max("at").alias("last_row"),
        f.coalesce(f.sum("rejected"), f.lit(0)).alias("in_quarantine"),
    )
    lag = f.unix_micros("last_ingest") - f.unix_micros("last_row")
    return sums.where(f.col("kind").isNotNull()).select(
        "*", lag.alias("lag_us"), f.col("last_ingest").cast("date").alias("day")
    )


BUILD: Final = Build(SOURCES_TABLE, sources)
"""It is not one of BUILDS: its days are not those of its inputs. `live` is left out: the same nameplate is in it as
often as ingest finds it live, so its counts say nothing about what was read."""
