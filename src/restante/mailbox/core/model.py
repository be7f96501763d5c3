"""The data that the rules, the state and the store exchange: rows, changes and decisions.

Rows are the live data. `State` alters them; the dispatcher alters only `Mailbox.recipients`. Changes say what a
command does to rows: `decide` returns them, `State.fold` applies them to memory, and the store writes them. Times
named `added` or `server_rx` are wall clock seconds. `touched` is service time: the seconds that the service has run
in total.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from restante.common.refusals import Refusal
from restante.common.usage_records import ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core.limits import UNLIMITED, Limits


class Now(msgspec.Struct, frozen=True, gc=False):
    """The time at which a command was received. The rules receive it as an argument."""

    wall: float
    """Seconds since 1970, for usage records and for `server_rx`."""
    service: float
    """Seconds that the service has run in total, for idleness. Downtime and clock changes do not affect it."""


class Policy(msgspec.Struct, gc=False):
    """The operator's settings that the rules need. It owns the limits, which a running server may change."""

    blur: int = 0
    """Times in usage records are rounded down to a multiple of this many seconds; 0: they are exact."""
    list_nameplates: bool = True
    limits: Limits = UNLIMITED


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


class NameplateSide(msgspec.Struct, frozen=True, gc=False):
    """A member of a nameplate."""

    side: str
    added: float
    claimed: bool = True
    """False once the side has released it."""
    allocated: bool = False
    """True if the nameplate was allocated to this side and the side has not claimed it yet."""


def size_of(text: str | bytes) -> int:
    """Return the maximum number of bytes that a text takes in memory. One non-ASCII character widens all of them."""
    return len(text) if type(text) is bytes or text.isascii() else 4 * len(text)


class MailboxSide(msgspec.Struct, frozen=True, gc=False):
    """A member of a mailbox."""

    side: str
    added: float
    opened: bool = True
    """False once the side has closed it."""
    mood: str | None = None


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message in its mailbox. `wire` is its `message` frame without the `server_tx` stamp."""

    sequence: int
    side: str
    wire: bytes


class Mailbox(msgspec.Struct, eq=False, gc=False):
    """A mailbox of an app.

    Only `messages` is altered in place; other lists are replaced, so that a copy keeps what they were.
    """

    key: int
    """The row's key in the store. Clients do not see it. No key is used twice while the server runs."""
    app_id: str
    mailbox_id: str
    for_nameplate: bool
    touched: float
    sides: list[MailboxSide]
    """The members: the first two sides, in order of arrival."""
    messages: list[StoredMessage] = []
    crowded: bool = False
    """True if a third side was refused."""
    nameplate: str | None = None
    """The live nameplate that points to this mailbox, if there is one."""
    senders: list[str] = []
    """Sides that have added a message, whether they are still members or not."""
    size: int = 0
    """Bytes of the messages in their wire form."""
    recipients: list[str] = []
    """Sides that were sent another side's message. It is not stored. After a start it has each member for which the
    mailbox has a message of another side."""
    visitors: int = 0
    """Number of sides that were sent another side's message, added none and gave up their place."""
    names: int = 0
    """Approximate bytes of memory that the mailbox's names take; `State` sets it."""


class Nameplate(msgspec.Struct, eq=False, gc=False):
    """A nameplate of an app. Its list of sides is replaced, never altered."""

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
    """A mailbox ended, with its sides and messages. Connections that have it open are detached."""

    mailbox: Mailbox
    usage: MailboxUsage | None = None
    """Its usage record. None: the quota of the address that created it has no room for the record."""


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
    """A side that was sent another side's message and added none gave up its place."""

    mailbox: Mailbox
    side: str


class MailboxTouched(msgspec.Struct, gc=False):
    """A mailbox was used. The change stays in memory until the row is next written: it is not worth a commit."""

    mailbox: Mailbox
    touched: float


class MailboxSaved(msgspec.Struct, gc=False):
    """The store must write the mailbox's `touched`. No row changes."""

    mailbox: Mailbox


class MessageAdded(msgspec.Struct, gc=False):
    """A message was added. It is sent to all connections that have the mailbox open. It also sets `touched`."""

    mailbox: Mailbox
    message: StoredMessage
    phase: Raw
    body: Raw
    id: Raw
    server_rx: float
    touched: float


class NameplateMade(msgspec.Struct, gc=False):
    nameplate: Nameplate


class NameplateGone(msgspec.Struct, gc=False):
    nameplate: Nameplate
    usage: NameplateUsage | None = None
    """As in MailboxGone."""


class NameplateCrowded(msgspec.Struct, gc=False):
    nameplate: Nameplate


class NameplateSideSet(msgspec.Struct, gc=False):
    nameplate: Nameplate
    row: NameplateSide


class NameplateSideGone(msgspec.Struct, gc=False):
    nameplate: Nameplate
    side: str


class Pruned(msgspec.Struct, gc=False):
    """A prune has checked every mailbox."""

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
    """The changes that a command makes, and what its answer needs."""

    changes: list[Change] = []
    refusal: Refusal | None = None
    """Why the command is refused. A refused command may have changes too (the crowded mark)."""
    name: str = ""
    """For `allocate` the nameplate, for `claim` the id of its mailbox."""
    listing: bytes = b"[]"
    """The nameplates that answer a `list`, as JSON."""
    mailbox: Mailbox | None = None
    """The mailbox that an `open` opened."""


# ── How commands end ──────────────────────────────────────────────────────────────────────────────


OK: Final = "ok"
"""It was carried out."""

ERROR: Final = "error"
"""It was malformed, or not allowed at this time."""

REFUSED: Final = "refused"
"""It was refused for lack of permission or room."""

FAILED: Final = "failed"
"""An error of ours stopped it."""

UNDONE: Final = "not_stored"
"""It was undone, because the disk did not take its batch."""

OUTCOMES: Final = (OK, ERROR, REFUSED, FAILED, UNDONE)


# ── What the commands of a batch were, for the metrics ────────────────────────────────────────────


class BatchCounts:
    """Counts of a batch. Lists are the cheapest way to count them: a batch may have 500."""

    __slots__ = ("added", "carried_out", "not_carried_out", "pruned", "refused", "solved", "usage")

    def __init__(self) -> None:
        self.carried_out: list[type] = []
        """The classes of the messages that were carried out."""
        self.not_carried_out: list[tuple[type, str]] = []
        """The classes of the other messages, NoneType for a text that was no message, and their outcomes."""
        self.added: list[float] = []
        """The service times at which the `add`s that were carried out were received."""
        self.usage: list[MailboxUsage | NameplateUsage] = []
        """The nameplates and mailboxes that ended, also those whose usage record is left out."""
        self.refused: list[tuple[str, str | None]] = []
        """Refusals for lack of permission or room: their reason, and the id of the address."""
        self.pruned = 0
        """Mailboxes that were pruned."""
        self.solved = 0
        """Connections that have shown the work that was demanded of them."""

    def clear(self) -> None:
        """Forget all of it."""
        self.carried_out.clear()
        self.not_carried_out.clear()
        self.added.clear()
        self.usage.clear()
        self.refused.clear()
        self.pruned = self.solved = 0
