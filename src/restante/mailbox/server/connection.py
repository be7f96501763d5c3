"""The WebSocket of a connection (`Socket`), and what serves only it: fragments, frames, pauses, the server's part.

It receives frames, sends frames, and counts what is being read and what is owed.

picows implements RFC 6455 section 5 for single frames: opcodes, masks, sizes, control frames. This module checks
reserved bits, UTF-8 and the total size of fragments, and limits clients that send too much or do not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import struct
import termios
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import msgspec
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from restante.common.errors import PeerError
from restante.common.memory_holders import MemoryHolder, MemoryHolders
from restante.common.proxy_header import SocketPeer
from restante.common.read_budget import ReadBudget
from restante.common.system import Clock
from restante.common.tls_transport import TlsTransport
from restante.common.websocket_request import PicowsTransport, proxy_headers
from restante.mailbox.core.admission import AdmissionResult
from restante.mailbox.core.connection_state import ENTRY_BYTES, ConnectionState
from restante.mailbox.core.dispatcher import CLEANUP_CLOSE_CODES
from restante.mailbox.core.limits import MIB, Limits
from restante.mailbox.core.model import Now, Policy, size_of
from restante.mailbox.core.session import Session
from restante.mailbox.protocol import messages
from restante.mailbox.protocol.frame_text import MAX_DECODED_TEXT_BYTES, FrameText, text_of
from restante.mailbox.protocol.refusals import NO_ROOM_FOR_LARGE, NOT_READ
from restante.mailbox.server.commit_loop import CommitLoop
from restante.mailbox.server.receive_buffer import MIN_COUNTED_BYTES, ReceiveBuffer
from restante.mailbox.server.send_budget import MAX_BYTES_PER_TURN, WRITE_BUFFER_BYTES, WRITE_CHUNK_BYTES, SendBudget

# ── fragments of a message ──────────────────────────────────────────────────────────────────────────


COUNTED_FRAGMENT_BYTES: Final = 1024
"""Bytes by which the fragments of a message grow before they are counted again. Each may have one byte."""


class Fragments:
    """The fragments of the message that is being received, if it comes in fragments (RFC 6455 section 5.4)."""

    __slots__ = ("joined", "size")

    def __init__(self) -> None:
        self.joined: bytearray | None = None  # not a list of fragments: empty ones would take memory, too
        """What has come of the message. None: no message has begun."""
        self.size = 0
        """Bytes received so far."""

    def add(self, payload: bytes, *, first: bool, last: bool) -> bytes | bytearray | None:
        """Return the message that this frame completes, or None if it does not.

        Raises:
            PeerError: a message began inside another, or the frame continues none.

        """
        joined = self.joined
        if joined is None:
            if not first:
                raise PeerError(1002, "a continuation of nothing")
            if last:
                return payload
            joined = self.joined = bytearray()
        elif first:
            raise PeerError(1002, "a message began inside another")
        joined += payload
        self.size = len(joined)
        if not last:
            return None
        self.discard()
        return joined

    def discard(self) -> None:
        """Forget the message."""
        self.joined, self.size = None, 0


# ── frames, proxy headers, close reasons and unsent bytes: what picows leaves to us ─────────────────


MAX_CLOSE_REASON_BYTES: Final = 123
"""Bytes of the reason in a close frame (RFC 6455 section 5.5)."""

MAX_LISTED_BYTES: Final = 1024
"""Bytes of the shortest payload whose header is made for each frame. Nearly all replies are shorter."""


def close_reason(reason: str) -> bytes:
    """Return the reason of a close frame, cut between two characters."""
    return reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore").encode()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that our kernel keeps because the client's has not acknowledged them (man 7 tcp)."""
    try:
        sent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # the connection is closed already
        return 0
    queued: int = struct.unpack("i", sent)[0]
    return queued


def take(bodies: deque[bytes], size: int) -> list[bytes]:
    """Remove and return the first bodies of a queue, until they have at least `size` bytes or none is left."""
    first: list[bytes] = []
    while bodies and size > 0:
        first.append(bodies.popleft())
        size -= len(first[-1])
    return first


