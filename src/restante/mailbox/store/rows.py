"""The rows of the database: those that a batch writes, and those that the server reads at its start.

The changes of a batch become SQL statements that write or delete each row at most once. A row that changes five times
in a batch is written once, in its final form. A mailbox that is created and closed in one batch is not written at
all. So the order of the statements does not matter.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from restante.common.errors import StoreDamaged, StoreError
from restante.common.sqlite import check_pages
from restante.common.usage_records import ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core import model
from restante.mailbox.core.model import Change
from restante.mailbox.core.state import State
from restante.mailbox.protocol import messages

Parameters = list[tuple[Any, ...]]

PAGE_BYTES: Final = 4096
"""Size of a page of the database: SQLite's default."""

HEAVY_STATEMENT_BYTES: Final = 64 * 1024
"""Bytes of messages, or characters of mailboxes' names and members, above which a statement counts as heavy."""

_MESSAGE_ROW: Final = "(?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), ?)"
"""SQLite takes the UTF-8 of the texts as it is: to decode 2 MiB, and to encode it again, takes up to 6 ms."""

_encode_json: Final = msgspec.json.Encoder().encode


@lru_cache
def _row(columns: int) -> str:
    return f"({', '.join('?' * columns)})"


class Statement(NamedTuple):
    """An SQL statement for some rows (`execute_rows`)."""

    sql: str
    row: str
    parameters: Parameters
    heavy: bool = False
    """Whether SQLite needs milliseconds for it: 3 to write a message of 2 MiB, 25 to delete 16 MiB of messages, 17
    to write or delete four hundred mailboxes whose names have 500 emojis each."""


class Rows:
    """The rows that one batch writes and deletes."""

    def __init__(self, changes: Sequence[Change], origin: str = "") -> None:
        self._origin = origin
        """The origin of the usage records: '' for this server, else the name of the imported file."""
        self._mailboxes: dict[int, model.Mailbox] = {}
        self._nameplates: dict[int, model.Nameplate] = {}
        self._messages: dict[int, Parameters] = {}
        self._message_pages = 0
        """Pages that the messages take, less one for each, about."""
        self._new_keys: set[int] = set()
        """Keys of mailboxes and nameplates that are not in the database yet."""
        self._gone_mailboxes: Parameters = []
        self._gone_messages: Parameters = []
        """The sequence numbers of their messages."""
        self._gone_bytes = 0
        """Bytes of the messages and names of the mailboxes that are deleted."""
        self._gone_nameplates: Parameters = []
        self._usage: dict[str, Parameters] = {}
        for change in changes:
            _METHOD_OF_CHANGE[type(change)](self, change)

    @property
    def count(self) -> int:
        """Return the approximate number of rows that are written or deleted. A large message counts by its pages."""
        return (
            len(self._mailboxes)
            + len(self._nameplates)
            + len(self._gone_mailboxes) * 2
            + self._gone_bytes // PAGE_BYTES
            + len(self._gone_nameplates)
            + sum(map(len, self._messages.values()))
            + self._message_pages
            + sum(map(len, self._usage.values()))
        )

    def statements(self) -> Iterator[Statement]:
        """Yield the statements that are needed."""
        if self._mailboxes:
            mailboxes: Parameters = [
                (
                    m.key,
                    m.app_id,
                    m.mailbox_id,
                    int(m.for_nameplate),
                    int(m.crowded),
                    m.touched,
                    _encode_json(m.sides).decode(),
                    m.visitors,
                )
                for m in self._mailboxes.values()
            ]
            heavy = sum(len(row[1]) + len(row[2]) + len(row[6]) for row in mailboxes) >= HEAVY_STATEMENT_BYTES
            yield Statement("INSERT OR REPLACE INTO mailboxes VALUES {}", _row(8), mailboxes, heavy)
        if self._nameplates:
            yield Statement(
                "INSERT OR REPLACE INTO nameplates VALUES {}",
                _row(6),
                [
                    (n.key, n.app_id, n.name, n.mailbox_id, int(n.crowded), _encode_json(n.sides).decode())
                    for n in self._nameplates.values()
                ],
            )
        if self._messages:
            rows = list(itertools.chain.from_iterable(self._messages.values()))
            heavy = self._message_pages * PAGE_BYTES >= HEAVY_STATEMENT_BYTES
            yield Statement("INSERT INTO messages VALUES {}", _MESSAGE_ROW, rows, heavy)
        if self._gone_mailboxes:
            heavy = self._gone_bytes >= HEAVY_STATEMENT_BYTES
            if self._gone_messages:
                yield Statement("DELETE FROM messages WHERE sequence IN ({})", "?", self._gone_messages, heavy)
            yield Statement("DELETE FROM mailboxes WHERE key IN ({})", "?", self._gone_mailboxes, heavy)
        if self._gone_nameplates:
            yield Statement("DELETE FROM nameplates WHERE key IN ({})", "?", self._gone_nameplates)
        for sql, parameters in self._usage.items():
            yield Statement(sql, _row(len(parameters[0])), parameters)

    # ── one method per kind of change ────────────────────────────────────────────────────────────

    def _mailbox_made(self, change: model.MailboxMade) -> None:
        self._new_keys.add(change.mailbox.key)
        self._mailboxes[change.mailbox.key] = change.mailbox

    def _mailbox_altered(
        self,
        change: (
            model.MailboxCrowded
            | model.MailboxSideSet
            | model.MailboxSideGone
            | model.MailboxVisited
            | model.MailboxSaved
        ),
    ) -> None:
        self._mailboxes[change.mailbox.key] = change.mailbox

    def _mailbox_gone(self, change: model.MailboxGone) -> None:
        mailbox, key = change.mailbox, change.mailbox.key
        self._mailboxes.pop(key, None)
        unwritten = len(self._messages.pop(key, ()))
        if key not in self._new_keys:
            self._gone_mailboxes.append((key,))
            self._gone_messages += [(message.sequence,) for message in mailbox.messages[: -unwritten or None]]
            self._gone_bytes += mailbox.size + mailbox.names
        if change.usage is not None:
            self._record(change.usage)

    def _message_added(self, change: model.MessageAdded) -> None:
        key, message = change.mailbox.key, change.message
        self._message_pages += len(message.wire) // PAGE_BYTES
        self._messages.setdefault(key, []).append(
            (
                key,
                message.sequence,
                message.side,
                bytearray(change.phase),  # not bytes, for which sqlite3 would ask for an adapter
                bytearray(change.body),
                bytearray(change.id),
                change.server_rx,
            )
        )

    def _nameplate_made(self, change: model.NameplateMade) -> None:
        self._new_keys.add(change.nameplate.key)
        self._nameplates[change.nameplate.key] = change.nameplate

    def _nameplate_altered(
        self, change: model.NameplateCrowded | model.NameplateSideSet | model.NameplateSideGone
    ) -> None:
        self._nameplates[change.nameplate.key] = change.nameplate

    def _nameplate_gone(self, change: model.NameplateGone) -> None:
        key = change.nameplate.key
        self._nameplates.pop(key, None)
        if key not in self._new_keys:
            self._gone_nameplates.append((key,))
        if change.usage is not None:
            self._record(change.usage)

    def _record(self, record: NameplateUsage | MailboxUsage | ClientVersion) -> None:
        self._usage.setdefault(_INSERT_OF_RECORD[type(record)], []).append((self._origin, *astuple(record)))

    def _current(self, record: CurrentUsage) -> None:
        self._usage["INSERT OR REPLACE INTO usage_current VALUES {}"] = [(1, *astuple(record))]

    def _pruned(self, change: model.Pruned) -> None:
        self._usage["UPDATE service SET pruned = {}"] = [(change.wall,)]

    def _nothing(self, change: Change) -> None:
        """Write nothing: touches are saved later, by MailboxSaved."""


