"""The reference server's rows, and their translation into changes. Pure: rows and a state become changes and counts.

Each row is imported, or counted as skipped with the reason. A mailbox without sides is skipped: the reference leaves
one if it is killed between the two commits of a claim, before it answers the client. A nameplate without sides is
imported with its mailbox: in the reference a close removes the side from all its nameplates (server.py:160, 0.8.0),
and the code that a user may have been given must still lead to the mailbox.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw

from restante.common import usage_records
from restante.common.reference_rows import Counts, DatabaseKind, Row, Seconds, usable_rows
from restante.common.usage_records import Result
from restante.mailbox.core import model
from restante.mailbox.core.model import Change
from restante.mailbox.core.rules import MAX_MEMBERS
from restante.mailbox.core.state import State
from restante.mailbox.protocol import messages

# ── the reference server's tables ────────────────────────────────────────────────────────────────
# Source: magic-wormhole-mailbox-server 0.8.0, db-schemas/. Channel version 2, which its unreleased head writes, adds
# tables of connections; they contain no messages.

Flag = Any
"""A flag. As in the reference, any value but NULL and 0 is true, so an unexpected value excludes no side."""

ClientText = str | int | Seconds | None
"""A value that a client sent. The column's affinity turns all values but NULL into text."""


# ── channel: live data ───────────────────────────────────────────────────────────────────────────


class ReferenceMailbox(NamedTuple):
    app_id: str
    id: str
    for_nameplate: Flag


class ReferenceMailboxSide(NamedTuple):
    mailbox_id: str
    opened: Flag
    side: str
    added: Seconds
    mood: Any


class ReferenceNameplate(NamedTuple):
    id: int
    app_id: str
    name: str
    mailbox_id: str


class ReferenceNameplateSide(NamedTuple):
    nameplates_id: int
    claimed: Flag
    side: str
    added: Seconds


class ReferenceMessage(NamedTuple):
    app_id: str
    mailbox_id: str
    side: str
    phase: ClientText
    body: ClientText
    server_rx: Seconds
    msg_id: ClientText


CHANNEL: Final = DatabaseKind(
    "channel",
    {
        "mailboxes": ReferenceMailbox,
        "mailbox_sides": ReferenceMailboxSide,
        "nameplates": ReferenceNameplate,
        "nameplate_sides": ReferenceNameplateSide,
        "messages": ReferenceMessage,
    },
    {},
)

# ── usage records ────────────────────────────────────────────────────────────────────────────────


class ReferenceNameplateUsage(NamedTuple):
    app_id: str
    started: Seconds
    waiting_time: Seconds | None
    total_time: Seconds
    result: Result


class ReferenceMailboxUsage(NamedTuple):
    app_id: str
    for_nameplate: Literal[0, 1]
    started: Seconds
    total_time: Seconds
    waiting_time: Seconds | None
    result: Result


class ReferenceClientVersion(NamedTuple):
    app_id: str
    side: str
    connect_time: Seconds
    implementation: str | None
    version: str | None


USAGE: Final = DatabaseKind(
    "usage",
    {
        "nameplates": ReferenceNameplateUsage,
        "mailboxes": ReferenceMailboxUsage,
        "client_versions": ReferenceClientVersion,
    },
    {"client_versions": 2},
)


# ── channel: live data → changes ─────────────────────────────────────────────────────────────────

CLAIMABLE: Final = re.compile(r"[0-9]{1,40}")
"""Names that a `claim` can have in this server (messages.py). The reference's pattern accepts a few more."""

_to_json: Final = msgspec.json.encode


class TranslatedChannel(msgspec.Struct):
    """A translated channel database."""

    changes: list[Change]
    imported: dict[str, int]
    skipped: Counts
    clashes: dict[str, int]
    """Number of mailboxes and nameplates that the state already has, with the same app and name."""


def translate_channel(tables: Mapping[str, Sequence[Row]], state: State, touched: float) -> TranslatedChannel:
    """Translate a channel database into changes to be applied to the state.

    Each mailbox counts as touched at `touched`, in service time, whatever its `updated`: it starts its full idle
    time.
    """
    skipped = Counts()
    usable = {name: usable_rows(tables[name], shape, skipped, name) for name, shape in CHANNEL.tables.items()}
    keys = itertools.count(state.next_key)
    mailboxes = _mailboxes(usable, touched, keys, skipped)
    nameplates = _nameplates(usable, mailboxes, keys, skipped)
    added = _messages(usable, mailboxes, state.next_sequence, skipped)
    return TranslatedChannel(
        [
            *(model.MailboxMade(mailbox) for mailbox in mailboxes.values()),
            *(model.NameplateMade(nameplate) for nameplate in nameplates),
            *added,
        ],
        imported={
            "mailboxes": len(mailboxes),
            "mailbox_sides": sum(len(mailbox.sides) for mailbox in mailboxes.values()),
            "nameplates": len(nameplates),
            "nameplate_sides": sum(len(nameplate.sides) for nameplate in nameplates),
            "messages": len(added),
        },
        skipped=skipped,
        clashes={
            "mailboxes": sum(m.mailbox_id in state.app(m.app_id).mailboxes for m in mailboxes.values()),
            "nameplates": sum(n.name in state.app(n.app_id).nameplates for n in nameplates),
        },
    )


_Usable = Mapping[str, Iterator[Any]]
_Mailboxes = dict[str, model.Mailbox]
"""Mailboxes by id. In the reference an id is unique across all apps."""


