"""Everything live, in memory: what the rules look at, and the one place that alters it.

`State` is the view that `decide` is given, and `fold` applies its changes. It also knows who is here: that is
never stored, the dispatcher reports it (`arrive`, `leave`, `answered`).
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from restante.mailbox.core import model
from restante.mailbox.core.limits import RESERVED_SHARE, Limits
from restante.mailbox.core.model import Change, Mailbox, Nameplate, size_of

MAILBOX_BYTES: Final = 2048
MESSAGE_BYTES: Final = 200
"""Bytes of memory that a mailbox with its nameplate, less their names, and a message less its text, take
(bench/README.md)."""


class App:
    """One application's part of the world; no app can see another's."""

    __slots__ = (
        "_listing",
        "_sorted",
        "allocated",
        "answered",
        "app_id",
        "connections_by_side",
        "mailboxes",
        "nameplates",
        "taken",
    )

    def __init__(self, app_id: str) -> None:
        self.app_id = app_id
        self.nameplates: dict[str, Nameplate] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        self.taken: dict[int, int] = {}
        """How many live nameplates could have been allocated, by length."""
        self.allocated: dict[str, list[str]] = {}
        """Nameplates allocated and not yet claimed, by side."""
        self.connections_by_side: dict[str, int] = {}
        """Live connections, by side."""
        self.answered: dict[str, object] = {}
        """The live connection that was told of an allocation, by nameplate."""
        self._sorted: list[str] = []
        """The names of its nameplates; kept in order, because to sort 50,000 takes 10 ms."""
        self._listing: bytes | None = None

    def listing(self) -> bytes:
        """Give the `nameplates` of a list response as JSON, sorted as strings; kept until one comes or goes."""
        if self._listing is None:
            names = self._sorted
            if "".join(names).isdigit():  # as all are that were claimed here; those that were imported may not be
                self._listing = ('[{"id":"' + '"},{"id":"'.join(names) + '"}]').encode()
            else:
                self._listing = msgspec.json.encode([{"id": name} for name in names])
        return self._listing

    def put_nameplates(self, nameplates: Sequence[Nameplate]) -> None:
        """Take in many, whose mailboxes are here. Raises LookupError where one is not."""
        self.nameplates.update({nameplate.name: nameplate for nameplate in nameplates})
        for nameplate in nameplates:
            self.mailboxes[nameplate.mailbox_id].nameplate = nameplate.name
        lengths = Counter([len(nameplate.name) for nameplate in nameplates if nameplate.name[0] != "0"])
        for length, count in lengths.items():
            self.taken[length] = self.taken.get(length, 0) + count
        for nameplate in nameplates:
            for row in nameplate.sides:
                if row.allocated:
                    self.allocated.setdefault(row.side, []).append(nameplate.name)
        self._sorted = sorted(self.nameplates)
        self._listing = None

    def idle(self) -> bool:
        return not (self.nameplates or self.mailboxes or self.connections_by_side)


EMPTY_APP = App("")
"""What the view shows of an app that has nothing. Never altered."""


class State:
    """The view, and the fold."""

    def __init__(self) -> None:
        self.apps: dict[str, App] = {}
        self.next_key = 1
        """Of the next mailbox or nameplate; never reused."""
        self.next_sequence = 1
        """Of the next message: replay is in this order, clocks have no say."""
        self.in_grace_period = False
        """True right after a start, while sides that were here before may be on their way back."""
        self.unsaved: dict[int, Mailbox] = {}
        """Mailboxes touched since their row was written, by key."""
        self.stored = 0
        """Bytes of memory that all this takes, about."""
        self.room = True
        """False while the disk is all but full."""
        self._seen: set[tuple[str, str]] = set()

    def app(self, app_id: str) -> App:
        return self.apps.get(app_id, EMPTY_APP)

    def nearly_full(self, limits: Limits) -> bool:
        """Return whether the room that is left is reserved for small mailboxes (limits.RESERVED_SHARE)."""
        return bool(limits.stored_bytes) and self.stored >= limits.stored_bytes * (1 - RESERVED_SHARE)

    def mailboxes(self) -> Iterator[Mailbox]:
        for app in self.apps.values():
            yield from app.mailboxes.values()

    # ── who is here ──────────────────────────────────────────────────────────────────────────────

    def arrive(self, app_id: str, side: str) -> None:
        """Note that a connection was bound to this side."""
        connections_by_side = self._make_app(app_id).connections_by_side
        connections_by_side[side] = connections_by_side.get(side, 0) + 1
        if self.in_grace_period:
            self._seen.add((app_id, side))

    def leave(self, app_id: str, side: str) -> None:
        """Note that such a connection is lost."""
        app = self.apps[app_id]
        app.connections_by_side[side] -= 1
        if not app.connections_by_side[side]:
            del app.connections_by_side[side]
        self._drop_if_idle(app)

    def end_grace_period(self) -> None:
        """Whoever has not come back by now is gone."""
        self.in_grace_period = False
        self._seen.clear()

    def gone(self, app_id: str, side: str) -> bool:
        """Tell whether the side's last connection is gone, for all we know."""
        if side in self.app(app_id).connections_by_side:
            return False
        return not self.in_grace_period or (app_id, side) in self._seen

    # ── the fold ─────────────────────────────────────────────────────────────────────────────────

    def fold(self, change: Change) -> None:
        """Alter the rows as one change says; usage records alter none."""
        fold = _FOLDS.get(type(change))
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
        """Take in what was read from the store, as if one by one: at 50,000 of each that takes three times as long.

        The messages come after it, by `keep`. Raises LookupError for a nameplate that has no mailbox, or no name.
        """
        for app_id, boxes in _by_app(mailboxes):
            self._make_app(app_id).mailboxes.update({box.mailbox_id: box for box in boxes})
        for app_id, plates in _by_app(nameplates):
            self.apps[app_id].put_nameplates(plates)
        for box in mailboxes:
            box.names = _names(box)
        self.stored += MAILBOX_BYTES * len(mailboxes) + sum([box.names for box in mailboxes])
        for rows in (mailboxes, nameplates):
            self.next_key = max(self.next_key, max([row.key for row in rows], default=0) + 1)

    def put_mailbox(self, mailbox: Mailbox) -> None:
        """Take in a mailbox."""
        app = self.apps.get(mailbox.app_id) or self._make_app(mailbox.app_id)
        app.mailboxes[mailbox.mailbox_id] = mailbox
        if mailbox.key >= self.next_key:
            self.next_key = mailbox.key + 1
        mailbox.names = _names(mailbox)
        self.stored += _weight(mailbox)

    def _mailbox_gone(self, change: model.MailboxGone) -> None:
        mailbox = change.mailbox
        app = self.apps[mailbox.app_id]
        del app.mailboxes[mailbox.mailbox_id]
        self.stored -= _weight(mailbox)
        self.unsaved.pop(mailbox.key, None)
        self._drop_if_idle(app)

    def _mailbox_crowded(self, change: model.MailboxCrowded) -> None:
        change.mailbox.crowded = True

    def _mailbox_side_set(self, change: model.MailboxSideSet) -> None:
        _put(change.mailbox.sides, change.row)

    def _mailbox_side_gone(self, change: model.MailboxSideGone) -> None:
        change.mailbox.sides = [row for row in change.mailbox.sides if row.side != change.side]

    def _mailbox_visited(self, change: model.MailboxVisited) -> None:
        mailbox = change.mailbox
        mailbox.visitors += 1
        mailbox.shown = [side for side in mailbox.shown if side != change.side]

    def _mailbox_touched(self, change: model.MailboxTouched) -> None:
        change.mailbox.touched = change.touched
        self.unsaved[change.mailbox.key] = change.mailbox

    def _mailbox_saved(self, change: model.MailboxSaved) -> None:
        self.unsaved.pop(change.mailbox.key, None)

    def _message_added(self, change: model.MessageAdded) -> None:
        self.keep(change.mailbox, change.message)
        change.mailbox.touched = change.touched
        self.unsaved[change.mailbox.key] = change.mailbox
        self.next_sequence = change.message.sequence + 1

    def keep(self, mailbox: Mailbox, message: model.Stored) -> None:
        """Take in a message; also one that was read from the store."""
        mailbox.keep(message)
        self.stored += MESSAGE_BYTES + len(message.wire)

    def put_nameplate(self, nameplate: Nameplate) -> None:
        """Take in a nameplate, after its mailbox."""
        name = nameplate.name
        app = self.apps.get(nameplate.app_id) or self._make_app(nameplate.app_id)
        app.nameplates[name] = nameplate
        app.mailboxes[nameplate.mailbox_id].nameplate = name
        bisect.insort(app._sorted, name)
        app._listing = None
        if name[0] != "0":
            app.taken[len(name)] = app.taken.get(len(name), 0) + 1
        for row in nameplate.sides:
            if row.allocated:
                app.allocated.setdefault(row.side, []).append(name)
        if nameplate.key >= self.next_key:
            self.next_key = nameplate.key + 1

    def _nameplate_gone(self, change: model.NameplateGone) -> None:
        nameplate = change.nameplate
        app = self.apps[nameplate.app_id]
        del app.nameplates[nameplate.name]
        app.answered.pop(nameplate.name, None)
        del app._sorted[bisect.bisect_left(app._sorted, nameplate.name)]
        app._listing = None
        if nameplate.name[0] != "0":
            app.taken[len(nameplate.name)] -= 1
        for row in nameplate.sides:
            _unmark(app, nameplate, row)
        mailbox = app.mailboxes.get(nameplate.mailbox_id)
        if mailbox is not None:
            mailbox.nameplate = None
        self._drop_if_idle(app)

    def _nameplate_crowded(self, change: model.NameplateCrowded) -> None:
        change.nameplate.crowded = True

    def _nameplate_side_set(self, change: model.NameplateSideSet) -> None:
        nameplate, row = change.nameplate, change.row
        if not row.allocated:
            _unmark(self.apps[nameplate.app_id], nameplate, row)
        _put(nameplate.sides, row)

    def _nameplate_side_gone(self, change: model.NameplateSideGone) -> None:
        nameplate = change.nameplate
        for row in nameplate.sides:
            if row.side == change.side:
                _unmark(self.apps[nameplate.app_id], nameplate, row)
        nameplate.sides = [row for row in nameplate.sides if row.side != change.side]


