"""RLPx, the encrypted transport of devp2p. It takes bytes and returns frames.

    recipient   size → auth → header ⇄ body
    initiator   size → ack  → header ⇄ body

Each state waits for a number of bytes, processes them, and sets the next state. This module does no I/O: pass
received bytes to `receive_data`, and write what `data_to_send` and `seal` return.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Final, NamedTuple, TypeAlias

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from restante.common.dice import Dice
from restante.common.errors import PeerError
from restante.waku.envelope import ecies, keys, rlp
from restante.waku.envelope.keccak import Keccak, keccak, running_keccak
from restante.waku.envelope.keys import PUBLIC_BYTES, SIGNATURE_BYTES, Key, new_key
from restante.waku.envelope.rlp import BREACH

# ── Handshake ────────────────────────────────────────────────────────────────────────────────────
# Two packets agree on the secrets of a connection (EIP-8; devp2p, rlpx.md "Handshake").
#
#     auth = size(2) ‖ ECIES(recipient's key, [signature(65), initiator's key(64), nonce(32), version] ‖ padding)
#     ack  = size(2) ‖ ECIES(initiator's key, [recipient's ephemeral key(64), nonce(32), version] ‖ padding)
#
# The size is big-endian and is authenticated with the ciphertext that it counts. The initiator signs (static shared
# secret ⊕ nonce) with its ephemeral key. The recipient recovers that key from the signature, so the packet does not
# contain it. Only the EIP-8 form is supported, as in go-ethereum (p2p/rlpx/rlpx.go:597-622). As EIP-8 requires,
# further items of the list, bytes after the list, and a version other than 4 are ignored.

HANDSHAKE_VERSION: Final = 4
NONCE_BYTES: Final = 32

PREFIX_BYTES: Final = 3
"""Bytes that determine the size and the form of a packet: the size, and the 04 with which every point begins."""

MAX_HANDSHAKE_BYTES: Final = 2048
"""Maximum size of a packet in bytes, without its size field. The peer is not authenticated yet. EIP-8 recommends at
most 300 bytes of padding, which makes packets of about 600. The limit is that of a Hello."""

_MIN_PADDING_BYTES: Final = 100
"""Minimum padding in bytes. A random number of bytes, less than this minimum, is added (EIP-8)."""


class Auth(NamedTuple):
    """The initiator's packet."""

    remote: bytes
    """The initiator's public key. The signature alone does not prove it; the frames that follow do."""
    ephemeral: bytes
    nonce: bytes


class Ack(NamedTuple):
    """The recipient's packet."""

    ephemeral: bytes
    nonce: bytes


class Secrets(NamedTuple):
    """The secrets that both ends have after the handshake."""

    aes: bytes
    mac: bytes
    egress: Keccak
    ingress: Keccak


class SentAuth(NamedTuple):
    """The auth packet that an initiator sent, and its secrets until the ack arrives."""

    packet: bytes
    ephemeral: Key
    nonce: bytes


def handshake_size(prefix: bytes) -> int:
    """Return the number of bytes that follow a packet's size field.

    Raises PeerError if the packet has the form from before EIP-8, or if the size is out of range.
    """
    # Before EIP-8 a packet was ECIES only: 04, then a random X. In the EIP-8 form 04 is the third byte, after the
    # size.
    if prefix[0] == 4 and prefix[2] != 4:
        raise PeerError(BREACH, "the handshake has the format from before EIP-8, which is not supported")
    size = int.from_bytes(prefix[:2], "big")
    if not ecies.OVERHEAD_BYTES < size <= MAX_HANDSHAKE_BYTES:
        raise PeerError(
            BREACH, f"a handshake packet has {ecies.OVERHEAD_BYTES + 1} to {MAX_HANDSHAKE_BYTES} bytes, not {size}"
        )
    return size


def start_handshake(key: Key, remote: bytes, dice: Dice) -> SentAuth:
    """Return the auth packet for the recipient with this public key. Raises PeerError if it is not a public key."""
    ephemeral, nonce = new_key(dice), dice.draw(NONCE_BYTES)
    signature = ephemeral.sign(_xor(key.agree(remote), nonce))
    packet = _seal_packet(remote, [signature, key.public, nonce, HANDSHAKE_VERSION], dice)
    return SentAuth(packet, ephemeral, nonce)


def finish_handshake(key: Key, sent_auth: SentAuth, packet: bytes) -> Secrets:
    """Read the recipient's ack and return the secrets. Raises PeerError."""
    ack = read_ack(key, packet)
    shared = sent_auth.ephemeral.agree(ack.ephemeral)
    aes, mac = derive_secrets(shared, sent_auth.nonce, ack.nonce)
    egress = running_keccak(_xor(mac, ack.nonce) + sent_auth.packet)
    ingress = running_keccak(_xor(mac, sent_auth.nonce) + packet)
    return Secrets(aes, mac, egress, ingress)


def read_ack(key: Key, packet: bytes) -> Ack:
    """Parse an ack packet, including its size field. Raises PeerError."""
    fields = _open_packet(key, packet, 3)
    return Ack(rlp.string(fields[0], PUBLIC_BYTES), rlp.string(fields[1], NONCE_BYTES))


