"""Translates the reference server's rows into changes. It is pure: rows and a view in, changes and counts out.

Each row is imported, or counted as skipped with the reason. A mailbox without sides is skipped: the reference leaves
one if it is killed between the two commits of a claim, before it answers the client. A nameplate without sides is
imported with its mailbox: in the reference a close removes the side from all its nameplates (server.py:160, 0.8.0),
and the code that a user may have been given must still lead to the mailbox.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from restante.common import usage_records
from restante.mailbox.core import model
from restante.mailbox.core.model import Change
from restante.mailbox.core.rules import MAX_MEMBERS
from restante.mailbox.core.state import State
from restante.mailbox.protocol import messages
from restante.mailbox.reference_import import reference
from restante.mailbox.reference_import.reference import Row
from restante.mailbox.reference_import.report import Counts

CLAIMABLE: Final = re.compile(r"[0-9]{1,40}")
"""Names that a `claim` can have in this server (messages.py). The reference's pattern accepts a few more."""

_to_json: Final = msgspec.json.encode
_ReferenceRow = TypeVar("_ReferenceRow")


class Channel(msgspec.Struct):
    """A translated channel database."""

    changes: list[Change]
    imported: dict[str, int]
    skipped: Counts
    clashes: dict[str, int]
    """Number of mailboxes and nameplates that the view already has, with the same app and name."""


def channel(tables: Mapping[str, Sequence[Row]], view: State, touched: float) -> Channel:
    """Translate a channel database into changes to be applied to the view.

    Each mailbox counts as touched at `touched`, in service time, whatever its `updated`: it starts its full idle
    time.
    """
    skipped = Counts()
    usable = {name: _usable(tables[name], shape, skipped, name) for name, shape in reference.CHANNEL.tables.items()}
    keys = itertools.count(view.next_key)
    mailboxes = _mailboxes(usable, touched, keys, skipped)
    nameplates = _nameplates(usable, mailboxes, keys, skipped)
    added = _messages(usable, mailboxes, view.next_sequence, skipped)
    return Channel(
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
            "mailboxes": sum(m.mailbox_id in view.app(m.app_id).mailboxes for m in mailboxes.values()),
            "nameplates": sum(n.name in view.app(n.app_id).nameplates for n in nameplates),
        },
    )


_Usable = Mapping[str, Iterator[Any]]
_Mailboxes = dict[str, model.Mailbox]
"""Mailboxes by id. In the reference an id is unique across all apps."""


def _mailboxes(usable: _Usable, touched: float, keys: Iterator[int], skipped: Counts) -> _Mailboxes:
    mailboxes = {
        their.id: model.Mailbox(0, their.app_id, their.id, bool(their.for_nameplate), touched, sides=[])
        for their in usable["mailboxes"]
    }
    for their in sorted(usable["mailbox_sides"], key=_added):
        mailbox = mailboxes.get(their.mailbox_id)
        if mailbox is None:
            skipped["mailbox_sides_without_mailbox"] += 1
        else:
            mood = their.mood if isinstance(their.mood, str) else None
            row = model.MailboxSide(their.side, their.added, bool(their.opened), mood)
            _join(mailbox, row, skipped, "mailbox_sides")
    for their_id in [each for each, mailbox in mailboxes.items() if not mailbox.sides]:
        del mailboxes[their_id]
        skipped["mailboxes_without_sides"] += 1
    for mailbox in mailboxes.values():
        mailbox.key = next(keys)
    return mailboxes


