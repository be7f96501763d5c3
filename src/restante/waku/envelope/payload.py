"""Sealing and opening of payloads, the data of an envelope (7/WAKU-DATA, as status-go ships it).

    plain = flags(1) ‖ size of the payload(1-3, little-endian) ‖ payload ‖ padding ‖ [signature(65)]

    flags: 03 number of bytes of the size · 04 signed

    data, symmetric  = AES-256-GCM(key, nonce, plain) ‖ tag(16) ‖ nonce(12)
    data, asymmetric = ECIES(public key, plain)                             see restante.waku.envelope.ecies

The signature signs the hash of everything before it. Its last byte is 0 or 1. 7/WAKU-DATA says 27 or 28, but
status-go accepts only 0 or 1 (waku/common/message.go, SigToPubKey). Padding hides the size of the payload. By default
it is random and makes `plain` a multiple of 256 bytes.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from restante.common.dice import Dice
from restante.common.errors import Misuse, PeerError
from restante.waku.envelope import ecies
from restante.waku.envelope.envelope import TOPIC
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.keys import PUBLIC_BYTES, SIGNATURE_BYTES, Key, new_key, recover
from restante.waku.envelope.rlp import BREACH

MAX_PAYLOAD_BYTES: Final = (1 << 24) - 1
"""Maximum size of a payload in bytes. A larger one needs a size of four bytes, which the two bits of the flags cannot
express."""

PADDING_BLOCK_BYTES: Final = 256
"""Padding extends `plain` to a multiple of this many bytes (waku/common/const.go, padSizeLimit)."""

SYMMETRIC_KEY_BYTES: Final = 32
"""Size of a symmetric key in bytes."""

PBKDF2_ROUNDS: Final = 65356
"""Rounds of PBKDF2 for keys derived from passwords. status-go ships 65356, not 65536, and every existing key was
derived with it."""

_SIZE_OF_SIZE: Final = 0x03
_SIGNED: Final = 0x04
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class WrongKeyError(PeerError):
    """The data was sealed with another key or altered; decryption cannot distinguish the two.

    Another key may open it.
    """

    def __init__(self) -> None:
        super().__init__(BREACH, "the data was sealed with another key, or altered")


class UnreadableError(PeerError):
    """The key is right, but the plaintext is not a payload or its signature is not valid. No other key will help."""

    def __init__(self, text: str) -> None:
        super().__init__(BREACH, text)


class SymmetricKey:
    """A key that sender and receiver share. Raises Misuse if it is not 32 bytes."""

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SYMMETRIC_KEY_BYTES:
            raise Misuse(f"a symmetric key has {SYMMETRIC_KEY_BYTES} bytes, not {len(secret)}")
        self.secret: Final = secret

    @classmethod
    def from_password(cls, password: str) -> SymmetricKey:
        """Derive the key of a password or of a public chat's name (waku/waku.go, AddSymKeyFromPassword).

        It takes tens of milliseconds, so keep the result. Raises Misuse if it is not UTF-8.
        """
        return cls(hashlib.pbkdf2_hmac("sha256", _utf8(password), b"", PBKDF2_ROUNDS, SYMMETRIC_KEY_BYTES))


class Opened(NamedTuple):
    """The contents of an envelope's data."""

    payload: bytes
    signer: bytes | None
    """The signer's public key, 64 bytes; None if it is not signed."""
    padding: bytes


def topic_of(channel: str) -> bytes:
    """Return the topic of a public chat: the first bytes of the hash of its name.

    Raises Misuse if it is not UTF-8.
    """
    return keccak(_utf8(channel))[:TOPIC]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Misuse("a password or a name has characters that cannot be written as UTF-8") from None


# ── Sealing ──────────────────────────────────────────────────────────────────────────────────────


def seal(
    payload: bytes, *, to: SymmetricKey | bytes, dice: Dice, sign: Key | None = None, padding: bytes | None = None
) -> bytes:
    """Return a sealed payload, the data of an envelope.

    `to` is the symmetric key, or the receiver's public key of 64 bytes. `sign` is the sender's key; only the receiver
    can read the signature. `padding` replaces the default padding; b"" is none. Raises Misuse for a payload of 16 MiB
    or more, and for an invalid public key.
    """
    plain = _plaintext(payload, sign, padding, dice)
    if isinstance(to, SymmetricKey):
        nonce = dice.draw(_NONCE_BYTES)
        return AESGCM(to.secret).encrypt(nonce, plain, None) + nonce
    if len(to) != PUBLIC_BYTES:
        raise Misuse(f"a public key has {PUBLIC_BYTES} bytes, not {len(to)}")
    try:
        return ecies.encrypt(to, plain, ephemeral=new_key(dice), iv=dice.draw(ecies.IV_BYTES))
    except PeerError as error:
        raise Misuse(error.text) from None


def _plaintext(payload: bytes, sign: Key | None, padding: bytes | None, dice: Dice) -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise Misuse(f"a payload has up to {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    size = max(1, (len(payload).bit_length() + 7) // 8)  # 1 even if it is empty (getSizeOfPayloadSizeField)
    flags = size | (_SIGNED if sign else 0)
    plain = bytes((flags,)) + len(payload).to_bytes(size, "little") + payload
    if padding is None:
        # If `plain` is a multiple already, add a whole block (message.go, appendPadding).
        padding = dice.draw(
            PADDING_BLOCK_BYTES - (len(plain) + (SIGNATURE_BYTES if sign else 0)) % PADDING_BLOCK_BYTES
        )
    plain += padding
    return plain + sign.sign(keccak(plain)) if sign else plain


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────


def open_sealed(data: bytes, *keys: SymmetricKey | Key) -> Opened:
    """Open the data of an envelope with the first key that fits.

    Raises only WrongKeyError and UnreadableError, which are PeerErrors.
    """
    for key in keys:
        with suppress(WrongKeyError):
            return _parse_plaintext(_decrypt(data, key))
    raise WrongKeyError


def _decrypt(data: bytes, key: SymmetricKey | Key) -> bytes:
    try:
        if isinstance(key, Key):
            return ecies.decrypt(key, data)
        if len(data) >= _TAG_BYTES + _NONCE_BYTES:
            return AESGCM(key.secret).decrypt(data[-_NONCE_BYTES:], data[:-_NONCE_BYTES], None)
    except (PeerError, InvalidTag):
        pass
    raise WrongKeyError


def _parse_plaintext(plain: bytes) -> Opened:
    """Parse the plaintext as status-go does (waku/common/message.go, ValidateAndParse)."""
    if not plain:
        raise UnreadableError("the sealed payload is empty")
    flags, signer, end = plain[0], None, len(plain)
    if flags & _SIGNED:
        end -= SIGNATURE_BYTES
        if end <= 1:
            raise UnreadableError("the sealed payload ends before its signature")
        try:
            signer = recover(keccak(plain[:end]), plain[end:])
        except PeerError as error:
            raise UnreadableError(error.text) from None
    start = 1 + (flags & _SIZE_OF_SIZE)  # a size of 0 bytes means an empty payload
    stop = start + int.from_bytes(plain[1:start], "little")
    if stop > end:
        raise UnreadableError("the sealed payload is shorter than its length says")
    return Opened(plain[start:stop], signer, plain[stop:end])
