"""devp2p: Hello, Ping, Pong, Disconnect, and the packets of the one shared capability (devp2p, rlpx.md).

    HANDSHAKE → (our Hello) → HELLO → (their Hello) → OPEN → (a Disconnect) → CLOSED

This module does no I/O and reads no clock. Pass received bytes to `receive_data`, call `handle_timeout` at
`next_timeout`, write what `data_to_send` returns after each of these, and close the socket when `closed` is true.
Nothing that a peer sends raises an exception: a violation becomes a Disconnect to write, and a Disconnected event.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum, auto
from typing import Final

import msgspec

from restante.common.errors import Misuse, PeerError
from restante.waku.devp2p.hello import (
    CAPABILITY_CODES,
    CAPABILITY_ID,
    CAPABILITY_NAME,
    SNAPPY_VERSION,
    Hello,
    Reason,
)
from restante.waku.devp2p.rlpx import DEFAULT_PACKET_BYTES, Rlpx
from restante.waku.devp2p.snappy import compress, decompress, literal_head
from restante.waku.envelope import rlp

HELLO: Final = 0
DISCONNECT: Final = 1
PING: Final = 2
PONG: Final = 3

MAX_DISCONNECT_BYTES: Final = 64
"""Bytes of a Disconnect that are parsed. Real ones have one to three."""

_EMPTY: Final = b"\xc0"
"""The payload of a Ping and of a Pong."""

_IDS: Final = tuple(map(rlp.encode, range(256)))
"""Encoded message ids, as they precede a payload. From 80 (hexadecimal) on they have two bytes."""


class SessionLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of a peer: times in seconds, sizes in bytes."""

    hello: float = 5.0
    """Time for the handshake and the peer's Hello together (geth p2p/transport.go:38)."""
    ping: float = 15.0
    """Silence after which we send a Ping (geth p2p/peer.go, pingInterval)."""
    silence: float = 30.0
    """Time without a complete frame after which we disconnect (geth p2p/server.go:62, frameReadTimeout)."""
    packet: int = DEFAULT_PACKET_BYTES
    """Maximum size of a decompressed packet. The maximum size of a frame is an argument of Rlpx."""


SESSION_LIMITS: Final = SessionLimits()


class Connected(msgspec.Struct, frozen=True, gc=False):
    """The peer's Hello has arrived and is acceptable. Packets may be sent."""

    hello: Hello


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A packet of the capability. Its code is relative to the capability's first message id."""

    code: int
    payload: bytes


class Disconnected(msgspec.Struct, frozen=True, gc=False):
    """The connection is over. No event follows this one."""

    reason: Reason
    text: str


SessionEvent = Connected | Packet | Disconnected


class SessionState(Enum):
    """What the session is waiting for."""

    HANDSHAKE = auto()
    HELLO = auto()
    OPEN = auto()
    CLOSED = auto()


_HANDSHAKE, _HELLO, _OPEN, _CLOSED = (
    SessionState  # an attribute access through the class takes 0.1 µs, and each frame needs several
)


