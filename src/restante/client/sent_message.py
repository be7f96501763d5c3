"""What `send` returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from restante.common.errors import Misuse
from restante.common.texts import counted

MAX_SENT_BYTES: Final = 1_000_000
"""Bytes of a message. A server of this project takes commands of 2 MiB, in which a message is in hex. A command that
is too long ends the wormhole."""

WaitFor = Callable[[int], Awaitable[None]]
"""Waits for the message with this number."""


def to_be_sent(message: bytes) -> bytes:
    """Return a copy of a message. Raises TypeError if it is not bytes, and Misuse if it is too long."""
    try:
        copy = bytes(memoryview(message))
    except TypeError:
        raise TypeError(f"a message is bytes, not {type(message).__name__}: encode it") from None
    if len(copy) > MAX_SENT_BYTES:
        most, there = counted(MAX_SENT_BYTES, "byte"), f"{len(copy):,}"
        raise Misuse(f"a message has at most {most}, and this one has {there}: send it in parts")
    return copy


class SentMessage:
    """A message that was sent. Its methods raise what those of its wormhole raise."""

    def __init__(self, number: int | None, stored: WaitFor, delivered: WaitFor) -> None:
        self._number, self._stored, self._delivered = number, stored, delivered

    @property
    def number(self) -> int:
        """Its place among this side's messages, from 0. Raises `Misuse` until the step that sends it is saved."""
        if self._number is None:
            raise Misuse("a message of a step is sent when the step is saved: ask for it then")
        return self._number

    async def stored(self) -> None:
        """Wait until the server has the message on its disk. Messages are sent to it when the peer is there.

        Raises:
            Misuse: the step that sends the message is not saved yet.

        """
        await self._stored(self.number)

    async def delivered(self) -> None:
        """Wait for the peer's receipt, which says that its application has processed the message.

        Raises:
            Misuse: the step that sends the message is not saved yet.
            NoReceiptsError: the wormhole was created without `receipts=True`, or the peer's client sends no receipts.

        """
        await self._delivered(self.number)
