"""The receive buffer: it passes what a WebSocket receives to picows and counts the memory that picows uses for it.

picows gathers a frame in one buffer, which it doubles as the frame grows. It keeps that size as long as the
connection lives (picows 2.3.1: picows.pyx:1478, _maybe_grow_read_buffer, and :2013, _shrink_buffer).
"""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.mailbox.server.read_budget import PART_BYTES_PER_FRAME, ReadBudget

MIN_COUNTED_BYTES: Final = 8 * 1024
"""Bytes of a frame from which on its buffer is counted. Nearly all frames have less than a tenth of that."""

MAX_READ_BYTES: Final = 16 * 1024
"""Maximum bytes of one read. The read budget may allow less. picows' buffer may be up to twice as large as the
largest frame so far."""


class ReceiveBuffer(asyncio.BufferedProtocol):
    """A protocol between the transport and `websocket`.

    The listener's `unfinished` counts the bytes since its last frame; the listener sets it to 0 at each frame.
    `largest` is the maximum of `unfinished`. When it has grown and is at least `MIN_COUNTED_BYTES`, `count_read` is
    called.
    """

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
        most = min(MAX_READ_BYTES, self._budget.read_bytes)
        return buffer if len(buffer) <= most else buffer[:most]

    def buffer_updated(self, size: int) -> None:
        listener = self._websocket.listener
        if listener is None:  # before the end of the handshake
            self._updated(size)
        elif self._budget.exhausted:
            listener.wait_for_read_budget(functools.partial(self._parse, size))
        else:
            self._parse(size)

    def _parse(self, size: int) -> None:
        """Let picows parse the bytes that were read last, which are in its buffer already."""
        listener = self._websocket.listener
        listener.unfinished += size
        grown = listener.unfinished > listener.largest
        if grown:
            listener.largest = listener.unfinished
        self._updated(size)
        if listener.unfinished:  # the read ended no frame
            self._budget.frames += 1 + size // PART_BYTES_PER_FRAME
        self._budget.renew_soon()
        if grown and listener.largest >= MIN_COUNTED_BYTES:
            listener.count_read()
