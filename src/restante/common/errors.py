"""Errors, named for whose fault they are.

RestanteError
├── PeerError          the peer's fault: it broke the protocol, and is sent a code
├── Misuse             the operator's fault: an option, a file or a command cannot be used
│   └── AddressInUse   another process listens where this one was to listen
└── StoreError         the disk's fault: a store cannot be opened, or a commit failed
    ├── InUse          another process has locked what is to be used
    ├── CommitFailed   a transaction may or may not be on disk
    └── StoreBusy      nothing was written and nothing is lost: try again
        └── StoreFull  the same, because the disk is full
"""

from __future__ import annotations

import os
import re
from typing import ClassVar, Self


class RestanteError(Exception):
    """Base of every error that Restante raises on purpose. Its text is one sentence for a person."""

    exit_code: ClassVar = 1
    """What a command exits with."""

    peer_text: str | None = None
    """What the other side of a transfer is sent in place of the text, which may have paths of this computer."""

    def with_peer_text(self, text: str | None = None) -> Self:
        """Set what the other side is sent: by default the text. Return the error."""
        self.peer_text = str(self) if text is None else text
        return self


class PeerError(RestanteError):
    """A peer sent something that the protocol does not allow.

    `code` ends the connection if it is closed: at the mailbox server a WebSocket close code (RFC 6455 section 7.4.1),
    at the Waku node a Disconnect reason (devp2p, rlpx.md). `text` identifies the error and never varies; `hint` says
    what the peer can do about it. `reason` is the label under which a refusal for lack of permission or room is
    counted in metrics; it is empty if the error is a mistake of the peer.
    """

    def __init__(self, code: int, text: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hint = hint
        self.reason = reason


class Misuse(RestanteError):  # noqa: N818 - the project's name for it (CONTRIBUTING.md)
    """An option, a configuration file or a call cannot be used. The text says what to do."""

    exit_code = 2


class AddressInUse(Misuse):
    """Another process listens on the address. Nothing was done. The text names it, and says what to do."""

    exit_code = os.EX_TEMPFAIL
    """75 (sysexits(3)): the same command works when the other process has ended."""


class StoreError(RestanteError):
    """The store cannot be opened, or a commit failed and may or may not be on disk. Stop; do not retry."""


class InUse(StoreError):  # noqa: N818 - the same
    """Another process has locked a directory or a file. Nothing was done. The text names it."""

    exit_code = AddressInUse.exit_code


class CommitFailed(StoreError):  # noqa: N818 - the same
    """A COMMIT failed, so the transaction may or may not be on disk. Stop; do not retry."""


class StoreBusy(StoreError):  # noqa: N818 - the same
    """The store refused before the commit and rolled back, so the same may be tried again.

    Another program holds the lock, the file is read-only, or (StoreFull) the disk is full.
    """


class StoreDamaged(StoreError):  # noqa: N818 - the same
    """Part of the store cannot be read because its file is damaged. The text says what to do."""


class StoreFull(StoreBusy):
    """The store refused before the commit because the disk is full."""


def plain(error: OSError) -> str:
    """Return the system's message for an error, without its number and without Python's wording."""
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if error.strerror:
        return error.strerror  # failed look-ups have negative numbers and their own messages
    # One message for several attempts, one for each address (asyncio, create_connection).
    numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
    return ", ".join(os.strerror(int(number)) for number in numbers) or str(error)
