"""A connection up to `ok`: its request, by a line or by the first message of a WebSocket, and its wait for a partner.

What follows `ok` is in pair.py.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.newcomers import Newcomer, NewcomerContext
from restante.common.proxy_header import SocketPeer
from restante.common.tls_handshake import HANDSHAKE_RECORD
from restante.common.tls_transport import TlsTransport
from restante.common.transfer_records import TransferResult
from restante.common.websocket_request import HAS_NO_TLS, PicowsTransport, WebSocketRequest, proxy_headers
from restante.relay.core.relay import Side
from restante.relay.protocol.request import (
    BAD_HANDSHAKE,
    IMPATIENT,
    MAX_LINE_BYTES,
    Request,
    parse_message,
    read_line,
)
from restante.relay.server.streams import PlainSocket, Stream, TlsStream, WebSocketReader, WebSocketStream

HTTP: Final = (b"GET ", b"HEAD ", b"OPTIONS ")
"""First bytes of a request of HTTP, from a WebSocket or a monitor. No line of the relay's protocol has them."""

MAX_UNREAD_BYTES: Final = 16 * 1024
"""Bytes in the write buffer of a WebSocket. If it has as many or more before `ok`, its pings are not answered. A
client that waits reads the answers; one that only sends pings would fill memory."""

READ_BUFFER_BYTES: Final = 2 * MAX_LINE_BYTES
"""Initial bytes of picows' buffer of a WebSocket, what is read at once before `ok`, and what is read of a frame then.
A request has 103, and the longest one MAX_LINE_BYTES and a header."""

FRAMES_AT_ONCE: Final = 10
SECONDS_PER_FRAME: Final = 0.001
"""If a read before `ok` has more frames, the WebSocket is not read for so many seconds a frame: a read may have 340,
which take a millisecond, and the loop reads up to 32 times in a turn. A client that waits sends a ping now and
then."""

MAX_DROPPED_BYTES: Final = 64 * 1024
"""Bytes that are read after the last answer. A client that has more on its way may lose the answer; one that only
sends takes no more time."""

CLOSE_SECONDS: Final = 2.0
"""Seconds that a client has to read the last answer and to close."""

MAX_CLOSING: Final = 200
"""Connections that are being closed at a time. They do not wait any more, so no limit of an address counts them."""

_ROOM: Final = memoryview(bytearray(2 * MAX_LINE_BYTES))
"""The buffer into which all connections are read before `ok`. What was read is copied before the next read."""


class ClosingConnections:
    """Connections that have had their last answer, and are not closed by their clients yet.

    They are aborted after CLOSE_SECONDS, and the earliest at once if there are more than MAX_CLOSING.
    """

    def __init__(self) -> None:
        self._aborts: OrderedDict[Hashable, tuple[asyncio.TimerHandle, Callable[[], None]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._aborts)

    def add(self, connection: Hashable, abort: Callable[[], None]) -> None:
        """Abort a connection soon, unless it is discarded before."""
        timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, abort)
        self._aborts[connection] = timer, abort
        if len(self._aborts) > MAX_CLOSING:
            _, (timer, abort) = self._aborts.popitem(last=False)
            timer.cancel()
            abort()

    def discard(self, connection: Hashable) -> None:
        """Forget a connection that is closed."""
        if connection in self._aborts:
            timer, _ = self._aborts.pop(connection)
            timer.cancel()  # it holds the transport, which holds buffers


class ConnectionContext(NewcomerContext, Protocol):
    """The part of the server that connections use."""

    closing: ClosingConnections

    def open(
        self, connection: Connection, peer: Sequence[Any], headers: Mapping[str, str], descriptor: int
    ) -> Side | None:
        """Return the side of a new connection, or None if it is refused."""

    def websocket_request(
        self, peer: SocketPeer | None, newcomer: Newcomer, deadline: float | None
    ) -> WebSocketRequest:
        """Return the protocol that reads the request of a WebSocket, with the arguments of `first_bytes`."""

    def withdraw(self, connection: Connection) -> None:
        """End the side of a connection whose request is one of HTTP."""

    def requested(self, connection: Connection, request: Request, leftover: bytes = b"") -> None:
        """Handle a request. `leftover` are bytes that came behind it, which are for the partner."""

    def end(self, connection: Connection, result: TransferResult | None = None) -> None:
        """Record that a connection has ended. `result`: as in `Relay.end`."""

    def time_out(self, connection: Connection) -> None:
        """Record that a connection has sent no request in time."""


