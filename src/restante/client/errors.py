"""Why a wormhole ended without success."""

from __future__ import annotations

from typing import Final, Self

from restante.common.errors import RestanteError
from restante.common.texts import counted

CODE_EXIT: Final = 3
"""What a command exits with if the code does not work: agree on a new one."""

SERVER_EXIT: Final = 4
"""What a command exits with if the server cannot be used: try again later, or use another one."""


class WormholeError(RestanteError):
    """Base of all that can go wrong with a wormhole."""

    mood = "errory"
    """What the server is told when the wormhole is closed because of this error."""


class WrongPasswordError(WormholeError):
    """The peer used another code, or somebody guessed it. Nothing was revealed, and the code is used up."""

    mood = "scary"
    exit_code = CODE_EXIT


class LonelyError(WormholeError):
    """The wormhole was closed before a peer came. It had a code, or a message to send."""

    mood = "lonely"

    @classmethod
    def without_code(cls, count: int) -> Self:
        """Return the error for a number of messages that were sent before there was a code."""
        advice = "allocate or set one, or leave with close(abandon=True)"
        return cls(f"nobody can get {counted(count, 'message')}, because the wormhole had no code: {advice}")


class UndeliveredError(WormholeError):
    """The wormhole, created with `receipts=True`, was closed before the peer's receipts for all messages came.

    `count` is the number of messages without one. The server has stored them, and the peer may still read them.
    """

    count: int = 0
    """Messages for which the peer has sent no receipt."""

    @classmethod
    def of(cls, count: int) -> Self:
        """Return the error for a number of messages."""
        messages = counted(count, "message")
        error = cls(f"the peer has not confirmed {messages}, which the server has stored: no receipt came in time")
        error.count = count
        return error


class CrowdedError(WormholeError):
    """Two sides use the code already, or a third one sent a message. Agree on a new one."""

    exit_code = CODE_EXIT


class CodeExpiredError(WormholeError):
    """The server has forgotten the code before the peer came. Agree on a new one."""

    exit_code = CODE_EXIT


class WelcomeError(WormholeError):
    """The server does not want to be used. The error's text has the server's reason."""

    mood = "unwelcome"
    exit_code = SERVER_EXIT


class PermissionNeededError(WormholeError):
    """The server demands a permission that this client cannot show, or more work than `max_work_bits`."""

    mood = "unwelcome"
    exit_code = SERVER_EXIT


class ServerError(WormholeError):
    """The server refused a command, or sent what the protocol does not allow."""

    exit_code = SERVER_EXIT


class ServerGoneError(WormholeError):
    """The server cannot be reached at the first attempt, or does not answer what it has to.

    In Journal Mode and with `wait=True` the first connection is tried again, unless the server owes an answer, or
    breaks the protocol, three times in a row.
    """

    exit_code = SERVER_EXIT


class BusyServerError(ServerGoneError):
    """The server says that it cannot serve now. Programs do not get this error: the driver connects again."""


class ClosedError(WormholeError):
    """The wormhole was closed by this program, or one of a journal has ended in an earlier process."""


class OldCheckpointError(WormholeError):
    """The server has messages of this side, or receipts for them, that the checkpoint lacks: it is an older copy."""


class PeerMessageError(WormholeError):
    """The peer sent what the protocol, or that of texts and files, does not allow."""


class TransferError(WormholeError):
    """A transfer failed: one of the two gave up, the receiver does not want it, or the sides cannot be connected.

    `outcome` says how much was transferred, and what the receiver has.
    """

    outcome: str = ""
    """Empty if the transfer had not begun. The text has it, too."""

    def with_outcome(self, outcome: str) -> Self:
        """Return the error with an outcome, also in its text."""
        if not outcome:
            return self
        error = type(self)(f"{self} ({outcome})")
        error.outcome, error.peer_text = outcome, self.peer_text
        return error


class GaveUpError(TransferError):
    """The peer said why there will be no transfer: it gave up, or rejected what was offered. The text has it, too."""


class ConnectionLostError(TransferError):
    """The connection to the peer ended before the transfer did."""


class PeerStalledError(ConnectionLostError):
    """The connection is there, and the peer has sent or taken too little for too long (`TransitOptions`)."""


class UnsafeNameError(WormholeError):
    """The peer offers a file, or sent an archive with one, whose name cannot be used safely."""


class ArchiveError(WormholeError):
    """The archive that the peer sent is broken, has more than was offered, or has what is never unpacked."""


class UnsendableFileError(WormholeError):
    """A file cannot be sent: nobody may read it, it has no contents of its own, or it changed while it was sent."""


class NoReceiptsError(RestanteError):
    """Nobody can say whether a message was delivered: without `receipts=True`, or if the peer's client sends none."""


class NoSeedError(RestanteError):
    """The two sides cannot derive the code of another wormhole: one was created without `seeds=True`."""
