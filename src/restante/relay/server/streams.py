"""The sides of a pair after `ok`: a plain socket, a TLS connection, a WebSocket.

A plain socket is read when the pair wants to (`readinto`). The others bring what came, until they are paused. Each
can be written to, and knows whether it takes more (`is_stuck`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
from typing import Final, Protocol

from picows import WSCloseCode, WSFrame, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.tls_transport import PIECE_BYTES, TlsTransport

END_SECONDS: Final = 2.0
"""Seconds that a side has for reading what is left, after the other side has ended. To close a socket that has unread
bytes resets the connection, which may cost the other end what it has not read yet."""

# A lookup in the class of an enumeration takes 0.18 µs (Python 3.11).
TEXT: Final = WSMsgType.TEXT
BINARY: Final = WSMsgType.BINARY
CONTINUATION: Final = WSMsgType.CONTINUATION
PING: Final = WSMsgType.PING
PONG: Final = WSMsgType.PONG
CLOSE: Final = WSMsgType.CLOSE

BINARY_MESSAGE: Final = 0x80 | 0x2
"""FIN and the opcode of a binary message (RFC 6455 section 5.2)."""


class Source(Protocol):
    """The direction that passes on what a stream brings: a `Direction` of pair.py, which imports this module."""

    __slots__ = ()

    def arrived(self, data: memoryview | bytes | bytearray) -> None:
        """Pass on what came. It is used before the call returns, or copied."""

    def source_ended(self) -> None:
        """Note that nothing more comes."""


class Sink(Protocol):
    """The direction that writes to a stream."""

    __slots__ = ()

    def unstuck(self) -> None:
        """Note that the stream takes more."""

    def sink_gone(self) -> None:
        """Note that the stream takes nothing any more."""


def has_hung_up(stream: Stream) -> bool:
    """Return whether the other end sends nothing more, also if there is something to read before its end."""
    poll = select.poll()
    poll.register(stream.socket, select.POLLRDHUP)  # of POLLHUP and POLLERR it tells anyway
    return bool(poll.poll(0))


def _write_in_pieces(
    stream: Stream, transport: asyncio.Transport | TlsTransport, data: bytes | bytearray | memoryview
) -> None:
    """Write as long as no write would fail. A transport whose write fails closes its socket, with what is not read.

    A TlsTransport writes pieces of PIECE_BYTES, and the first may reset the connection. Raises OSError.
    """
    poll = select.poll()
    poll.register(stream.socket, 0)  # of POLLHUP and POLLERR it tells anyway
    step = PIECE_BYTES if isinstance(transport, TlsTransport) else len(data)
    for at in range(0, len(data), step):
        if poll.poll(0):
            raise BrokenPipeError
        transport.write(bytes(data[at : at + step]))


def unread_bytes(stream: Stream) -> int:
    """Return the bytes that our kernel has and the relay has not read (man 7 tcp, man 7 unix)."""
    return _queued_bytes(stream.socket, termios.FIONREAD)


def _unacknowledged_bytes(connection: socket.socket) -> int:
    """Return the bytes that our kernel has because the other end's has not taken them (man 7 tcp, man 7 unix)."""
    return _queued_bytes(connection, termios.TIOCOUTQ)


def _queued_bytes(connection: socket.socket, queue: int) -> int:
    try:
        answer = fcntl.ioctl(connection.fileno(), queue, bytes(4))
    except (OSError, ValueError):  # the connection is closed already
        return 0
    size: int = struct.unpack("i", answer)[0]
    return size


# ── a plain socket ────────────────────────────────────────────────────────────────────────────────


