"""What the lake's tables hold: columns, types, grain and partitions, as data.

Times are timestamps (UTC, microseconds), durations whole microseconds, days dates (UTC). What has no NULL here has
none in the lake: ingest puts a row with one into quarantine. The tables that `build` makes are in
restante.pipeline.tables, beside the functions that make them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Column(NamedTuple):
    """One column: its type in Spark's DDL, and whether it may be NULL."""

    name: str
    type: str
    meaning: str
    null: bool = False


class Table(NamedTuple):
    """One table of the lake: one row per `grain`; a folder a partition, the day first."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    partitions: tuple[str, ...] = ("day", "source")

    @property
    def ddl(self) -> str:
        """Its schema as Spark reads it; partition columns last, as Delta tables have them."""
        return ", ".join(f"{c.name} {c.type}{'' if c.null else ' NOT NULL'}" for c in self.columns)


DAY: Final = Column("day", "DATE", "the UTC day of the row's first time")
SOURCE: Final = Column("source", "STRING", "the name that --source gave it")
ID: Final = Column("id", "BIGINT", "the row's id at its source, never given twice there")
ORIGIN: Final = Column("origin", "STRING", "'' for the server's own rows, else the file they were imported from")
APP: Final = Column("app_id", "STRING", "the application, at most 128 characters of it")
STARTED: Final = Column("started", "TIMESTAMP", "when the first side came")
WAITING: Final = Column("waiting_us", "BIGINT", "until the second side; NULL: there was none", null=True)
TOTAL: Final = Column("total_us", "BIGINT", "until it ended")
RESULT: Final = Column("result", "STRING", "how it ended: happy, lonely, errory, scary, pruney, crowded")
BLUR: Final = Column("blur_us", "BIGINT", "what its times are floored to; NULL: nothing", null=True)

NAMEPLATES: Final = Table(
    "nameplates", "nameplate that has ended", (ID, ORIGIN, APP, STARTED, WAITING, TOTAL, RESULT, BLUR, DAY, SOURCE)
)
MAILBOXES: Final = Table(
    "mailboxes",
    "mailbox that has ended",
    (
        *(ID, ORIGIN, APP),
        Column("for_nameplate", "BOOLEAN", "a claim made it; otherwise an open did"),
        *(STARTED, WAITING, TOTAL, RESULT),
        Column(
            "visitors",
            "BIGINT",
            "sides that were sent another side's message and added none; NULL: not counted",
            null=True,
        ),
        *(BLUR, DAY, SOURCE),
    ),
)
CLIENT_VERSIONS: Final = Table(
    "client_versions",
    "bind",
    (
        *(ID, ORIGIN, APP),
        Column("connect_time", "TIMESTAMP", "when the bind came"),
        Column("implementation", "STRING", "as the client said, at most 128 characters; NULL: it did not", null=True),
        Column("version", "STRING", "likewise", null=True),
        *(BLUR, DAY, SOURCE),
    ),
)
SERVER_COMMANDS: Final = Table(
    "server_commands",
    "command in a server's trace",
    (
        Column("file", "STRING", "stands for the file: a digest of its first line"),
        Column("id", "BIGINT", "the line's offset in its file, in bytes"),
        Column("connection", "BIGINT", "counts connections since the server started"),
        Column("command", "STRING", "the message's type; '' unknown, NULL none", null=True),
        Column("command_id", "STRING", "the command's own id; NULL: it had none", null=True),
        Column("server_rx", "DOUBLE", "when it came, exactly as it was written: seconds since 1970"),
        Column("commit", "DOUBLE", "when it was durable; NULL: it changed nothing", null=True),
        Column("server_tx", "DOUBLE", "when it was answered; NULL: it was not", null=True),
        *(DAY, SOURCE),
    ),
)
CLIENT_EVENTS: Final = Table(
    "client_events",
    "event in a client's timing log",
    (
        Column("file", "STRING", "stands for the file: a digest of it"),
        Column("id", "BIGINT", "the event's place in its list, from 0"),
        Column("server", "STRING", "the source that has the server's trace, where one was named", null=True),
        Column("name", "STRING", "the event's: ws_send, ws_receive, pake1, input code …; or other"),
        Column("start", "DOUBLE", "seconds since 1970, by the client's clock"),
        Column("stop", "DOUBLE", "likewise; NULL: a moment, or it never ended", null=True),
        Column("waiting", "STRING", "for whom: user, crypto, or other", null=True),
        Column("command", "STRING", "of ws_send and ws_receive: the message's type; '' unknown", null=True),
        Column("command_id", "STRING", "of ws_send and ws_receive: the message's id", null=True),
        Column("phase", "STRING", "of a message: pake, version, a number, dilate-N; or other", null=True),
        Column("own", "BOOLEAN", "of a message that was received: this client had sent it", null=True),
        Column("server_rx", "DOUBLE", "of ws_receive: as the server said; it is the trace's, exactly", null=True),
        Column("server_tx", "DOUBLE", "of ws_receive: as the server said, to the microsecond", null=True),
        *(DAY, SOURCE),
    ),
)
ARCHIVE: Final = "archive"
FILES: Final = "files"

ARCHIVED: Final = Table(
    "archived",
    "envelope that a mailserver's archive or a file holds",
    (
        Column("hash", "BINARY", "keccak-256 of raw"),
        Column("topic", "STRING", "its four bytes: 0x and eight hexadecimal digits"),
        Column("sent", "TIMESTAMP", "expiry less TTL"),
        Column("expiry", "TIMESTAMP", "its Expiry"),
        Column("ttl", "BIGINT", "seconds"),
        Column("size", "INT", "bytes of raw"),
        Column("pow", "DOUBLE", "its proof of work, as status-go computes it"),
        Column("file", "STRING", "stands for the file: a digest of it; or the archive: of the first arrival it had"),
        Column("arrival", "BIGINT", "its place in the archive's order of arrival, or in the file, from 0"),
        Column("arrived", "TIMESTAMP", "when it was archived; NULL: a file does not say", null=True),
        Column("raw", "BINARY", "its RLP"),
        Column("source_kind", "STRING", f"{ARCHIVE}: a mailserver's archive; {FILES}: exported envelope files"),
        *(DAY, SOURCE),
    ),
    ("day", "source_kind", "source"),
)
QUARANTINE: Final = Table(
    "quarantine",
    "row that could not be taken",
    (
        Column("table", "STRING", "where it would have gone"),
        Column("identity", "STRING", "its id at the source, or its file and place"),
        Column("reason", "STRING", "one of few words; see docs/pipeline.md"),
        Column("digest", "STRING", "SHA-256 of the row, hexadecimal: what it held does not enter the lake"),
        Column("day", "DATE", "the UTC day of the run that found it"),
        SOURCE,
    ),
)

CLEAN: Final = {
    table.name: table
    for table in (*(NAMEPLATES, MAILBOXES, CLIENT_VERSIONS, SERVER_COMMANDS, CLIENT_EVENTS, ARCHIVED, QUARANTINE),)
}
"""The tables that ingest writes."""

TEXT: Final = 128
"""Characters of a stranger's text that are kept (applications, implementations, versions)."""
