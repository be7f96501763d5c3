"""Sealing and opening, against other libraries in both directions."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from Crypto.Cipher import AES
from Crypto.Hash import keccak as crypto_keccak
from Crypto.Util import Counter
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse, PeerError
from restante.waku.envelope import ecies
from restante.waku.envelope.keys import Key
from restante.waku.envelope.payload import (
    MAX_PAYLOAD_BYTES,
    Opened,
    SymmetricKey,
    UnreadableError,
    WrongKeyError,
    open_sealed,
    password_key,
    seal,
    topic_of,
)
from support.dice import Seeded
from support.effort import examples
from support.vectors import load
from support.waku.fixed import KEY, OTHER_KEY

SHARED = SymmetricKey(bytes(range(32)))
SIGNED = 0x04

EDGES = (0, 1, 188, 189, 190, 252, 253, 254, 255, 256, 257, 65535, 65536, 65537)
"""Sizes of payloads around which their size takes another byte, or the padding another block."""

payloads = st.binary(max_size=600) | st.sampled_from(EDGES).map(bytes)
paddings = st.none() | st.binary(max_size=300)
signers = st.sampled_from((None, KEY))


def gcm_open(data: bytes) -> bytes:
    """Decrypt with another library."""
    cipher = AES.new(SHARED.secret, AES.MODE_GCM, nonce=data[-12:])
    return cipher.decrypt_and_verify(data[:-28], data[-28:-12])


def gcm_seal(plain: bytes) -> bytes:
    cipher = AES.new(SHARED.secret, AES.MODE_GCM, nonce=bytes(12))
    return b"".join(cipher.encrypt_and_digest(plain)) + bytes(12)


def ecies_open(data: bytes) -> bytes:
    """Decrypt with another library, from the layout alone."""
    curve = ec.SECP256K1()
    point = ec.EllipticCurvePublicKey.from_encoded_point(curve, data[:65])
    shared = ec.derive_private_key(int.from_bytes(KEY.secret, "big"), curve).exchange(ec.ECDH(), point)
    derived = hashlib.sha256(b"\0\0\0\1" + shared).digest()
    sealed, mac = data[65:-32], data[-32:]
    assert hmac.new(hashlib.sha256(derived[16:]).digest(), sealed, "sha256").digest() == mac
    counter = Counter.new(128, initial_value=int.from_bytes(sealed[:16], "big"))
    return AES.new(derived[:16], AES.MODE_CTR, counter=counter).decrypt(sealed[16:])


def keccak(data: bytes) -> bytes:
    return crypto_keccak.new(data=data, digest_bits=256).digest()


def verify(public: bytes, plain: bytes) -> None:
    """Check the signature at the end with another library. Raises what that raises."""
    signed, r, s = plain[:-65], plain[-65:-33], plain[-33:-1]
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), b"\4" + public)
    signature = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
    key.verify(signature, keccak(signed), ec.ECDSA(Prehashed(hashes.SHA256())))  # any hash of 32 bytes


def test_password_keys_and_topics_are_those_of_the_vectors() -> None:
    for vector in load("passwords"):
        assert password_key(vector["password"]).hex().startswith(vector["key"])
        assert SymmetricKey.from_password(vector["password"]).secret == password_key(vector["password"])
        if "topic" in vector:
            assert topic_of(vector["password"]).hex() == vector["topic"]
    for function in (password_key, topic_of):
        with pytest.raises(Misuse, match="UTF-8"):
            function("\udcff")


def test_a_key_that_is_none_is_misuse() -> None:
    for size in (0, 31, 33):
        with pytest.raises(Misuse, match=f"32 bytes, not {size}"):
            SymmetricKey(bytes(size))
    for public in (b"", bytes(64), bytes(63), b"\4" + KEY.public, SHARED.secret):
        with pytest.raises(Misuse, match="public key"):
            seal(b"x", to=public, dice=Seeded(1))


def test_sizes_are_those_that_were_captured() -> None:
    for vector in load("sealed"):
        payload = bytes.fromhex(vector["payload"])
        data = seal(payload, to=SHARED, sign=KEY if vector["signed"] else None, dice=Seeded(1))
        plain = gcm_open(data)
        assert (plain[:1].hex(), len(plain), len(data)) == (vector["flags"], vector["plain"], vector["data"])


@pytest.mark.parametrize("sign", [None, KEY], ids=["unsigned", "signed"])
def test_a_payload_has_the_specified_layout(sign: Key | None) -> None:
    dice, ends = Seeded(1), set()
    for size in EDGES:
        payload = bytes([7]) * size
        data = seal(payload, to=SHARED, sign=sign, dice=dice)
        plain = gcm_open(data)
        of_size = 1 if size < 256 else 2 if size < 65536 else 3
        assert plain[0] == of_size | (SIGNED if sign else 0)
        assert plain[1 : 1 + of_size] == size.to_bytes(of_size, "little")
        assert plain[1 + of_size :][:size] == payload
        padding = len(plain) - 1 - of_size - size - (65 if sign else 0)
        assert len(plain) % 256 == 0
        assert 1 <= padding <= 256, "a full block, if the size already fits"
        assert data[-12:] != seal(payload, to=SHARED, sign=sign, dice=dice)[-12:]
        if sign:
            verify(sign.public, plain)
            ends.add(plain[-1])
    assert ends == ({0, 1} if sign else set())


def test_a_payload_of_16_mib_is_misuse_and_one_byte_less_is_not() -> None:
    assert MAX_PAYLOAD_BYTES == 16 * 1024 * 1024 - 1
    with pytest.raises(Misuse, match="16777215 bytes, not 16777216"):
        seal(bytes(MAX_PAYLOAD_BYTES + 1), to=SHARED, dice=Seeded(1))
    data = seal(bytes(MAX_PAYLOAD_BYTES), to=SHARED, dice=Seeded(1))
    assert open_sealed(data, SHARED).payload == bytes(MAX_PAYLOAD_BYTES)


@given(st.sampled_from((SHARED, KEY)), payloads, signers, paddings)
@examples(200)
def test_a_sealed_payload_opens_with_its_key_alone(
    key: SymmetricKey | Key, payload: bytes, sign: Key | None, padding: bytes | None
) -> None:
    to = key if isinstance(key, SymmetricKey) else key.public
    data = seal(payload, to=to, sign=sign, padding=padding, dice=Seeded(1))
    opened = open_sealed(data, key)
    assert (opened.payload, opened.signer) == (payload, sign.public if sign else None)
    assert padding is None or opened.padding == padding
    plain = gcm_open(data) if key is SHARED else ecies_open(data)
    assert plain[2 + (len(payload) > 255) + (len(payload) > 65535) :].startswith(payload)
    for other in (KEY if key is SHARED else SHARED, SymmetricKey(bytes(32)), OTHER_KEY):
        with pytest.raises(WrongKeyError):
            open_sealed(data, other)


def signed(plain: bytes, *, end: int = 0) -> bytes:
    signature = KEY.sign(keccak(plain))
    return plain + signature[:-1] + bytes([signature[-1] + end])


@pytest.mark.parametrize(
    ("plain", "opened"),
    [
        (b"\x00abc", Opened(b"", None, b"abc")),
        (b"\x01\x02abc", Opened(b"ab", None, b"c")),
        (b"\x02\x02\x00abc", Opened(b"ab", None, b"c")),
        (b"\x03\x03\x00\x00abc", Opened(b"abc", None, b"")),
        (b"\xf9\x02abc", Opened(b"ab", None, b"c")),  # other flags mean nothing
        (signed(b"\x05\x02abc"), Opened(b"ab", KEY.public, b"c")),
        (signed(b"\x04a"), Opened(b"", KEY.public, b"a")),
    ],
)
def test_every_valid_layout_opens(plain: bytes, opened: Opened) -> None:
    assert open_sealed(gcm_seal(plain), SHARED) == opened
    assert open_sealed(ecies.encrypt(KEY.public, plain, ephemeral=OTHER_KEY, iv=bytes(16)), KEY) == opened


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (b"", "payload is empty"),
        (b"\x01\x01", "shorter than its length"),
        (b"\x02\x00\x01abc", "shorter than its length"),
        (b"\x03\x01\x00", "shorter than its length"),
        (b"\x04", "before its signature"),
        (signed(b"\x04"), "before its signature"),
        (b"\x05" + bytes(64), "before its signature"),
        (signed(b"\x05\x02a"), "shorter than its length"),  # it would reach into the signature
        (signed(b"\x05\x01a", end=27), "signature"),  # 7/WAKU-DATA has it so, status-go refuses it
        (signed(b"\x05\x01a", end=2), "signature"),
        (b"\x05\x01a" + b"\xff" * 64 + b"\x00", "signature"),
    ],
)
def test_every_invalid_layout_is_unreadable(plain: bytes, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        open_sealed(gcm_seal(plain), SHARED)


@given(st.sampled_from((SHARED, KEY)), st.data())
@examples(200)
def test_an_altered_payload_does_not_open(key: SymmetricKey | Key, data: st.DataObject) -> None:
    to = key if isinstance(key, SymmetricKey) else key.public
    whole = seal(b"held until called for", to=to, sign=OTHER_KEY, dice=Seeded(1))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    for altered in (whole[:at] + flipped + whole[at + 1 :], whole[:at], whole[:at] + whole[at + 1 :], whole + b"\0"):
        with pytest.raises(WrongKeyError):
            open_sealed(altered, key)


@given(st.binary(max_size=400) | st.integers(0, ecies.OVERHEAD_BYTES).map(lambda size: b"\4" * size))
@examples(300)
def test_any_sealed_bytes_open_or_raise_a_peer_error(plain: bytes) -> None:
    for sealed, key in ((plain, SHARED), (plain, KEY), (gcm_seal(plain), SHARED)):
        try:
            opened = open_sealed(sealed, key)
        except PeerError:
            continue
        assert opened.payload + opened.padding in plain
