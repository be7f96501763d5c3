"""One connection to the server: what was sent on it, and what the server owes."""

from __future__ import annotations

from typing import Final

import msgspec

from restante.client.core.conversation import RECEIPT
from restante.client.core.state import MailboxStatus, NameplateStatus, State

END_OF_REPLAY: Final = "end of replay"
"""The payload of the ping that follows an `open`."""
END_OF_REPLAY_JSON: Final = msgspec.json.encode(END_OF_REPLAY)


class ConnectionState:
    """What is known of one connection. It begins when the connection is made, and is forgotten with it."""

    def __init__(self) -> None:
        self.bound = False
        self.working = False
        """Whether the server waits for proof of work."""
        self.wanted: tuple[NameplateStatus, MailboxStatus, bool] | None = None
        """What was wanted when this connection was last sent what was missing."""
        self.sent: set[str] = set()
        """Types of commands, each sent once."""
        self.replayed = False
        """Whether all stored messages have come."""
        self.earlier = False
        """Whether earlier connections have added messages of this side that may be lost."""
        self.found: set[str] = set()
        """Phases of this side that this connection has added, or found in the mailbox, until the replay has ended."""
        self.unstored: set[str] = set()
        """Phases of this side that this connection has added, and that the server has not sent back."""
        self.new: set[str] = set()
        """Those of them that no earlier connection has added: no peer can have them."""
        self.receipt: str | None = None
        """The phase of the newest receipt that this connection has added."""

    def added(self, phase: str, *, new: bool) -> None:
        """Note that a message of this side was added. It is new if no earlier connection has added it."""
        self.unstored.add(phase)
        if new:
            self.new.add(phase)
        if phase.startswith(RECEIPT):
            self.receipt = phase

    def came_back(self, phase: str) -> bool:
        """Note that the server has sent a message of this side back. Return whether it owed that."""
        owed = phase in self.unstored
        self.unstored.discard(phase)
        self.new.discard(phase)
        return owed

    def holds(self, phase: str) -> bool:
        """Return whether a receipt waits until the one before it is stored. Only the newest is added then."""
        return self.receipt in self.unstored and phase.startswith(RECEIPT)

    def begin(self, kind: str) -> bool:
        """Note that a command is sent. Return False if it was sent before."""
        first = kind not in self.sent
        self.sent.add(kind)
        return first

    @property
    def all_stored(self) -> bool:
        """Whether the server has sent back all messages that this connection has added."""
        return self.replayed and not self.unstored

    def owes_answer(self, state: State) -> bool:
        """Return whether the server has to say something next: the welcome, an answer, or an echo."""
        if not self.bound:
            return not self.working
        return (
            state.nameplate_status in _UNANSWERED
            or state.mailbox_status is MailboxStatus.CLOSING
            or ("open" in self.sent and not self.replayed)
            or bool(self.unstored)
        )


_UNANSWERED: Final = {NameplateStatus.ALLOCATING, NameplateStatus.CLAIMING, NameplateStatus.RELEASING}
"""What is wanted of a nameplate and not answered yet."""
