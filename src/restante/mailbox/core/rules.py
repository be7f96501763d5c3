"""The rules: what each command does to nameplates and mailboxes.

Each rule reads the view and returns a decision. Rules are pure: they alter nothing. The specification is 000
"Nameplates" and "Mailboxes". docs/mailbox/protocol.md gives the reason for each difference from the reference server.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from restante.common.dice import Dice
from restante.common.refusals import Refusal
from restante.mailbox.core import model, session, usage
from restante.mailbox.core.limits import KIB
from restante.mailbox.core.model import (
    Change,
    Decision,
    Mailbox,
    MailboxSide,
    Nameplate,
    NameplateSide,
    Now,
    Policy,
)
from restante.mailbox.core.state import App, State
from restante.mailbox.protocol import messages
from restante.mailbox.protocol.refusals import MAILBOX_FULL, SERVER_FULL

MAX_MEMBERS: Final = 2
"""Maximum number of sides of a nameplate or a mailbox: the two ends of a transfer."""

CROWDED: Final = Refusal("crowded")
"""The answer to a further side."""

MAX_DRAWS: Final = 64
"""Maximum number of random draws for a free nameplate; after that, the free ones are listed. While fewer than 9 in
10 are taken, at most one allocation in 800 needs the list."""

MAX_LISTED_DIGITS: Final = 4
"""Maximum length of nameplates of which the free ones are listed: listing those of five digits takes 24 ms. Of each
longer length, two in a hundred are left free, so that MAX_DRAWS_OF_LONG draws find one."""

MAX_DRAWS_OF_LONG: Final = 1000
"""Maximum number of random draws for a longer nameplate. With two in a hundred free, all draws fail once in 600
million allocations. A draw takes 1.1 µs."""


class PruneCommand(msgspec.Struct, gc=False):
    """A command of the server itself: the mailbox has been idle for too long."""

    mailbox: Mailbox


def decide(view: State, command: session.Command | PruneCommand, now: Now, dice: Dice, policy: Policy) -> Decision:
    """Return what a command does. Equal arguments give equal decisions. The view is not altered."""
    return RULES[type(command)](view, command, now, dice, policy)


def _bind(view: State, c: session.BindCommand, now: Now, _dice: Dice, policy: Policy) -> Decision:
    if not view.room:
        return Decision()  # when the disk is nearly full, the usage records of binds are dropped first
    record = usage.client_version(
        c.app_id, c.side, now.wall, c.client_version, blur=policy.blur, address_id=c.address_id
    )
    return Decision([record])


def _nothing(*_: object) -> Decision:
    """Return an empty decision, for `ping` and permission submissions."""
    return Decision()


def _list(view: State, c: session.ListCommand, _now: Now, _dice: Dice, policy: Policy) -> Decision:
    return Decision(listing=view.app(c.app_id).listing()) if policy.list_nameplates else Decision()


# ── room in memory and on disk ───────────────────────────────────────────────────────────────────

FULL_FOR_LARGE: Final = "the remaining room is reserved for mailboxes of up to {} KiB; try again later"


def _no_room(view: State, policy: Policy, size: int = 0) -> Decision | None:
    """Return the refusal of a command that needs room if there is none, else None.

    Commands that end something need no room. `size` is how many bytes of messages the mailbox would have afterwards.
    """
    if not view.room:
        return Decision(refusal=SERVER_FULL.refusal("its disk has no room for more; try again later"))
    if not view.nearly_full(policy.limits):
        return None
    if view.stored >= policy.limits.stored_bytes:
        return Decision(refusal=SERVER_FULL.refusal("it holds as much as it may; try again later"))
    if size >= (small := policy.limits.small_mailbox_bytes):
        return Decision(refusal=SERVER_FULL.refusal(FULL_FOR_LARGE.format(small // KIB)))
    return None


# ── nameplates ───────────────────────────────────────────────────────────────────────────────────


def _allocate(view: State, c: session.AllocateCommand, now: Now, dice: Dice, policy: Policy) -> Decision:
    app = view.app(c.app_id)
    for name in app.allocated.get(c.side, ()):
        if name not in app.answered:  # the connection that was answered is closed, so the answer may be lost
            mailbox = app.mailboxes[app.nameplates[name].mailbox_id]
            return Decision([model.MailboxTouched(mailbox, now.service)], name=name)
    if (full := _no_room(view, policy)) is not None:
        return full
    name = _free_nameplate(app, dice)
    row = NameplateSide(c.side, now.wall, allocated=True)
    return Decision(list(_make_nameplate(view, app, c.app_id, name, row, now, dice)), name=name)


def _free_nameplate(app: App, dice: Dice) -> str:
    """Return a random nameplate of the shortest length that has enough free ones, all equally likely."""
    length = 1
    while app.counts_by_length.get(length, 0) >= _allocatable(length):
        length += 1
    low, count = 10 ** (length - 1), 9 * 10 ** (length - 1)
    for _ in range(MAX_DRAWS if length <= MAX_LISTED_DIGITS else MAX_DRAWS_OF_LONG):
        name = str(low + dice.below(count))
        if name not in app.nameplates:
            return name
    free = [name for name in map(str, range(low, low + count)) if name not in app.nameplates]
    return free[dice.below(len(free))]


def _allocatable(length: int) -> int:
    """Return how many nameplates of this length may be live before longer ones are allocated."""
    count: int = 9 * 10 ** (length - 1)
    return count if length <= MAX_LISTED_DIGITS else count - count // 50


def new_mailbox_id(dice: Dice) -> str:
    """Return 64 random bits as 13 letters and digits, as the reference does (server.py:4, 0.8.0)."""
    return b32encode(dice.draw(8)).decode().strip("=").lower()


def _make_nameplate(
    view: State, app: App, app_id: str, name: str, row: NameplateSide, now: Now, dice: Dice
) -> tuple[model.MailboxMade, model.NameplateMade]:
    mailbox_id = new_mailbox_id(dice)
    while mailbox_id in app.mailboxes:
        mailbox_id = new_mailbox_id(dice)
    mailbox = Mailbox(
        view.next_key,
        app_id,
        mailbox_id,
        for_nameplate=True,
        touched=now.service,
        sides=[MailboxSide(row.side, row.added)],
    )
    nameplate = Nameplate(view.next_key + 1, app_id, name, mailbox_id, sides=[row])
    return model.MailboxMade(mailbox), model.NameplateMade(nameplate)


def _claim(view: State, c: session.ClaimCommand, now: Now, dice: Dice, policy: Policy) -> Decision:
    app = view.app(c.app_id)
    nameplate = app.nameplates.get(c.nameplate)
    if nameplate is None:
        if (full := _no_room(view, policy)) is not None:
            return full
        row = NameplateSide(c.side, now.wall)
        made = _make_nameplate(view, app, c.app_id, c.nameplate, row, now, dice)
        return Decision(list(made), name=made[0].mailbox.mailbox_id)
    mailbox = app.mailboxes[nameplate.mailbox_id]
    own_row = _row_of(nameplate.sides, c.side)
    if own_row is not None and not own_row.claimed:
        return Decision(refusal=Refusal("reclaimed"))
    # The side joins both the nameplate and the mailbox, or neither. A refusal changes only the crowded mark.
    off_nameplate = _sides_to_remove(view, nameplate.sides, mailbox, c.side)
    off_mailbox = _sides_to_remove(view, mailbox.sides, mailbox, c.side)
    if off_nameplate is None or off_mailbox is None:
        marks: list[Change] = []
        if off_nameplate is None and not nameplate.crowded:
            marks.append(model.NameplateCrowded(nameplate))
        if off_mailbox is None and not mailbox.crowded:
            marks.append(model.MailboxCrowded(mailbox))
        return Decision(marks, refusal=CROWDED)
    changes: list[Change] = [model.NameplateSideGone(nameplate, side) for side in off_nameplate]
    if own_row is None:
        changes.append(model.NameplateSideSet(nameplate, NameplateSide(c.side, now.wall)))
    elif own_row.allocated:
        changes.append(model.NameplateSideSet(nameplate, replace(own_row, allocated=False)))
    changes += _leave(mailbox, off_mailbox)
    if _row_of(mailbox.sides, c.side) is None:  # a claim also makes the side a member of the mailbox
        changes.append(model.MailboxSideSet(mailbox, MailboxSide(c.side, now.wall)))
    changes.append(model.MailboxTouched(mailbox, now.service))
    return Decision(changes, name=mailbox.mailbox_id)


def _release(view: State, c: session.ReleaseCommand, now: Now, _dice: Dice, policy: Policy) -> Decision:
    nameplate = view.app(c.app_id).nameplates.get(c.nameplate)
    own_row = _row_of(nameplate.sides, c.side) if nameplate else None
    if nameplate is None or own_row is None or not own_row.claimed:
        return Decision()
    if any(row.claimed for row in nameplate.sides if row is not own_row):
        return Decision([model.NameplateSideSet(nameplate, replace(own_row, claimed=False, allocated=False))])
    record = usage.nameplate_usage(nameplate, now.wall, blur=policy.blur)
    return Decision([model.NameplateGone(nameplate, record)])


# ── mailboxes ────────────────────────────────────────────────────────────────────────────────────


def _open(view: State, c: session.OpenCommand, now: Now, _dice: Dice, policy: Policy) -> Decision:
    mailbox = view.app(c.app_id).mailboxes.get(c.mailbox_id)
    joining = MailboxSide(c.side, now.wall)
    if mailbox is None:
        if (full := _no_room(view, policy)) is not None:
            return full
        mailbox = Mailbox(
            view.next_key,
            c.app_id,
            c.mailbox_id,
            for_nameplate=False,
            touched=now.service,
            sides=[joining],
        )
        return Decision([model.MailboxMade(mailbox)], mailbox=mailbox)
    leaving = _sides_to_remove(view, mailbox.sides, mailbox, c.side)
    if leaving is None:
        return Decision([] if mailbox.crowded else [model.MailboxCrowded(mailbox)], refusal=CROWDED)
    changes = _leave(mailbox, leaving)
    own_row = _row_of(mailbox.sides, c.side)
    if own_row is None:
        changes.append(model.MailboxSideSet(mailbox, joining))
    elif not own_row.opened:
        changes.append(model.MailboxSideSet(mailbox, replace(own_row, opened=True, mood=None)))
    changes.append(model.MailboxTouched(mailbox, now.service))
    return Decision(changes, mailbox=mailbox)


def _add(view: State, c: session.AddCommand, now: Now, _dice: Dice, policy: Policy) -> Decision:
    mailbox, limits = view.apps[c.app_id].mailboxes[c.mailbox_id], policy.limits
    size = mailbox.size + len(c.phase) + len(c.body) + len(c.id)
    if (full := _no_room(view, policy, size)) is not None:
        return full
    if limits.mailbox_messages and len(mailbox.messages) >= limits.mailbox_messages:
        return Decision(
            refusal=MAILBOX_FULL.refusal(f"it has {limits.mailbox_messages} messages, and may have no more")
        )
    frame = messages.Delivery(c.side, c.phase, c.body, now.wall, c.id)
    message = model.StoredMessage(view.next_sequence, c.side, messages.encode(frame))
    if limits.mailbox_bytes and mailbox.size + len(message.wire) > limits.mailbox_bytes:
        return Decision(refusal=MAILBOX_FULL.refusal(f"it may have {limits.mailbox_bytes} bytes of messages"))
    return Decision([model.MessageAdded(mailbox, message, c.phase, c.body, c.id, now.wall, now.service)])


def _close(view: State, c: session.CloseCommand, now: Now, _dice: Dice, policy: Policy) -> Decision:
    mailbox = view.app(c.app_id).mailboxes.get(c.mailbox_id)
    own_row = _row_of(mailbox.sides, c.side) if mailbox else None
    if mailbox is None or own_row is None:
        return Decision()
    closed = replace(own_row, opened=False, mood=c.mood)
    changes: list[Change] = [] if closed == own_row else [model.MailboxSideSet(mailbox, closed)]
    if any(row.opened for row in mailbox.sides if row is not own_row):
        return Decision(changes)
    sides = [closed if row is own_row else row for row in mailbox.sides]
    return Decision(changes + _end(view, mailbox, sides, now, policy, pruned=False))


def _prune(view: State, c: PruneCommand, now: Now, _dice: Dice, policy: Policy) -> Decision:
    return Decision(_end(view, c.mailbox, c.mailbox.sides, now, policy, pruned=True))


def _end(
    view: State, mailbox: Mailbox, sides: list[MailboxSide], now: Now, policy: Policy, *, pruned: bool
) -> list[Change]:
    """Return the changes that end a mailbox and its live nameplate, with a usage record for each."""
    changes: list[Change] = []
    if mailbox.nameplate is not None:
        nameplate = view.app(mailbox.app_id).nameplates[mailbox.nameplate]
        nameplate_usage = usage.nameplate_usage(nameplate, now.wall, blur=policy.blur, pruned=pruned)
        changes.append(model.NameplateGone(nameplate, nameplate_usage))
    mailbox_usage = usage.mailbox_usage(mailbox, sides, now.wall, blur=policy.blur, pruned=pruned)
    changes.append(model.MailboxGone(mailbox, mailbox_usage))
    return changes


# ── members ──────────────────────────────────────────────────────────────────────────────────────

_MemberRow = TypeVar("_MemberRow", MailboxSide, NameplateSide)


def _row_of(rows: list[_MemberRow], side: str) -> _MemberRow | None:
    for row in rows:
        if row.side == side:
            return row
    return None


def _sides_to_remove(
    view: State, rows: Sequence[MailboxSide | NameplateSide], mailbox: Mailbox, side: str
) -> list[str] | None:
    """Return the sides that must leave so that `side` can join (none or one), or None if there is no place.

    A side may have to leave if its last connection is gone and it never added a message. It has not guessed the code:
    it was a receiver that was stopped with Ctrl-C, and the side that replaces it is the second side, not a third
    (mailbox server issue 19).
    """
    if len(rows) < MAX_MEMBERS or any(row.side == side for row in rows):
        return []
    for row in reversed(rows):
        if row.side not in mailbox.senders and view.gone(mailbox.app_id, row.side):
            return [row.side]
    return None


def _leave(mailbox: Mailbox, leaving: list[str]) -> list[Change]:
    """Return the changes that remove sides from a mailbox. A side that was sent a message becomes a visitor."""
    changes: list[Change] = []
    for side in leaving:
        changes.append(model.MailboxSideGone(mailbox, side))
        if side in mailbox.recipients:
            changes.append(model.MailboxVisited(mailbox, side))
    return changes


RULES: Final[dict[type, Callable[[State, Any, Now, Dice, Policy], Decision]]] = {
    session.SubmitCommand: _nothing,
    session.BindCommand: _bind,
    session.ListCommand: _list,
    session.AllocateCommand: _allocate,
    session.ClaimCommand: _claim,
    session.ReleaseCommand: _release,
    session.OpenCommand: _open,
    session.AddCommand: _add,
    session.CloseCommand: _close,
    session.PingCommand: _nothing,
    PruneCommand: _prune,
}
"""The rules that `decide` calls. The dispatcher calls those of commands itself, which saves a call of each."""
