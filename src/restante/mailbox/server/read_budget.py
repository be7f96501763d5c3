"""The read budget: how many frames are read from all sockets together before the loop looks at anything else.

In a turn, the event loop reads each socket that has data. A read of 16 KiB may hold thousands of tiny frames, so
twenty clients that send nothing else would hold the loop for 100 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

MAX_FRAMES_PER_TURN: Final = 400
"""Frames that are read in one turn of the loop, about. A short command takes 6 µs until it is queued, any other frame
1.6 µs."""

BYTES_PER_FRAME: Final = 24
"""Bytes that may be read for each frame that the budget has left. The shortest command has some 20."""

MIN_READ_BYTES: Final = 128
"""Bytes that may always be read, because the loop reads a socket that has data: twenty of the smallest frames. Then
the socket is paused; libuv would read it up to 32 times in this turn (uv__read, src/unix/stream.c)."""

READERS_PER_TURN: Final = 32
"""Paused sockets that are read again in a turn: each takes 20 µs, whatever it sends."""

REQUEST_BYTES_PER_FRAME: Final = 64
"""Bytes of an HTTP request that take as long as a frame."""


PAUSED_FOR_READ_BUDGET: Final = 4
"""Why a socket is not read (connection.py has the other reasons)."""


class Reader(Protocol):
    """A socket that is read."""

    def read_again(self, reasons: int) -> None:
        """Take back reasons not to be read."""


class ReadBudget:
    """Counts the frames that were read in this turn of the loop."""

    def __init__(self) -> None:
        self.frames = 0
        """Frames so far. Whoever reads them adds to it; `renew_soon` resets it for the next turn."""
        self._waiting: deque[Reader] = deque()
        self._renewing = False

    @property
    def exhausted(self) -> bool:
        """Return whether no more should be read in this turn."""
        return self.frames >= MAX_FRAMES_PER_TURN

    @property
    def read_bytes(self) -> int:
        """Return how many bytes may be read from a socket now."""
        return max(MIN_READ_BYTES, (MAX_FRAMES_PER_TURN - self.frames) * BYTES_PER_FRAME)

    def wait(self, reader: Reader) -> None:
        """Read a socket again in one of the next turns; the caller has paused it."""
        self._waiting.append(reader)

    def renew_soon(self) -> None:
        """Reset the budget in the next turn of the loop, and read some sockets again that were paused."""
        if (self.frames or self._waiting) and not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self.frames, self._renewing = 0, False
        for _ in range(min(len(self._waiting), READERS_PER_TURN)):
            self._waiting.popleft().read_again(PAUSED_FOR_READ_BUDGET)
        self.renew_soon()
