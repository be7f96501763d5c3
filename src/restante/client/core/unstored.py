"""The application's messages that no server has stored."""

from __future__ import annotations

from typing import Final

from restante.client.core.state import State, is_number
from restante.client.protocol.keys import OVERHEAD_BYTES

MAX_UNSTORED_MESSAGES: Final = 1000
"""Messages that `send` accepts while none of them is stored. The next call waits until one is."""

MAX_UNSTORED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of such messages, likewise; the last one may exceed it. They are in memory twice as large, in hex."""


class Unstored:
    """How many they are, and how large."""

    def __init__(self, state: State) -> None:
        """Count those of a state."""
        sealed = [own.body for phase, own in state.own.items() if is_number(phase) and not own.stored]
        self._messages = len(state.unsealed) + len(sealed)
        self._bytes = sum(len(each) // 2 for each in state.unsealed) + sum(map(_plaintext_bytes, sealed))

    def add(self, plaintext: bytes) -> None:
        """Count a new message."""
        self._messages += 1
        self._bytes += len(plaintext)

    def remove(self, body: str) -> None:
        """Count a message no longer: the server has stored it, sealed and in hex."""
        self._messages -= 1
        self._bytes -= _plaintext_bytes(body)

    @property
    def full(self) -> bool:
        """Whether no more should be sent."""
        return self._messages >= MAX_UNSTORED_MESSAGES or self._bytes >= MAX_UNSTORED_BYTES


def _plaintext_bytes(body: str) -> int:
    return len(body) // 2 - OVERHEAD_BYTES
