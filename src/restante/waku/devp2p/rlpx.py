"""RLPx, the encrypted transport of devp2p. It takes bytes and returns frames.

    recipient   size → auth → header ⇄ body
    initiator   size → ack  → header ⇄ body

Each state waits for a number of bytes, processes them, and sets the next state. This module does no I/O: pass
received bytes to `receive_data`, and write what `data_to_send` and `seal` return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from restante.common.dice import Dice
from restante.common.errors import PeerError
from restante.waku.devp2p import frames, handshake
from restante.waku.devp2p.frames import Frames
from restante.waku.devp2p.handshake import Proposal, Secrets
from restante.waku.envelope.keys import Key
from restante.waku.envelope.rlp import BREACH

MAX_FIRST_FRAME_BYTES: Final = 2048 + 1
"""Maximum size of the first frame in bytes: a Hello and its message id (geth p2p/peer.go, baseProtocolMaxMsgSize)."""

DEFAULT_PACKET_BYTES: Final = 10 * 1024 * 1024
"""Default maximum size of a packet in bytes, before compression (status-go waku/common/const.go: MaxMessageSize)."""


def max_frame_bytes(plain: int) -> int:
    """Return the bytes that a frame may need for a packet of this size: its message id, and snappy's worst case.

    The result is at most the maximum size of a frame (snappy.cc, MaxCompressedLength).
    """
    return min(2 + 32 + plain + plain // 6, frames.MAX_FRAME_BYTES)


class Rlpx:
    """One end of a connection."""

    __slots__ = (
        "_buffer",
        "_cap",
        "_dice",
        "_frames",
        "_key",
        "_need",
        "_out",
        "_packet",
        "_proposal",
        "_size",
        "_state",
        "broken",
        "remote",
    )

    def __init__(self, key: Key, dice: Dice, cap: int) -> None:
        """Initialize one end. Use `initiator` or `recipient` instead."""
        self.remote = b""
        """The peer's public key. The recipient learns it from the auth packet."""
        self.broken: PeerError | None = None
        """The peer's violation of the protocol, or None. It follows the frames returned so far, and nothing follows
        it."""
        self._key = key
        self._dice: Dice | None = dice
        self._proposal: Proposal | None = None
        self._frames: Frames | None = None
        self._out = b""
        self._buffer: bytes | bytearray = b""
        self._packet = b""
        self._state: Callable[[Rlpx, bytes], bytes | None] = Rlpx._prefix
        self._need = handshake.PREFIX_BYTES
        self._size = 0
        self._cap = cap

    @classmethod
    def initiator(
        cls, key: Key, remote: bytes, dice: Dice, *, cap: int = max_frame_bytes(DEFAULT_PACKET_BYTES)
    ) -> Rlpx:
        """Return the end that dials. Frames have up to `cap` bytes.

        Raises PeerError if `remote` is not a public key.
        """
        self = cls(key, dice, cap)
        self.remote = remote
        self._proposal = handshake.propose(key, remote, dice)
        self._out = self._proposal.packet
        return self

    @classmethod
    def recipient(cls, key: Key, dice: Dice, *, cap: int = max_frame_bytes(DEFAULT_PACKET_BYTES)) -> Rlpx:
        """Return the end that is dialled. Frames have up to `cap` bytes."""
        return cls(key, dice, cap)

    @property
    def ready(self) -> bool:
        """Whether the handshake is complete, so that frames can be sealed."""
        return self._frames is not None

    @property
    def held(self) -> int:
        """Number of bytes held of an incomplete frame."""
        return len(self._buffer)

    def data_to_send(self) -> bytes:
        """Return the handshake's bytes to send. They must be written before any sealed frame."""
        out, self._out = self._out, b""
        return out

    def seal(self, frame: bytes) -> bytes:
        """Encrypt a frame. Frames must be written in the order of these calls, and only after the handshake."""
        assert self._frames
        return self._frames.seal(frame)

    def seal_whole(self, head: bytes, body: memoryview) -> bytearray:
        """Encrypt a large frame of two pieces. The same rules apply as for `seal`."""
        assert self._frames
        return self._frames.seal_whole(head, body)

    def receive_data(self, data: bytes | bytearray) -> list[bytes]:
        """Process received bytes, split anywhere. Return the frames that they complete, each with its MAC verified.

        Check `broken` afterwards. At most one frame is held, besides the data of this call.
        """
        found: list[bytes] = []
        if self.broken:
            return found
        # Data that ends with a complete frame is not copied. Remaining bytes are kept in a bytearray, which grows in
        # place.
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= self._need:
                stop = at + self._need
                frame = self._state(self, bytes(buffer[at:stop]))
                at = stop
                if frame:
                    found.append(frame)
        except PeerError as broken:
            self.broken = broken
            at = len(buffer)
        if at == len(buffer):
            self._buffer = b""
        elif at or isinstance(buffer, bytes):
            self._buffer = bytearray(buffer[at:])
        return found

    # The states. Each receives the bytes that it needs, sets the next state, and returns a frame if it completed one.

    def _prefix(self, prefix: bytes) -> None:
        self._need = handshake.size(prefix) + 2 - len(prefix)
        self._packet = prefix
        self._state = Rlpx._ack if self._proposal else Rlpx._auth

    def _auth(self, rest: bytes) -> None:
        assert self._dice
        self.remote, self._out, secrets = handshake.accept(self._key, self._packet + rest, self._dice)
        self._begin(secrets)

    def _ack(self, rest: bytes) -> None:
        assert self._proposal
        self._begin(handshake.conclude(self._key, self._proposal, self._packet + rest))

    def _begin(self, secrets: Secrets) -> None:
        self._frames = Frames(secrets)
        self._packet, self._proposal, self._dice = b"", None, None
        self._state, self._need = Rlpx._header, frames.HEADER_BYTES

    def _header(self, wire: bytes) -> None:
        assert self._frames
        size = self._frames.open_header(wire)
        first = not self._size
        cap = min(MAX_FIRST_FRAME_BYTES, self._cap) if first else self._cap
        if not 0 < size <= cap:
            raise PeerError(BREACH, f"a frame has 1 to {cap} bytes here, not {size}")
        self._size = size
        self._state, self._need = Rlpx._body, frames.length(size)

    def _body(self, wire: bytes) -> bytes:
        assert self._frames
        self._state, self._need = Rlpx._header, frames.HEADER_BYTES
        return self._frames.open(wire, self._size)