def _insert(table: str, record: type[msgspec.Struct]) -> str:
    fields = ("origin", *record.__struct_fields__)
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES {{}}"  # noqa: S608


_INSERT_OF_RECORD: Final = {
    NameplateUsage: _insert("usage_nameplates", NameplateUsage),
    MailboxUsage: _insert("usage_mailboxes", MailboxUsage),
    ClientVersion: _insert("usage_client_versions", ClientVersion),
}

_METHOD_OF_CHANGE: Final[dict[type, Callable[[Rows, Any], None]]] = {
    model.MailboxMade: Rows._mailbox_made,
    model.MailboxCrowded: Rows._mailbox_altered,
    model.MailboxSideSet: Rows._mailbox_altered,
    model.MailboxSideGone: Rows._mailbox_altered,
    model.MailboxVisited: Rows._mailbox_altered,
    model.MailboxSaved: Rows._mailbox_altered,
    model.MailboxTouched: Rows._nothing,
    model.MailboxGone: Rows._mailbox_gone,
    model.MessageAdded: Rows._message_added,
    model.NameplateMade: Rows._nameplate_made,
    model.NameplateCrowded: Rows._nameplate_altered,
    model.NameplateSideSet: Rows._nameplate_altered,
    model.NameplateSideGone: Rows._nameplate_altered,
    model.NameplateGone: Rows._nameplate_gone,
    model.Pruned: Rows._pruned,
    NameplateUsage: Rows._record,
    MailboxUsage: Rows._record,
    ClientVersion: Rows._record,
    CurrentUsage: Rows._current,
}


# ── the rows at the start ────────────────────────────────────────────────────────────────────────

ROWS_PER_FETCH: Final = 2000
"""Rows that are fetched at once. Fetching them one by one while creating objects takes a third longer. So do larger
chunks, which no longer fit in the processor's cache."""

