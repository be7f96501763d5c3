"""The receive buffer: what is read of a WebSocket goes to picows, and the memory that it takes there is counted.

picows gathers a frame in one buffer, which it doubles as it grows, and keeps at that size as long as the connection
lives (picows 2.3.1: picows.pyx:1478, _maybe_grow_read_buffer, and :2013, _shrink_buffer).
"""

from __future__ import annotations

import asyncio
from typing import Final

from picows.picows import WSProtocol  # type: ignore[attr-defined]

MIN_COUNTED_BYTES: Final = 8 * 1024
"""Bytes of a frame from which on its buffer is counted. Nearly all frames have less than a tenth of that."""

MAX_READ_BYTES: Final = 16 * 1024
"""Bytes that are read at once: 5 ms of frames of a few bytes, which cost most. picows' buffer, into which is read,
may have up to twice the size of the largest frame so far."""


class ReceiveBuffer(asyncio.BufferedProtocol):
    """Stands between the transport and `websocket`.

    The listener has `unfinished`, the bytes since its last frame, which it sets to 0 at each. It has `largest`, the
    most that these ever were, and `count_read`, which is called when that has grown.
    """

    def __init__(self, websocket: WSProtocol) -> None:
        self._websocket = websocket
        self._updated = websocket.buffer_updated
        self._buffer = websocket.get_buffer
        self.pause_writing = websocket.pause_writing  # type: ignore[method-assign]
        self.resume_writing = websocket.resume_writing  # type: ignore[method-assign]
        self.eof_received = websocket.eof_received  # type: ignore[method-assign]
        self.connection_lost = websocket.connection_lost  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self._buffer(sizehint)
        return buffer if len(buffer) <= MAX_READ_BYTES else buffer[:MAX_READ_BYTES]

    def buffer_updated(self, size: int) -> None:
        listener = self._websocket.listener
        if listener is None:  # until the handshake is done
            self._updated(size)
            return
        listener.unfinished += size
        grown = listener.unfinished > listener.largest
        if grown:
            listener.largest = listener.unfinished
        self._updated(size)
        if grown and listener.largest >= MIN_COUNTED_BYTES:
            listener.count_read()
