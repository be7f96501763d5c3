"""The read budget: how many frames are read from all sockets together before the loop looks at anything else.

In a turn, the event loop reads each socket that has data. A read of 16 KiB may hold thousands of tiny frames, so
twenty clients that send nothing else would hold the loop for 100 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_FRAMES_PER_TURN: Final = 400
"""Frames after which no more is parsed in a turn of the loop. A frame takes 1.6 µs, a short command 3 µs until it is
queued. The last read may exceed the budget: 9,600 bytes are at most 1,600 of the smallest frames."""

FRAMES_WITHOUT_RENEWAL: Final = MAX_FRAMES_PER_TURN // 8
"""Frames up to which the count goes on over several turns, because a renewal takes as long as reading a message. So a
turn has 350 frames at least."""

BYTES_PER_FRAME: Final = 24
"""Bytes that may be read for each frame that the budget has left. The shortest command has some 20."""

MIN_READ_BYTES: Final = 128
"""Bytes that may always be read, because the loop reads a socket that has data: twenty of the smallest frames. Then
the socket is paused; libuv would read it up to 32 times in this turn (uv__read, src/unix/stream.c). The bytes are
parsed in a later turn, because a thousand sockets may have data."""

FRAMES_OF_A_RESERVED_TURN: Final = MAX_FRAMES_PER_TURN // 4
"""Frames that are parsed in a turn that is reserved for other work (`ReadBudget.reserve`)."""

READERS_PER_TURN: Final = 32
"""Paused sockets that go on in a turn, if the budget lasts. Of each, what was read is parsed, or its request is
answered."""


class ReadBudget:
    """Counts the frames that were read in this turn of the loop."""

    def __init__(self) -> None:
        self.frames = 0
        """Frames so far in this turn, and what takes as long (`charge`)."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._waiting_large: deque[Callable[[], None]] = deque()
        self._renewing = self._reserved = False
        self.loop = asyncio.get_running_loop()
        """The event loop. To ask asyncio for it is a system call up to Python 3.11 (`getpid`)."""

    @property
    def exhausted(self) -> bool:
        """Return whether no more should be parsed in this turn."""
        return self.frames >= MAX_FRAMES_PER_TURN

    @property
    def read_bytes(self) -> int:
        """Return how many bytes may be read from a socket now."""
        return max(MIN_READ_BYTES, (MAX_FRAMES_PER_TURN - self.frames) * BYTES_PER_FRAME)

    def charge(self, frames: int) -> None:
        """Count frames that were read, or work that takes as long as so many."""
        self.frames += frames
        if self.frames > FRAMES_WITHOUT_RENEWAL:
            self._renew_soon()

    def wait(self, resume: Callable[[], None], *, large: bool = False) -> None:
        """Call `resume` in one of the next turns, after those that wait already. The caller has paused its socket.

        `large`: a large message may end, which uses a whole turn. Such sockets wait apart, and one goes on in a turn.
        """
        (self._waiting_large if large else self._waiting).append(resume)
        self._renew_soon()

    def reserve(self) -> None:
        """Let no large message end in the next turn of the loop, because the caller handles one then."""
        self._reserved = True
        self._renew_soon()

    def _renew_soon(self) -> None:
        """Reset the budget in the next turn of the loop, and read some sockets again that were paused."""
        used = self.frames > FRAMES_WITHOUT_RENEWAL or self._waiting or self._waiting_large or self._reserved
        if used and not self._renewing:
            self._renewing = True
            self.loop.call_soon(self._renew)

    def _renew(self) -> None:
        reserved, self._renewing, self._reserved = self._reserved, False, False
        self.frames = MAX_FRAMES_PER_TURN - FRAMES_OF_A_RESERVED_TURN if reserved else 0
        for _ in range(min(len(self._waiting), READERS_PER_TURN)):
            if self.exhausted:
                break
            self._waiting.popleft()()
        if reserved:  # what comes now is parsed in a later turn
            self.frames = max(self.frames, MAX_FRAMES_PER_TURN)
        elif self._waiting_large:
            self._waiting_large.popleft()()
        self._renew_soon()