PING_FRAME: Final = bytes((0x89, 0))
PONG_BYTE: Final = 0x8A
"""A ping without payload, and the first byte of a pong (RFC 6455 section 5.2)."""


class Framing:
    """Makes frames of one type from bodies. Each is a whole message, and not masked (RFC 6455 section 5.2)."""

    def __init__(self, kind: WSMsgType) -> None:
        self._first_byte = 0x80 | int(kind.value)  # FIN and the opcode
        self._headers = [self._header(size) for size in range(MAX_LISTED_BYTES)]
        """The headers of payloads of less than MAX_LISTED_BYTES, by size."""

    def _header(self, size: int) -> bytes:
        if size < 126:
            return struct.pack("BB", self._first_byte, size)
        if size < 1 << 16:
            return struct.pack(">BBH", self._first_byte, 126, size)
        return struct.pack(">BBQ", self._first_byte, 127, size)

    def frames(self, bodies: Sequence[bytes], stamp: bytes) -> bytes:
        """Return a frame for each body, with the stamp at its end."""
        headers, stamp_bytes = self._headers, len(stamp)
        try:
            frames = [headers[len(body) + stamp_bytes] + body for body in bodies]
        except IndexError:  # one of them is long, so none is copied once more
            parts: list[bytes] = []
            for body in bodies:
                parts += (self._header(len(body) + stamp_bytes), body, stamp)
            return b"".join(parts)
        frames.append(b"")
        return stamp.join(frames)


# ── reasons for which a socket is not read ──────────────────────────────────────────────────────────


MAX_FRAMES_PER_SECOND: Final = 1000
"""Frames of one connection in a second that are no commands, like pings and fragments. After them it is not read
until the next second. Commands have limits of their own. Without a limit of `commands` there is none."""


class ReadPauses:
    """The reasons for which a socket is not read, as bits."""

    BACKLOG: Final = 1
    """The connection's commands wait in the commit loop."""

    FRAME_RATE: Final = 2
    """Too many frames that are no commands came within a second."""

    READ_BUDGET: Final = 4
    """The read budget of this turn of the loop is exhausted (read_budget.py)."""

    CLOSING: Final = 8
    """Nothing that comes is wanted any more."""

    HAND_OVER: Final = 16
    """Another process is about to go on with the connection."""


# ── the part of the server that a socket uses ───────────────────────────────────────────────────────


class ServerContext(Protocol):
    """The part of the server that a socket uses. server.py imports this module."""

    commit_loop: CommitLoop
    policy: Policy
    clock: Clock
    framing: Framing
    """Makes the frames that are sent."""
    second: int
    owed_bytes: int
    """Bytes owed to all sockets."""
    reading_bytes: int
    """Bytes of memory in which the messages of all sockets are being read."""
    memory_holders: MemoryHolders
    send_budget: SendBudget
    read_budget: ReadBudget
    cleanup_seconds: float
    """Seconds that a rejected client has to release and close."""

    @property
    def limits(self) -> Limits:
        """Return the limits in effect."""

    def admit(
        self, socket: Socket, peer: tuple[Any, ...], headers: Mapping[str, str], descriptor: int
    ) -> AdmissionResult:
        """Admit a connection, or decide that it will be closed, and return the result."""

    def connection_closed(self, socket: Socket) -> None:
        """Forget a closed connection."""

    def greeting(self, result: AdmissionResult) -> bytes:
        """Return the welcome, without its timestamp."""

    def too_big(self) -> PeerError:
        """Return the error for a message that is too big."""

    def slow_down(self, socket: Socket) -> None:
        """Let a socket be read again in the next second."""

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""

    def make_room(self) -> None:
        """Close some connections if all together hold more memory than they may."""

    def count_refusal(self, socket: Socket, reason: str) -> None:
        """Count a connection that is closed because of a limit."""