def answer_handshake(key: Key, packet: bytes, dice: Dice) -> tuple[bytes, bytes, Secrets]:
    """Read an auth packet. Return the initiator's public key, our ack packet and the secrets. Raises PeerError."""
    auth = read_auth(key, packet)
    ephemeral, nonce = new_key(dice), dice.draw(NONCE_BYTES)
    answer = _seal_packet(auth.remote, [ephemeral.public, nonce, HANDSHAKE_VERSION], dice)
    aes, mac = derive_secrets(ephemeral.agree(auth.ephemeral), auth.nonce, nonce)
    egress = running_keccak(_xor(mac, auth.nonce) + answer)
    ingress = running_keccak(_xor(mac, nonce) + packet)
    return auth.remote, answer, Secrets(aes, mac, egress, ingress)


def read_auth(key: Key, packet: bytes) -> Auth:
    """Parse an auth packet, including its size field. Raises PeerError."""
    fields = _open_packet(key, packet, 4)
    signature, remote = rlp.string(fields[0], SIGNATURE_BYTES), rlp.string(fields[1], PUBLIC_BYTES)
    nonce = rlp.string(fields[2], NONCE_BYTES)
    return Auth(remote, keys.recover(_xor(key.agree(remote), nonce), signature), nonce)


def derive_secrets(shared: bytes, initiator: bytes, recipient: bytes) -> tuple[bytes, bytes]:
    """Derive the AES and the MAC secret from the ephemeral shared secret and both nonces (rlpx.md, "Handshake")."""
    session = keccak(shared + keccak(recipient + initiator))
    aes = keccak(shared + session)
    return aes, keccak(shared + aes)


def _seal_packet(remote: bytes, fields: list[bytes | int], dice: Dice) -> bytes:
    plain = rlp.encode(fields) + bytes(_MIN_PADDING_BYTES + dice.draw(1)[0] % _MIN_PADDING_BYTES)
    prefix = (len(plain) + ecies.OVERHEAD_BYTES).to_bytes(2, "big")
    return prefix + ecies.encrypt(
        remote, plain, ephemeral=new_key(dice), iv=dice.draw(ecies.IV_BYTES), authenticated=prefix
    )


def _open_packet(key: Key, packet: bytes, min_items: int) -> list[rlp.Item]:
    fields = rlp.items(rlp.decode(ecies.decrypt(key, packet[2:], packet[:2]), tail=True))
    if len(fields) < min_items:
        raise PeerError(BREACH, f"a handshake packet has at least {min_items} items, not {len(fields)}")
    return fields


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(len(a), "big")


# ── Frames ───────────────────────────────────────────────────────────────────────────────────────
# Each direction has one cipher and one running hash (devp2p, rlpx.md "Framing").
#
#     wire   = header(16) ‖ header MAC(16) ‖ frame, padded with zeros to a multiple of 16 ‖ frame MAC(16)
#     header = bytes of the frame(3) ‖ C2 80 80 ‖ zeros
#
# Headers and frames are encrypted with one AES-256-CTR stream that never restarts. The MACs cover the ciphertext and
# are verified before it is decrypted.

HEADER_BYTES: Final = 32
"""Size of a header with its MAC in bytes."""
MAC_BYTES: Final = 16
BLOCK_BYTES: Final = 16

MAX_FRAME_BYTES: Final = 0xFFFFFF
"""Maximum size of a frame in bytes: the header has three bytes for the size."""

_HEADER_DATA: Final = b"\xc2\x80\x80" + bytes(10)
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
        sealed = self._encrypt(b"".join((size.to_bytes(3, "big"), _HEADER_DATA, frame, _PADDING[size % BLOCK_BYTES])))
        header, body = sealed[:BLOCK_BYTES], sealed[BLOCK_BYTES:]
        return b"".join((header, self._egress.add_header(header), body, self._egress.add_frame(body)))

    def seal_pieces(self, head: bytes, body: memoryview) -> bytearray:
        """Return a large frame of two pieces in its form on the wire, without copying the pieces.

        Raises OverflowError.
        """
        size = len(head) + len(body)
        wire = bytearray(HEADER_BYTES + frame_length(size))
        out = memoryview(wire)
        out[:BLOCK_BYTES] = header = self._encrypt(size.to_bytes(3, "big") + _HEADER_DATA)
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


def frame_length(size: int) -> int:
    """Return the bytes that a frame of this size takes on the wire after its header."""
    return size + -size % BLOCK_BYTES + MAC_BYTES


# ── Connection ───────────────────────────────────────────────────────────────────────────────────

MAX_FIRST_FRAME_BYTES: Final = 2048 + 1
"""Maximum size of the first frame in bytes: a Hello and its message id (geth p2p/peer.go, baseProtocolMaxMsgSize)."""

DEFAULT_PACKET_BYTES: Final = 10 * 1024 * 1024
"""Default maximum size of a packet in bytes, before compression (status-go waku/common/const.go: MaxMessageSize)."""


