"""The schemas of the lake's tables, as data: columns, types, grain and partitions.

Times are timestamps (UTC, microseconds), durations are whole microseconds, days are dates (UTC). A column that is not
nullable here has no NULL in the lake: ingest puts a row with one into quarantine. The schemas of the tables that
`build` makes are in restante.pipeline.tables, beside the functions that make them.
"""

from __future__ import annotations

from datetime import date
from typing import Final, NamedTuple

from restante.common.transfer_records import MEANINGS

FIRST_DAY: Final = date(2015, 1, 1)
"""Older rows are faults, of a wrong clock: neither Magic Wormhole nor Whisper, Waku's predecessor, is older."""


class Column(NamedTuple):
    """A column: its type in Spark's DDL, its meaning, and whether it may be NULL."""

    name: str
    type: str
    meaning: str
    """Sentences that make sense without the other columns: Delta tables and DuckDB's views show them as its
    comment."""
    null: bool = False
    unit: str = ""
    """The unit of a measured number, such as MICROSECONDS; "" for counts, ids and values that are not numbers."""
    added: bool = False
    """Whether earlier versions of Restante made the table without this column, which may be NULL. The next commit
    adds it to their tables, and it is NULL in the rows that they have."""

    @property
    def comment(self) -> str:
        """Return the meaning and the unit."""
        return f"{self.meaning} In {self.unit}." if self.unit else self.meaning


MONTH_COLUMN: Final = Column("month", "DATE", "First day of the month of the day: the partition of the row.")

BY_MONTH: Final = (MONTH_COLUMN.name,)
"""The partitions of a table whose days are small: a file has many days of many sources."""

BY_DAY_AND_SOURCE: Final = ("day", "source")
"""The partitions of a table whose days may be large: a day or a source is replaced without reading another. The
columns that tables by month are sorted by."""


