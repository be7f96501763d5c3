"""RLP and the envelope: its bytes, its name and its work; sealing and opening of what is in it."""

from __future__ import annotations

import hashlib
import hmac
import math
from typing import Any

import pytest
import rlp as oracle
from Crypto.Cipher import AES
from Crypto.Hash import keccak as crypto_keccak
from Crypto.Util import Counter
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from rlp.sedes import List, big_endian_int, binary

from restante.common.errors import Misuse, PeerError
from restante.waku.envelope import ecies, rlp
from restante.waku.envelope.envelope import Envelope, cut, make, parse
from restante.waku.envelope.keys import Key
from restante.waku.envelope.mining import EXTRA_TTL_SECONDS, NotMined, average_hashes, mine
from restante.waku.envelope.payload import (
    MAX_PAYLOAD_BYTES,
    Opened,
    SymmetricKey,
    UnreadableError,
    WrongKeyError,
    open_sealed,
    seal,
    topic_of,
)
from restante.waku.envelope.rlp import RlpError
from restante.waku.protocol.acceptance import MAX_CLOCK_AHEAD_SECONDS, Policy, judge
from support.dice import Seeded
from support.effort import examples
from support.mutation import mutated
from support.vectors import load
from support.waku.letters import KEY, OTHER_KEY
from support.waku.strategies import ITEMS, U32, U64, envelopes, nonces, times, topics

VECTORS = load("rlp")

items = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=6), max_leaves=40)


def unhex(item: Any) -> Any:
    """Read an item as the vectors write it: 0x… is bytes, other text is itself."""
    if isinstance(item, list):
        return [unhex(part) for part in item]
    if isinstance(item, str):
        return bytes.fromhex(item[2:]) if item.startswith("0x") else item.encode()
    return item


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: vector["rlp"][:20])
def test_the_examples_of_the_specification_are_written_and_read(vector: dict[str, Any]) -> None:
    item, wire = unhex(vector["item"]), bytes.fromhex(vector["rlp"])
    assert rlp.encode(item) == wire
    assert rlp.decode(wire) == oracle.decode(wire)


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: vector["rlp"][:20] or "nothing")
def test_non_canonical_rlp_is_refused(vector: dict[str, str]) -> None:
    with pytest.raises(RlpError, match=vector["words"]):
        rlp.decode(bytes.fromhex(vector["rlp"]))


@given(items, st.integers(0, 2**72))
def test_items_and_numbers_are_written_as_the_library_writes_them_and_read_back(item: Any, number: int) -> None:
    assert rlp.encode(item) == oracle.encode(item)
    assert rlp.decode(rlp.encode(item)) == item
    wire = rlp.encode(number)
    assert wire == oracle.encode(number)
    assert rlp.uint(rlp.decode(wire), 80) == number


@given(st.binary(max_size=200) | mutated(items.map(rlp.encode)), st.binary(min_size=1, max_size=9))
def test_the_library_and_the_reader_accept_the_same_bytes_and_a_tail_only_where_it_is_allowed(
    wire: bytes, tail: bytes
) -> None:
    try:
        expected = oracle.decode(wire)
    except oracle.DecodingError:
        with pytest.raises(RlpError):
            rlp.decode(wire)
        return
    assert rlp.decode(wire) == rlp.decode(wire + tail, tail=True) == expected
    with pytest.raises(RlpError):
        rlp.decode(wire + tail)


def test_lists_may_be_nested_up_to_the_maximum_depth() -> None:
    item: Any = []
    for _ in range(rlp.MAX_DEPTH - 1):
        item = [item]
    assert rlp.decode(rlp.encode(item)) == item


def digest(data: bytes) -> bytes:
    return crypto_keccak.new(data=data, digest_bits=256).digest()


