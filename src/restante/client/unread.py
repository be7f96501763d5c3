"""The peer's messages that the application has not read yet."""

from __future__ import annotations

from collections import deque
from typing import Final

from restante.client.core.outputs import MessageReceived

MAX_UNREAD_MESSAGES: Final = 1000
"""Messages of the peer that wait for the application. Then no more are read from the server, until half of them are
read."""

MAX_UNREAD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of messages that wait for the application, likewise."""


class Unread:
    """The messages, in order."""

    def __init__(self) -> None:
        self._messages: deque[MessageReceived] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> MessageReceived:
        return self._messages[index]

    def add(self, message: MessageReceived) -> None:
        """Add the next message."""
        self._messages.append(message)
        self._bytes += len(message.plaintext)

    def pop(self) -> MessageReceived:
        """Remove the first message and return it."""
        message = self._messages.popleft()
        self._bytes -= len(message.plaintext)
        return message

    @property
    def full(self) -> bool:
        """Whether no more should come."""
        return len(self._messages) >= MAX_UNREAD_MESSAGES or self._bytes >= MAX_UNREAD_BYTES

    @property
    def roomy(self) -> bool:
        """Whether more may come again."""
        return len(self._messages) < MAX_UNREAD_MESSAGES // 2 and self._bytes < MAX_UNREAD_BYTES // 2
