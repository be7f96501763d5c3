"""The first bytes of a connection, up to the end of its request.

HEAD, OPTIONS and HTTP/1.0, which monitors and load balancers use, are answered here, because picows accepts only GET
of HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import functools
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.logs import log, trace_text
from restante.common.memory_holders import MemoryHolder
from restante.common.proxy_header import SocketPeer
from restante.common.read_budget import BYTES_PER_FRAME, MAX_FRAMES_PER_TURN, ReadBudget
from restante.mailbox.core.admission import PendingRequest
from restante.mailbox.core.limits import KIB, Limits

# ── the transport that picows sees ────────────────────────────────────────────────────────────────
# For each connection, picows sets two options of TCP and reads four, and asks for both addresses, which it would log
# (2.3.1: picows.pyx:1331). uvloop makes a socket object or an address for each of the eight, has set TCP_NODELAY
# already, and a Unix socket has no options of TCP.


class PicowsTransport:
    """What picows uses of a transport, which is also its socket. The socket's options cannot be set or read."""

    __slots__ = ("fileno", "get_write_buffer_size", "transport", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.fileno = transport.get_extra_info("socket").fileno
        self.write, self.get_write_buffer_size = transport.write, transport.get_write_buffer_size

    def get_extra_info(self, name: str) -> Any:
        """Return the socket, the TLS of the connection, or None for its addresses."""
        if name == "socket":
            return self
        return self.transport.get_extra_info(name) if name == "ssl_object" else None

    def writelines(self, data: Iterable[bytes]) -> None:
        """Write some pieces."""
        self.transport.writelines(data)

    def close(self) -> None:
        """Close the connection after what was written."""
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def setsockopt(self, *_option: object) -> None:
        """Set nothing."""

    def getsockopt(self, *_option: object) -> int:
        """Return 0."""
        return 0


# ── A connection whose request has not come yet: its place among those of its address, and its memory ───


PENDING_BYTES: Final = 10 * KIB
"""Bytes of memory that a connection without a complete request takes, in addition to the request."""


class RequestContext(Protocol):
    """The part of the server that a connection uses before its WebSocket. server.py imports this module."""

    read_budget: ReadBudget

    @property
    def limits(self) -> Limits:
        """Return the limits in effect."""

    def begin_request(self, peer: Sequence[object]) -> PendingRequest:
        """Count a connection before its request."""

    def end_request(self, pending: PendingRequest) -> None:
        """Record that the request has come, or that the connection is gone."""

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""

    def make_room(self) -> None:
        """Close some connections if all together hold more memory than they may."""

    def give_up_request(self, pending: PendingRequest) -> None:
        """Count a connection that is closed for the memory that its request takes."""

    def admit_handshake(self, pending: PendingRequest) -> bool:
        """Charge a TLS handshake to the address of a connection, and return whether it may begin."""

    def count_failed_handshake(self) -> None:
        """Count a connection whose TLS handshake failed."""

    def answer_plain(self, path: bytes) -> Answer:
        """Return the answer to a GET of HTTP/1.0, which HEAD and OPTIONS describe."""

    def websocket(self, peer: SocketPeer | None, handshake_timeout: float) -> WSProtocol:
        """Return the protocol that reads a request and then speaks WebSocket. `peer`: as in `FirstBytes`."""


class Newcomer:
    """A connection whose request has not come yet (MemoryHolder)."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self.pending: PendingRequest | None = None
        """Its place. None: it has none yet, or none any more."""
        self._close: Callable[[], None] = lambda: None
        self.held_bytes = 0
        """Bytes of memory that the connection and its request take."""
        self.tls_bytes = 0
        """Bytes of memory that the connection takes as long as it lives, in addition to one without TLS."""

    def admit(
        self, transport: asyncio.Transport, peer: SocketPeer | None, close: Callable[[], None] | None = None
    ) -> bool:
        """Claim a place for a connection. If its address has no more, close the connection and return False.

        `peer` is the client if the transport does not know it. `close` closes the connection if room is needed; by
        default it aborts the transport.
        """
        name = peer or transport.get_extra_info("peername")  # None if the connection is closed already
        pending = name and self._context.begin_request(name)
        if not pending or pending.refused:
            transport.abort()
            return False
        self.pending, self._close = pending, close or transport.abort
        self.count(0)
        return not transport.is_closing()  # this connection may be the one that was closed to make room

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Return the quotas of its address, or the connection itself if its address is not known or not counted."""
        return (self.pending and self.pending.address_quotas) or (self,)

    def count(self, size: int) -> None:
        """Count the bytes that were read so far, and what reads them. It may close this connection or others."""
        self._count(PENDING_BYTES + self.tls_bytes + size)

    def _count(self, size: int) -> None:
        change, self.held_bytes = size - self.held_bytes, size
        self._context.count_reading(self, change)
        if change > 0:
            self._context.make_room()

    def end(self) -> None:
        """Release the place, because the request has come or the connection is gone."""
        if self.pending is not None:
            self._count(0)
            self._context.end_request(self.pending)
            self.pending = None

    def give_up(self) -> None:
        """Release the memory that it holds, and close the connection."""
        if self.pending is not None:
            self._context.give_up_request(self.pending)
            self.end()
            self._close()


# ── the receive buffer ──────────────────────────────────────────────────────────────────────────────
# It passes what a WebSocket receives to picows, and counts the memory that picows uses for it. picows gathers a
# frame in one buffer, which it doubles as the frame grows. It keeps that size as long as the connection lives
# (picows 2.3.1: picows.pyx:1478, _maybe_grow_read_buffer, and :2013, _shrink_buffer).


MIN_COUNTED_BYTES: Final = 8 * 1024
"""Bytes of a frame from which on its buffer is counted. Nearly all frames have less than a tenth of that."""

USUAL_READ_BYTES: Final = 2048
"""Initial bytes of picows' buffer of a connection, which grows with its frames. Most of a connection's memory
(bench/README.md)."""

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

    The listener's `unfinished_bytes` counts the bytes since its last frame; the listener sets it to 0 at each frame.
    `max_unfinished_bytes` is its maximum. When that has grown and is at least `MIN_COUNTED_BYTES`, `count_read` is
    called. `read_at` is set to None, because the next frames come with another read.
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
        if len(buffer) <= USUAL_READ_BYTES and self._budget.frames <= FRAMES_WITH_USUAL_READS:
            return buffer
        max_bytes = min(MAX_READ_BYTES, self._budget.read_bytes)
        return buffer if len(buffer) <= max_bytes else buffer[:max_bytes]

    def buffer_updated(self, size: int) -> None:
        listener = self._websocket.listener
        if listener is None:  # before the end of the handshake
            self._updated(size)
        elif self._budget.frames >= MAX_FRAMES_PER_TURN:
            listener.wait_for_read_budget(functools.partial(self._parse, size))
        else:
            self._parse(size)

    def _parse(self, size: int) -> None:
        """Let picows parse the bytes that were read last, which are in its buffer already."""
        listener = self._websocket.listener
        listener.unfinished_bytes += size
        grown = listener.unfinished_bytes > listener.max_unfinished_bytes
        if grown:
            listener.max_unfinished_bytes = listener.unfinished_bytes
        listener.read_at = None
        self._updated(size)
        if listener.unfinished_bytes:  # the read ended no frame
            self._budget.charge(1 + size // PART_BYTES_PER_FRAME)
        if grown and listener.max_unfinished_bytes >= MIN_COUNTED_BYTES:
            listener.count_read()


# ── first request ─────────────────────────────────────────────────────────────────────────────────


NOT_FOR_PICOWS: Final = (b"HEAD ", b"OPTIONS ")
OLD_VERSION: Final = b" HTTP/1.0"
VERSIONS: Final = {b"HTTP/1.0", b"HTTP/1.1"}
ALLOW: Final = "Allow: GET, HEAD, OPTIONS"
END_OF_REQUEST: Final = b"\r\n\r\n"
MAX_REQUEST_BYTES: Final = 8 * 1024
"""Bytes of a request before the empty line that ends it. Clients send some 300, browsers and proxies a few thousand.
Parsing takes 20 ns a byte. picows allows 16 KiB."""

REQUEST_FRAMES: Final = 80
"""Frames that take as long as a request and the welcome (read_budget.py): 0.14 ms."""

REQUEST_BYTES_PER_FRAME: Final = 64
"""Bytes of a longer request that take as long as a frame."""

TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
"""Answer to a longer request (RFC 6585 section 5)."""

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection (RFC 8446 section 5.1)."""

HAS_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 28\r\nConnection: close\r\n\r\nthis port has no TLS: ws://\n"
)
"""Answer to such a client, which would else wait until the limit of time for a request is over."""

READ_BYTES: Final = 2048
"""Bytes read at once. A request has some 300."""

Answer = tuple[HTTPStatus, bytes | None]
"""The status of the answer to a GET that asks for no upgrade, and its body if that is ours and not picows'."""

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
        log.error("a callback failed; its connection is closed", fault=trace_text(sys.exception()))

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
        None,
        None,
        False,
        upgrade,
        QUIET_LOGGER,
        True,
        handshake_timeout,
        *no_pings,
        False,
        max_frame_size,
        None,
        read_buffer_size,
    )


class FirstBytes(asyncio.BufferedProtocol):
    """Reads a request to its end, answers what picows cannot, and passes all other requests to a WebSocket.

    The WebSocket learns of the connection at its beginning, so its handshake timeout covers the request, too.
    """

    def __init__(
        self,
        context: RequestContext,
        peer: SocketPeer | None = None,
        newcomer: Newcomer | None = None,
        deadline: float | None = None,
    ) -> None:
        """Prepare to read.

        `peer` is the client if the socket does not know it. `newcomer` has a place already, if the connection began
        with a TLS handshake. `deadline`: the time of the loop at which the request must be complete; by default
        `limits.handshake` after the beginning.
        """
        self._websocket: WSProtocol | None = None
        self._context = context
        self._peer = peer
        self._newcomer = newcomer or Newcomer(context)
        self._admitted = newcomer is not None
        self._deadline = deadline
        self._budget = context.read_budget
        self._read = bytearray()
        self._room = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it
        if not self._admitted and not self._newcomer.admit(raw, self._peer):
            return
        self._transport = raw
        seconds = self._context.limits.handshake
        if self._deadline is not None:
            seconds = max(0.001, self._deadline - asyncio.get_running_loop().time())
        self._websocket = self._context.websocket(self._peer, seconds)
        self._websocket.connection_made(cast("asyncio.Transport", PicowsTransport(raw)))
        self._newcomer.count(0)

    def connection_lost(self, error: Exception | None) -> None:
        if self._websocket is not None:
            self._newcomer.end()
            self._websocket.connection_lost(error)

    def get_buffer(self, _size: int) -> memoryview:
        return self._room[: self._budget.read_bytes]

    def buffer_updated(self, read: int) -> None:
        self.receive(self._room[:read])

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Read what has come, and answer the request if it is complete."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        searched = max(0, len(self._read) - len(END_OF_REQUEST))
        self._read += data
        if self._read[0] == HANDSHAKE_RECORD:
            transport.write(HAS_NO_TLS)
            transport.close()
            return
        end = self._read.find(END_OF_REQUEST, searched)
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
            self._newcomer.count(len(self._read))

    def _go_on(self) -> None:
        """Answer a request that had to wait for the read budget."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            self._answer_request(transport)

    def _answer_request(self, transport: asyncio.Transport) -> None:
        self._budget.charge(REQUEST_FRAMES + len(self._read) // REQUEST_BYTES_PER_FRAME)
        answer = self._answer_plain()
        if answer is None:
            self._newcomer.end()
            self._hand_over(transport)
        else:
            transport.write(answer)
            transport.close()

    def _hand_over(self, transport: asyncio.Transport) -> None:
        websocket = self._websocket
        assert websocket is not None
        transport.set_protocol(ReceiveBuffer(websocket, self._budget))
        remaining = memoryview(self._read)
        while remaining and not transport.is_closing():
            room = websocket.get_buffer(len(remaining))
            size = min(len(remaining), len(room))
            room[:size] = remaining[:size]
            websocket.buffer_updated(size)
            remaining = remaining[size:]

    def _answer_plain(self) -> bytes | None:
        """Return the answer to HEAD, OPTIONS, and HTTP/1.0 without WebSockets. None: picows answers the request."""
        line_end = self._read.find(b"\r\n")
        if not self._read.startswith(NOT_FOR_PICOWS) and not self._read.endswith(OLD_VERSION, 0, line_end):
            return None
        method, *target = bytes(self._read[:line_end]).split(b" ")
        well_formed = len(target) == 2 and target[0] and target[1] in VERSIONS
        status, body = self._context.answer_plain(target[0]) if well_formed else (HTTPStatus.BAD_REQUEST, None)
        headers = ["Content-Type: text/plain; charset=utf-8"]
        if method == b"OPTIONS":
            body = b""
            if well_formed and (status is not HTTPStatus.NOT_FOUND or target[0] == b"*"):  # RFC 9110 section 9.3.7
                status, headers = HTTPStatus.OK, [ALLOW]
        elif method == b"GET" and status is not HTTPStatus.BAD_REQUEST:
            body = body or b""
        elif method != b"HEAD":
            return None
        if body is not None:
            headers.append(f"Content-Length: {len(body)}")
        head = "\r\n".join((f"HTTP/1.1 {status.value} {status.phrase}", *headers, "Connection: close"))
        return head.encode() + END_OF_REQUEST + (b"" if body is None or method == b"HEAD" else body)