def test_envelopes_are_those_of_the_vectors() -> None:
    for vector in load("envelopes"):
        topic, data, raw = (bytes.fromhex(vector[name]) for name in ("topic", "data", "rlp"))
        made = make(vector["expiry"], vector["ttl"], topic, data, vector["nonce"])
        assert made == parse(raw)
        assert made.raw == raw
        assert made.hash.hex() == vector["hash"]
        assert (made.data, made.sent, made.size()) == (data, vector["sent"], vector["size"])
        assert len(made.bare) == vector["bare"]
        assert made.pow() == vector["pow"]


def fields(envelope: Envelope) -> tuple[Any, ...]:
    return envelope.expiry, envelope.ttl, envelope.topic, envelope.data, envelope.nonce


def check(raw: bytes) -> None:
    try:
        expiry, ttl, topic, data, nonce = rlp.items(rlp.decode(raw), 5)
        wanted = (
            rlp.uint(expiry, 32),
            rlp.uint(ttl, 32),
            rlp.string(topic, 4),
            rlp.string(data),
            rlp.uint(nonce, 64),
        )
    except RlpError:
        with pytest.raises(RlpError):
            parse(raw)
        return
    envelope = parse(raw)
    assert fields(envelope) == wanted
    assert (envelope.raw, envelope.hash) == (raw, digest(raw))
    assert envelope == make(*wanted)
    packet = rlp.pack([b"\xc0", raw, b"\xc0"])
    assert cut(packet, list(rlp.walk(packet, rlp.item_span(packet)))[1]) == envelope


@given(envelopes)
@examples(150)
def test_an_envelope_is_read_as_it_was_made(envelope: Envelope) -> None:
    check(envelope.raw)
    assert parse(envelope.raw) == envelope
    sedes = List([big_endian_int, big_endian_int, binary, binary, big_endian_int])
    assert tuple(oracle.decode(envelope.raw, sedes)) == fields(envelope)
    assert oracle.encode(list(fields(envelope))) == envelope.raw


GOOD = (b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84abcd", b"\x83abc", b"\x07")


def test_every_item_in_every_place_is_read_as_the_general_reader_reads_it() -> None:
    for items in (GOOD[:4], (*GOOD, b"\x07"), (*GOOD[:2], b"\x84ab")):
        check(rlp.pack(items))
    for at in range(len(GOOD)):
        for item in ITEMS:
            check(rlp.pack([*GOOD[:at], item, *GOOD[at + 1 :]]))
    raw = rlp.pack(GOOD)
    for broken in (*(raw[:size] for size in range(len(raw))), *(raw + tail for tail in (b"\0", b"\x80", raw))):
        with pytest.raises(PeerError):
            parse(broken)


short = st.builds(make, times, times, topics, st.binary(max_size=9), nonces).map(lambda envelope: envelope.raw)


@given(mutated(short) | st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: b"\xd0" + tail))
@examples(400)
def test_any_bytes_are_read_as_the_general_reader_reads_them(data: bytes) -> None:
    check(data)


def test_an_envelope_with_fields_out_of_range_is_refused() -> None:
    for bad in (
        *((-1, 0, b"abcd", b"", 0), (1 << 32, 0, b"abcd", b"", 0), (0, -1, b"abcd", b"", 0)),
        *((0, 1 << 32, b"abcd", b"", 0), (0, 0, b"abc", b"", 0), (0, 0, b"abcde", b"", 0)),
        *((0, 0, b"abcd", b"", -1), (0, 0, b"abcd", b"", 1 << 64)),
    ):
        with pytest.raises(Misuse):
            make(*bad)
    make(U32, U32, b"abcd", b"", U64)


@given(envelopes, st.integers(0, 11))
@examples(150)
def test_work_is_that_of_the_bytes_before_the_nonce(envelope: Envelope, late: int) -> None:
    expiry, ttl, topic, data, nonce = fields(envelope)
    bare = oracle.encode([expiry, ttl, topic, data])
    assert envelope.bare == bare
    zeros = len(bits := f"{int.from_bytes(digest(bare + nonce.to_bytes(8, 'big'))):0256b}") - len(bits.lstrip("0"))
    seconds = ttl + late
    assert envelope.pow(late) == (2.0**zeros / len(bare) / seconds if seconds else math.inf)
    assert envelope.size() == 20 + len(data)
    assert envelope.sent == (expiry - ttl) % (1 << 32)


