"""All that a wormhole has to remember between two processes. It is plain data, and JSON keeps it."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from restante.client.protocol.spake2 import RANDOM_BYTES

SIDE_BYTES: Final = 5
"""Random bytes of a side, as in the Python client (wormhole.py:280)."""


class NameplateStatus(Enum):
    """What is wanted of the nameplate, or has become of it."""

    NONE = "none"
    ALLOCATING = "allocating"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    RELEASING = "releasing"
    RELEASED = "released"


class MailboxStatus(Enum):
    """What is wanted of the mailbox, or has become of it."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class OwnMessage(msgspec.Struct):
    """A message of ours, as it is added to the mailbox."""

    phase: str
    body: str
    sent: bool = False
    """Whether a server may have it. Then it is not added again before the replay has shown what is there."""


class State(msgspec.Struct, kw_only=True):
    """The state. Bytes are in hex, as they are on the wire."""

    version: int = 1
    app_id: str
    side: str
    secret: str
    """The random bytes of SPAKE2, so that a later process continues the same exchange."""
    app_versions: dict[str, Any]
    """What the application tells its peer in the `version` message."""

    words: str | None = None
    """The words of the code that has no nameplate yet."""
    code: str | None = None
    nameplate: str | None = None
    nameplate_status: NameplateStatus = NameplateStatus.NONE
    claim_sent: bool = False
    """Whether the server may have claimed a nameplate for us, even if its answer was lost."""

    mailbox: str | None = None
    mailbox_status: MailboxStatus = MailboxStatus.UNKNOWN
    mood: str | None = None
    """How the wormhole ended, once it has."""

    key: str | None = None
    peer_side: str | None = None
    peer_versions: dict[str, Any] | None = None
    """What the peer's application says of itself. Until it is there, the peer may not know the key."""

    own: list[OwnMessage] = []
    """Messages that may have to be added (again). An application message is removed when it is stored."""
    unsealed: list[str] = []
    """Application messages that wait for the key."""
    next_own: int = 0
    """The number of the next application message, sealed or not."""
    next_peer: int = 0
    """The number of the peer's application message that is delivered next."""
    early: dict[str, str] = {}
    """Bodies of the peer's messages that cannot be delivered yet, by phase."""


def new_state(app_id: str, app_versions: dict[str, Any], random: bytes) -> State:
    """Return the state of a new wormhole. `random` has `SIDE_BYTES + RANDOM_BYTES` bytes."""
    if len(random) != SIDE_BYTES + RANDOM_BYTES:
        raise ValueError(f"a wormhole begins with {SIDE_BYTES + RANDOM_BYTES} random bytes, not {len(random)}")
    return State(
        app_id=app_id, side=random[:SIDE_BYTES].hex(), secret=random[SIDE_BYTES:].hex(), app_versions=app_versions
    )
