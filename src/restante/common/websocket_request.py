"""The first bytes of a WebSocket's connection, up to the end of its request.

HEAD, OPTIONS and HTTP/1.0, which monitors and load balancers use, are answered here, because picows accepts only GET
of HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.logs import log, trace_text
from restante.common.newcomers import Newcomer, NewcomerContext
from restante.common.proxy_header import SocketPeer
from restante.common.tls_handshake import HANDSHAKE_RECORD

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

HAS_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 28\r\nConnection: close\r\n\r\nthis port has no TLS: ws://\n"
)
"""Answer to such a client, which would else wait until the limit of time for a request is over."""

TIMER_SECONDS: Final = 0.01
"""Seconds by which a timer may be early: uvloop's have whole milliseconds."""

READ_BYTES: Final = 2048
"""Bytes read at once. A request has some 300."""


class RequestContext(NewcomerContext, Protocol):
    """The part of a server that answers requests."""

    def answer_plain(self, path: bytes) -> Answer:
        """Return the answer to a GET of HTTP/1.0, which HEAD and OPTIONS describe."""

    def websocket(self, peer: SocketPeer | None, handshake_timeout: float) -> WSProtocol:
        """Return the protocol that reads a request and then speaks WebSocket. `peer`: as in `WebSocketRequest`."""

    def receiver(self, websocket: WSProtocol) -> asyncio.BufferedProtocol:
        """Return the protocol that reads what follows the request."""


Answer = tuple[HTTPStatus, bytes | None]
"""The status of the answer to a GET that asks for no upgrade, and its body if that is ours and not picows'."""

Upgrade = Callable[[WSUpgradeRequest], WSListener | WSUpgradeResponseWithListener | None]


_FROM_A_PROXY: Final = ("X-Forwarded-For", "X-Real-IP", "X-Real-Port")


def proxy_headers(request: WSUpgradeRequest) -> dict[str, str]:
    """Return the headers in which proxies name the client. Repeated headers are joined with commas."""
    headers = request.headers  # the last value comes from the nearest proxy
    return {name: ",".join(headers.getall(name)) for name in _FROM_A_PROXY if name in headers}


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


class WebSocketRequest(asyncio.BufferedProtocol):
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
        now = self._budget.loop.time()
        if self._deadline is None:
            self._deadline = now + self._context.handshake_seconds
        self._websocket = self._context.websocket(self._peer, max(0.001, self._deadline - now))
        self._websocket.connection_made(cast("asyncio.Transport", PicowsTransport(raw)))
        self._newcomer.count(0)

    def connection_lost(self, error: Exception | None) -> None:
        if self._websocket is not None:
            self._count_if_late()
            self._newcomer.end()
            self._websocket.connection_lost(error)

    def _count_if_late(self) -> None:
        """Count a request that has not come in time. The WebSocket's timer has closed the connection."""
        pending = self._newcomer.pending
        assert self._deadline is not None
        if pending is not None and self._budget.loop.time() > self._deadline - TIMER_SECONDS:
            self._context.count_late_request(pending)

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
        transport.set_protocol(self._context.receiver(websocket))
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
