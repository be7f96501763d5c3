"""Joins the fragments of a message."""

from __future__ import annotations

from typing import Final

from restante.common.errors import PeerError

COUNTED_FRAGMENT_BYTES: Final = 1024
"""Bytes by which the fragments of a message grow before they are counted again. Each may have one byte."""


class Fragments:
    """The fragments of the message that is being received, if it comes in fragments (RFC 6455 section 5.4)."""

    __slots__ = ("_joined", "size")

    def __init__(self) -> None:
        self._joined: bytearray | None = None  # not a list of fragments: empty ones would take memory, too
        self.size = 0
        """Bytes received so far."""

    def add(self, payload: bytes, *, first: bool, last: bool) -> bytes | bytearray | None:
        """Return the message that this frame completes, or None if it does not.

        Raises:
            PeerError: a message began inside another, or the frame continues none.

        """
        joined = self._joined
        if joined is None:
            if not first:
                raise PeerError(1002, "a continuation of nothing")
            if last:
                return payload
            joined = self._joined = bytearray()
        elif first:
            raise PeerError(1002, "a message began inside another")
        joined += payload
        self.size = len(joined)
        if not last:
            return None
        self.discard()
        return joined

    def discard(self) -> None:
        """Forget the message."""
        self._joined, self.size = None, 0