class Devp2p:
    """One end of a connection. Times are seconds of any monotonic clock."""

    __slots__ = (
        "_hello",
        "_last_received",
        "_limits",
        "_output",
        "_ping_pending",
        "_rlpx",
        "_snappy",
        "_state",
        "frames",
    )

    def __init__(self, rlpx: Rlpx, hello: Hello, now: float, limits: SessionLimits = SESSION_LIMITS) -> None:
        """Start a session. `hello` is the Hello that we send. Raises Misuse for capabilities other than Waku's."""
        if {capability.name for capability in hello.capabilities} - {CAPABILITY_NAME}:
            raise Misuse(f"capabilities here are {CAPABILITY_NAME}, and no others")
        self._rlpx = rlpx
        self._hello = hello
        self._limits = limits
        self._state = _HANDSHAKE
        self._last_received = now
        """Time of the last complete frame. Before the peer's Hello: the time when the session started."""
        self._ping_pending = False
        """Whether a Ping was sent since then."""
        self.frames = 0
        """Number of frames received."""
        # A peer that reads our Hello expects every later message to be compressed, even before it has sent its own
        # Hello.
        self._snappy = hello.version >= SNAPPY_VERSION
        self._output: list[bytes | bytearray] = [rlpx.data_to_send()]

    @property
    def closed(self) -> bool:
        """Whether the session is over. Close the socket when everything is written."""
        return self._state is _CLOSED

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes received of an incomplete packet."""
        return self._rlpx.buffered_bytes

    @property
    def ping_pending(self) -> bool:
        """Whether a Ping was sent and the peer has sent nothing since."""
        return self._ping_pending

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    @property
    def has_output(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._output)

    def data_to_send(self) -> bytes | bytearray:
        """Return the bytes to send, all since the last call."""
        out, self._output = self._output, []
        return out[0] if len(out) == 1 else b"".join(out)

    def send(self, code: int, payload: bytes, *, compressed: bytes | None = None) -> None:
        """Send a packet. `compressed` is its payload after `compress`, for a packet that goes to many peers.

        Does nothing if the session is closed. Raises Misuse before `Connected`, and for a code outside the
        capability.
        """
        if self._state is _CLOSED:
            return
        message = self._message_id(code)
        if self._snappy:
            payload = compressed or compress(payload)
        self._output.append(self._rlpx.seal(_IDS[message] + payload))

    def send_pieces(self, code: int, head: bytes, body: memoryview) -> None:
        """Send a large, incompressible packet of two pieces, as `send` does, but without copying it."""
        if self._state is _CLOSED:
            return
        message = _IDS[self._message_id(code)]
        if self._snappy:
            message += literal_head(len(head) + len(body))
        self._output.append(self._rlpx.seal_pieces(message + head, body))

    def _message_id(self, code: int) -> int:
        if self._state is not _OPEN:
            raise Misuse("the Hello has not arrived yet")
        if not 0 <= code < CAPABILITY_CODES:
            raise Misuse(f"code {code} is not a packet of the capability")
        return CAPABILITY_ID + code

    def disconnect(self, reason: Reason) -> None:
        """Send a Disconnect with the reason and close. Before the handshake is complete only close."""
        if self._state in {_HELLO, _OPEN}:
            self._send_message(DISCONNECT, reason.encode_as_list())
        self._state = _CLOSED

    def _send_message(self, message: int, payload: bytes) -> None:
        self._output.append(self._rlpx.seal(_IDS[message] + (compress(payload) if self._snappy else payload)))

    def _fail(self, error: PeerError) -> Disconnected:
        reason = Reason(error.code)
        self.disconnect(reason)
        return Disconnected(reason, error.text)

    # ── receiving ────────────────────────────────────────────────────────────────────────────────

    def receive_data(self, data: bytes | bytearray, now: float) -> list[SessionEvent]:
        """Process received bytes, split anywhere, and return events. Never raises because of their content."""
        events: list[SessionEvent] = []
        if self._state is _CLOSED:
            return events
        frames = self._rlpx.receive_data(data)
        self.frames += len(frames)
        try:
            if self._state is _HANDSHAKE and self._rlpx.ready:
                self._send_hello()
            for frame in frames:
                event = self._handle_frame(frame)
                if event:
                    events.append(event)
                    if self._state is _CLOSED:
                        return events
            if self._rlpx.violation:
                raise self._rlpx.violation
        except PeerError as error:
            events.append(self._fail(error))
        if frames:
            self._last_received, self._ping_pending = now, False
        return events

    def _send_hello(self) -> None:
        self._output.append(self._rlpx.data_to_send())
        if self._rlpx.remote == self._hello.public:
            # In place of a Hello a Disconnect is a bare byte and is never compressed.
            self._output.append(self._rlpx.seal(_IDS[DISCONNECT] + Reason.SELF_CONNECTION.encode_as_byte()))
            self._state = _CLOSED
            raise PeerError(Reason.SELF_CONNECTION, "the peer is this node itself")
        self._output.append(self._rlpx.seal(_IDS[HELLO] + self._hello.encode()))
        self._state = _HELLO

    def _handle_frame(self, frame: bytes) -> SessionEvent | None:
        tag = frame[0]
        if 0 < tag < 0x80:
            message, payload = tag, frame[1:]
        elif tag == 0x80:
            message, payload = 0, frame[1:]
        elif tag == 0x81 and frame[1:2] >= b"\x80":
            message, payload = frame[1], frame[2:]
        else:
            raise PeerError(Reason.BREACH, "a message id is malformed or too high")
        if self._state is _HELLO:
            return self._handle_hello(message, payload)
        if message < CAPABILITY_ID:
            return self._handle_base_message(message, payload)
        if message >= CAPABILITY_ID + CAPABILITY_CODES:
            raise PeerError(Reason.BREACH, f"no capability has message id {message}")
        if self._snappy:
            payload = decompress(payload, self._limits.packet)
        elif len(payload) > self._limits.packet:
            raise PeerError(Reason.BREACH, f"a packet has {len(payload)} bytes")
        return Packet(message - CAPABILITY_ID, payload)

    def _handle_hello(self, message: int, payload: bytes) -> SessionEvent:
        """Handle the Hello, or the Disconnect in its place."""
        if message == DISCONNECT:
            return self._disconnected(payload)
        if message != HELLO:
            raise PeerError(Reason.BREACH, f"message id {message} came before a Hello")
        hello = Hello.parse(payload)
        self._snappy = min(hello.version, self._hello.version) >= SNAPPY_VERSION
        if hello.public != self._rlpx.remote:
            raise PeerError(Reason.UNEXPECTED_IDENTITY, "the Hello has another public key than the handshake")
        if not set(self._hello.capabilities) & set(hello.capabilities):
            raise PeerError(Reason.USELESS_PEER, "no capability is shared")
        self._state = _OPEN
        return Connected(hello)

    def _handle_base_message(self, message: int, payload: bytes) -> SessionEvent | None:
        """Handle a message of devp2p itself. Ignores unknown ones and a second Hello (geth p2p/peer.go)."""
        if message == PING:
            self._send_message(PONG, _EMPTY)
        elif message == DISCONNECT:
            return self._disconnected(payload)
        return None

    def _disconnected(self, payload: bytes) -> Disconnected:
        if self._snappy:
            # A Disconnect in place of a Hello is never compressed, and ethereumjs does not compress later ones
            # either.
            with suppress(PeerError):
                payload = decompress(payload, MAX_DISCONNECT_BYTES)
        self._state = _CLOSED
        reason = Reason.parse(payload[:MAX_DISCONNECT_BYTES])
        return Disconnected(reason, f"the peer said {reason.name}")

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def next_timeout(self) -> float | None:
        """Return when to call `handle_timeout`; None: never. A later call does no harm."""
        if self._state is _CLOSED:
            return None
        if self._state is not _OPEN:
            return self._last_received + self._limits.hello
        return self._last_received + (self._limits.silence if self._ping_pending else self._limits.ping)

    def restart_silence_timer(self, now: float) -> None:
        """Restart the peer's silence timer, because the node did not read from the peer meanwhile.

        Also sends a Ping, whether or not the peer answers: it shows the peer that we are alive, and the socket
        reports an error if the peer is gone.
        """
        if self._state is _OPEN:
            self._last_received, self._ping_pending = now, False
            self._send_message(PING, _EMPTY)

    def handle_timeout(self, now: float) -> list[SessionEvent]:
        """Handle a timeout that is due: send a Ping to a silent peer, or disconnect it."""
        deadline = self.next_timeout()
        if deadline is None or now < deadline:
            return []
        if self._state is not _OPEN:
            return [self._fail(PeerError(Reason.PING_TIMEOUT, "no Hello arrived in time"))]
        if now >= self._last_received + self._limits.silence:
            return [self._fail(PeerError(Reason.PING_TIMEOUT, "the peer did not answer a Ping"))]
        self.send_ping()
        return []

    def send_ping(self) -> None:
        """Send a Ping. `ping_pending` is true until a frame arrives."""
        if self._state is _OPEN:
            self._ping_pending = True
            self._send_message(PING, _EMPTY)