# ── the socket ──────────────────────────────────────────────────────────────────────────────────────


class SocketRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a process leaves of a socket to the one that goes on with it. The names are those of `Socket`."""

    descriptor: int
    bucket: int
    last_frame_second: int
    unread: bytes = b""
    """Bytes that were read and are no whole frame, or wait for the read budget."""
    unwritten: bytes = b""
    """Bytes that were sent and that the kernel has not taken."""
    owed: list[bytes] = []
    fragments: bytes | None = None
    pong: bytes | None = None
    frames: int = 0
    slowed: bool = False
    unfinished_at_ping: int = 0
    pending_close: tuple[int, str] | None = None
    ignores_input: bool = False
    ignored: bool = False
    """Whether it is not read any more."""
    held_since: int | None = None
    """The second since which it holds memory that is counted."""


MAX_OWED_BEYOND_REPLAY: Final = MIB
"""Bytes that a subscriber may owe, beyond what one `open` may replay."""

PAYLOAD_BYTES_PER_FRAME: Final = 2048
"""Bytes of a message that take as long as a frame (read_budget.py): to copy and check 2 MiB takes up to 3 ms. So in a
turn, two messages of 2 MiB end at most, however many clients hold back the last byte of one."""

NOT_UTF_8: Final = PeerError(1007, "not UTF-8")

CLOSE_TIMEOUT: Final = 2.0
"""Seconds within which a client must answer our close."""


# A lookup in the class of an enumeration takes 0.18 µs (Python 3.11).
TEXT: Final = WSMsgType.TEXT
BINARY: Final = WSMsgType.BINARY
CONTINUATION: Final = WSMsgType.CONTINUATION
PING: Final = WSMsgType.PING
CLOSE: Final = WSMsgType.CLOSE
NORMAL_CLOSURE: Final = WSCloseCode.OK
ABNORMAL_CLOSURE: Final = WSCloseCode.ABNORMAL_CLOSURE


class Socket(WSListener):
    """The WebSocket of one connection: the `ClientSocket` of the dispatcher and the commit loop.

    What waits to be sent is no class of its own: it closes the socket if it is too much, and counts as the socket's
    memory. The two would refer to each other, and only the garbage collector would free them.
    """

    __slots__ = (
        "_buffered_bytes",
        "_frames",
        "_owed",
        "_owed_bytes",
        "_peer",
        "_pending_close",
        "_pong",
        "_server",
        "_stuck",
        "_timer",
        "_transport",
        "_underlying",
        "_unfinished_at_ping",
        "_unwritten",
        "bucket",
        "connection",
        "fragments",
        "ignores_input",
        "last_frame_second",
        "max_unfinished_bytes",
        "read_at",
        "read_pauses",
        "reading_bytes",
        "unfinished_bytes",
    )

    def __init__(self, server: ServerContext, peer: SocketPeer | None = None) -> None:
        self._server, self._peer = server, peer
        self.connection = ConnectionState(self)
        self._transport: WSTransport | None = None
        self._underlying: asyncio.Transport | None = None
        """The transport below that of picows, while the connection is open."""
        self.fragments = Fragments()
        self.unfinished_bytes = self.max_unfinished_bytes = 0
        """Bytes of the frame that is being read, and their maximum so far (`ReceiveBuffer`)."""
        self._unfinished_at_ping = 0
        """`unfinished_bytes` when the socket was last pinged."""
        self.reading_bytes = 0
        """Bytes of memory in which messages are being read, as far as they are counted."""
        self.read_at: Now | None = None
        """When the first message of the current read was passed on. None: none was yet (`ReceiveBuffer`)."""
        self.last_frame_second = self.bucket = server.second
        """The second in which a frame last arrived, or was seen to grow (`note_progress`), and the second of the ping
        interval in which the socket is pinged."""
        self._frames = 0
        """Frames received in that second that are no commands."""
        self.read_pauses = 0
        """Why the socket is not read (ReadPauses). 0: it is read."""
        self._pong: bytes | None = None
        """The payload of the last ping that is not answered yet."""
        self._stuck = False
        """Whether the kernel takes no more for now, because the client does not read."""
        self._owed: deque[bytes] | None = None
        """Messages queued until the client reads again, not yet timestamped."""
        self._owed_bytes = 0
        """The size of these messages, plus `_buffered_bytes`."""
        self._buffered_bytes = 0
        """Bytes that the transport had not handed to the kernel when it stopped taking more."""
        self._unwritten = b""
        """What was last written if the kernel did not take all of it: the transport has its end."""
        self._pending_close: tuple[int, str] | None = None
        """Close code and reason to send after the queued messages, or after a time."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer that closes the connection if the client does not."""
        self.ignores_input = False
        """Whether all frames but a close are ignored."""

    # ── what picows calls ─────────────────────────────────────────────────────────────────────────

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        server, connection = self._server, self.connection
        underlying = self._underlying = cast("PicowsTransport", transport.underlying_transport).transport
        get_extra_info = underlying.get_extra_info
        underlying.set_write_buffer_limits(WRITE_BUFFER_BYTES if isinstance(underlying, TlsTransport) else 0)
        if self.connection.number:  # another process has accepted it (`restore`)
            return
        result = server.admit(
            self,
            self._peer or get_extra_info("peername"),
            proxy_headers(transport.request),
            get_extra_info("socket").fileno(),
        )
        transport.request.headers.clear()  # picows keeps the request as long as the connection: up to 50 KiB
        connection.address_quotas = result.address_quotas
        connection.session = Session(result.demand, result.address_id)
        server.commit_loop.dispatcher.add_connection(connection)
        self.send([server.greeting(result)], messages.stamp(server.clock.wall()))
        if result.verdict is None:
            return
        if result.at_once:
            self.ignores_input = True
            server.count_refusal(self, result.verdict.reason)
            self._close(result.verdict.code, result.verdict.text)
            self.drop()
        else:
            self._refuse(result.verdict)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.unfinished_bytes = frame.tail_size
        server, size = self._server, frame.payload_size
        server.read_budget.frames += 1 + size // PAYLOAD_BYTES_PER_FRAME  # charged at the end of the read
        if self.last_frame_second != server.second:
            self.last_frame_second, self._frames = server.second, 0
        kind = frame.msg_type
        if self.ignores_input or transport.is_close_frame_sent:
            self._count_frame()
            if kind is not CLOSE:
                return  # even after picows' own close: picows has not read the frame for which it closed
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._refuse(PeerError(1002, "reserved bits without an extension"))
            return
        if kind is TEXT or kind is BINARY:
            if frame.fin and self.fragments.joined is None and size <= server.policy.limits.message_bytes:
                self._take_whole(frame, size)
            else:
                self._take_fragment(frame, first=True)
        elif kind is CONTINUATION:
            self._take_fragment(frame, first=False)
        elif kind is CLOSE:
            self._take_close(transport, frame)
        else:
            self._count_frame()
            if kind is PING:
                self._answer_ping_soon(frame.get_payload_as_bytes())

    def _take_close(self, transport: WSTransport, frame: WSFrame) -> None:
        code = frame.get_close_code() or NORMAL_CLOSURE
        if code == ABNORMAL_CLOSURE:  # not allowed in a frame (RFC 6455, 7.4.1), but picows reads it
            code = WSCloseCode.PROTOCOL_ERROR
        transport.send_close(code)  # does nothing if we have sent our close
        self._drop_queue()
        transport.disconnect()
        if self._underlying is not None and self._underlying.get_write_buffer_size():
            self._later(CLOSE_TIMEOUT, self.drop)  # the client may never read the rest

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        self._transport = self._underlying = None
        self.fragments.discard()
        self.count_read()
        if self._timer is not None:
            self._timer.cancel()  # the timer holds the transport, which holds the buffers
        self._drop_owed()
        self._server.connection_closed(self)
        self._server.commit_loop.lose(self.connection)

    def pause_writing(self) -> None:
        self._stuck = True
        if self._underlying is not None:
            self._buffered_bytes = self._underlying.get_write_buffer_size()
            self._count_owed(self._buffered_bytes)
            asyncio.get_running_loop().call_soon(self._check_owed)  # later, because the transport is writing now

    def resume_writing(self) -> None:
        self._stuck, self._unwritten = False, b""
        self._count_owed(-self._buffered_bytes)
        self._buffered_bytes = 0
        self.catch_up()

    # ── frames to text ────────────────────────────────────────────────────────────────────────────

    def _take_whole(self, frame: WSFrame, size: int) -> None:
        """Pass on a message that has come in one frame of `size` bytes."""
        try:
            if size <= MAX_DECODED_TEXT_BYTES:  # without a copy as bytes
                text: FrameText = frame.get_payload_as_utf8_text()
            else:
                text = text_of(frame.get_payload_as_bytes())
        except UnicodeDecodeError:
            self._refuse(NOT_UTF_8)
        else:
            self._take_text(text)

    def _take_text(self, text: FrameText) -> None:
        """Pass on a message that has come whole."""
        commit_loop = self._server.commit_loop
        if self.read_at is None:
            self.read_at = commit_loop.now()
        commit_loop.receive(self.connection, text, self.read_at)
        backlog = self.connection.backlog
        if backlog.large:
            anew = self.held_bytes == size_of(text) + ENTRY_BYTES
            self._server.memory_holders.note(self, self._server.second, anew=anew)
            self._server.make_room()

    def _take_fragment(self, frame: WSFrame, *, first: bool) -> None:
        """Add a frame to the message that is being received, and pass the message on if this is its end."""
        if not (first and frame.fin):
            self._count_frame()
        if self.fragments.size + frame.payload_size > self._server.limits.message_bytes:
            self._refuse(self._server.too_big())
            return
        text: FrameText | None = None
        try:
            message = self.fragments.add(frame.get_payload_as_bytes(), first=first, last=frame.fin)
            if message is not None:
                self._server.read_budget.charge(len(message) // PAYLOAD_BYTES_PER_FRAME)
                text = text_of(message)
        except UnicodeDecodeError:
            self._refuse(NOT_UTF_8)
        except PeerError as error:
            self._refuse(error)
        if text is not None:
            self._take_text(text)
        self.count_read()

    def count_read(self) -> None:
        """Count the memory in which messages are being read: picows' buffer, which is kept, and the fragments."""
        longest = 0 if self._transport is None else self.max_unfinished_bytes
        buffer = 2 * longest if longest >= MIN_COUNTED_BYTES else 0
        size = buffer + self.fragments.size // COUNTED_FRAGMENT_BYTES * COUNTED_FRAGMENT_BYTES
        if size != self.reading_bytes:
            change, self.reading_bytes = size - self.reading_bytes, size
            self._server.count_reading(self, change)
            self._server.make_room()

    def _refuse(self, error: PeerError) -> None:
        self.fragments.discard()
        self.ignores_input = error.code not in CLEANUP_CLOSE_CODES
        self._server.commit_loop.refuse(self.connection, error)

    # ── when it is read ───────────────────────────────────────────────────────────────────────────

    def wait_for_read_budget(self, parse: Callable[[], None]) -> None:
        """Stop reading for this turn of the loop, and parse what was read in a later one (`ReceiveBuffer`)."""
        self._pause_reading(ReadPauses.READ_BUDGET)
        self._server.read_budget.wait(functools.partial(self._go_on, parse), large=self.reading_bytes > 0)

    def _go_on(self, parse: Callable[[], None]) -> None:
        self.read_again(ReadPauses.READ_BUDGET)
        if self._open() is not None:
            parse()

    def _count_frame(self) -> None:
        """Count a frame that is no command. Of too many in a second, read the rest in the next one."""
        self._frames += 1
        if self._frames == MAX_FRAMES_PER_SECOND and self._server.limits.commands:
            self._pause_reading(ReadPauses.FRAME_RATE)
            self._server.slow_down(self)

    def ignore(self) -> None:
        """Ignore all frames but a close, and stop reading."""
        self.ignores_input = True
        self._pause_reading(ReadPauses.CLOSING)

    def pause(self) -> None:
        """Stop reading, because too many commands wait."""
        self._pause_reading(ReadPauses.BACKLOG)

    def resume(self) -> None:
        """Read again, because few commands wait."""
        self.read_again(ReadPauses.BACKLOG)

    def _pause_reading(self, reason: int) -> None:
        """Add a reason not to read the socket."""
        transport = self._open()
        if transport is not None and not self.read_pauses:
            transport.pause_reading()
        self.read_pauses |= reason

    def read_again(self, reasons: int) -> None:
        """Remove reasons not to read the socket."""
        transport, remaining = self._open(), self.read_pauses & ~reasons
        if transport is not None and self.read_pauses and not remaining:
            transport.resume_reading()
        self.read_pauses = remaining

    def _open(self) -> asyncio.Transport | None:
        """Return the underlying transport, or None if it is closing and ignores calls."""
        underlying = self._underlying
        return None if underlying is None or underlying.is_closing() else underlying

    # ── what is sent, and what waits to be sent ───────────────────────────────────────────────────

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        """Send each body followed by the stamp, or queue what cannot be written now."""
        transport = self._transport
        if transport is None or self._underlying is None or transport.is_close_frame_sent:
            return
        budget = self._server.send_budget
        if self._stuck or self._owed is not None or budget.written >= MAX_BYTES_PER_TURN:
            self._owe(bodies)
        elif sum(map(len, bodies)) < WRITE_CHUNK_BYTES:
            data = self._server.framing.frames(bodies, stamp)
            self._underlying.write(data)
            if self._stuck:
                self._unwritten = data
            budget.wrote(len(data))
        else:
            self._send_many(bodies, stamp)

    def _send_many(self, bodies: list[bytes], stamp: bytes) -> None:
        """Send in chunks of one write each until the kernel or the send budget takes no more. Queue the rest."""
        assert self._underlying is not None
        remaining = deque(bodies)
        while remaining:
            if self._stuck or not self._server.send_budget.open:
                self._owe(list(remaining))
                return
            data = self._server.framing.frames(take(remaining, WRITE_CHUNK_BYTES), stamp)
            self._write(data)
            self._server.send_budget.wrote(len(data))

    def _write(self, data: bytes) -> None:
        """Write to the transport, which has nothing that is not written."""
        assert self._underlying is not None
        self._underlying.write(data)
        if self._stuck:
            self._unwritten = data

    def _owe(self, bodies: list[bytes]) -> None:
        """Queue messages. They are shared with other connections, and take little memory of their own."""
        if self._owed is None:
            self._owed = deque()
            if not self._stuck:
                self._server.send_budget.wait(self.catch_up)
        self._owed.extend(bodies)
        self._count_owed(sum(map(len, bodies)))
        self._check_owed()

    def catch_up(self) -> None:
        """Send queued messages as far as the kernel and the send budget allow."""
        if self._transport is None or self._owed is None:
            return
        if self._transport.is_close_frame_sent:  # RFC 6455, 5.5.1: no data follows it
            self._drop_queue()
            return
        stamp = messages.stamp(self._server.clock.wall())
        while self._owed and not self._stuck and self._server.send_budget.open:
            bodies = take(self._owed, WRITE_CHUNK_BYTES)
            self._count_owed(-sum(map(len, bodies)))
            self._send_many(bodies, stamp)
        if self._owed:
            if not self._stuck:
                self._server.send_budget.wait(self.catch_up)
        else:
            self._owed = None
            if self._pending_close is not None and self._pending_close[0] not in CLEANUP_CLOSE_CODES:
                self._close(*self._pending_close)

    def _count_owed(self, size: int) -> None:
        self._owed_bytes += size
        self._server.owed_bytes += size
        self._server.memory_holders.note(self, self._server.second)

    def _check_owed(self) -> None:
        """Close the connection if it owes too much, and others if all together owe too much."""
        limit = self._server.limits.mailbox_bytes
        if limit and self._owed_bytes > limit + MAX_OWED_BEYOND_REPLAY:
            self.give_up(max_left_bytes=4 * WRITE_CHUNK_BYTES)
        self._server.make_room()

    def _drop_owed(self) -> None:
        self._drop_queue()
        if self._buffered_bytes:
            self._count_owed(-self._buffered_bytes)
            self._buffered_bytes = 0

    def _drop_queue(self) -> None:
        """Discard the queued messages. What the transport has not handed to the kernel stays counted."""
        if self._owed is not None:
            self._count_owed(self._buffered_bytes - self._owed_bytes)
            self._owed = None

    def unsent(self) -> int:
        """Return the unacknowledged bytes: those queued here, in the transport, and in our kernel."""
        under = self._underlying
        if under is None:
            return 0
        return self._owed_bytes - self._buffered_bytes + under.get_write_buffer_size() + unacknowledged_bytes(under)

    # ── its memory ────────────────────────────────────────────────────────────────────────────────

    @property
    def held_bytes(self) -> int:
        """Return the bytes of memory that it holds: owed, being read, and waiting to be handled if these are many."""
        backlog = self.connection.backlog
        return self._owed_bytes + self.reading_bytes + (backlog.held_bytes if backlog.large else 0)

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Return the quotas of its addresses, or the socket itself if its address is not counted."""
        return self.connection.address_quotas or (self,)

    def large_messages_done(self) -> None:
        """Note that no large message waits any more."""
        self._server.memory_holders.note(self, self._server.second)

    def give_up(self, *, max_left_bytes: int = 0) -> None:
        """Release its memory, discard what waits, and close it. `max_left_bytes` may stay in the transport."""
        reading_bytes, buffered_bytes = self.reading_bytes, self._buffered_bytes
        kind = NOT_READ if self._owed_bytes > reading_bytes else NO_ROOM_FOR_LARGE
        self._server.commit_loop.drop(self.connection)
        self._server.count_refusal(self, kind.reason)
        self._server.reading_bytes -= reading_bytes
        self.reading_bytes = 0
        self._drop_owed()
        self.ignores_input = True
        self._close(1008, kind.message)
        if reading_bytes or buffered_bytes > max_left_bytes:  # these buffers are freed with the connection
            asyncio.get_running_loop().call_soon(self.drop)  # not while the transport is writing

    # ── keep-alive ────────────────────────────────────────────────────────────────────────────────

    def note_progress(self, second: int, min_bytes: int) -> None:
        """Take an incomplete frame for a sign of life if it grew by `min_bytes` since the last ping."""
        growth, self._unfinished_at_ping = self.unfinished_bytes - self._unfinished_at_ping, self.unfinished_bytes
        if growth >= min_bytes:
            self.last_frame_second, self._frames = second, 0

    def ping(self) -> None:
        """Ping the client, unless something else waits to be written."""
        transport = self._transport
        if transport is not None and not (self._stuck or transport.is_close_frame_sent):
            self._write(PING_FRAME)

    def _answer_ping_soon(self, payload: bytes) -> None:
        """Answer the last of the pings of this turn of the loop, in the next turn (RFC 6455 section 5.5.3)."""
        if self._pong is None:
            asyncio.get_running_loop().call_soon(self._answer_ping)
        self._pong = payload

    def _answer_ping(self) -> None:
        payload, self._pong = self._pong, None
        transport = self._transport
        if payload is not None and transport is not None and not (self._stuck or transport.is_close_frame_sent):
            self._write(struct.pack("BB", PONG_BYTE, len(payload)) + payload)

    # ── another process goes on with it ───────────────────────────────────────────────────────────

    def hold(self) -> None:
        """Stop reading, because another process may go on."""
        self._pause_reading(ReadPauses.HAND_OVER)

    @property
    def has_tls(self) -> bool:
        """Whether the connection has TLS of ours."""
        return isinstance(self._underlying, TlsTransport)

    def unread(self) -> bytes | None:
        """Return what was read and is to be handled (`ReceiveBuffer.unread`). None: not known."""
        underlying = self._open()
        return b"" if underlying is None else cast("ReceiveBuffer", underlying.get_protocol()).unread()

    def record(self) -> SocketRecord | None:
        """Return what another process needs to go on with it. None: it cannot. Nothing is changed."""
        transport, underlying = self._transport, self._open()
        if transport is None or underlying is None or transport.is_close_frame_sent or self.has_tls:
            return None
        unread, unwritten_bytes = self.unread(), underlying.get_write_buffer_size()
        if unread is None or unwritten_bytes > len(self._unwritten):
            return None
        return SocketRecord(
            underlying.get_extra_info("socket").fileno(),
            self.bucket,
            self.last_frame_second,
            unread,
            self._unwritten[len(self._unwritten) - unwritten_bytes :],
            list(self._owed or ()),
            None if self.fragments.joined is None else bytes(self.fragments.joined),
            self._pong,
            self._frames,
            bool(self.read_pauses & ReadPauses.FRAME_RATE),
            self._unfinished_at_ping,
            self._pending_close,
            self.ignores_input,
            bool(self.read_pauses & ReadPauses.CLOSING),
            self._server.memory_holders.held_since(self),
        )

    def restore(self, record: SocketRecord, receiver: ReceiveBuffer) -> None:
        """Go on with what another process has left. Nothing was read or written since."""
        self.bucket, self.last_frame_second = record.bucket, record.last_frame_second
        self._frames, self._unfinished_at_ping = record.frames, record.unfinished_at_ping
        self.ignores_input = record.ignores_input
        if record.fragments is not None:
            self.fragments.add(record.fragments, first=True, last=False)
        if record.unwritten:
            self._write(record.unwritten)
        if record.owed:
            self._owe(record.owed)
        receiver.take(record.unread)
        self.count_read()
        if record.held_since is not None:
            self._server.memory_holders.backdate(self, record.held_since)
        if record.slowed:
            self._pause_reading(ReadPauses.FRAME_RATE)
            self._server.slow_down(self)
        if record.ignored:
            self.ignore()
        if record.pong is not None:
            self._answer_ping_soon(record.pong)
        if record.pending_close is not None:
            self.hang_up(*record.pending_close)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def hang_up(self, code: int, reason: str) -> None:
        """Close the WebSocket after everything that was sent."""
        before = self._pending_close
        if before is not None and (code in CLEANUP_CLOSE_CODES or before[0] not in CLEANUP_CLOSE_CODES):
            return  # a close that may not wait, like a drain's, replaces one that may
        if code in CLEANUP_CLOSE_CODES:
            self._pending_close = code, reason
            self._later(self._server.cleanup_seconds, self._close, code, reason)
        elif self._owed is None:
            self._close(code, reason)
        else:  # after the queued messages, but not for ever
            self._pending_close = code, reason
            self._later(CLOSE_TIMEOUT, self._close, code, reason)

    def _close(self, code: int, reason: str) -> None:
        transport = self._transport
        if transport is None or transport.is_close_frame_sent:
            return
        transport.send_close(WSCloseCode(code), close_reason(reason))
        self._drop_queue()
        # The client answers with its own close, and then we disconnect. To close the socket at once would reset the
        # connection while the client is still sending, and lose what it has not read yet.
        self._later(CLOSE_TIMEOUT, self.drop)

    def _later(self, seconds: float, end: Callable[..., None], *arguments: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.read_budget.loop.call_later(seconds, end, *arguments)

    def drop(self) -> None:
        """Close the socket at once, and discard what the transport has not sent."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)
