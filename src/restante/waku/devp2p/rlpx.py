"""RLPx: the encrypted transport of devp2p, as bytes in and frames out.

    recipient   size → auth → header ⇄ body
    initiator   size → ack  → header ⇄ body

Each state waits for so many bytes, takes them, and says what comes next. Nothing is read or written here: feed what
arrives to `receive_data`, and write what `data_to_send` and `seal` give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from restante.common.errors import PeerError
from restante.waku.devp2p import frames, handshake
from restante.waku.devp2p.frames import Frames
from restante.waku.devp2p.handshake import Proposal, Secrets
from restante.waku.envelope.keys import Dice, Key
from restante.waku.envelope.rlp import BREACH

MAX_FIRST_FRAME_BYTES: Final = 2048 + 1
"""Bytes of the first frame at most: a Hello and its message id (geth p2p/peer.go, baseProtocolMaxMsgSize)."""

DEFAULT_PACKET_BYTES: Final = 10 * 1024 * 1024
"""Bytes of a packet before compression at most, if nothing else is said (status-go waku/common/const.go:
MaxMessageSize)."""


def max_frame_bytes(plain: int) -> int:
    """Give the bytes that a frame may need for a packet of this size: its message id, and snappy at its worst.

    Never more than a frame can have (snappy.cc, MaxCompressedLength).
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
        """Use `initiator` or `recipient`."""
        self.remote = b""
        """The peer's public key; the recipient learns it from the auth packet."""
        self.broken: PeerError | None = None
        """What the peer did wrong: it comes after the frames given before it, and nothing comes after it."""
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
        """Begin as the one who dialled. Frames have up to `cap` bytes. Raises PeerError: `remote` is no key."""
        self = cls(key, dice, cap)
        self.remote = remote
        self._proposal = handshake.propose(key, remote, dice)
        self._out = self._proposal.packet
        return self

    @classmethod
    def recipient(cls, key: Key, dice: Dice, *, cap: int = max_frame_bytes(DEFAULT_PACKET_BYTES)) -> Rlpx:
        """Begin as the one who was dialled. Frames have up to `cap` bytes."""
        return cls(key, dice, cap)

    @property
    def ready(self) -> bool:
        """Tell whether the handshake is done, so that frames can be sealed."""
        return self._frames is not None

    @property
    def held(self) -> int:
        """Tell how many bytes there are of a frame that is not complete."""
        return len(self._buffer)

    def data_to_send(self) -> bytes:
        """Give what the handshake has to say; it goes before all that is sealed."""
        out, self._out = self._out, b""
        return out

    def seal(self, frame: bytes) -> bytes:
        """Encrypt a frame, which is to be written in the order of these calls. Only after the handshake."""
        assert self._frames
        return self._frames.seal(frame)

    def seal_whole(self, head: bytes, body: memoryview) -> bytearray:
        """Encrypt a large frame of two pieces, likewise."""
        assert self._frames
        return self._frames.seal_whole(head, body)

    def receive_data(self, data: bytes | bytearray) -> list[bytes]:
        """Take what arrived, cut anywhere; give the frames that are complete with it, each MAC verified.

        Look at `broken` then. No more is held than one frame and what was handed in with it.
        """
        found: list[bytes] = []
        if self.broken:
            return found
        # What comes whole is not copied; what is left over is a bytearray, which grows in its place.
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

    # The states: each is handed the bytes it needs, sets what is next, and gives a frame if that is what it was.

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