class Table(NamedTuple):
    """A table of the lake. It has one row per `grain`, and one folder per value of `partitions`, the first outermost.

    The month is no column of the table, though its Delta table has it: the rows of a table are the same however its
    files are laid out.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    partitions: tuple[str, ...] = BY_MONTH

    @property
    def by_month(self) -> bool:
        """Return whether the table is partitioned by month."""
        return self.partitions == BY_MONTH

    @property
    def stored(self) -> tuple[Column, ...]:
        """Return the columns of the Delta table."""
        return (*self.columns, MONTH_COLUMN) if self.by_month else self.columns

    @property
    def order(self) -> tuple[str, ...]:
        """Return the columns by which a task sorts the rows that it writes."""
        names = {column.name for column in self.columns}
        return tuple(name for name in BY_DAY_AND_SOURCE if name in names) if self.by_month else self.partitions


MICROSECONDS: Final = "microseconds"
SECONDS: Final = "seconds"
EPOCH_SECONDS: Final = "seconds since 1970 (UTC)"
BYTES: Final = "bytes"

MAX_TEXT_CHARACTERS: Final = 128
"""Characters that are kept of a text that a client chose (applications, implementations, versions)."""


def day_of(event: str) -> Column:
    """Return the column of the day. Its comment names the event of that day."""
    return Column("day", "DATE", f"UTC day of {event}.")


def us_column(name: str, meaning: str, *, null: bool = False) -> Column:
    """Return a column of microseconds."""
    return Column(name, "BIGINT", meaning, null, MICROSECONDS)


SOURCE_COLUMN: Final = Column("source", "STRING", "Name of the source, as given in --source.")
ID_COLUMN: Final = Column("id", "BIGINT", "Id of the row at its source.")
ORIGIN_COLUMN: Final = Column(
    "origin",
    "STRING",
    "'' for a row that the server wrote itself; else the name of the file that it was imported from.",
)
APP_COLUMN: Final = Column(
    "app_id", "STRING", f"Id of the application, as clients sent it; cut to {MAX_TEXT_CHARACTERS} characters."
)
STARTED_COLUMN: Final = Column(
    "started", "TIMESTAMP", "When the first side joined, rounded down to a multiple of the blur."
)
WAITING_COLUMN: Final = us_column(
    "waiting_us", "Time from the first side to the second. NULL: no second side joined.", null=True
)
TOTAL_COLUMN: Final = us_column("total_us", "Time from the first side to the end.")
RESULT_COLUMN: Final = Column(
    "result",
    "STRING",
    "How it ended. happy: two sides joined; lonely: only one side joined, or a client reported this mood; errory,"
    " scary: a client reported this mood (mailboxes only); pruney: deleted because it was idle for too long; crowded:"
    " a third side was refused.",
)
BLUR_COLUMN: Final = us_column(
    "blur_us",
    "Blur: the row's time is rounded down to a multiple of this. NULL: the time is exact. Records of the reference"
    " server, and of this server before schema 4, do not say their blur. It is then inferred from the time and the"
    " server's setting, so an exact time on a whole second is taken for a rounded one.",
    null=True,
)

TRANSFER_RESULT_COLUMN: Final = Column(
    "result",
    "STRING",
    f"How it ended. {'; '.join(f'{result}: {meaning}' for result, meaning in MEANINGS.items())}.",
)

NAMEPLATES: Final = Table(
    "nameplates",
    "nameplate that has ended",
    (
        ID_COLUMN,
        ORIGIN_COLUMN,
        APP_COLUMN,
        STARTED_COLUMN,
        WAITING_COLUMN,
        TOTAL_COLUMN,
        RESULT_COLUMN,
        BLUR_COLUMN,
        day_of("started"),
        SOURCE_COLUMN,
    ),
)
MAILBOXES: Final = Table(
    "mailboxes",
    "mailbox that has ended",
    (
        ID_COLUMN,
        ORIGIN_COLUMN,
        APP_COLUMN,
        Column(
            "for_nameplate", "BOOLEAN", "Whether the claim of a nameplate made the mailbox; else an open made it."
        ),
        STARTED_COLUMN,
        WAITING_COLUMN,
        TOTAL_COLUMN,
        RESULT_COLUMN,
        Column(
            "visitors",
            "BIGINT",
            "Sides that were sent another side's message and never added one. NULL: the server did not count them.",
            null=True,
        ),
        BLUR_COLUMN,
        day_of("started"),
        SOURCE_COLUMN,
    ),
)
CLIENT_VERSIONS: Final = Table(
    "client_versions",
    "bind",
    (
        ID_COLUMN,
        ORIGIN_COLUMN,
        APP_COLUMN,
        Column("connect_time", "TIMESTAMP", "When the client bound, rounded down to a multiple of the blur."),
        *(
            Column(
                name,
                "STRING",
                f"{name_of} of the client program, as the client sent it; cut to {MAX_TEXT_CHARACTERS} characters."
                " NULL: it sent none.",
                null=True,
            )
            for name, name_of in (("implementation", "Name"), ("version", "Version"))
        ),
        BLUR_COLUMN,
        *(
            Column(
                name,
                "BOOLEAN",
                f"Whether this is the first bind of the day at this server from its address{suffix}. NULL: the"
                " address is not known, or an older version of Restante read the row.",
                null=True,
                added=True,
            )
            for name, suffix in (("new_address", ""), ("new_address_of_app", " for this application"))
        ),
        day_of("connect_time"),
        SOURCE_COLUMN,
    ),
)
LIVE_NAMEPLATE: Final = "nameplate"
LIVE_MAILBOX: Final = "mailbox"
LIVE_LISTENER: Final = "listener"

LIVE: Final = Table(
    "live",
    "server, kind and start of what was live when ingest last read the server's database",
    (
        Column(
            "kind",
            "STRING",
            f"{LIVE_NAMEPLATE}, {LIVE_MAILBOX}: nameplates and mailboxes that had not ended; {LIVE_LISTENER}:"
            " connections that had a mailbox open.",
        ),
        Column(
            "started",
            "TIMESTAMP",
            "When the first side joined, rounded down to a multiple of the blur. NULL: the row counts connections.",
            null=True,
        ),
        Column("count", "BIGINT", "How many of this kind started then; or how many connections there were."),
        Column(
            "as_of",
            "TIMESTAMP",
            "When the server last wrote to its database; for connections, when it counted them. Rounded down to a"
            " multiple of the blur.",
        ),
        BLUR_COLUMN._replace(
            meaning="Blur: the row's times are rounded down to a multiple of this, the server's setting. NULL: exact."
        ),
        day_of("started, or of as_of if started is NULL"),
        SOURCE_COLUMN,
    ),
)
"""Each ingest that reads anything new of a source replaces the source's rows, so the table has no history."""