class Connection(Protocol):
    """A connection up to `ok`."""

    side: Side | None
    """Its side. None: it is not open yet, is paired, or has ended."""

    def stream(self) -> Stream:
        """Return the stream of the connection after `ok`, which takes it over.

        Raises:
            ConnectionError: the connection is gone.
            OSError: there is no free file descriptor. The connection is unchanged.

        """

    def ping(self) -> None:
        """Send something if proxies need it to keep the connection."""

    def answer(self, text: bytes) -> None:
        """Send a last answer, and close."""

    def close(self) -> None:
        """Close without an answer."""


class LineConnection(asyncio.BufferedProtocol):
    """A TCP connection, plain or over TLS, whose request is a line. One of HTTP gets another protocol."""

    __slots__ = (
        "_context",
        "_deadline",
        "_dropped_bytes",
        "_newcomer",
        "_peer",
        "_read",
        "_timer",
        "_transport",
        "side",
    )

    def __init__(
        self,
        context: ConnectionContext,
        peer: SocketPeer | None,
        newcomer: Newcomer | None = None,
        deadline: float | None = None,
    ) -> None:
        """Prepare to read. The arguments are those of `PublicServer.first_bytes`."""
        self._context = context
        self._deadline = deadline
        self._peer = peer
        self._newcomer = newcomer
        """Counts its memory. None: the connection is not open yet, or the request has come."""
        self._read: bytearray | None = bytearray()
        """The bytes of the line so far. None: what comes is not read as a line any more."""
        self._dropped_bytes = 0
        """Bytes that came after the last answer."""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.side: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it
        if self._newcomer is None:
            newcomer = Newcomer(self._context)
            if not newcomer.admit(raw, self._peer):
                return
            self._newcomer = newcomer
        self._transport = raw
        peer = self._peer or raw.get_extra_info("peername")
        self.side = self._context.open(self, peer, {}, raw.get_extra_info("socket").fileno()) if peer else None
        if self.side is None:
            raw.abort()
            return
        loop = asyncio.get_running_loop()
        if self._deadline is None:  # `Relay.expire` closes it
            self._deadline = loop.time() + self._context.handshake_seconds
        else:  # a part of that time has passed
            self._timer = loop.call_at(self._deadline, self._time_out, raw)

    def _time_out(self, transport: asyncio.Transport) -> None:
        self._context.time_out(self)
        transport.abort()

    def get_buffer(self, _size: int) -> memoryview:
        return _ROOM

    def buffer_updated(self, size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.side is None:
            self._dropped_bytes += size
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                transport.pause_reading()
        elif self._read is None:
            self._context.end(self, "impatient")
            self.answer(IMPATIENT)
        elif self._newcomer is not None:
            self._read += _ROOM[:size]
            self._take(self._read, self._newcomer)

    def _take(self, read: bytearray, newcomer: Newcomer) -> None:
        """Handle the bytes that were read so far."""
        line = read_line(read)
        if read.startswith(HTTP):
            self._read_as_http(read, newcomer)
        elif read[0] == HANDSHAKE_RECORD:
            self._context.end(self, "errory")
            self.answer(HAS_NO_TLS)
        elif line is None:
            newcomer.count(len(read))
        elif line.request is not None:
            self._read = self._newcomer = None
            self._cancel_timer()
            newcomer.end()
            self._context.requested(self, line.request, bytes(read[line.size :]))
        elif line.too_long:
            self._context.end(self)
            self.close()
        else:
            self._context.end(self, "errory")
            self.answer(BAD_HANDSHAKE)

    def _read_as_http(self, read: bytearray, newcomer: Newcomer) -> None:
        """Let the reader of HTTP requests take over the connection."""
        transport, self._transport, self._newcomer = self._transport, None, None
        assert transport is not None
        self._cancel_timer()
        self._context.withdraw(self)
        request = self._context.websocket_request(self._peer, newcomer, self._deadline)
        transport.set_protocol(request)
        request.connection_made(transport)
        request.receive(read)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._cancel_timer()
        self._context.closing.discard(self)
        if self._newcomer is not None:
            self._newcomer.end()
        self._context.end(self)

    def stream(self) -> Stream:
        """Return the stream of the connection after `ok`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        stream = TlsStream(transport) if isinstance(transport, TlsTransport) else PlainSocket.taken_from(transport)
        self._transport = None
        return stream

    def ping(self) -> None:
        """Do nothing: the kernel keeps TCP alive."""

    def answer(self, text: bytes) -> None:
        """Send a last answer, and close.

        What the client has sent meanwhile is read: otherwise the kernel resets the connection, and the answer may be
        lost (RFC 1122 section 4.2.2.13).
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(text)
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        self._context.closing.add(self, transport.abort)

    def close(self) -> None:
        """Close without an answer."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self._context.closing.add(self, transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class MessageReader(WebSocketReader):
    """Reads a WebSocket; little at once before `ok`, and then no frame that is much longer than a request.

    picows would keep up to MAX_FRAME_BYTES of it, for each of the connections that may wait.
    """

    def __init__(self, websocket: WSProtocol) -> None:
        super().__init__(websocket)
        self._websocket = websocket
        self._updated = websocket.buffer_updated
        self.buffer_updated = self._update  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        listener = self._websocket.listener
        if listener is None or listener.is_paired:
            return super().get_buffer(sizehint)
        return super().get_buffer(sizehint)[:READ_BUFFER_BYTES]

    def _update(self, nbytes: int) -> None:
        listener = self._websocket.listener
        if listener is None or listener.is_paired:
            self._updated(nbytes)
        else:
            listener.unfinished_bytes += nbytes
            self._updated(nbytes)
            listener.end_read()


class WebSocketConnection(WSListener):
    """A WebSocket whose request is its first message."""

    __slots__ = (
        "_context",
        "_frames",
        "_is_in_message",
        "_message",
        "_peer",
        "_stream",
        "_transport",
        "side",
        "unfinished_bytes",
    )

    def __init__(self, context: ConnectionContext, peer: SocketPeer | None) -> None:
        self._context = context
        self._peer = peer
        self._message: bytearray | None = bytearray()
        """The first message as far as it has come. None: what comes is not read as a request any more."""
        self._is_in_message = False
        """Whether the message has begun and its last fragment has not come."""
        self._frames = 0
        """Frames of the current read, before `ok`."""
        self.unfinished_bytes = 0
        """Bytes that were read since the last frame, before `ok`."""
        self._transport: WSTransport | None = None
        self._stream: WebSocketStream | None = None
        self.side: Side | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        peer = self._peer or underlying(transport).get_extra_info("peername")
        headers, descriptor = (
            proxy_headers(transport.request),
            cast("PicowsTransport", transport.underlying_transport).fileno(),
        )
        self.side = self._context.open(self, peer, headers, descriptor) if peer else None
        transport.request.headers.clear()  # picows keeps the request as long as the connection: up to 50 KiB
        if self.side is None:
            self._close(WSCloseCode.TRY_AGAIN_LATER)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self._stream is not None:
            self._stream.frame_received(frame)
        elif kind is WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)  # does nothing if we have sent our close
            transport.disconnect()
        elif self.side is not None:  # what comes after the last answer is counted as if it were one frame
            self.unfinished_bytes = 0
            self._frames += 1
            self._take_frame(transport, frame)

    def _take_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Take a frame before `ok`."""
        kind = frame.msg_type
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._refuse(WSCloseCode.PROTOCOL_ERROR)
        elif kind is WSMsgType.PING:
            if underlying(transport).get_write_buffer_size() < MAX_UNREAD_BYTES:
                transport.send_pong(frame.get_payload_as_bytes())
        elif kind is WSMsgType.TEXT:
            self._refuse(WSCloseCode.UNSUPPORTED_DATA)
        elif kind is not WSMsgType.PONG:
            self._take(frame)

    def _refuse(self, code: WSCloseCode) -> None:
        """Close because a frame is malformed."""
        self._context.end(self, "errory")
        self._close(code)

    def _take(self, frame: WSFrame) -> None:
        """Take a frame of data before `ok`."""
        if (frame.msg_type is WSMsgType.CONTINUATION) is not self._is_in_message:
            self._refuse(WSCloseCode.PROTOCOL_ERROR)
            return
        self._is_in_message = not frame.fin
        if self._message is None:
            self._context.end(self, "impatient")
            self.answer(IMPATIENT)
            return
        if len(self._message) + frame.payload_size > MAX_LINE_BYTES:
            self._context.end(self)
            self._close(WSCloseCode.MESSAGE_TOO_BIG)
            return
        self._message += frame.get_payload_as_bytes()
        if not frame.fin:
            return
        request = parse_message(bytes(self._message))
        self._message = None
        if request is None:
            self._context.end(self, "errory")
            self.answer(BAD_HANDSHAKE)
        else:
            self._context.requested(self, request)

    @property
    def is_paired(self) -> bool:
        """Whether `stream` was called."""
        return self._stream is not None

    def end_read(self) -> None:
        """Read no more of a frame that is too long before `ok`, and close; read later if there were many frames."""
        transport, frames, self._frames = self._transport, self._frames, 0
        if transport is None or self.is_paired or underlying(transport).is_closing():
            return
        if self.unfinished_bytes > READ_BUFFER_BYTES:
            self._context.end(self, None if self._message is not None else "impatient")
            self._close(WSCloseCode.MESSAGE_TOO_BIG)
            underlying(transport).pause_reading()
        elif frames > FRAMES_AT_ONCE:
            underlying(transport).pause_reading()
            asyncio.get_running_loop().call_later(frames * SECONDS_PER_FRAME, self._read_on)

    def _read_on(self) -> None:
        transport = self._transport
        if transport is not None and not self.is_paired and not underlying(transport).is_closing():
            underlying(transport).resume_reading()

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        self._transport = None
        self._context.closing.discard(self)
        if self._stream is not None:
            self._stream.disconnected()
        else:
            self._context.end(self)

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause_writing()

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.resume_writing()

    def stream(self) -> Stream:
        """Return the stream of the connection after `ok`."""
        transport = self._transport
        if transport is None or transport.is_close_frame_sent:
            raise ConnectionResetError
        self._stream = WebSocketStream(transport, underlying(transport))
        return self._stream

    def ping(self) -> None:
        """Send a ping: proxies cut connections that are silent for a minute."""
        if self._transport is None or self._transport.is_close_frame_sent:
            return
        if self._stream is None:
            self._transport.send_ping()
        else:
            self._stream.ping()

    def answer(self, text: bytes) -> None:
        """Send a last answer, and close."""
        if self._transport is not None and not self._transport.is_close_frame_sent:
            self._transport.send(WSMsgType.BINARY, text)
            self.close()

    def close(self) -> None:
        """Close without an answer."""
        self._close(WSCloseCode.OK)

    def _close(self, code: WSCloseCode) -> None:
        transport = self._transport
        if transport is not None and not transport.is_close_frame_sent:
            transport.send_close(code)
            self._context.closing.add(self, partial(transport.disconnect, False))


def underlying(transport: WSTransport) -> asyncio.Transport:
    """Return the transport below that of picows."""
    return cast("PicowsTransport", transport.underlying_transport).transport
