"""The database → memory, at start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from restante.common.errors import StoreError
from restante.mailbox.core import model
from restante.mailbox.core.state import State
from restante.mailbox.protocol import messages

ROWS_PER_FETCH: Final = 2000
"""Rows that are fetched at once. To step through them one by one, while objects are made of them, takes a third
longer; so do more, which are out of the processor's cache when their turn comes."""

_mailbox_sides = msgspec.json.Decoder(list[list[model.MailboxSide]]).decode
_nameplate_sides = msgspec.json.Decoder(list[list[model.NameplateSide]]).decode


def load(database: sqlite3.Connection) -> State:
    """Read all that is live. Raises StoreError where a row has lost its mailbox or cannot be read."""
    try:
        return _load(database)
    except (sqlite3.DatabaseError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"the database is damaged ({type(error).__name__}: {error}); restore a backup of the data directory"
        ) from error


def _load(database: sqlite3.Connection) -> State:
    state = State()
    names: dict[str, str] = {}
    """One string for each app, not one for each row."""
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
                rows, _mailbox_sides(_together(rows)), strict=True
            )
        ]
    nameplates: list[model.Nameplate] = []
    for rows in _chunks(database, "SELECT key, app_id, name, mailbox_id, crowded, sides FROM nameplates"):
        nameplates += [
            model.Nameplate(key, names[app_id], name, mailbox_id, sides, bool(crowded))
            for (key, app_id, name, mailbox_id, crowded, _), sides in zip(
                rows, _nameplate_sides(_together(rows)), strict=True
            )
        ]
    state.put_all(boxes, nameplates)
    _load_messages(database, state, {box.key: box for box in boxes})
    return state


def _chunks(database: sqlite3.Connection, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    rows = database.execute(sql)
    while chunk := rows.fetchmany(ROWS_PER_FETCH):
        yield chunk


def _together(rows: list[tuple[Any, ...]]) -> str:
    """Give the sides of many rows, which are the last column, as one JSON list of lists.

    It is read in half the time. A damaged row makes it unreadable, or a list of another length than there are rows.
    """
    return "[" + ",".join([row[-1] for row in rows]) + "]"


def _load_messages(database: sqlite3.Connection, state: State, boxes: dict[int, model.Mailbox]) -> None:
    for key, sequence, side, phase, body, msg_id, server_rx in database.execute(
        "SELECT mailbox, sequence, side, phase, body, msg_id, server_rx FROM messages ORDER BY sequence"
    ):
        frame = messages.Delivery(side, Raw(phase), Raw(body), server_rx, Raw(msg_id))
        state.keep(boxes[key], model.Stored(sequence, side, messages.encode(frame)))
        state.next_sequence = max(state.next_sequence, sequence + 1)
    for box in boxes.values():
        if box.spoke:
            box.shown = [row.side for row in box.sides if box.spoke != [row.side]]