RELAY_TRANSFERS: Final = Table(
    "relay_transfers",
    "transfer through a transit relay, or connection to it that ended without a partner",
    (
        ID_COLUMN,
        ORIGIN_COLUMN,
        STARTED_COLUMN._replace(meaning="When the first side connected, rounded down to a multiple of the blur."),
        WAITING_COLUMN._replace(meaning="Time from the first side to the second. NULL: no second side came."),
        TOTAL_COLUMN._replace(meaning="Time from the first side to the end of the transfer, or of the connection."),
        Column(
            "total_bytes",
            "BIGINT",
            "Bytes that were relayed, of both directions. A relay that rounds times rounds these up: to a multiple of"
            " 10 kB below 1 MB, of 1 MB below 1 GB, else of 100 MB.",
            unit=BYTES,
        ),
        TRANSFER_RESULT_COLUMN,
        BLUR_COLUMN._replace(
            meaning="Blur: the row's time is rounded down to a multiple of this. NULL: the time is exact. Records of"
            " the reference relay do not say their blur. It is then inferred from the time, so an exact time on a"
            " whole second is taken for a rounded one."
        ),
        day_of("started"),
        SOURCE_COLUMN,
    ),
)
SERVER_COMMANDS: Final = Table(
    "server_commands",
    "command in a server's trace",
    (
        Column("file", "STRING", "Identifies the trace file: SHA-256 of its first line."),
        Column("id", "BIGINT", "Offset of the line in its file.", unit=BYTES),
        Column("connection", "BIGINT", "Number of the connection, counted since the server started."),
        Column(
            "command", "STRING", "Type of the message. '': an unknown type. NULL: the message had none.", null=True
        ),
        Column("command_id", "STRING", "Id that the client gave the command. NULL: none.", null=True),
        Column("server_rx", "DOUBLE", "When the server received the command.", unit=EPOCH_SECONDS),
        Column(
            "commit_began",
            "DOUBLE",
            "When the commit of the change began. NULL: the command changed nothing, or the server's version did not"
            " record it.",
            null=True,
            unit=EPOCH_SECONDS,
            added=True,
        ),
        Column(
            "commit",
            "DOUBLE",
            "When the change was on disk. NULL: the command changed nothing.",
            null=True,
            unit=EPOCH_SECONDS,
        ),
        Column(
            "server_tx",
            "DOUBLE",
            "When the server sent the answer. NULL: it sent none.",
            null=True,
            unit=EPOCH_SECONDS,
        ),
        day_of("server_rx"),
        SOURCE_COLUMN,
    ),
    BY_DAY_AND_SOURCE,
)
LOG_COLUMN: Final = Column("file", "STRING", "Identifies the timing log: SHA-256 of the file.")
EVENT_ID_COLUMN: Final = Column("id", "BIGINT", "Position of the event in its log, from 0.")
SERVER_COLUMN: Final = Column(
    "server",
    "STRING",
    "Source of the server's trace, as given in --source NAME@SERVER. NULL: none was given.",
    null=True,
)
_OF_MESSAGES: Final = "NULL: the event is not a sent or received message."
CLIENT_EVENTS: Final = Table(
    "client_events",
    "event in a client's timing log",
    (
        LOG_COLUMN,
        EVENT_ID_COLUMN,
        SERVER_COLUMN,
        Column("name", "STRING", "Name of the event: ws_send, ws_receive, pake1, input code and so on, or other."),
        Column("start", "DOUBLE", "When the event began, by the client's clock.", unit=EPOCH_SECONDS),
        Column(
            "stop",
            "DOUBLE",
            "When the event ended, by the client's clock. NULL: the event has no duration, or did not end.",
            null=True,
            unit=EPOCH_SECONDS,
        ),
        Column(
            "waiting", "STRING", "What the client waited for: user, crypto or other. NULL: for nothing.", null=True
        ),
        Column("command", "STRING", f"Type of the message; '': an unknown type. {_OF_MESSAGES}", null=True),
        Column("command_id", "STRING", f"Id of the message. {_OF_MESSAGES}", null=True),
        Column(
            "phase",
            "STRING",
            "Phase of a message: pake, version, a number, dilate-N, or other. NULL: it has none.",
            null=True,
        ),
        Column(
            "own",
            "BOOLEAN",
            "Whether a received message is one that this client sent itself. NULL: the event is not a received"
            " message of a mailbox.",
            null=True,
        ),
        Column(
            "server_rx",
            "DOUBLE",
            "Time at which the server received the message, from the key server_rx of a frame that the client"
            " received. It equals server_rx in the trace. NULL: the frame had no such key, or the event is not a"
            " received message.",
            null=True,
            unit=EPOCH_SECONDS,
        ),
        Column(
            "server_tx",
            "DOUBLE",
            "Time at which the server sent the frame that the client received, from its key server_tx, in whole"
            " microseconds. NULL: the frame had no such key, or the event is not a received message.",
            null=True,
            unit=EPOCH_SECONDS,
        ),
        day_of("start"),
        SOURCE_COLUMN,
    ),
    BY_DAY_AND_SOURCE,
)
SOURCE_KIND_ARCHIVE: Final = "archive"
SOURCE_KIND_FILES: Final = "files"

