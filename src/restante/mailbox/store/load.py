"""The database → memory, at start."""

from __future__ import annotations

import sqlite3

import msgspec
from msgspec import Raw

from restante.errors import StoreError
from restante.mailbox import messages, model
from restante.mailbox.state import State

_mailbox_sides = msgspec.json.Decoder(list[model.MailboxSide]).decode
_nameplate_sides = msgspec.json.Decoder(list[model.NameplateSide]).decode


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
    boxes: dict[int, model.Mailbox] = {}
    # fetchall: to step through the rows while objects are made of them takes a third longer.
    for key, app_id, mailbox_id, for_nameplate, crowded, touched, sides in database.execute(
        "SELECT key, app_id, mailbox_id, for_nameplate, crowded, touched, sides FROM mailboxes"
    ).fetchall():
        boxes[key] = box = model.Mailbox(
            key,
            names.setdefault(app_id, app_id),
            mailbox_id,
            bool(for_nameplate),
            touched,
            _mailbox_sides(sides),
            crowded=bool(crowded),
        )
        state.put_mailbox(box)
    for key, app_id, name, mailbox_id, crowded, sides in database.execute(
        "SELECT key, app_id, name, mailbox_id, crowded, sides FROM nameplates"
    ).fetchall():
        members = _nameplate_sides(sides)
        state.put_nameplate(model.Nameplate(key, names[app_id], name, mailbox_id, members, bool(crowded)))
    for key, sequence, side, phase, body, msg_id, server_rx in database.execute(
        "SELECT mailbox, sequence, side, phase, body, msg_id, server_rx FROM messages ORDER BY mailbox, sequence"
    ):
        frame = messages.Delivery(side, Raw(phase), Raw(body), server_rx, Raw(msg_id))
        state.keep(boxes[key], model.Stored(sequence, side, messages.encode(frame)))
        state.next_sequence = max(state.next_sequence, sequence + 1)
    return state
