"""Usage records: what the server stores about nameplates, mailboxes and binds that have ended.

Times are seconds since 1970 (UTC). Durations are seconds and never negative, except in records that another server
wrote.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

Result = Literal["happy", "lonely", "errory", "scary", "pruney", "crowded"]
"""How a nameplate or a mailbox ended (spec 000 "Mailboxes"; nameplates have only happy, lonely,
pruney and crowded)."""

RESULTS: Final[tuple[Result, ...]] = get_args(Result)


MEANINGS: Final[dict[Result, str]] = {
    "happy": "both sides came, and neither complained",
    "lonely": "nobody came",
    "errory": "one side ended with an error",
    "scary": "the code was wrong: mistyped or guessed",
    "pruney": "it was left open, and removed when nobody used it",
    "crowded": "a third side wanted to come in",
}
"""What each result of a mailbox means, for people."""


class NameplateUsage(msgspec.Struct, frozen=True, gc=False):
    """One row per nameplate that was released by all its sides, closed with its mailbox, or pruned."""

    app_id: str
    started: float
    """When the first side claimed it; floored to a multiple of the blur."""
    waiting_time: float | None
    """From the first side to the second; None when there was no second."""
    total_time: float
    result: Result
    blur_time: float | None = None
    """Seconds that `started` was floored to a multiple of; 0: it was not floored. None: not known, as in records of
    other servers and from before schema 4."""


class MailboxUsage(msgspec.Struct, frozen=True, gc=False):
    """One row per mailbox that was closed by all its sides, or pruned."""

    app_id: str
    for_nameplate: bool
    """Whether a claim made it; otherwise an `open` did."""
    started: float
    waiting_time: float | None
    total_time: float
    result: Result
    visitors: int | None = None
    """Sides that were sent another side's message and never added one. A side that left and came back counts each
    time. None: not counted, as in records of other servers and from before schema 3."""
    blur_time: float | None = None
    """As in NameplateUsage."""


class ClientVersion(msgspec.Struct, frozen=True, gc=False):
    """One row per bind."""

    app_id: str
    side: str
    connect_time: float
    """When the bind came; floored to a multiple of the blur."""
    implementation: str | None
    version: str | None
    address_id: str | None = None
    """A hash of the client's address whose key changes each day (UTC). None: the address is not known."""
    blur_time: float | None = None
    """As in NameplateUsage, of `connect_time`."""


class CurrentUsage(msgspec.Struct, frozen=True, gc=False):
    """The state of the server: one row, rewritten at every prune."""

    rebooted: float
    """When the server started."""
    updated: float
    blur_time: float | None
    connections_websocket: int
    """Connections that have a mailbox open (the reference counts these, server.py:690, 0.8.0)."""
