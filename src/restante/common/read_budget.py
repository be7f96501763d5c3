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

MIN_FRAMES_RENEWED: Final = MAX_FRAMES_PER_TURN // 8
"""Frames up to which the count goes on over several turns, because a renewal takes as long as reading a message. So a
turn has 350 frames at least."""

PAYLOAD_BYTES_PER_FRAME: Final = 2048
"""Bytes of a message that take as long as a frame: to copy and check 2 MiB takes up to 3 ms. So in a turn, two
messages of 2 MiB end at most, however many clients hold back the last byte of one."""

BYTES_PER_FRAME: Final = 24
"""Bytes that may be read for each frame that the budget has left. The shortest command has some 20."""

MIN_READ_BYTES: Final = 128
"""Bytes that may always be read, because the loop reads a socket that has data: twenty of the smallest frames. Then
the socket is paused; libuv would read it up to 32 times in this turn (uv__read, src/unix/stream.c). The bytes are
parsed in a later turn, because a thousand sockets may have data."""

PART_BYTES_PER_FRAME: Final = 1024
"""Bytes that take as long as a frame, in a read that ends none. So some fifty such reads, of up to 9,600 bytes, are
parsed in a turn. libuv would read 2 MB from twenty sockets, in 200 reads: 4 ms."""

FRAMES_OF_A_RESERVED_TURN: Final = MAX_FRAMES_PER_TURN // 4
"""Frames that are parsed in a turn in which the commit loop handles a long message."""

READERS_PER_TURN: Final = 32
"""Paused sockets that go on in a turn, if the budget lasts. Of each, what was read is parsed, or its request is
answered."""

REQUEST_FRAMES: Final = 80
"""Frames that take as long as an HTTP request and the welcome: 0.14 ms."""

REQUEST_BYTES_PER_FRAME: Final = 64
"""Bytes of a longer request that take as long as a frame."""


class ReadBudget:
    """Counts the frames that were read in this turn of the loop."""

    def __init__(self) -> None:
        self.frames = 0
        """Frames so far. Whoever reads them adds to it; `renew_soon` resets it for the next turn."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._waiting_large: deque[Callable[[], None]] = deque()
        self._renewing = self._reserved = False
        self._loop = asyncio.get_running_loop()

    @property
    def exhausted(self) -> bool:
        """Return whether no more should be parsed in this turn."""
        return self.frames >= MAX_FRAMES_PER_TURN

    @property
    def read_bytes(self) -> int:
        """Return how many bytes may be read from a socket now."""
        return max(MIN_READ_BYTES, (MAX_FRAMES_PER_TURN - self.frames) * BYTES_PER_FRAME)

    def wait(self, resume: Callable[[], None], *, large: bool = False) -> None:
        """Call `resume` in one of the next turns, after those that wait already. The caller has paused its socket.

        `large`: a large message may end, which uses a whole turn. Such sockets wait apart, and one goes on in a turn.
        """
        (self._waiting_large if large else self._waiting).append(resume)
        self.renew_soon()

    def reserve(self) -> None:
        """Let no large message end in the next turn of the loop, because the caller handles one then."""
        self._reserved = True
        self.renew_soon()

    def renew_soon(self) -> None:
        """Reset the budget in the next turn of the loop, and read some sockets again that were paused."""
        used = self.frames > MIN_FRAMES_RENEWED or self._waiting or self._waiting_large or self._reserved
        if used and not self._renewing:
            self._renewing = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        reserved, self._renewing, self._reserved = self._reserved, False, False
        self.frames = MAX_FRAMES_PER_TURN - FRAMES_OF_A_RESERVED_TURN if reserved else 0
        for _ in range(min(len(self._waiting), READERS_PER_TURN)):
            if self.exhausted:
                break
            self._waiting.popleft()()
        if reserved:
            self.frames = max(self.frames, MAX_FRAMES_PER_TURN)
        elif self._waiting_large:
            self._waiting_large.popleft()()
        self.renew_soon()
