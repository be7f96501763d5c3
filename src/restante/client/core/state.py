"""The state of a wormhole that a later process needs to continue. It is plain data, which is stored as JSON."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from restante.client.protocol.code import nameplate_of
from restante.client.protocol.keys import KEY_BYTES
from restante.client.protocol.spake2 import RANDOM_BYTES
from restante.common.errors import Misuse

SIDE_BYTES: Final = 5
"""Random bytes of a side, as in the Python client (wormhole.py:280)."""


STATE_VERSION: Final = 1


class NameplateStatus(Enum):
    """The state of the nameplate, or the one that the server is asked for."""

    NONE = "none"
    ALLOCATING = "allocating"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    RELEASING = "releasing"
    RELEASED = "released"


HAS_MAILBOX: Final = {NameplateStatus.CLAIMED, NameplateStatus.RELEASING, NameplateStatus.RELEASED}
"""The server has named the mailbox, or a seed has."""


class MailboxStatus(Enum):
    """The state of the mailbox, or the one that the server is asked for."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class OwnMessage(msgspec.Struct):
    """A message of this side, as it is added to the mailbox."""

    body: str
    sent: bool = False
    """Whether a server may have it. Then it is not added again before the replay has shown what is there."""
    stored: bool = False
    """Whether a server has had it on its disk. Pruning may have removed it since."""


class Abilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client of this library says of itself in its `version` message. Other clients ignore it."""

    sends_receipts: bool = False
    """It sends a receipt for what it has processed, to a peer that wants receipts."""
    wants_receipts: bool = False
    """It keeps each message until the peer's receipt comes."""
    seeds: bool = False
    """It offers a seed for the next wormhole (seeds.py)."""


MAX_NUMBER_DIGITS: Final = 18
"""Digits of a message's number. More do not fit into 64 bits."""


def is_number(phase: str) -> bool:
    """Return whether a phase is the number of an application message."""
    return phase.isascii() and phase.isdigit() and len(phase) <= MAX_NUMBER_DIGITS and str(int(phase)) == phase


class WormholeState(msgspec.Struct, kw_only=True):
    """The state. Bytes are in hex, as they are on the wire."""

    version: int = STATE_VERSION
    app_id: str
    side: str
    secret: str
    """The random bytes of SPAKE2, so that a later process continues the same exchange."""
    app_versions: dict[str, Any]
    """What the application says of itself in the `version` message."""
    abilities: Abilities = Abilities()
    """What this client says of itself there."""

    words: str | None = None
    """The words of the code that has no nameplate yet."""
    code: str | None = None
    nameplate: str | None = None
    nameplate_status: NameplateStatus = NameplateStatus.NONE
    claim_sent: bool = False
    """Whether the server may have claimed a nameplate for this side, even if its answer was lost."""

    mailbox: str | None = None
    mailbox_status: MailboxStatus = MailboxStatus.UNKNOWN
    mood: str | None = None
    """How the wormhole ended, once it has."""

    key: str | None = None
    peer_side: str | None = None
    peer_versions: dict[str, Any] | None = None
    """What the peer's application says of itself. Until it is there, the peer may not know the key."""
    peer_abilities: Abilities = Abilities()

    own: dict[str, OwnMessage] = {}
    """Messages by phase that may have to be added (again). An application message is removed when it is stored. If we
    want receipts and the peer sends them, it is removed when the peer has processed it."""
    unsealed: list[str] = []
    """Application messages that wait for the key."""
    next_own: int = 0
    """The number of the next application message, sealed or not."""
    acknowledged: int = 0
    """The number of the first message of this side for which the peer has sent no receipt."""
    own_digest: str | None = None
    """A digest of the messages of this side before that. None: an earlier version of this program has sent some."""
    next_peer: int = 0
    """The number of the peer's first application message that our application has not processed."""
    peer_digest: str | None = None
    """A digest of the peer's messages before that, which a receipt contains. None, as above."""
    inbox: dict[str, str] = {}
    """Bodies of the peer's messages that are not processed yet, by phase."""
    receipt: str | None = None
    """The phase of our newest receipt."""

    def check(self) -> None:
        """Raise ValueError if no wormhole has ever had this state."""
        if self.version != STATE_VERSION:
            raise ValueError(f"a wormhole's state has version {self.version}, not {STATE_VERSION}")
        sizes = {"side": (self.side, SIDE_BYTES), "secret": (self.secret, RANDOM_BYTES), "key": (self.key, KEY_BYTES)}
        for name, (text, size) in sizes.items():
            if text is not None and len(bytes.fromhex(text)) != size:
                raise ValueError(f"a wormhole's {name} does not have {size} bytes")
        for text in (*(own.body for own in self.own.values()), *self.inbox.values(), *self.unsealed):
            bytes.fromhex(text)
        if self.code is not None and nameplate_of(self.code) != self.nameplate:
            raise ValueError("a wormhole's code is not for its nameplate")
        if not 0 <= self.acknowledged <= self.next_own or len(self.unsealed) > self.next_own or self.next_peer < 0:
            raise ValueError("a wormhole's messages are not numbered correctly")
        is_open = self.mailbox is not None and self.mailbox_status is MailboxStatus.OPEN
        if self.mood is None and self.nameplate_status in HAS_MAILBOX and not is_open:
            raise ValueError("a wormhole has used its nameplate, and has no mailbox")


NEW_BYTES: Final = SIDE_BYTES + RANDOM_BYTES
"""Random bytes of a new wormhole."""


def new_state(
    app_id: str, app_versions: dict[str, Any], random: bytes, *, wants_receipts: bool = False, seeds: bool = False
) -> WormholeState:
    """Return the state of a new wormhole. `random` has `NEW_BYTES` bytes.

    Raises Misuse if the peer could not be told the application id or the versions.
    """
    check_encodable(app_id, app_versions)
    if len(random) != NEW_BYTES:
        raise ValueError(f"a wormhole begins with {NEW_BYTES} random bytes, not {len(random)}")
    return WormholeState(
        app_id=app_id,
        side=random[:SIDE_BYTES].hex(),
        secret=random[SIDE_BYTES:].hex(),
        app_versions=app_versions,
        abilities=Abilities(sends_receipts=True, wants_receipts=wants_receipts, seeds=seeds),
        own_digest="",
        peer_digest="",
    )


def check_encodable(app_id: str, app_versions: dict[str, Any]) -> None:
    """Raise Misuse if JSON cannot express an application id as a string, and versions as an object."""
    try:
        encoded = msgspec.convert(app_id, str).encode()
    except (msgspec.ValidationError, UnicodeEncodeError):
        encoded = b""
    if not encoded:
        raise Misuse(f"an application id is a text like 'example.com/chat', not {app_id!r}")
    requirement = "`versions` is a dict that JSON can express"
    try:
        decoded = msgspec.json.decode(msgspec.json.encode(app_versions), type=dict[str, Any])
        same = decoded == app_versions
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Misuse(f"{requirement}: {error}") from None
    if not same:
        raise Misuse(f"{requirement}: texts as keys, and no tuples, sets, bytes, NaN or infinity")