def _nameplates(
    usable: _Usable, mailboxes: _Mailboxes, keys: Iterator[int], skipped: Counts
) -> list[model.Nameplate]:
    nameplates: list[model.Nameplate] = []
    sides: dict[int, list[reference.ReferenceNameplateSide]] = {}
    for side in sorted(usable["nameplate_sides"], key=_added):
        sides.setdefault(side.nameplates_id, []).append(side)
    taken: set[tuple[str, str]] = set()
    for their in usable["nameplates"]:
        mailbox = mailboxes.get(their.mailbox_id)
        if not CLAIMABLE.fullmatch(their.name):
            skipped["nameplates_that_nobody_can_claim"] += 1
        elif mailbox is None or mailbox.app_id != their.app_id:
            skipped["nameplates_without_mailbox"] += 1
        elif (their.app_id, their.name) in taken or mailbox.nameplate is not None:
            skipped["nameplates_repeated"] += 1  # a nameplate has one mailbox, and a mailbox one nameplate
        else:
            taken.add((their.app_id, their.name))
            mailbox.nameplate = their.name
            nameplate = model.Nameplate(next(keys), their.app_id, their.name, their.mailbox_id, sides=[])
            nameplates.append(nameplate)
            for side in sides.pop(their.id, ()):
                # In the reference an `allocate` also claims, so no allocated nameplate is still unclaimed.
                row = model.NameplateSide(side.side, side.added, bool(side.claimed))
                _join(nameplate, row, skipped, "nameplate_sides")
    if sides:
        skipped["nameplate_sides_without_nameplate"] = sum(map(len, sides.values()))
    return nameplates


def _messages(usable: _Usable, mailboxes: _Mailboxes, sequence: int, skipped: Counts) -> list[model.MessageAdded]:
    """Return the messages in the order in which the reference replays them.

    Messages of equal time are in the order of arrival, which the reference does not guarantee.
    """
    added: list[model.MessageAdded] = []
    for their in sorted(usable["messages"], key=lambda message: message.server_rx):
        mailbox = mailboxes.get(their.mailbox_id)
        if mailbox is None or mailbox.app_id != their.app_id:
            skipped["messages_without_mailbox"] += 1
        else:
            added.append(_message(mailbox, their, sequence + len(added)))
    return added


def _usable(rows: Iterable[Row], shape: type[_ReferenceRow], skipped: Counts, table: str) -> Iterator[_ReferenceRow]:
    """Yield the rows whose values are valid, and count the others as skipped."""
    for row in rows:
        try:
            yield msgspec.convert(row, shape)
        except msgspec.ValidationError:
            skipped[f"{table}_unusable"] += 1


def _added(row: Any) -> float:
    added: float = row.added
    return added


def _join(place: Any, row: Any, skipped: Counts, table: str) -> None:
    """Add a side. The first two become members; any further side marks the place as crowded."""
    if any(member.side == row.side for member in place.sides):
        skipped[f"{table}_repeated"] += 1
    elif len(place.sides) == MAX_MEMBERS:
        place.crowded = True
        skipped[f"{table}_beyond_two"] += 1
    else:
        place.sides.append(row)


def _message(mailbox: model.Mailbox, their: reference.ReferenceMessage, sequence: int) -> model.MessageAdded:
    phase, body, msg_id = _to_json(their.phase), _to_json(their.body), _to_json(their.msg_id)
    server_rx = their.server_rx + 0.0  # 0.0 for -0.0, which SQLite stores as 0: a frame is the same after a restart
    frame = messages.Delivery(their.side, Raw(phase), Raw(body), server_rx, Raw(msg_id))
    stored = model.StoredMessage(sequence, their.side, messages.encode(frame))
    return model.MessageAdded(mailbox, stored, phase, body, msg_id, server_rx, mailbox.touched)


# ── usage ────────────────────────────────────────────────────────────────────────────────────────


def usage(table: str, rows: Iterable[Row], skipped: Counts) -> list[Change]:
    """Translate the usage records of one of the reference's tables. Times are not rounded."""
    shape = reference.USAGE.tables[table]
    record = _RECORD_OF_TABLE[table]
    return [record(their) for their in _usable(rows, shape, skipped, f"usage_{table}")]


_RECORD_OF_TABLE: Final[dict[str, Callable[[Any], Change]]] = {
    "nameplates": lambda t: usage_records.NameplateUsage(t.app_id, t.started, t.waiting_time, t.total_time, t.result),
    "mailboxes": lambda t: usage_records.MailboxUsage(
        t.app_id, bool(t.for_nameplate), t.started, t.waiting_time, t.total_time, t.result
    ),
    "client_versions": lambda t: usage_records.ClientVersion(
        t.app_id, t.side, t.connect_time, t.implementation, t.version
    ),
}