_CONTRADICTIONS: Final = {
    "messages without a mailbox": "SELECT mailbox FROM messages EXCEPT SELECT key FROM mailboxes",
    "nameplates without a mailbox": "SELECT app_id, mailbox_id FROM nameplates"
    " EXCEPT SELECT app_id, mailbox_id FROM mailboxes",
    "nameplates without a name": "SELECT key FROM nameplates WHERE name = ''",
}
"""Rows that `load_state` refuses although each value has the right form."""

_mailbox_sides = msgspec.json.Decoder(list[list[model.MailboxSide]]).decode
_nameplate_sides = msgspec.json.Decoder(list[list[model.NameplateSide]]).decode


def load_state(database: sqlite3.Connection) -> State:
    """Read and return all live data. Raises StoreError if a row's mailbox is missing or a row cannot be read."""
    try:
        return _load_rows(database)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"the database is damaged ({type(error).__name__}: {error}); restore a backup of the data directory"
        ) from error


def _load_rows(database: sqlite3.Connection) -> State:
    state = State()
    names: dict[str, str] = {}
    """App ids, so that all rows of an app share one string."""
    mailboxes: list[model.Mailbox] = []
    for rows in _chunks(
        database,
        "SELECT key, app_id, mailbox_id, for_nameplate, crowded, touched, visitors, sides FROM mailboxes",
    ):
        mailboxes += [
            model.Mailbox(
                key,
                names.setdefault(app_id, app_id),
                mailbox_id,
                bool(for_nameplate),
                touched,
                sides,
                crowded=bool(crowded),
                visitors=visitors,
            )
            for (key, app_id, mailbox_id, for_nameplate, crowded, touched, visitors, _), sides in zip(
                rows, _mailbox_sides(_join_sides(rows)), strict=True
            )
        ]
    nameplates: list[model.Nameplate] = []
    for rows in _chunks(database, "SELECT key, app_id, name, mailbox_id, crowded, sides FROM nameplates"):
        nameplates += [
            model.Nameplate(key, names[app_id], name, mailbox_id, sides, bool(crowded))
            for (key, app_id, name, mailbox_id, crowded, _), sides in zip(
                rows, _nameplate_sides(_join_sides(rows)), strict=True
            )
        ]
    state.put_all(mailboxes, nameplates)
    _load_messages(database, state, {mailbox.key: mailbox for mailbox in mailboxes})
    return state


def check_rows(database: sqlite3.Connection) -> None:
    """Raise StoreDamaged if a page is damaged, or a row is one that `load_state` cannot read.

    Unlike `load_state`, this keeps no rows, and it also checks databases of older schemas. It reads all of the
    database.
    """
    try:
        _check_tables(database)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(" ".join(str(error).split())) from error


def _check_tables(database: sqlite3.Connection) -> None:
    check_pages(database)
    for table, decode in (("mailboxes", _mailbox_sides), ("nameplates", _nameplate_sides)):
        for rows in _chunks(database, f"SELECT app_id, mailbox_id, sides FROM {table}"):  # noqa: S608
            sides = len(decode(_join_sides(rows)))
            if sides != len(rows):
                raise ValueError(f"{table} have {sides} lists of sides in {len(rows)} rows")
    for _ in database.execute("SELECT side, phase, body, msg_id FROM messages"):
        pass  # Python has decoded the texts
    for contradiction, sql in _CONTRADICTIONS.items():
        if database.execute(f"{sql} LIMIT 1").fetchone():
            raise ValueError(f"it has {contradiction}")


def _chunks(database: sqlite3.Connection, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    rows = database.execute(sql)
    while chunk := rows.fetchmany(ROWS_PER_FETCH):
        yield chunk


def _join_sides(rows: list[tuple[Any, ...]]) -> str:
    """Return the sides of many rows (the last column) as one JSON list of lists.

    Decoding one text takes half the time of decoding one per row. A damaged row makes the text invalid, or gives a
    list whose length is not the number of rows.
    """
    return "[" + ",".join([row[-1] for row in rows]) + "]"


def _load_messages(database: sqlite3.Connection, state: State, mailboxes: dict[int, model.Mailbox]) -> None:
    for key, sequence, side, phase, body, msg_id, server_rx in database.execute(
        "SELECT mailbox, sequence, side, phase, body, msg_id, server_rx FROM messages ORDER BY sequence"
    ):
        frame = messages.Delivery(side, Raw(phase), Raw(body), server_rx, Raw(msg_id))
        state.keep(mailboxes[key], model.StoredMessage(sequence, side, messages.encode(frame)))
        state.next_sequence = max(state.next_sequence, sequence + 1)
    for mailbox in mailboxes.values():
        if mailbox.senders:
            mailbox.recipients = [row.side for row in mailbox.sides if mailbox.senders != [row.side]]