NOW = 1_600_000_000
ENVELOPE = make(NOW + 50, 50, b"abcd", bytes(284))


def with_nonce(envelope: Envelope, nonce: int) -> Envelope:
    return make(envelope.expiry, envelope.ttl, envelope.topic, envelope.data, nonce)


def one_by_one(envelope: Envelope, least: float, start: int, late: int) -> Envelope:
    nonce = start
    while (made := with_nonce(envelope, nonce)).pow(late) < least:
        nonce = (nonce + 1) % (1 << 64)
    return made


@given(
    st.integers(1, 1000),
    st.binary(max_size=400),
    st.sampled_from((0.0, 1e-6, 1e-4, 1e-3, 1e-2)),
    st.integers(0, (1 << 64) - 1) | st.just((1 << 64) - 1),
    st.sampled_from((0, 1, EXTRA_TTL_SECONDS)),
)
@examples(40)
def test_the_first_sufficient_nonce_from_the_start_is_found(
    ttl: int, data: bytes, least: float, start: int, late: int
) -> None:
    envelope = make(NOW, ttl, b"abcd", data, 12345)
    if average_hashes(envelope, least, late=late) <= 1 << 9:
        mined = mine(envelope, least, start=start, late=late)
        assert mined == one_by_one(envelope, least, start, late)
        assert mined.pow() >= mined.pow(late) >= least


def test_a_spent_budget_returns_the_best_nonce_found() -> None:
    first = one_by_one(ENVELOPE, 2e-3, 0, EXTRA_TTL_SECONDS)
    assert mine(ENVELOPE, 2e-3, start=0, budget=first.nonce + 1) == first
    with pytest.raises(NotMined, match=f"in {first.nonce} hashes.*shorten the ttl") as spent:
        mine(ENVELOPE, 2e-3, start=0, budget=first.nonce)
    tried = [with_nonce(ENVELOPE, number) for number in range(first.nonce)]
    assert spent.value.best in tried
    assert spent.value.best.pow() == max(envelope.pow() for envelope in tried)
    assert isinstance(spent.value, Misuse)
    with pytest.raises(NotMined):
        mine(ENVELOPE, 2e-3, start=0, budget=0)


def test_an_envelope_with_no_time_to_live_needs_work_only_where_it_may_be_early() -> None:
    envelope = make(NOW, 0, b"abcd", b"x")
    assert mine(envelope, 1e9, start=5, budget=1, late=0) == with_nonce(envelope, 5)
    assert average_hashes(envelope, 1e9, late=0) == 1
    with pytest.raises(NotMined):
        mine(envelope, 1e9, start=5, budget=1)


def test_a_mined_envelope_is_accepted_by_a_peer_whose_clock_is_behind() -> None:
    policy = Policy(min_pow=2e-3)
    for behind in (0, 1, MAX_CLOCK_AHEAD_SECONDS):
        verdict = judge(mine(ENVELOPE, policy.min_pow, start=0), NOW - behind, policy)
        assert verdict.refusal is None
        assert verdict.pow >= policy.min_pow


