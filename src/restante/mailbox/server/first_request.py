"""The first bytes of a connection, up to the end of its request.

HEAD requests, which monitors send, are answered here, because picows accepts only GET.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Hashable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.logs import log, where
from restante.mailbox.core.admission import PendingRequest
from restante.mailbox.core.limits import KIB
from restante.mailbox.core.memory_holders import MemoryHolder
from restante.mailbox.server.read_budget import REQUEST_BYTES_PER_FRAME, REQUEST_FRAMES, ReadBudget
from restante.mailbox.server.receive_buffer import ReceiveBuffer

HEAD_PREFIX: Final = b"HEAD "
END_OF_REQUEST: Final = b"\r\n\r\n"
MAX_REQUEST_BYTES: Final = 8 * 1024
"""Bytes of a request before the empty line that ends it. Clients send some 300, browsers and proxies a few thousand.
Parsing takes 20 ns a byte. picows allows 16 KiB."""

TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
"""Answer to a longer request (RFC 6585 section 5)."""

READ_BYTES: Final = 2048
"""Bytes read at once. A request has some 300."""

PENDING_BYTES: Final = 10 * KIB
"""Bytes of memory that a connection without a complete request takes, in addition to the request."""

Answer = tuple[HTTPStatus, int | None]
"""The status that a GET of the same path would have, and the bytes of its body if we know them."""

Upgrade = Callable[[WSUpgradeRequest], WSListener | WSUpgradeResponseWithListener | None]


class QuietLogger:
    """Replaces picows' logger, which would log addresses and create one logger per connection.

    It keeps one message: a callback of ours raised an error, which picows catches before it closes the connection.
    """

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802 - logging's name
        """Return False: no message is built."""
        return False

    def _drop(self, *_args: object, **_kwargs: object) -> None:
        """Log nothing."""

    def exception(self, *_args: object) -> None:
        """Log the place of the error that is being handled, without the client's data."""
        log.error("a callback failed; its connection is closed", fault=where(sys.exception()))

    debug = info = warning = error = log = _drop


QUIET_LOGGER: Final = QuietLogger()


def websocket_protocol(
    upgrade: Upgrade, *, handshake_timeout: float, max_frame_size: int, read_buffer_size: int
) -> WSProtocol:
    """Return the protocol that `picows.ws_create_server` creates for a connection, but without its pings and pongs.

    A flood of pings must cost no more than its frames (picows 2.3.1: api.py:402).
    """
    no_pings = (False, 0.0, 0.0, WSAutoPingStrategy.PING_WHEN_IDLE)
    return WSProtocol(
        *(None, None, False, upgrade, QUIET_LOGGER, True, handshake_timeout),
        *no_pings,
        *(False, max_frame_size, None, read_buffer_size),
    )


class RequestContext(Protocol):
    """The part of the server that a request uses."""

    read_budget: ReadBudget

    def answer_head(self, path: bytes) -> Answer:
        """Return the answer to HEAD."""

    def begin_request(self, peer: Sequence[Any]) -> PendingRequest:
        """Count a connection before its request."""

    def end_request(self, pending: PendingRequest) -> None:
        """Record that the request has come, or that the connection is gone."""

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""

    def make_room(self) -> None:
        """Close some connections if all together hold more memory than they may."""

    def give_up_request(self, pending: PendingRequest) -> None:
        """Count a connection that is closed for the memory that its request takes."""


class FirstBytes(asyncio.BufferedProtocol):
    """Reads a request to its end, answers HEAD, and passes all other requests to `websocket`.

    `websocket` learns of the connection at its beginning, so its handshake timeout covers the request, too.
    """

    def __init__(self, websocket: WSProtocol, context: RequestContext) -> None:
        self._websocket = websocket
        self._context = context
        self._budget = context.read_budget
        self._pending: PendingRequest | None = None
        self.holding = 0
        """Bytes of memory that the connection and its request take."""
        self._read = bytearray()
        self._room = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")  # None if the connection is closed already
        pending = peer and self._context.begin_request(peer)
        if not pending or pending.refused:
            cast(asyncio.Transport, transport).abort()
            return
        self._pending = pending
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from it
        self._websocket.connection_made(transport)
        self._count(PENDING_BYTES)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._end_request()
            self._websocket.connection_lost(error)

    def get_buffer(self, _size: int) -> memoryview:
        return self._room[: self._budget.read_bytes]

    def buffer_updated(self, read: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        seen = max(0, len(self._read) - len(END_OF_REQUEST))
        self._read += self._room[:read]
        end = self._read.find(END_OF_REQUEST, seen)
        size = end if end >= 0 else len(self._read) - len(END_OF_REQUEST) + 1  # part of it may have come
        if size > MAX_REQUEST_BYTES:
            transport.write(TOO_LARGE)
            transport.close()
        elif end >= 0 and not self._budget.exhausted:
            self._answer_request(transport)
        else:
            if end >= 0:
                transport.pause_reading()
                self._budget.wait(self._go_on)
            self._count(PENDING_BYTES + len(self._read))

    def _go_on(self) -> None:
        """Answer a request that had to wait for the read budget."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            self._answer_request(transport)

    def _answer_request(self, transport: asyncio.Transport) -> None:
        self._budget.frames += REQUEST_FRAMES + len(self._read) // REQUEST_BYTES_PER_FRAME
        self._budget.renew_soon()
        if self._read.startswith(HEAD_PREFIX):
            transport.write(self._head())
            transport.close()
        else:
            self._end_request()
            self._hand_over(transport)

    def _end_request(self) -> None:
        if self._pending is not None:
            self._count(0)
            self._context.end_request(self._pending)
            self._pending = None

    # ── the memory of an unfinished request (MemoryHolder) ───────────────────────────────────────

    def _count(self, size: int) -> None:
        change, self.holding = size - self.holding, size
        self._context.count_reading(self, change)
        if change > 0:
            self._context.make_room()

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Return the quotas of its address, or the connection itself if its address is not known or not counted."""
        return (self._pending and self._pending.address_quotas) or (self,)

    def give_up(self) -> None:
        """Release the memory that it holds, and close the connection."""
        if self._transport is not None and self._pending is not None:
            self._context.give_up_request(self._pending)
            self._end_request()
            self._read.clear()
            self._transport.abort()

    def _hand_over(self, transport: asyncio.Transport) -> None:
        transport.set_protocol(ReceiveBuffer(self._websocket, self._budget))
        left = memoryview(self._read)
        while left and not transport.is_closing():
            room = self._websocket.get_buffer(len(left))
            size = min(len(left), len(room))
            room[:size] = left[:size]
            self._websocket.buffer_updated(size)
            left = left[size:]

    def _head(self) -> bytes:
        words = bytes(self._read).partition(b"\r\n")[0].split(b" ")
        whole = len(words) == 3 and words[2] == b"HTTP/1.1" and END_OF_REQUEST in self._read
        status, size = self._context.answer_head(words[1]) if whole else (HTTPStatus.BAD_REQUEST, None)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: text/plain; charset=utf-8",
            *([] if size is None else [f"Content-Length: {size}"]),
            "Connection: close",
        ]
        return "\r\n".join(lines).encode() + END_OF_REQUEST
