"""The send budget: how much is written to all sockets before the loop reads again.

An `open` may replay 16 MiB, an `add` of 2 MiB may go to 32 subscribers, and a batch of short ones to a thousand. To
write that at once would hold the loop for 10 to 50 ms. What exceeds the budget waits for the next turn of the loop,
in which the sockets write one after the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_BYTES_PER_TURN: Final = 1024 * 1024
"""Bytes written in one turn of the loop, about: a millisecond or two."""

WRITE_CHUNK_BYTES: Final = 64 * 1024
"""Bytes handed to the kernel at once, after which we check whether it takes more."""

WRITE_BUFFER_BYTES: Final = 16 * 1024
"""Bytes that the transport buffers for a client that does not read. Further messages are owed and counted."""

BYTES_WITHOUT_RENEWAL: Final = MAX_BYTES_PER_TURN // 8
"""Bytes up to which the count goes on over several turns, because a renewal takes as long as a short write."""

BYTES_PER_WRITE: Final = 4096
"""Bytes that take as long as a write, whatever its size: 12 µs. So in a turn, 256 sockets are written to."""


class SendBudget:
    """The bytes and the writes of this turn of the loop, and the sockets that write in the next."""

    def __init__(self) -> None:
        self.written = 0
        """Bytes of this turn, with BYTES_PER_WRITE for each write. `open` says whether they are too many."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._renewing = self._reserved = False
        self._loop = asyncio.get_running_loop()

    @property
    def open(self) -> bool:
        """Return whether more may be written in this turn of the loop."""
        return self.written < MAX_BYTES_PER_TURN

    def wrote(self, size: int) -> None:
        """Count bytes that were written at once."""
        self.written += size + BYTES_PER_WRITE
        if self.written > BYTES_WITHOUT_RENEWAL:
            self._renew_soon()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume`, which writes, in one of the next turns, after those that wait already."""
        self._waiting.append(resume)
        self._renew_soon()

    def reserve(self) -> None:
        """Let no socket write in the next turn of the loop, because the caller uses it for other work."""
        self._reserved = True
        self._renew_soon()

    def _renew_soon(self) -> None:
        used = self.written > BYTES_WITHOUT_RENEWAL or self._waiting or self._reserved
        if used and not self._renewing:
            self._renewing = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._renewing, self.written = False, MAX_BYTES_PER_TURN if self._reserved else 0
        self._reserved = False
        for _ in range(len(self._waiting)):
            if not self.open:
                break
            self._waiting.popleft()()
        self._renew_soon()