def test_mining_takes_as_many_hashes_as_estimated_and_twice_the_bytes_or_seconds_is_twice_the_work() -> None:
    bare = len(ENVELOPE.bare)
    for least, needed in ((1 / (bare * 50), 1), (2 / (bare * 50), 2), (2.1 / (bare * 50), 4)):
        assert average_hashes(ENVELOPE, least, late=0) == needed
    assert average_hashes(ENVELOPE, 1024 / (bare * 61)) == 1024
    assert average_hashes(ENVELOPE, 0.0) == 1
    short, long = make(NOW, 200, b"abcd", bytes(1000)), make(NOW, 200, b"abcd", bytes(4000))
    assert average_hashes(long, 0.01) == 4 * average_hashes(short, 0.01)
    assert average_hashes(ENVELOPE, 2e-3) == 64
    start, rounds = 0, 200
    for _ in range(rounds):
        start = mine(ENVELOPE, 2e-3, start=start).nonce + 1
    assert math.isclose(start / rounds, 64, rel_tol=0.25)


SHARED = SymmetricKey(bytes(range(32)))

EDGES = (0, 1, 188, 189, 190, 252, 253, 254, 255, 256, 257, 65535, 65536, 65537)
"""Sizes of sealed_payloads around which their size takes another byte, or the padding another block."""

sealed_payloads = st.binary(max_size=600) | st.sampled_from(EDGES).map(bytes)


def gcm_open(data: bytes) -> bytes:
    cipher = AES.new(SHARED.secret, AES.MODE_GCM, nonce=data[-12:])
    return cipher.decrypt_and_verify(data[:-28], data[-28:-12])


def gcm_seal(plain: bytes) -> bytes:
    cipher = AES.new(SHARED.secret, AES.MODE_GCM, nonce=bytes(12))
    return b"".join(cipher.encrypt_and_digest(plain)) + bytes(12)


def ecies_open(data: bytes) -> bytes:
    curve = ec.SECP256K1()
    point = ec.EllipticCurvePublicKey.from_encoded_point(curve, data[:65])
    shared = ec.derive_private_key(int.from_bytes(KEY.secret, "big"), curve).exchange(ec.ECDH(), point)
    derived = hashlib.sha256(b"\0\0\0\1" + shared).digest()
    sealed, mac = data[65:-32], data[-32:]
    assert hmac.new(hashlib.sha256(derived[16:]).digest(), sealed, "sha256").digest() == mac
    counter = Counter.new(128, initial_value=int.from_bytes(sealed[:16], "big"))
    return AES.new(derived[:16], AES.MODE_CTR, counter=counter).decrypt(sealed[16:])


def verify(public: bytes, plain: bytes) -> None:
    signed, r, s = plain[:-65], plain[-65:-33], plain[-33:-1]
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), b"\4" + public)
    signature = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
    key.verify(signature, digest(signed), ec.ECDSA(Prehashed(SHA256())))  # any hash of 32 bytes


def test_password_keys_and_topics_are_those_of_the_vectors() -> None:
    for vector in load("passwords"):
        assert SymmetricKey.from_password(vector["password"]).secret.hex().startswith(vector["key"])
        if "topic" in vector:
            assert topic_of(vector["password"]).hex() == vector["topic"]
    for function in (SymmetricKey.from_password, topic_of):
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
        assert plain[0] == of_size | (0x04 if sign else 0)
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


@given(
    st.sampled_from((SHARED, KEY)), sealed_payloads, st.sampled_from((None, KEY)), st.none() | st.binary(max_size=300)
)
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
    signature = KEY.sign(digest(plain))
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
    ("plain", "text"),
    [
        (b"", "payload is empty"),
        (b"\x01\x01", "shorter than its length"),
        (b"\x03\x01\x00", "shorter than its length"),
        (b"\x04", "before its signature"),
        (signed(b"\x04"), "before its signature"),
        (signed(b"\x05\x02a"), "shorter than its length"),  # it would reach into the signature
        (signed(b"\x05\x01a", end=27), "signature"),  # 7/WAKU-DATA has it so, status-go refuses it
        (signed(b"\x05\x01a", end=2), "signature"),
        (b"\x05\x01a" + b"\xff" * 64 + b"\x00", "signature"),
    ],
)
def test_every_invalid_layout_is_unreadable(plain: bytes, text: str) -> None:
    with pytest.raises(UnreadableError, match=text):
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