def _names(mailbox: Mailbox) -> int:
    """Return the bytes of memory for the names of a new mailbox.

    Its second side counts as the first does. The app's name is kept twice, for the mailbox and its nameplate.
    """
    sides = 2 * size_of(mailbox.sides[0].side) if mailbox.sides else 0
    return 2 * size_of(mailbox.app_id) + size_of(mailbox.mailbox_id) + sides


def _weight(mailbox: Mailbox) -> int:
    return MAILBOX_BYTES + mailbox.names + MESSAGE_BYTES * len(mailbox.messages) + mailbox.size


_Owned = TypeVar("_Owned", Mailbox, Nameplate)


def _by_app(rows: Sequence[_Owned]) -> Iterable[tuple[str, list[_Owned]]]:
    found: dict[str, list[_Owned]] = {}
    for row in rows:
        found.setdefault(row.app_id, []).append(row)
    return found.items()


_SideRow = TypeVar("_SideRow", model.MailboxSide, model.NameplateSide)


def _put(rows: list[_SideRow], row: _SideRow) -> None:
    for index, old in enumerate(rows):
        if old.side == row.side:
            rows[index] = row
            return
    rows.append(row)


def _unmark(app: App, nameplate: Nameplate, row: model.NameplateSide) -> None:
    """Forget that the nameplate is allocated to this side and unclaimed."""
    names = app.allocated.get(row.side)
    if names is not None and nameplate.name in names:
        names.remove(nameplate.name)
        app.answered.pop(nameplate.name, None)
        if not names:
            del app.allocated[row.side]


_FOLDS: dict[type, Callable[[State, Any], None]] = {
    model.MailboxMade: lambda state, change: state.put_mailbox(change.mailbox),
    model.MailboxGone: State._mailbox_gone,
    model.MailboxCrowded: State._mailbox_crowded,
    model.MailboxSideSet: State._mailbox_side_set,
    model.MailboxSideGone: State._mailbox_side_gone,
    model.MailboxVisited: State._mailbox_visited,
    model.MailboxTouched: State._mailbox_touched,
    model.MailboxSaved: State._mailbox_saved,
    model.MessageAdded: State._message_added,
    model.NameplateMade: lambda state, change: state.put_nameplate(change.nameplate),
    model.NameplateGone: State._nameplate_gone,
    model.NameplateCrowded: State._nameplate_crowded,
    model.NameplateSideSet: State._nameplate_side_set,
    model.NameplateSideGone: State._nameplate_side_gone,
}
