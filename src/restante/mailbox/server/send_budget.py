"""The send budget: how much is written to all sockets together before the loop looks at what comes in.

An `open` has up to 16 MiB replayed, an `add` of 2 MiB goes to up to 32 subscribers. To write that at once would hold
the loop for 10 to 50 ms. What goes beyond a slice waits for the loop's next turn, each socket after the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

MAX_BYTES_PER_TURN: Final = 1024 * 1024
"""Bytes that are written in one turn of the loop, about: a millisecond or two."""


class Waiting(Protocol):
    """What has more to write."""

    def catch_up(self) -> None:
        """Write on while the send budget is open; wait again if that is not enough."""


class SendBudget:
    """What was written in this turn of the loop, and who is to write in the next."""

    def __init__(self) -> None:
        self._written = 0
        self._waiting: deque[Waiting] = deque()
        self._renewing = False

    @property
    def open(self) -> bool:
        """Return whether more may be written in this turn of the loop."""
        return self._written < MAX_BYTES_PER_TURN

    def wrote(self, size: int) -> None:
        """Count bytes that were written."""
        self._written += size
        self._renew_soon()

    def wait(self, line: Waiting) -> None:
        """Let somebody write in one of the next turns, after those who wait already."""
        self._waiting.append(line)
        self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._renewing, self._written = False, 0
        for _ in range(len(self._waiting)):
            if not self.open:
                break
            self._waiting.popleft().catch_up()
        if self._waiting:
            self._renew_soon()
