"""The rows of the database: those that a batch writes, and those that the server reads at its start.

The changes of a batch become SQL statements that write or delete each row at most once. A row that changes five times
in a batch is written once, in its final form. A mailbox that is created and closed in one batch is not written at
all. So the order of the statements does not matter.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        self.mailboxes: dict[int, model.Mailbox] = {}
        self.nameplates: dict[int, model.Nameplate] = {}
        self.messages: dict[int, Parameters] = {}
        self._message_pages = 0
        """Pages that the messages take, less one for each, about."""
        self._new_keys: set[int] = set()
        """Keys of mailboxes and nameplates that are not in the database yet."""
        self.gone_mailboxes: Parameters = []
        self.gone_messages: Parameters = []
        """The sequence numbers of their messages."""
        self._gone_bytes = 0
        """Bytes of the messages and names of the mailboxes that are deleted."""
        self.gone_nameplates: Parameters = []
        self.usage: dict[type, Parameters] = {}
        """The rows of usage records, by the class of the record."""
        self.current: CurrentUsage | None = None
        self.pruned: float | None = None
        """Wall time at which a prune ended."""
        for change in changes:
            _METHOD_OF_CHANGE[type(change)](self, change)

    @property
    def count(self) -> int:
        """Return the approximate number of rows that are written or deleted. A large message counts by its pages."""
        return (
            len(self.mailboxes)
            + len(self.nameplates)
            + len(self.gone_mailboxes) * 2
            + self._gone_bytes // PAGE_BYTES
            + len(self.gone_nameplates)
            + sum(map(len, self.messages.values()))
            + self._message_pages
            + sum(map(len, self.usage.values()))
        )

    def mailbox_rows(self) -> Parameters:
        """Return the rows of mailboxes to write, in the order of the columns."""
        return [
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
            for m in self.mailboxes.values()
        ]

    def nameplate_rows(self) -> Parameters:
        """Return the rows of nameplates to write, in the order of the columns."""
        return [
            (n.key, n.app_id, n.name, n.mailbox_id, int(n.crowded), _encode_json(n.sides).decode())
            for n in self.nameplates.values()
        ]

    def message_rows(self) -> Parameters:
        """Return the rows of messages to write, in the order of the columns."""
        return list(itertools.chain.from_iterable(self.messages.values()))

    def statements(self) -> Iterator[Statement]:
        """Yield the statements that are needed."""
        if self.mailboxes:
            mailboxes = self.mailbox_rows()
            heavy = sum(len(row[1]) + len(row[2]) + len(row[6]) for row in mailboxes) >= HEAVY_STATEMENT_BYTES
            yield Statement("INSERT OR REPLACE INTO mailboxes VALUES {}", _row(8), mailboxes, heavy)
        if self.nameplates:
            yield Statement(
                "INSERT OR REPLACE INTO nameplates VALUES {}",
                _row(6),
                self.nameplate_rows(),
            )
        if self.messages:
            rows = self.message_rows()
            heavy = self._message_pages * PAGE_BYTES >= HEAVY_STATEMENT_BYTES
            yield Statement("INSERT INTO messages VALUES {}", _MESSAGE_ROW, rows, heavy)
        if self.gone_mailboxes:
            heavy = self._gone_bytes >= HEAVY_STATEMENT_BYTES
            if self.gone_messages:
                yield Statement("DELETE FROM messages WHERE sequence IN ({})", "?", self.gone_messages, heavy)
            yield Statement("DELETE FROM mailboxes WHERE key IN ({})", "?", self.gone_mailboxes, heavy)
        if self.gone_nameplates:
            yield Statement("DELETE FROM nameplates WHERE key IN ({})", "?", self.gone_nameplates)
        for kind, parameters in self.usage.items():
            yield Statement(_INSERT_OF_RECORD[kind], _row(len(parameters[0])), parameters)
        if self.current is not None:
            parameters = [(1, *astuple(self.current))]
            yield Statement("INSERT OR REPLACE INTO usage_current VALUES {}", _row(5), parameters)
        if self.pruned is not None:
            yield Statement("UPDATE service SET pruned = {}", "(?)", [(self.pruned,)])

    # ── one method per kind of change ────────────────────────────────────────────────────────────

    def _mailbox_made(self, change: model.MailboxMade) -> None:
        self._new_keys.add(change.mailbox.key)
        self.mailboxes[change.mailbox.key] = change.mailbox

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
        self.mailboxes[change.mailbox.key] = change.mailbox

    def _mailbox_gone(self, change: model.MailboxGone) -> None:
        mailbox, key = change.mailbox, change.mailbox.key
        self.mailboxes.pop(key, None)
        unwritten = len(self.messages.pop(key, ()))
        if key not in self._new_keys:
            self.gone_mailboxes.append((key,))
            self.gone_messages += [(message.sequence,) for message in mailbox.messages[: -unwritten or None]]
            self._gone_bytes += mailbox.size + mailbox.names
        if change.usage is not None:
            self._record(change.usage)

    def _message_added(self, change: model.MessageAdded) -> None:
        key, message = change.mailbox.key, change.message
        self._message_pages += len(message.wire) // PAGE_BYTES
        self.messages.setdefault(key, []).append(
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
        self.nameplates[change.nameplate.key] = change.nameplate

    def _nameplate_altered(
        self, change: model.NameplateCrowded | model.NameplateSideSet | model.NameplateSideGone
    ) -> None:
        self.nameplates[change.nameplate.key] = change.nameplate

    def _nameplate_gone(self, change: model.NameplateGone) -> None:
        key = change.nameplate.key
        self.nameplates.pop(key, None)
        if key not in self._new_keys:
            self.gone_nameplates.append((key,))
        if change.usage is not None:
            self._record(change.usage)

    def _record(self, record: NameplateUsage | MailboxUsage | ClientVersion) -> None:
        self.usage.setdefault(type(record), []).append((self._origin, *astuple(record)))

    def _current(self, record: CurrentUsage) -> None:
        self.current = record

    def _pruned(self, change: model.Pruned) -> None:
        self.pruned = change.wall

    def _nothing(self, change: Change) -> None:
        """Write nothing: touches are saved later, by MailboxSaved."""


def _insert(table: str, record: type[msgspec.Struct]) -> str:
    fields = ("origin", *record.__struct_fields__)
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES {{}}"  # noqa: S608


_INSERT_OF_RECORD: Final[dict[type, str]] = {
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


MAILBOXES: Final = "key, app_id, mailbox_id, for_nameplate, crowded, touched, visitors, sides"
NAMEPLATES: Final = "key, app_id, name, mailbox_id, crowded, sides"
MESSAGES: Final = "mailbox, sequence, side, phase, body, msg_id, server_rx"
"""The columns that `StateReader` reads."""


class StateReader:
    """Makes the live data of the rows of a database: first all mailboxes, then nameplates, then messages.

    Rows come in the order of their keys, in which they were made, so that a side that allocates again gets its first
    nameplate.
    The methods raise an error of DAMAGE if a row's mailbox is missing or a row cannot be read.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """App ids, so that all rows of an app share one string."""
        self._mailboxes: list[model.Mailbox] = []
        self._nameplates: list[model.Nameplate] = []
        self._state = State()

    def add_mailboxes(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add some mailboxes."""
        names = self._names
        self._mailboxes += [
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

    def add_nameplates(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add some nameplates."""
        names = self._names
        self._nameplates += [
            model.Nameplate(key, names[app_id], name, mailbox_id, sides, bool(crowded))
            for (key, app_id, name, mailbox_id, crowded, _), sides in zip(
                rows, _nameplate_sides(_join_sides(rows)), strict=True
            )
        ]

    def begin_messages(self) -> None:
        """End mailboxes and nameplates."""
        self._state.put_all(self._mailboxes, self._nameplates)

    def add_messages(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add some messages, in the order of their sequence numbers."""
        state = self._state
        for key, sequence, side, phase, body, msg_id, server_rx in rows:
            frame = messages.Delivery(side, Raw(phase), Raw(body), server_rx, Raw(msg_id))
            state.keep(state.by_key(key), model.StoredMessage(sequence, side, messages.encode(frame)))
            state.next_sequence = max(state.next_sequence, sequence + 1)

    def state(self) -> State:
        """Return all of it."""
        for mailbox in self._mailboxes:
            if mailbox.senders:
                mailbox.recipients = [row.side for row in mailbox.sides if mailbox.senders != [row.side]]
        return self._state


DAMAGE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError)
"""Errors that show that the rows of a database are damaged."""


def load_state(database: sqlite3.Connection) -> State:
    """Read and return all live data. Raises StoreError if a row's mailbox is missing or a row cannot be read."""
    try:
        reader = StateReader()
        for rows in _chunks(database, f"SELECT {MAILBOXES} FROM mailboxes ORDER BY key"):  # noqa: S608
            reader.add_mailboxes(rows)
        for rows in _chunks(database, f"SELECT {NAMEPLATES} FROM nameplates ORDER BY key"):  # noqa: S608
            reader.add_nameplates(rows)
        reader.begin_messages()
        reader.add_messages(database.execute(f"SELECT {MESSAGES} FROM messages ORDER BY sequence"))  # noqa: S608
        return reader.state()
    except (sqlite3.DatabaseError, *DAMAGE) as error:
        raise StoreError(
            f"the database is damaged ({type(error).__name__}: {error}); restore a backup of the data directory"
        ) from error


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


def _join_sides(rows: Sequence[Sequence[Any]]) -> str:
    """Return the sides of many rows (the last column) as one JSON list of lists.

    Decoding one text takes half the time of decoding one per row. A damaged row makes the text invalid, or gives a
    list whose length is not the number of rows.
    """
    return "[" + ",".join([row[-1] for row in rows]) + "]"