def _mailboxes(usable: _Usable, touched: float, keys: Iterator[int], skipped: Counts) -> _Mailboxes:
    mailboxes = {
        row.id: model.Mailbox(0, row.app_id, row.id, bool(row.for_nameplate), touched, sides=[])
        for row in usable["mailboxes"]
    }
    for row in sorted(usable["mailbox_sides"], key=lambda row: row.added):
        mailbox = mailboxes.get(row.mailbox_id)
        if mailbox is None:
            skipped["mailbox_sides_without_mailbox"] += 1
        else:
            mood = row.mood if isinstance(row.mood, str) else None
            side = model.MailboxSide(row.side, row.added, bool(row.opened), mood)
            _join(mailbox, side, skipped, "mailbox_sides")
    for reference_id in [id_ for id_, mailbox in mailboxes.items() if not mailbox.sides]:
        del mailboxes[reference_id]
        skipped["mailboxes_without_sides"] += 1
    for mailbox in mailboxes.values():
        mailbox.key = next(keys)
    return mailboxes


def _nameplates(
    usable: _Usable, mailboxes: _Mailboxes, keys: Iterator[int], skipped: Counts
) -> list[model.Nameplate]:
    nameplates: list[model.Nameplate] = []
    side_rows: dict[int, list[ReferenceNameplateSide]] = {}
    for side_row in sorted(usable["nameplate_sides"], key=lambda row: row.added):
        side_rows.setdefault(side_row.nameplates_id, []).append(side_row)
    used_names: set[tuple[str, str]] = set()
    for row in usable["nameplates"]:
        mailbox = mailboxes.get(row.mailbox_id)
        if not CLAIMABLE.fullmatch(row.name):
            skipped["nameplates_that_nobody_can_claim"] += 1
        elif mailbox is None or mailbox.app_id != row.app_id:
            skipped["nameplates_without_mailbox"] += 1
        elif (row.app_id, row.name) in used_names or mailbox.nameplate is not None:
            skipped["nameplates_repeated"] += 1  # a nameplate has one mailbox, and a mailbox one nameplate
        else:
            used_names.add((row.app_id, row.name))
            mailbox.nameplate = row.name
            nameplate = model.Nameplate(next(keys), row.app_id, row.name, row.mailbox_id, sides=[])
            nameplates.append(nameplate)
            for side_row in side_rows.pop(row.id, ()):
                # In the reference an `allocate` also claims, so no allocated nameplate is still unclaimed.
                side = model.NameplateSide(side_row.side, side_row.added, bool(side_row.claimed))
                _join(nameplate, side, skipped, "nameplate_sides")
    if side_rows:
        skipped["nameplate_sides_without_nameplate"] = sum(map(len, side_rows.values()))
    return nameplates


def _messages(usable: _Usable, mailboxes: _Mailboxes, sequence: int, skipped: Counts) -> list[model.MessageAdded]:
    """Return the messages in the order in which the reference replays them.

    Messages of equal time are in the order of arrival, which the reference does not guarantee.
    """
    added: list[model.MessageAdded] = []
    for row in sorted(usable["messages"], key=lambda message: message.server_rx):
        mailbox = mailboxes.get(row.mailbox_id)
        if mailbox is None or mailbox.app_id != row.app_id:
            skipped["messages_without_mailbox"] += 1
        else:
            phase, body, msg_id = Raw(_to_json(row.phase)), Raw(_to_json(row.body)), Raw(_to_json(row.msg_id))
            # 0.0 for -0.0, which SQLite stores as 0: a frame is the same after a restart.
            server_rx = row.server_rx + 0.0
            frame = messages.Delivery(row.side, phase, body, server_rx, msg_id)
            stored = model.StoredMessage(sequence + len(added), row.side, messages.encode(frame))
            added.append(model.MessageAdded(mailbox, stored, phase, body, msg_id, server_rx, mailbox.touched))
    return added


def _join(owner: Any, side: Any, skipped: Counts, table: str) -> None:
    """Add a side. The first two become members; any further side marks the mailbox or nameplate as crowded."""
    if any(member.side == side.side for member in owner.sides):
        skipped[f"{table}_repeated"] += 1
    elif len(owner.sides) == MAX_MEMBERS:
        owner.crowded = True
        skipped[f"{table}_beyond_two"] += 1
    else:
        owner.sides.append(side)


# ── usage records → changes ──────────────────────────────────────────────────────────────────────


def translate_usage(table: str, rows: Iterable[Row], skipped: Counts) -> list[Change]:
    """Translate the usage records of one of the reference's tables. Times are not rounded."""
    shape = USAGE.tables[table]
    record = _RECORD_OF_TABLE[table]
    return [record(row) for row in usable_rows(rows, shape, skipped, f"usage_{table}")]


_RECORD_OF_TABLE: Final[dict[str, Callable[[Any], Change]]] = {
    "nameplates": lambda t: usage_records.NameplateUsage(t.app_id, t.started, t.waiting_time, t.total_time, t.result),
    "mailboxes": lambda t: usage_records.MailboxUsage(
        t.app_id, bool(t.for_nameplate), t.started, t.waiting_time, t.total_time, t.result
    ),
    "client_versions": lambda t: usage_records.ClientVersion(
        t.app_id, t.side, t.connect_time, t.implementation, t.version
    ),
}