def max_frame_bytes(plain: int) -> int:
    """Return the bytes that a frame may need for a packet of this size: its message id, and snappy's worst case.

    The result is at most the maximum size of a frame (snappy.cc, MaxCompressedLength).
    """
    return min(2 + 32 + plain + plain // 6, MAX_FRAME_BYTES)


class Rlpx:
    """One end of an RLPx connection."""

    __slots__ = (
        "_buffer",
        "_dice",
        "_frames",
        "_key",
        "_max_frame_bytes",
        "_needed_bytes",
        "_output",
        "_prefix",
        "_sent_auth",
        "_size",
        "_state",
        "remote",
        "violation",
    )

    def __init__(self, key: Key, dice: Dice, cap: int) -> None:
        """Initialize one end. Use `initiator` or `recipient` instead."""
        self.remote = b""
        """The peer's public key. The recipient learns it from the auth packet."""
        self.violation: PeerError | None = None
        """The peer's violation of the protocol, or None. It follows the frames returned so far, and nothing follows
        it."""
        self._key = key
        self._dice: Dice | None = dice
        self._sent_auth: SentAuth | None = None
        self._frames: Frames | None = None
        self._output = b""
        self._buffer: bytes | bytearray = b""
        self._prefix = b""
        self._state: Callable[[Rlpx, bytes], bytes | None] = Rlpx._receive_prefix
        self._needed_bytes = PREFIX_BYTES
        self._size = 0
        self._max_frame_bytes = cap

    @classmethod
    def initiator(
        cls, key: Key, remote: bytes, dice: Dice, *, cap: int = max_frame_bytes(DEFAULT_PACKET_BYTES)
    ) -> Rlpx:
        """Return the end that dials. Frames have up to `cap` bytes.

        Raises PeerError if `remote` is not a public key.
        """
        self = cls(key, dice, cap)
        self.remote = remote
        self._sent_auth = start_handshake(key, remote, dice)
        self._output = self._sent_auth.packet
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
    def buffered_bytes(self) -> int:
        """Number of bytes received of an incomplete frame."""
        return len(self._buffer)

    def data_to_send(self) -> bytes:
        """Return the handshake's bytes to send. They must be written before any sealed frame."""
        out, self._output = self._output, b""
        return out

    def seal(self, frame: bytes) -> bytes:
        """Encrypt a frame. Frames must be written in the order of these calls, and only after the handshake."""
        assert self._frames
        return self._frames.seal(frame)

    def seal_pieces(self, head: bytes, body: memoryview) -> bytearray:
        """Encrypt a large frame of two pieces. The same rules apply as for `seal`."""
        assert self._frames
        return self._frames.seal_pieces(head, body)

    def receive_data(self, data: bytes | bytearray) -> list[bytes]:
        """Process received bytes, split anywhere. Return the frames that they complete, each with its MAC verified.

        Check `violation` afterwards. At most one frame is buffered, besides the data of this call.
        """
        frames: list[bytes] = []
        if self.violation:
            return frames
        # Data that ends with a complete frame is not copied. Remaining bytes are kept in a bytearray, which grows in
        # place.
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= self._needed_bytes:
                stop = at + self._needed_bytes
                frame = self._state(self, bytes(buffer[at:stop]))
                at = stop
                if frame:
                    frames.append(frame)
        except PeerError as violation:
            self.violation = violation
            at = len(buffer)
        if at == len(buffer):
            self._buffer = b""
        elif at or isinstance(buffer, bytes):
            self._buffer = bytearray(buffer[at:])
        return frames

    # The states. Each receives the bytes that it needs, sets the next state, and returns a frame if it completed one.

    def _receive_prefix(self, prefix: bytes) -> None:
        self._needed_bytes = handshake_size(prefix) + 2 - len(prefix)
        self._prefix = prefix
        self._state = Rlpx._receive_ack if self._sent_auth else Rlpx._receive_auth

    def _receive_auth(self, rest: bytes) -> None:
        assert self._dice
        self.remote, self._output, secrets = answer_handshake(self._key, self._prefix + rest, self._dice)
        self._begin_frames(secrets)

    def _receive_ack(self, rest: bytes) -> None:
        assert self._sent_auth
        self._begin_frames(finish_handshake(self._key, self._sent_auth, self._prefix + rest))

    def _begin_frames(self, secrets: Secrets) -> None:
        self._frames = Frames(secrets)
        self._prefix, self._sent_auth, self._dice = b"", None, None
        self._state, self._needed_bytes = Rlpx._receive_header, HEADER_BYTES

    def _receive_header(self, wire: bytes) -> None:
        assert self._frames
        size = self._frames.open_header(wire)
        is_hello = not self._size
        cap = min(MAX_FIRST_FRAME_BYTES, self._max_frame_bytes) if is_hello else self._max_frame_bytes
        if not 0 < size <= cap:
            raise PeerError(BREACH, f"a frame has 1 to {cap} bytes here, not {size}")
        self._size = size
        self._state, self._needed_bytes = Rlpx._receive_body, frame_length(size)

    def _receive_body(self, wire: bytes) -> bytes:
        assert self._frames
        self._state, self._needed_bytes = Rlpx._receive_header, HEADER_BYTES
        return self._frames.open(wire, self._size)
