"""Errors, named for whose fault they are.

RestanteError
├── PeerError      theirs: what a peer sent breaks the protocol; has a code that the peer is told
├── Misuse         ours: an option, a file or a command line that cannot mean anything
└── StoreError     the disk's: the store cannot be opened, or a commit failed
    └── StoreBusy  nothing was written and nothing is lost: the senders may try again
        └── StoreFull  and the reason is that the disk has no room
"""

from __future__ import annotations

import os
import re


class RestanteError(Exception):
    """Base of every error that Restante raises on purpose; its text is one sentence for people."""


class PeerError(RestanteError):
    """A peer sent what cannot be taken.

    `code` is what the connection ends with, if it does: at the mailbox server a WebSocket close code (RFC 6455
    section 7.4.1), at the Waku node a Disconnect reason (devp2p, rlpx.md). `words` are always the same for the same
    thing, `hint` says what to do about it.
    """

    def __init__(self, code: int, words: str, *, hint: str = "") -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.hint = hint


class Misuse(RestanteError):  # noqa: N818 - the house's word for it (docs/design.md)
    """An option, a configuration file or a call that cannot be carried out; says what to do."""


class StoreError(RestanteError):
    """The store cannot be opened, or its last commit may or may not be on disk: stop, never retry."""


class StoreBusy(StoreError):  # noqa: N818 - the same
    """The store refused before the commit, for certain: rolled back, and may be tried again.

    It is locked by another program, it may not be written, or, where it is a StoreFull, there is no room.
    """


class StoreFull(StoreBusy):
    """The store refused before the commit, for want of room."""


def plain(error: OSError) -> str:
    """Give what the system says of an error, without its number and without Python's own words."""
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if error.strerror:
        return error.strerror  # look-ups that fail have (negative) numbers and words of their own
    # The words of several attempts, an address each (asyncio, create_connection).
    numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
    return ", ".join(os.strerror(int(each)) for each in numbers) or str(error)
