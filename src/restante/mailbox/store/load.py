"""Loads the live data from the database into memory at start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from restante.common.errors import StoreDamaged, StoreError
from restante.mailbox.core import model
from restante.mailbox.core.state import State
from restante.mailbox.protocol import messages

ROWS_PER_FETCH: Final = 2000
"""Rows that are fetched at once. Fetching them one by one while creating objects takes a third longer. So do larger
chunks, which no longer fit in the processor's cache."""

_CONTRADICTIONS: Final = {
    "messages without a mailbox": "SELECT mailbox FROM messages EXCEPT SELECT key FROM mailboxes",
    "nameplates without a mailbox": "SELECT app_id, mailbox_id FROM nameplates"
    " EXCEPT SELECT app_id, mailbox_id FROM mailboxes",
    "nameplates without a name": "SELECT key FROM nameplates WHERE name = ''",
}
"""Rows that `load` refuses although each value has the right form."""

_mailbox_sides = msgspec.json.Decoder(list[list[model.MailboxSide]]).decode
_nameplate_sides = msgspec.json.Decoder(list[list[model.NameplateSide]]).decode


def load(database: sqlite3.Connection) -> State:
    """Read and return all live data. Raises StoreError if a row's mailbox is missing or a row cannot be read."""
    try:
        return _load(database)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"the database is damaged ({type(error).__name__}: {error}); restore a backup of the data directory"
        ) from error


def _load(database: sqlite3.Connection) -> State:
    state = State()
    names: dict[str, str] = {}
    """App ids, so that all rows of an app share one string."""
    boxes: list[model.Mailbox] = []
    for rows in _chunks(
        database, "SELECT key, app_id, mailbox_id, for_nameplate, crowded, touched, visitors, sides FROM mailboxes"
    ):
        boxes += [
            model.Mailbox(
                key,
                names.setdefault(app_id, app_id),
                mailbox_id,
                bool(made),
                touched,
                sides,
                crowded=bool(crowded),
                visitors=visitors,
            )
            for (key, app_id, mailbox_id, made, crowded, touched, visitors, _), sides in zip(
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
    state.put_all(boxes, nameplates)
    _load_messages(database, state, {box.key: box for box in boxes})
    return state


def check(database: sqlite3.Connection) -> None:
    """Raise StoreDamaged if a page is damaged, or a row is one that `load` cannot read.

    Unlike `load`, this keeps no rows, and it also checks databases of older schemas. It reads the whole database.
    """
    try:
        _check(database)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(" ".join(str(error).split())) from error


def _check(database: sqlite3.Connection) -> None:
    found = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise ValueError(found)
    for table, decode in (("mailboxes", _mailbox_sides), ("nameplates", _nameplate_sides)):
        for rows in _chunks(database, f"SELECT app_id, mailbox_id, sides FROM {table}"):  # noqa: S608
            sides = len(decode(_join_sides(rows)))
            if sides != len(rows):
                raise ValueError(f"{table} have {sides} lists of sides in {len(rows)} rows")
    for _ in database.execute("SELECT side, phase, body, msg_id FROM messages"):
        pass  # Python has decoded the texts
    for what, sql in _CONTRADICTIONS.items():
        if database.execute(f"{sql} LIMIT 1").fetchone():
            raise ValueError(f"it has {what}")


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


def _load_messages(database: sqlite3.Connection, state: State, boxes: dict[int, model.Mailbox]) -> None:
    for key, sequence, side, phase, body, msg_id, server_rx in database.execute(
        "SELECT mailbox, sequence, side, phase, body, msg_id, server_rx FROM messages ORDER BY sequence"
    ):
        frame = messages.Delivery(side, Raw(phase), Raw(body), server_rx, Raw(msg_id))
        state.keep(boxes[key], model.StoredMessage(sequence, side, messages.encode(frame)))
        state.next_sequence = max(state.next_sequence, sequence + 1)
    for box in boxes.values():
        if box.senders:
            box.recipients = [row.side for row in box.sides if box.senders != [row.side]]