class PlainSocket:
    """A TCP or Unix socket without TLS, which no transport owns. It is spliced if the other side is one, too."""

    __slots__ = ("descriptor", "is_stuck", "readinto", "socket")

    def __init__(self, connection: socket.socket) -> None:
        """Own a connected socket."""
        connection.setblocking(False)
        self.socket = connection
        self.descriptor = connection.fileno()
        self.readinto = connection.recv_into
        self.is_stuck = False
        """Whether the socket takes no more for now."""

    @classmethod
    def taken_from(cls, transport: asyncio.Transport) -> PlainSocket:
        """Take the socket out of a transport of asyncio or uvloop, which is closed; its protocol is not called again.

        Nothing may be waiting in its write buffer.

        Raises:
            OSError: there is no free descriptor, or the transport is closed already. The transport is unchanged.

        """
        assert not transport.get_write_buffer_size()
        owned = transport.get_extra_info("socket")
        if transport.is_closing() or owned is None:
            raise ConnectionResetError
        connection = socket.socket(fileno=os.dup(owned.fileno()))
        transport.pause_reading()
        transport.set_protocol(asyncio.Protocol())
        transport.abort()  # it closes its descriptor; the connection lives as long as ours is open
        return cls(connection)

    def write(self, data: memoryview | bytes | bytearray) -> int:
        """Write what the socket takes now, and return how many bytes these are. Raises OSError if it is gone."""
        try:
            size = self.socket.send(data)
        except BlockingIOError:
            size = 0
        self.is_stuck = size < len(data)
        return size

    def untaken_bytes(self) -> int:
        """Return the bytes that were written and that the other end has not taken."""
        return _unacknowledged_bytes(self.socket)

    def end_writing(self) -> None:
        """Tell the other end that nothing follows."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


# ── streams that a transport reads ────────────────────────────────────────────────────────────────


class TlsStream(asyncio.BufferedProtocol):
    """A connection of which a transport encrypts the bytes (`TlsTransport`). It becomes the transport's protocol."""

    __slots__ = ("_room", "_transport", "is_stuck", "sink", "source")

    def __init__(self, transport: TlsTransport) -> None:
        """Become the protocol of the transport, and pause reading until the pair begins."""
        self._transport = transport
        self._room = _ROOM
        self.source: Source | None = None
        """The direction that passes on what comes from here. None: the pair has not begun, or has ended."""
        self.sink: Sink | None = None
        """The direction that writes to here."""
        self.is_stuck = False
        """Whether the transport has bytes that the socket has not taken."""
        transport.pause_reading()
        transport.set_write_buffer_limits(0)
        transport.set_protocol(self)

    def get_buffer(self, _size: int) -> memoryview:
        return self._room

    def buffer_updated(self, size: int) -> None:
        if self.source is not None:
            self.source.arrived(self._room[:size])

    def eof_received(self) -> None:
        if self.source is not None:
            self.source.source_ended()

    def connection_lost(self, _error: Exception | None) -> None:
        source, sink = self.source, self.sink
        self.source = self.sink = None
        if source is not None:
            source.source_ended()
        if sink is not None:
            sink.sink_gone()

    def pause_writing(self) -> None:
        self.is_stuck = True

    def resume_writing(self) -> None:
        self.is_stuck = False
        if self.sink is not None:
            self.sink.unstuck()

    def pause(self) -> None:
        """Bring nothing for now."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Bring what comes."""
        self._transport.resume_reading()

    @property
    def socket(self) -> socket.socket:
        """The socket under the transport."""
        connection: socket.socket = self._transport.get_extra_info("socket")
        return connection

    def untaken_bytes(self) -> int:
        """Return the bytes that were written and that the other end has not taken."""
        return self._transport.get_write_buffer_size() + _unacknowledged_bytes(self.socket)

    def write(self, data: memoryview | bytes | bytearray) -> int:
        """Write all bytes, and return how many these are. What the socket does not take is kept by the transport.

        Raises OSError if the other end has gone.
        """
        _write_in_pieces(self, self._transport, data)
        return len(data)

    def end_writing(self) -> None:
        """Tell the other end that nothing follows."""
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection, within a short time also if the other end does not read (`TlsTransport.close`)."""
        self.source = self.sink = None
        self._transport.close()


_ROOM: Final = memoryview(bytearray(PIECE_BYTES))
"""The buffer into which all TLS connections are read. What was read is used or copied before the next read."""


MAX_READ_BYTES: Final = 64 * 1024
"""Bytes that are read at once from a WebSocket."""

MAX_GATHERED_PAYLOAD: Final = 16 * 1024
"""Bytes of the largest payload that is passed on together with others of the same read. A write takes as long as to
copy some 30 KiB."""


MAX_FRAMES_PER_READ: Final = 200
"""Frames of a read after which a WebSocket is not read for a turn of the loop, and then less at once. A frame takes
1.5 µs, and 64 KiB may hold 9,000."""

MIN_READ_BYTES: Final = 2048
"""Bytes that are read at once from a WebSocket that sends tiny frames."""


class WebSocketReader(asyncio.BufferedProtocol):
    """A protocol between the transport of a WebSocket and picows, which limits what is read at once.

    picows doubles its buffer whenever a read fills nine tenths of it, and keeps it (2.3.1: picows.pyx:1478,
    _maybe_grow_read_buffer). So the buffer has up to four times MAX_READ_BYTES, or twice the largest frame.
    """

    def __init__(self, websocket: WSProtocol) -> None:
        self._buffer = websocket.get_buffer
        self.max_bytes = MAX_READ_BYTES
        """Bytes of the next read."""
        self.buffer_updated = websocket.buffer_updated  # type: ignore[method-assign]
        self.pause_writing = websocket.pause_writing  # type: ignore[method-assign]
        self.resume_writing = websocket.resume_writing  # type: ignore[method-assign]
        self.eof_received = websocket.eof_received  # type: ignore[method-assign]
        self.connection_lost = websocket.connection_lost  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self._buffer(sizehint)
        return buffer if len(buffer) <= self.max_bytes else buffer[: self.max_bytes]

    def adapt(self, frames: int) -> bool:
        """Read less at once if a read had many frames, or more. Return whether these were too many."""
        if frames > MAX_FRAMES_PER_READ:
            self.max_bytes = MIN_READ_BYTES
        elif self.max_bytes < MAX_READ_BYTES and frames < MAX_FRAMES_PER_READ // 4:
            self.max_bytes *= 2
        return frames > MAX_FRAMES_PER_READ


class WebSocketStream:
    """A WebSocket, plain or over TLS. Its listener calls `frame_received`, `disconnected` and the two of writing."""

    __slots__ = (
        "_descriptor",
        "_frames",
        "_gathered",
        "_has_ended_writing",
        "_is_in_message",
        "_is_paused",
        "_pong",
        "_reader",
        "_transport",
        "_underlying",
        "is_stuck",
        "sink",
        "source",
    )

    def __init__(self, transport: WSTransport, underlying: asyncio.Transport | TlsTransport) -> None:
        """Pause reading until the pair begins. `underlying` is the transport of uvloop, or the TlsTransport."""
        self._transport, self._underlying = transport, underlying
        is_tls = isinstance(underlying, TlsTransport)
        self._descriptor: int | None = None if is_tls else underlying.get_extra_info("socket").fileno()
        """Where frames are written if the transport has nothing to write."""
        # TLS is read in small pieces, with a budget.
        reader = None if isinstance(underlying, TlsTransport) else underlying.get_protocol()
        self._reader = reader if isinstance(reader, WebSocketReader) else None
        self._frames = 0
        """Frames of the current read."""
        self._is_paused = True
        """Whether the pair wants nothing for now."""
        self._gathered = bytearray()
        """Payloads of short frames of the current read."""
        self._is_in_message = False
        """Whether a message has begun and its last fragment has not come."""
        self._has_ended_writing = False
        self._pong: bytes | None = None
        """The payload of the last ping that is not answered yet."""
        self.source: Source | None = None
        self.sink: Sink | None = None
        self.is_stuck = False
        """Whether the transport has bytes that the socket has not taken."""
        underlying.pause_reading()
        underlying.set_write_buffer_limits(0)

    # ── what the listener calls ───────────────────────────────────────────────────────────────────

    def frame_received(self, frame: WSFrame) -> None:
        """Pass on a frame of any kind."""
        self._take_frame(frame)
        self._frames += 1
        if frame.last_in_buffer:
            frames, self._frames = self._frames, 0
            if self._reader is not None and self._reader.adapt(frames) and not self._underlying.is_closing():
                self._underlying.pause_reading()
                asyncio.get_running_loop().call_soon(self._read_again)

    def _take_frame(self, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is CLOSE:
            self._flush()
            self._take_close(frame)
        elif self._transport.is_close_frame_sent and not self._has_ended_writing:
            self.disconnected()  # picows has closed because of a frame, whose rest it may read nevertheless
        elif self.source is None:
            return
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._refuse(WSCloseCode.PROTOCOL_ERROR, b"reserved bits without an extension")
        elif kind is BINARY or kind is CONTINUATION:
            if (kind is CONTINUATION) is not self._is_in_message:
                self._refuse(WSCloseCode.PROTOCOL_ERROR, b"fragments of no message, or of two")
                return
            self._is_in_message = not frame.fin
            self._take(frame)
        elif kind is TEXT:
            self._refuse(WSCloseCode.UNSUPPORTED_DATA, b"all messages must be binary")
        else:
            if kind is PING:
                self._answer_soon(frame.get_payload_as_bytes())
            if frame.last_in_buffer:
                self._flush()

    def disconnected(self) -> None:
        """Note that the connection is gone."""
        source, sink = self.source, self.sink
        self.source = self.sink = None
        if source is not None:
            source.source_ended()
        if sink is not None:
            sink.sink_gone()

    def pause_writing(self) -> None:
        """Note that the socket takes no more."""
        self.is_stuck = True

    def resume_writing(self) -> None:
        """Note that everything is written."""
        self.is_stuck = False
        if self.sink is not None:
            self.sink.unstuck()

    # ── what comes ────────────────────────────────────────────────────────────────────────────────

    def _take(self, frame: WSFrame) -> None:
        gathered = self._gathered
        if frame.last_in_buffer:
            if gathered:
                gathered += frame.get_payload_as_memoryview()
                self._flush()
            elif frame.payload_size and self.source is not None:
                self.source.arrived(frame.get_payload_as_memoryview())
            return
        gathered += frame.get_payload_as_memoryview()
        if len(gathered) > MAX_GATHERED_PAYLOAD:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            if self.source is not None:
                self.source.arrived(gathered)

    def _take_close(self, frame: WSFrame) -> None:
        code = frame.get_close_code() or WSCloseCode.OK
        if code == WSCloseCode.ABNORMAL_CLOSURE:  # not allowed in a frame (RFC 6455, 7.4.1), but picows reads it
            code = WSCloseCode.PROTOCOL_ERROR
        if not self._transport.is_close_frame_sent:
            self._transport.send_close(code)
        self.disconnected()

    def _refuse(self, code: WSCloseCode, reason: bytes) -> None:
        self._flush()
        if not self._transport.is_close_frame_sent:
            self._transport.send_close(code, reason)
        self.disconnected()

    def _answer_soon(self, payload: bytes) -> None:
        """Answer the last of the pings of this turn of the loop, in the next turn (RFC 6455 section 5.5.3)."""
        if self._pong is None:
            asyncio.get_running_loop().call_soon(self._answer)
        self._pong = payload

    def _answer(self) -> None:
        payload, self._pong = self._pong, None
        if self.sink is not None and not self.is_stuck and not has_hung_up(self):
            self._transport.send_pong(payload)

    def pause(self) -> None:
        """Bring nothing for now, but the rest of what was read."""
        self._is_paused = True
        if not self._underlying.is_closing():
            self._underlying.pause_reading()

    def resume(self) -> None:
        """Bring what comes."""
        self._is_paused = False
        self._read_again()

    def _read_again(self) -> None:
        if not self._is_paused and not self._underlying.is_closing():
            self._underlying.resume_reading()

    # ── what is sent ──────────────────────────────────────────────────────────────────────────────

    @property
    def socket(self) -> socket.socket:
        """The socket under the transport."""
        connection: socket.socket = self._underlying.get_extra_info("socket")
        return connection

    def untaken_bytes(self) -> int:
        """Return the bytes that were written and that the other end has not taken."""
        return self._underlying.get_write_buffer_size() + _unacknowledged_bytes(self.socket)

    def write(self, data: memoryview | bytes | bytearray) -> int:
        """Write a message, and return its size. What the socket does not take is kept by the transport.

        Raises OSError if the other end has gone.
        """
        size = len(data)
        if size < 126:
            header = struct.pack("BB", BINARY_MESSAGE, size)
        elif size < 1 << 16:
            header = struct.pack(">BBH", BINARY_MESSAGE, 126, size)
        else:
            header = struct.pack(">BBQ", BINARY_MESSAGE, 127, size)
        sent = 0
        if self._descriptor is not None and not self._underlying.get_write_buffer_size():
            with contextlib.suppress(BlockingIOError):
                sent = os.writev(self._descriptor, (header, data))
        if sent < len(header):
            _write_in_pieces(self, self._underlying, b"".join((header[sent:], data)))
        elif sent < len(header) + size:
            _write_in_pieces(self, self._underlying, data[sent - len(header) :])
        return size

    def ping(self) -> None:
        """Send a ping, unless something else waits to be sent or the other end has gone."""
        if not self.is_stuck and not has_hung_up(self):
            self._transport.send_ping()

    def end_writing(self) -> None:
        """Tell the other end that nothing follows. It may still send something before it closes."""
        if not self._transport.is_close_frame_sent:
            self._has_ended_writing = True
            self._transport.send_close(WSCloseCode.OK)

    def close(self) -> None:
        """Close the connection, at once if the other end does not read."""
        self.source = self.sink = None
        if self._underlying.get_write_buffer_size():
            asyncio.get_running_loop().call_later(END_SECONDS, self._underlying.abort)
        self._underlying.close()


Stream = PlainSocket | TlsStream | WebSocketStream
