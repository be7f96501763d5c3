"""What the rules and the store hand each other: rows, changes, decisions.

Rows are what the server knows; only `State.fold` alters them. Changes say what a command does to rows;
`decide` returns them, the state folds them in, the store writes them. All times named `added` or
`server_rx` are wall clock seconds; `touched` is service time: seconds the service has run, all told.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from restante.common.usage_records import ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core.limits import UNLIMITED, Limits


class Now(msgspec.Struct, frozen=True, gc=False):
    """The clock, as an argument: the moment a command came."""

    wall: float
    """Seconds since 1970: for records, and for the `server_rx` of what came now."""
    service: float
    """Seconds the service has run, all told: for idleness. Downtime and set clocks do not exist in it."""


class Dice(Protocol):
    """Chance, as an argument."""

    def below(self, bound: int) -> int:
        """Give a number from 0 to bound - 1, each as likely as any other."""

    def mailbox_id(self) -> str:
        """Give an unguessable mailbox id."""


class Policy(msgspec.Struct, frozen=True, gc=False):
    """What the operator decided."""

    blur: int = 0
    """Usage times are floored to a multiple of this many seconds; 0 keeps them."""
    list_nameplates: bool = True
    limits: Limits = UNLIMITED


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


class NameplateSide(msgspec.Struct, frozen=True, gc=False):
    """One row per member of a nameplate."""

    side: str
    added: float
    claimed: bool = True
    """False once the side has released it."""
    allocated: bool = False
    """It was allocated to this side, which has not sent its `claim` yet."""


def size_of(text: str) -> int:
    """Return the bytes of memory that a text takes, at most: one character beyond ASCII makes all of them wider."""
    return len(text) if text.isascii() else 4 * len(text)


class MailboxSide(msgspec.Struct, frozen=True, gc=False):
    """One row per member of a mailbox."""

    side: str
    added: float
    opened: bool = True
    """False once the side has closed it."""
    mood: str | None = None


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A message in its mailbox: `wire` is its `message` frame, lacking only the stamp."""

    sequence: int
    side: str
    wire: bytes


class Mailbox(msgspec.Struct, eq=False, gc=False):
    """One row per mailbox of an app."""

    key: int
    """Ours alone: the row's key in the store. Not given twice while the server runs."""
    app_id: str
    mailbox_id: str
    for_nameplate: bool
    touched: float
    sides: list[MailboxSide]
    """Members: the first two sides, in order of arrival."""
    messages: list[Stored] = []
    crowded: bool = False
    """A third side was turned away."""
    nameplate: str | None = None
    """The nameplate that points here, while it lives."""
    spoke: list[str] = []
    """Sides that have added a message, members or not."""
    size: int = 0
    """Bytes of the messages, as they go over the wire."""
    shown: list[str] = []
    """Sides that were sent another side's message. It is not stored: after a start each member counts for which there
    is one."""
    visitors: int = 0
    """Sides that were shown a message, added none and gave up their place."""
    names: int = 0
    """Bytes of memory for its names, about; State enters it."""

    def keep(self, message: Stored) -> None:
        """Take in a message, as the last one."""
        self.messages.append(message)
        self.size += len(message.wire)
        if message.side not in self.spoke:
            self.spoke.append(message.side)


class Nameplate(msgspec.Struct, eq=False, gc=False):
    """One row per nameplate of an app."""

    key: int
    app_id: str
    name: str
    mailbox_id: str
    sides: list[NameplateSide]
    crowded: bool = False


# ── changes ──────────────────────────────────────────────────────────────────────────────────────


class MailboxMade(msgspec.Struct, gc=False):
    mailbox: Mailbox


class MailboxGone(msgspec.Struct, gc=False):
    """With its sides and its messages; whoever has it open is detached."""

    mailbox: Mailbox


class MailboxCrowded(msgspec.Struct, gc=False):
    mailbox: Mailbox


class MailboxSideSet(msgspec.Struct, gc=False):
    """A side joined, or its row changed."""

    mailbox: Mailbox
    row: MailboxSide


class MailboxSideGone(msgspec.Struct, gc=False):
    mailbox: Mailbox
    side: str


class MailboxVisited(msgspec.Struct, gc=False):
    """A side was shown another side's message, added none, and gave up its place."""

    mailbox: Mailbox
    side: str


class MailboxTouched(msgspec.Struct, gc=False):
    """Somebody did something there. Soft: kept in memory, saved by the next pruning, worth no commit."""

    mailbox: Mailbox
    touched: float


class MailboxSaved(msgspec.Struct, gc=False):
    """Its last touch is to be written; alters nothing."""

    mailbox: Mailbox


class MessageAdded(msgspec.Struct, gc=False):
    """A message was stored; it goes to everyone who has the mailbox open. Touches the mailbox."""

    mailbox: Mailbox
    message: Stored
    phase: bytes
    body: bytes
    id: bytes
    server_rx: float
    touched: float


class NameplateMade(msgspec.Struct, gc=False):
    nameplate: Nameplate


class NameplateGone(msgspec.Struct, gc=False):
    nameplate: Nameplate


class NameplateCrowded(msgspec.Struct, gc=False):
    nameplate: Nameplate


class NameplateSideSet(msgspec.Struct, gc=False):
    nameplate: Nameplate
    row: NameplateSide


class NameplateSideGone(msgspec.Struct, gc=False):
    nameplate: Nameplate
    side: str


class Pruned(msgspec.Struct, gc=False):
    """A prune has looked at every mailbox."""

    wall: float


Change = (
    MailboxMade
    | MailboxGone
    | MailboxCrowded
    | MailboxSideSet
    | MailboxSideGone
    | MailboxVisited
    | MailboxTouched
    | MailboxSaved
    | MessageAdded
    | NameplateMade
    | NameplateGone
    | NameplateCrowded
    | NameplateSideSet
    | NameplateSideGone
    | Pruned
    | NameplateUsage
    | MailboxUsage
    | ClientVersion
    | CurrentUsage
)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


class Decision(msgspec.Struct, gc=False):
    """What a command does (`changes`) and what it is answered."""

    changes: list[Change] = []
    error: str | None = None
    """The words of a refusal; a refusal may have changes too (the crowded mark)."""
    hint: str = ""
    """What its sender can do about it."""
    name: str = ""
    """What was allocated or claimed: a nameplate, or the id of a mailbox."""
    listing: bytes = b"[]"
    """The nameplates of a `list`, as JSON."""
    mailbox: Mailbox | None = None
    """The mailbox that was opened."""
