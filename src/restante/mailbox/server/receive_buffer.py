"""What a WebSocket reads: it is passed to picows, and the memory that picows uses for it is counted.

picows gathers a frame in one buffer, which it doubles as the frame grows. It keeps that size as long as the
connection lives (picows 2.3.1: picows.pyx:1478, _maybe_grow_read_buffer, and :2013, _shrink_buffer).
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from picows.picows import WSProtocol  # type: ignore[attr-defined]
from picows.version import __version__ as picows_version

from restante.common.read_budget import BYTES_PER_FRAME, MAX_FRAMES_PER_TURN, ReadBudget

MIN_COUNTED_BYTES: Final = 8 * 1024
"""Bytes of a frame from which on its buffer is counted. Nearly all frames have less than a tenth of that."""

USUAL_READ_BYTES: Final = 2048
"""Initial bytes of picows' buffer of a connection, which grows with its frames. Most of a connection's memory
(bench/README.md)."""

PICOWS_BUFFER_BYTES: Final = USUAL_READ_BYTES - 256
"""Bytes of this buffer that picows uses: it leaves some for SIMD instructions (2.3.1: picows.pyx, WSProtocol)."""

PICOWS_VERSION: Final = "2.3.1"
"""The version of picows whose buffer `unread` knows."""

FRAMES_WITH_USUAL_READS: Final = MAX_FRAMES_PER_TURN - math.ceil(USUAL_READ_BYTES / BYTES_PER_FRAME)
"""Frames of a turn up to which the read budget allows a read of USUAL_READ_BYTES."""

MAX_READ_BYTES: Final = 16 * 1024
"""Maximum bytes of one read. The read budget may allow less. picows' buffer may be up to twice as large as the
largest frame so far."""

PART_BYTES_PER_FRAME: Final = 1024
"""Bytes that take as long as a frame, in a read that ends none. So some fifty such reads, of up to 9,600 bytes, are
parsed in a turn. libuv would read 2 MB from twenty sockets, in 200 reads: 4 ms."""


class ReceiveBuffer(asyncio.BufferedProtocol):
    """A protocol between the transport and `websocket`.

    The listener's `unfinished_bytes` counts the bytes of the unfinished frame in picows' buffer. At each frame the
    listener sets it to the bytes that follow the frame. `max_unfinished_bytes` is its maximum. When that has grown
    and is at least `MIN_COUNTED_BYTES`, `count_read` is called. `read_at` is set to None, because the next frames
    come with another read.
    """

    unparsed = 0
    """Bytes that were read and wait for the read budget. They are in picows' buffer, behind the unfinished frame."""

    def __init__(self, websocket: WSProtocol, budget: ReadBudget) -> None:
        self._websocket = websocket
        self._budget = budget
        self._updated = websocket.buffer_updated
        self._buffer = websocket.get_buffer
        self.pause_writing = websocket.pause_writing  # type: ignore[method-assign]
        self.resume_writing = websocket.resume_writing  # type: ignore[method-assign]
        self.eof_received = websocket.eof_received  # type: ignore[method-assign]
        self.connection_lost = websocket.connection_lost  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self._buffer(sizehint)
        if len(buffer) <= USUAL_READ_BYTES and self._budget.frames <= FRAMES_WITH_USUAL_READS:
            return buffer
        max_bytes = min(MAX_READ_BYTES, self._budget.read_bytes)
        return buffer if len(buffer) <= max_bytes else buffer[:max_bytes]

    def buffer_updated(self, size: int) -> None:
        listener = self._websocket.listener
        if listener is None:  # before the end of the handshake
            self._updated(size)
        elif self._budget.frames >= MAX_FRAMES_PER_TURN:
            self.unparsed = size
            listener.wait_for_read_budget(self._parse_waiting)
        else:
            self._parse(size)

    def _parse(self, size: int) -> None:
        """Let picows parse the bytes that were read last, which are in its buffer already."""
        listener = self._websocket.listener
        unfinished_bytes = listener.unfinished_bytes = listener.unfinished_bytes + size
        grown = unfinished_bytes > listener.max_unfinished_bytes
        if grown:
            listener.max_unfinished_bytes = unfinished_bytes
        listener.read_at = None
        self._updated(size)
        # The listener has counted the frames that the read has ended.
        has_ended_none = listener.unfinished_bytes == unfinished_bytes
        self._budget.charge(1 + size // PART_BYTES_PER_FRAME if has_ended_none else 0)
        if grown and listener.max_unfinished_bytes >= MIN_COUNTED_BYTES:
            listener.count_read()

    def _parse_waiting(self) -> None:
        size, self.unparsed = self.unparsed, 0
        self._parse(size)

    def unread(self) -> bytes | None:
        """Return the bytes that were read and are no whole frame, or wait for the read budget. None: not known.

        picows gives no access to what its buffer has, but to the room behind it (2.3.1: picows.pyx, get_buffer). The
        size of the buffer shows whether `unfinished_bytes` is right: it is doubled again and again.
        """
        room, used = self._buffer(0), self._websocket.listener.unfinished_bytes
        unparsed = bytes(room[: self.unparsed])
        if not used:
            return unparsed
        doubled, remainder = divmod(len(room) + used, PICOWS_BUFFER_BYTES)
        if remainder or doubled.bit_count() != 1 or picows_version != PICOWS_VERSION:
            return None
        import ctypes  # only an unfinished frame needs it

        return ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(room)) - used, used) + unparsed

    def take(self, data: bytes) -> None:
        """Read bytes that another process has left, whatever the read budget says."""
        remaining = memoryview(data)
        while remaining:
            room = self._buffer(0)
            size = min(len(remaining), len(room))
            room[:size] = remaining[:size]
            self._parse(size)
            remaining = remaining[size:]
