"""All live data, in memory.

`State` is the view that `decide` reads, and `State.fold` applies the changes that it returns. The state also knows
which sides are connected. That is never stored; the dispatcher reports it (`arrive`, `leave`, `App.answered`).
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from restante.mailbox.core import model
from restante.mailbox.core.limits import RESERVED_SHARE, Limits
from restante.mailbox.core.model import Change, Mailbox, Nameplate, size_of

MAILBOX_BYTES: Final = 2048
"""Bytes of memory that a mailbox with its nameplate takes, without their names (bench/README.md)."""

MESSAGE_BYTES: Final = 200
"""Bytes of memory that a message takes, without its text (bench/README.md)."""

PARTS: Final = 256
"""Number of parts into which live mailboxes are divided. A list of all 50,000 takes 10 ms, because it reads memory
that is in no cache."""

KEYS_TOGETHER: Final = 512
"""Keys that follow each other in one part: mailboxes that were made one after the other are near to each other in
memory. On some virtual machines the first look at 2 MiB of memory after some seconds takes 0.5 ms."""


class App:
    """The live data of one application. Applications cannot see each other's."""

    __slots__ = (
        "_listing",
        "_sorted",
        "allocated",
        "answered",
        "app_id",
        "connections_by_side",
        "counts_by_length",
        "mailboxes",
        "nameplates",
    )

    def __init__(self, app_id: str) -> None:
        self.app_id = app_id
        self.nameplates: dict[str, Nameplate] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        self.counts_by_length: dict[int, int] = {}
        """Number of live nameplates that `allocate` could have drawn (no leading zero), by length."""
        self.allocated: dict[str, list[str]] = {}
        """Nameplates that are allocated and not yet claimed, by side."""
        self.connections_by_side: dict[str, int] = {}
        """Number of live connections, by side."""
        self.answered: dict[str, object] = {}
        """The live connection that was sent the answer to an `allocate`, by nameplate."""
        self._sorted: list[str] = []
        """The names of the nameplates, always sorted, because sorting 50,000 takes 10 ms."""
        self._listing: bytes | None = None

    def listing(self) -> bytes:
        """Return the `nameplates` of a list response as JSON, sorted as strings.

        The result is cached until a nameplate is added or removed.
        """
        if self._listing is None:
            names = self._sorted
            if "".join(names).isdigit():  # always true of names that were claimed here, perhaps not of imported names
                self._listing = ('[{"id":"' + '"},{"id":"'.join(names) + '"}]').encode()
            else:
                self._listing = msgspec.json.encode([{"id": name} for name in names])
        return self._listing

    def put_nameplates(self, nameplates: Sequence[Nameplate]) -> None:
        """Add many nameplates. Raises LookupError if a nameplate's mailbox is missing."""
        self.nameplates.update({nameplate.name: nameplate for nameplate in nameplates})
        for nameplate in nameplates:
            self.mailboxes[nameplate.mailbox_id].nameplate = nameplate.name
        lengths = Counter([len(nameplate.name) for nameplate in nameplates if nameplate.name[0] != "0"])
        for length, count in lengths.items():
            self.counts_by_length[length] = self.counts_by_length.get(length, 0) + count
        for nameplate in nameplates:
            for row in nameplate.sides:
                if row.allocated:
                    self.allocated.setdefault(row.side, []).append(nameplate.name)
        self._sorted = sorted(self.nameplates)
        self._listing = None

    def idle(self) -> bool:
        """Return whether the app has no data and no connections."""
        return not (self.nameplates or self.mailboxes or self.connections_by_side)


EMPTY_APP = App("")
"""The view of an app that has no data. It is never altered."""


class StateRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process leaves of its `State` to the next, in addition to what is stored. Mailboxes are keys."""

    next_key: int
    next_sequence: int
    room: bool
    touched: dict[int, float]
    """When mailboxes were last touched, if that is not saved."""
    recipients: dict[int, list[str]]
    grace_sides: list[tuple[str, str]]


class State:
    """The live data of all applications, and the method that applies changes to it."""

    def __init__(self) -> None:
        self.apps: dict[str, App] = {}
        self.parts: tuple[dict[int, Mailbox], ...] = tuple({} for _ in range(PARTS))
        """All live mailboxes, by key."""
        self.next_key = 1
        """The key of the next mailbox or nameplate. Keys are never reused."""
        self.next_sequence = 1
        """The sequence number of the next message. Messages are replayed in this order; clocks have no influence."""
        self.in_grace_period = False
        """True for a time after a start, while sides that were connected before may reconnect."""
        self.unsaved: dict[int, Mailbox] = {}
        """Mailboxes whose `touched` has changed since it was saved, by key."""
        self.nameplate_count = 0
        self.mailbox_count = 0
        self.message_count = 0
        """How many are live, in all applications."""
        self.stored = 0
        """Approximate bytes of memory that the live data takes."""
        self.room = True
        """False while less than `free_disk` is free on the disk, or the disk fails."""
        self._mailboxes_before: dict[int, tuple[Mailbox, Mailbox | None, int, bool]] = {}
        """What the current batch has changed, by key: the mailbox, its copy from before the batch (None: the batch
        made it), how many messages it had, and whether it was in `unsaved`."""
        self._nameplates_before: dict[int, tuple[Nameplate, Nameplate | None, object]] = {}
        """The same: the nameplate, its copy, and the connection that `App.answered` had for it."""
        self._grace_sides: set[tuple[str, str]] = set()
        """Sides that connected during the grace period, as (app id, side)."""
        self._grace_sides_in_batch: set[tuple[str, str]] = set()
        """Those of them that connected first in the current batch."""

    def app(self, app_id: str) -> App:
        """Return an app's data, or EMPTY_APP. The caller must not alter it."""
        return self.apps.get(app_id, EMPTY_APP)

    def nearly_full(self, limits: Limits) -> bool:
        """Return whether only the room that is reserved for small mailboxes is left (limits.RESERVED_SHARE)."""
        return bool(limits.stored_bytes) and self.stored >= limits.stored_bytes * (1 - RESERVED_SHARE)

    def by_key(self, key: int) -> Mailbox:
        """Return a live mailbox. Raises KeyError if there is none."""
        return self._part(key)[key]

    def _part(self, key: int) -> dict[int, Mailbox]:
        return self.parts[key // KEYS_TOGETHER % PARTS]

    def mailboxes(self) -> Iterator[Mailbox]:
        """Yield all live mailboxes."""
        for part in self.parts:
            yield from part.values()

    # ── connected sides ──────────────────────────────────────────────────────────────────────────

    def arrive(self, app_id: str, side: str) -> None:
        """Record that a connection has bound as this side."""
        connections_by_side = self._make_app(app_id).connections_by_side
        connections_by_side[side] = connections_by_side.get(side, 0) + 1
        if self.in_grace_period and (app_id, side) not in self._grace_sides:
            self._grace_sides.add((app_id, side))
            self._grace_sides_in_batch.add((app_id, side))

    def leave(self, app_id: str, side: str) -> None:
        """Record that a connection of this side is lost."""
        app = self.apps[app_id]
        app.connections_by_side[side] -= 1
        if not app.connections_by_side[side]:
            del app.connections_by_side[side]
        self._drop_if_idle(app)

    def record(self) -> StateRecord:
        """Return what the next process cannot read from the store."""
        return StateRecord(
            self.next_key,
            self.next_sequence,
            self.room,
            {key: mailbox.touched for key, mailbox in self.unsaved.items()},
            {mailbox.key: mailbox.recipients for mailbox in self.mailboxes() if mailbox.recipients},
            list(self._grace_sides),
        )

    def restore(self, record: StateRecord) -> None:
        """Go on with what the process before has left. Nothing has arrived yet."""
        self.next_key, self.next_sequence = record.next_key, record.next_sequence
        self.room = record.room
        self._grace_sides = set(record.grace_sides) if self.in_grace_period else set()
        for mailbox in self.mailboxes():
            mailbox.recipients = record.recipients.get(mailbox.key, [])
            touched = record.touched.get(mailbox.key)
            if touched is not None:
                mailbox.touched = touched
                self.unsaved[mailbox.key] = mailbox

    def end_grace_period(self) -> None:
        """End the grace period. Sides that have not reconnected now count as gone."""
        self.in_grace_period = False
        self._grace_sides.clear()

    def gone(self, app_id: str, side: str) -> bool:
        """Return whether the side has no connection any more.

        During the grace period a side that has not reconnected yet does not count as gone.
        """
        if side in self.app(app_id).connections_by_side:
            return False
        return not self.in_grace_period or (app_id, side) in self._grace_sides

    # ── applying changes ─────────────────────────────────────────────────────────────────────────

    def fold(self, change: Change) -> None:
        """Apply one change to the rows. Usage records alter no rows."""
        fold = FOLDS.get(type(change))
        if fold is not None:
            fold(self, change)

    def _make_app(self, app_id: str) -> App:
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id)
        return app

    def _drop_if_idle(self, app: App) -> None:
        if app.idle():
            del self.apps[app.app_id]

    def put_all(self, mailboxes: Sequence[Mailbox], nameplates: Sequence[Nameplate]) -> None:
        """Add what was read from the store, except the messages, which `keep` adds afterwards.

        For 50,000 of each, adding them one by one would take three times as long. Raises LookupError if a nameplate
        has no mailbox or an empty name.
        """
        for app_id, boxes in _by_app(mailboxes):
            self._make_app(app_id).mailboxes.update({box.mailbox_id: box for box in boxes})
        for app_id, plates in _by_app(nameplates):
            self.apps[app_id].put_nameplates(plates)
        for box in mailboxes:
            self.parts[box.key // KEYS_TOGETHER % PARTS][box.key] = box
            box.names = _names(box)
        self.stored += MAILBOX_BYTES * len(mailboxes) + sum([box.names for box in mailboxes])
        self.mailbox_count += len(mailboxes)
        self.nameplate_count += len(nameplates)
        for rows in (mailboxes, nameplates):
            self.next_key = max(self.next_key, max([row.key for row in rows], default=0) + 1)

    def _mailbox_made(self, change: model.MailboxMade) -> None:
        self._mailboxes_before[change.mailbox.key] = change.mailbox, None, 0, False
        self.put_mailbox(change.mailbox)

    def put_mailbox(self, mailbox: Mailbox) -> None:
        """Add a mailbox."""
        app = self.apps.get(mailbox.app_id) or self._make_app(mailbox.app_id)
        app.mailboxes[mailbox.mailbox_id] = self._part(mailbox.key)[mailbox.key] = mailbox
        self.mailbox_count += 1
        if mailbox.key >= self.next_key:
            self.next_key = mailbox.key + 1
        mailbox.names = _names(mailbox)
        self.stored += _weight(mailbox)

    def _mailbox_gone(self, change: model.MailboxGone) -> None:
        mailbox = change.mailbox
        self.remember_mailbox(mailbox)
        app = self.apps[mailbox.app_id]
        del app.mailboxes[mailbox.mailbox_id], self._part(mailbox.key)[mailbox.key]
        self.mailbox_count -= 1
        self.message_count -= len(mailbox.messages)
        self.stored -= _weight(mailbox)
        self.unsaved.pop(mailbox.key, None)
        self._drop_if_idle(app)

    def _mailbox_crowded(self, change: model.MailboxCrowded) -> None:
        self.remember_mailbox(change.mailbox)
        change.mailbox.crowded = True

    def _mailbox_side_set(self, change: model.MailboxSideSet) -> None:
        self.remember_mailbox(change.mailbox)
        change.mailbox.sides = _put(change.mailbox.sides, change.row)
        self._count_names(change.mailbox)

    def _mailbox_side_gone(self, change: model.MailboxSideGone) -> None:
        self.remember_mailbox(change.mailbox)
        change.mailbox.sides = [row for row in change.mailbox.sides if row.side != change.side]
        self._count_names(change.mailbox)

    def _count_names(self, mailbox: Mailbox) -> None:
        before, mailbox.names = mailbox.names, _names(mailbox)
        self.stored += mailbox.names - before

    def _mailbox_visited(self, change: model.MailboxVisited) -> None:
        mailbox = change.mailbox
        self.remember_mailbox(mailbox)
        mailbox.visitors += 1
        mailbox.recipients = [side for side in mailbox.recipients if side != change.side]

    def _mailbox_touched(self, change: model.MailboxTouched) -> None:
        self.remember_mailbox(change.mailbox)
        change.mailbox.touched = change.touched
        self.unsaved[change.mailbox.key] = change.mailbox

    def _mailbox_saved(self, change: model.MailboxSaved) -> None:
        self.remember_mailbox(change.mailbox)
        self.unsaved.pop(change.mailbox.key, None)

    def _message_added(self, change: model.MessageAdded) -> None:
        mailbox, message = change.mailbox, change.message
        self.remember_mailbox(mailbox)
        self.keep(mailbox, message)
        mailbox.touched = change.touched
        self.unsaved[mailbox.key] = mailbox
        self.next_sequence = message.sequence + 1

    def keep(self, mailbox: Mailbox, message: model.StoredMessage) -> None:
        """Add a message, new or read from the store."""
        size = len(message.wire)
        mailbox.messages.append(message)
        mailbox.size += size
        if message.side not in mailbox.senders:
            mailbox.senders = [*mailbox.senders, message.side]
        self.message_count += 1
        self.stored += MESSAGE_BYTES + size

    def _nameplate_made(self, change: model.NameplateMade) -> None:
        self._nameplates_before[change.nameplate.key] = change.nameplate, None, None
        self.put_nameplate(change.nameplate)

    def put_nameplate(self, nameplate: Nameplate) -> None:
        """Add a nameplate. Its mailbox must have been added before."""
        name = nameplate.name
        app = self.apps.get(nameplate.app_id) or self._make_app(nameplate.app_id)
        app.nameplates[name] = nameplate
        self.nameplate_count += 1
        app.mailboxes[nameplate.mailbox_id].nameplate = name
        bisect.insort(app._sorted, name)
        app._listing = None
        if name[0] != "0":
            app.counts_by_length[len(name)] = app.counts_by_length.get(len(name), 0) + 1
        _mark(app, nameplate)
        if nameplate.key >= self.next_key:
            self.next_key = nameplate.key + 1

    def _nameplate_gone(self, change: model.NameplateGone) -> None:
        nameplate = change.nameplate
        self.remember_nameplate(nameplate)
        app = self.apps[nameplate.app_id]
        del app.nameplates[nameplate.name]
        self.nameplate_count -= 1
        app.answered.pop(nameplate.name, None)
        del app._sorted[bisect.bisect_left(app._sorted, nameplate.name)]
        app._listing = None
        if nameplate.name[0] != "0":
            app.counts_by_length[len(nameplate.name)] -= 1
        for row in nameplate.sides:
            _unmark(app, nameplate, row)
        mailbox = app.mailboxes.get(nameplate.mailbox_id)
        if mailbox is not None:
            mailbox.nameplate = None
        self._drop_if_idle(app)

    def _nameplate_crowded(self, change: model.NameplateCrowded) -> None:
        self.remember_nameplate(change.nameplate)
        change.nameplate.crowded = True

    def _nameplate_side_set(self, change: model.NameplateSideSet) -> None:
        nameplate, row = change.nameplate, change.row
        self.remember_nameplate(nameplate)
        if not row.allocated:
            _unmark(self.apps[nameplate.app_id], nameplate, row)
        nameplate.sides = _put(nameplate.sides, row)

    def _nameplate_side_gone(self, change: model.NameplateSideGone) -> None:
        nameplate = change.nameplate
        self.remember_nameplate(nameplate)
        for row in nameplate.sides:
            if row.side == change.side:
                _unmark(self.apps[nameplate.app_id], nameplate, row)
        nameplate.sides = [row for row in nameplate.sides if row.side != change.side]

    # ── undoing a batch ──────────────────────────────────────────────────────────────────────────

    def remember_mailbox(self, mailbox: Mailbox) -> None:
        """Remember a mailbox as it is, before the current batch changes it for the first time."""
        if mailbox.key not in self._mailboxes_before:
            unsaved = mailbox.key in self.unsaved
            self._mailboxes_before[mailbox.key] = mailbox, replace(mailbox), len(mailbox.messages), unsaved

    def remember_nameplate(self, nameplate: Nameplate) -> None:
        """Remember a nameplate as it is, and who was sent it, before the current batch changes that."""
        if nameplate.key not in self._nameplates_before:
            answered = self.apps[nameplate.app_id].answered.get(nameplate.name)
            self._nameplates_before[nameplate.key] = nameplate, replace(nameplate), answered

    def end_batch(self) -> None:
        """Forget what the current batch has changed: it is stored."""
        self._mailboxes_before.clear()
        self._nameplates_before.clear()
        self._grace_sides_in_batch.clear()

    def undo_batch(self) -> None:
        """Undo what the current batch has changed. Keys and sequence numbers that it used are not used again."""
        nameplates, mailboxes = self._nameplates_before.values(), self._mailboxes_before.values()
        for nameplate, before, _ in nameplates:
            if before is None and self._is_live(nameplate):
                self._nameplate_gone(model.NameplateGone(nameplate))
        for mailbox, mailbox_before, _, _ in mailboxes:
            if mailbox_before is None and self._is_live(mailbox):
                self._mailbox_gone(model.MailboxGone(mailbox))
        for mailbox, mailbox_before, message_count, unsaved in mailboxes:
            if mailbox_before is not None:
                self._undo_mailbox(mailbox, mailbox_before, message_count, unsaved=unsaved)
        for nameplate, before, answered in nameplates:
            if before is not None:
                self._undo_nameplate(nameplate, before, answered)
        self._grace_sides -= self._grace_sides_in_batch
        self.end_batch()

    def _undo_mailbox(self, mailbox: Mailbox, before: Mailbox, message_count: int, *, unsaved: bool) -> None:
        if self._is_live(mailbox):
            self._mailbox_gone(model.MailboxGone(mailbox))
        del mailbox.messages[message_count:]
        _restore(mailbox, before)
        self.put_mailbox(mailbox)
        self.message_count += message_count
        if unsaved:
            self.unsaved[mailbox.key] = mailbox

    def _undo_nameplate(self, nameplate: Nameplate, before: Nameplate, answered: object) -> None:
        if self._is_live(nameplate):
            app = self.apps[nameplate.app_id]
            for row in nameplate.sides:
                _unmark(app, nameplate, row)
            _restore(nameplate, before)
            _mark(app, nameplate)
        else:
            _restore(nameplate, before)
            self.put_nameplate(nameplate)
            app = self.apps[nameplate.app_id]
        for row in nameplate.sides:
            app.allocated.get(row.side, []).sort(key=lambda name: app.nameplates[name].key)
        if answered is not None:
            app.answered[nameplate.name] = answered

    def _is_live(self, row: Mailbox | Nameplate) -> bool:
        app = self.app(row.app_id)
        if isinstance(row, Mailbox):
            return app.mailboxes.get(row.mailbox_id) is row
        return app.nameplates.get(row.name) is row


def _names(mailbox: Mailbox) -> int:
    """Return the bytes of memory that the names of a mailbox take.

    A second side that has not come is assumed to be as long as the first. The app id counts twice, for the mailbox
    and its nameplate.
    """
    size = 2 * size_of(mailbox.app_id) + size_of(mailbox.mailbox_id)
    for row in mailbox.sides:
        size += size_of(row.side)
        if row.mood:
            size += size_of(row.mood)
    return size + size_of(mailbox.sides[0].side) if len(mailbox.sides) == 1 else size


def _weight(mailbox: Mailbox) -> int:
    """Return the bytes of memory that a mailbox with its messages takes."""
    return MAILBOX_BYTES + mailbox.names + MESSAGE_BYTES * len(mailbox.messages) + mailbox.size


_Owned = TypeVar("_Owned", Mailbox, Nameplate)


def _by_app(rows: Sequence[_Owned]) -> Iterable[tuple[str, list[_Owned]]]:
    rows_by_app: dict[str, list[_Owned]] = {}
    for row in rows:
        rows_by_app.setdefault(row.app_id, []).append(row)
    return rows_by_app.items()


_SideRow = TypeVar("_SideRow", model.MailboxSide, model.NameplateSide)


def _put(rows: list[_SideRow], row: _SideRow) -> list[_SideRow]:
    """Return the rows with this row in place of the one of its side, or at the end."""
    changed = rows.copy()
    for index, old in enumerate(rows):
        if old.side == row.side:
            changed[index] = row
            return changed
    changed.append(row)
    return changed


def _restore(row: _Owned, before: _Owned) -> None:
    for field in row.__struct_fields__:
        setattr(row, field, getattr(before, field))


def _mark(app: App, nameplate: Nameplate) -> None:
    """Add the nameplate to those that are allocated to its side and unclaimed."""
    for row in nameplate.sides:
        if row.allocated:
            app.allocated.setdefault(row.side, []).append(nameplate.name)


def _unmark(app: App, nameplate: Nameplate, row: model.NameplateSide) -> None:
    """Remove the nameplate from those that are allocated to this side and unclaimed."""
    names = app.allocated.get(row.side)
    if names is not None and nameplate.name in names:
        names.remove(nameplate.name)
        app.answered.pop(nameplate.name, None)
        if not names:
            del app.allocated[row.side]


FOLDS: Final[dict[type, Callable[[State, Any], None]]] = {
    model.MailboxMade: State._mailbox_made,
    model.MailboxGone: State._mailbox_gone,
    model.MailboxCrowded: State._mailbox_crowded,
    model.MailboxSideSet: State._mailbox_side_set,
    model.MailboxSideGone: State._mailbox_side_gone,
    model.MailboxVisited: State._mailbox_visited,
    model.MailboxTouched: State._mailbox_touched,
    model.MailboxSaved: State._mailbox_saved,
    model.MessageAdded: State._message_added,
    model.NameplateMade: State._nameplate_made,
    model.NameplateGone: State._nameplate_gone,
    model.NameplateCrowded: State._nameplate_crowded,
    model.NameplateSideSet: State._nameplate_side_set,
    model.NameplateSideGone: State._nameplate_side_gone,
}
