"""Sealing and opening of RLPx frames: one cipher and one running hash per direction (devp2p, rlpx.md "Framing").

    wire   = header(16) ‖ header MAC(16) ‖ frame, padded with zeros to a multiple of 16 ‖ frame MAC(16)
    header = bytes of the frame(3) ‖ C2 80 80 ‖ zeros

Headers and frames are encrypted with one AES-256-CTR stream that never restarts. The MACs cover the ciphertext and
are verified before it is decrypted.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from restante.common.errors import PeerError
from restante.waku.devp2p.handshake import Secrets
from restante.waku.envelope.keccak import Keccak
from restante.waku.envelope.rlp import BREACH

HEADER_BYTES: Final = 32
"""Size of a header with its MAC in bytes."""
MAC_BYTES: Final = 16
BLOCK_BYTES: Final = 16

MAX_FRAME_BYTES: Final = 0xFFFFFF
"""Maximum size of a frame in bytes: the header has three bytes for the size."""

_REST: Final = b"\xc2\x80\x80" + bytes(10)
"""The bytes of a header after the size: [capability id, context id], both 0 and unused, and zeros."""

_number = int.from_bytes

BlockCipher: TypeAlias = Callable[[bytes], bytes]
"""AES of one block."""

_PADDING: Final = tuple(bytes(-size % BLOCK_BYTES) for size in range(BLOCK_BYTES))


class _Mac:
    """The MAC of one direction: a running hash of all headers and frames.

    The last digest is the MAC of the last frame and also the seed of the next header's MAC, so it is kept.
    """

    __slots__ = ("_block", "_digest", "_running")

    def __init__(self, running: Keccak, block: BlockCipher) -> None:
        self._running = running
        self._block = block
        self._digest = running.digest()

    def add_header(self, sealed: bytes) -> bytes:
        """Add a header to the hash and return its MAC."""
        running = self._running
        seed = _number(self._block(self._digest[:16]), "big") ^ _number(sealed, "big")
        running.update(seed.to_bytes(16, "big"))
        self._digest = digest = running.digest()
        return digest[:16]

    def add_frame(self, sealed: bytes | memoryview) -> bytes:
        """Add a frame to the hash and return its MAC."""
        running = self._running
        running.update(sealed)
        digest = running.digest()[:16]
        seed = _number(self._block(digest), "big") ^ _number(digest, "big")
        running.update(seed.to_bytes(16, "big"))
        self._digest = digest = running.digest()
        return digest[:16]


class Frames:
    """The ciphers and MACs of both directions of a connection."""

    __slots__ = ("_decrypt", "_egress", "_encrypt", "_encrypt_into", "_ingress")

    def __init__(self, secrets: Secrets) -> None:
        # A block cipher without a mode has no state between blocks, so one instance serves both MACs.
        block = Cipher(algorithms.AES(secrets.mac), modes.ECB()).encryptor().update  # noqa: S305 - RLPx requires it
        self._egress = _Mac(secrets.egress, block)
        self._ingress = _Mac(secrets.ingress, block)
        # In counter mode decryption is the same operation as encryption.
        stream = Cipher(algorithms.AES(secrets.aes), modes.CTR(bytes(BLOCK_BYTES)))
        encryptor = stream.encryptor()
        self._encrypt, self._encrypt_into = encryptor.update, encryptor.update_into
        self._decrypt = stream.encryptor().update

    def seal(self, frame: bytes) -> bytes:
        """Return a frame in its form on the wire. Raises OverflowError if it has more than `MAX_FRAME_BYTES`."""
        size = len(frame)
        sealed = self._encrypt(b"".join((size.to_bytes(3, "big"), _REST, frame, _PADDING[size % BLOCK_BYTES])))
        header, body = sealed[:BLOCK_BYTES], sealed[BLOCK_BYTES:]
        return b"".join((header, self._egress.add_header(header), body, self._egress.add_frame(body)))

    def seal_whole(self, head: bytes, body: memoryview) -> bytearray:
        """Return a large frame of two pieces in its form on the wire, without copying the pieces.

        Raises OverflowError.
        """
        size = len(head) + len(body)
        wire = bytearray(HEADER_BYTES + length(size))
        out = memoryview(wire)
        out[:BLOCK_BYTES] = header = self._encrypt(size.to_bytes(3, "big") + _REST)
        out[BLOCK_BYTES:HEADER_BYTES] = self._egress.add_header(header)
        at = HEADER_BYTES
        for piece in (head, body, _PADDING[size % BLOCK_BYTES]):
            at += self._encrypt_into(piece, out[at:])
        out[at:] = self._egress.add_frame(out[HEADER_BYTES:at])
        return wire

    def open_header(self, wire: bytes) -> int:
        """Verify and decrypt a header and return the size of its frame. Raises PeerError."""
        sealed = wire[:BLOCK_BYTES]
        if not compare_digest(self._ingress.add_header(sealed), wire[BLOCK_BYTES:]):
            raise PeerError(BREACH, "the MAC of a header is wrong")
        return _number(self._decrypt(sealed)[:3], "big")

    def open(self, wire: bytes, size: int) -> bytes:
        """Verify and decrypt a frame and return it. Raises PeerError."""
        sealed = wire[:-MAC_BYTES]
        if not compare_digest(self._ingress.add_frame(sealed), wire[-MAC_BYTES:]):
            raise PeerError(BREACH, "the MAC of a frame is wrong")
        return self._decrypt(sealed)[:size]


def length(size: int) -> int:
    """Return the bytes that a frame of this size takes on the wire after its header."""
    return size + -size % BLOCK_BYTES + MAC_BYTES