HASH_COLUMN: Final = Column("hash", "BINARY", "Keccak-256 of raw: identifies the envelope.")
TOPIC_COLUMN: Final = Column("topic", "STRING", "Topic: 0x and the eight hexadecimal digits of its four bytes.")
SENT_COLUMN: Final = Column(
    "sent", "TIMESTAMP", "When the envelope was sent: its expiry less its TTL, by the sender's clock."
)

ARCHIVED: Final = Table(
    "archived",
    "envelope in a mailserver's archive or in an exported file",
    (
        HASH_COLUMN,
        TOPIC_COLUMN,
        SENT_COLUMN,
        Column("expiry", "TIMESTAMP", "When the envelope expires."),
        Column("ttl", "BIGINT", "TTL: how long after it was sent the envelope expires.", unit=SECONDS),
        Column("size", "INT", "Size of raw.", unit=BYTES),
        Column("pow", "DOUBLE", "Proof of work of the envelope, as status-go computes it."),
        Column(
            "file",
            "STRING",
            "Identifies the file or archive: SHA-256 of the envelope file, or of the archive's first arrival.",
        ),
        Column("arrival", "BIGINT", "Number of the arrival in the archive; position in an envelope file, from 0."),
        Column(
            "arrived",
            "TIMESTAMP",
            "When the mailserver archived the envelope. NULL: the envelope was read from a file, and files do not"
            " have this time.",
            null=True,
        ),
        Column("raw", "BINARY", "The whole envelope, in RLP."),
        Column(
            "source_kind",
            "STRING",
            f"Kind of the source. {SOURCE_KIND_ARCHIVE}: archive of a mailserver; {SOURCE_KIND_FILES}: exported"
            " envelope files.",
        ),
        day_of("sent"),
        SOURCE_COLUMN,
    ),
    ("day", "source_kind", "source"),
)
QUARANTINE: Final = Table(
    "quarantine",
    "row of a source that ingest rejected",
    (
        Column("table", "STRING", "Table that the row was meant for."),
        Column("identity", "STRING", "Id of the row at its source; or its file, and its position in the file."),
        Column("reason", "STRING", "Why ingest rejected it. docs/pipeline/operating.md explains each reason."),
        Column("digest", "STRING", "SHA-256 of the row, hexadecimal."),
        day_of("the run that found the row"),
        SOURCE_COLUMN,
    ),
)

CLEAN_TABLES: Final = {
    table.name: table
    for table in (
        NAMEPLATES,
        MAILBOXES,
        CLIENT_VERSIONS,
        LIVE,
        RELAY_TRANSFERS,
        SERVER_COMMANDS,
        CLIENT_EVENTS,
        ARCHIVED,
        QUARANTINE,
    )
}
"""The tables that ingest writes."""

SOURCES: Final = {
    **{table.name: "a mailbox server's data directory" for table in (NAMEPLATES, MAILBOXES, CLIENT_VERSIONS, LIVE)},
    RELAY_TRANSFERS.name: "a transit relay's data directory",
    SERVER_COMMANDS.name: "a server's trace",
    CLIENT_EVENTS.name: "a client's timing log",
    ARCHIVED.name: "a Waku archive or envelope files",
}
"""What to ingest to get each clean table."""
