"""The envelope: its bytes, its name and its work; a nonce with enough work is found within bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import rlp as oracle
from Crypto.Hash import keccak as crypto_keccak
from hypothesis import example, given
from hypothesis import strategies as st
from rlp.sedes import List, big_endian_int, binary

from restante.common.errors import Misuse, PeerError
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope, cut, make, parse
from restante.waku.envelope.mining import EXTRA_TTL_SECONDS, NotMined, hashes, mine
from restante.waku.envelope.rlp import RlpError
from restante.waku.protocol.acceptance import MAX_CLOCK_AHEAD_SECONDS, Policy, judge
from support.effort import examples
from support.vectors import load
from support.waku.strategies import ITEMS, U32, U64, envelopes


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


def slowly(raw: bytes) -> tuple[Any, ...]:
    """Read an envelope by the general reader of RLP: five items, each of its shape."""
    expiry, ttl, topic, data, nonce = rlp.items(rlp.decode(raw), 5)
    return (rlp.uint(expiry, 32), rlp.uint(ttl, 32), rlp.string(topic, 4), rlp.string(data), rlp.uint(nonce, 64))


def fields(envelope: Envelope) -> tuple[Any, ...]:
    return envelope.expiry, envelope.ttl, envelope.topic, envelope.data, envelope.nonce


def check(raw: bytes) -> None:
    """It is read as the general reader reads it, or refused as there; alone, and anywhere in a packet."""
    try:
        wanted = slowly(raw)
    except RlpError:
        with pytest.raises(RlpError):
            parse(raw)
        return
    found = parse(raw)
    assert fields(found) == wanted
    assert (found.raw, found.hash) == (raw, digest(raw))
    assert found == make(*wanted)
    packet = rlp.pack([b"\xc0", raw, b"\xc0"])
    assert cut(packet, rlp.spans(packet)[1]) == found


@given(envelopes)
@examples(150)
def test_an_envelope_is_read_as_it_was_made(envelope: Envelope) -> None:
    check(envelope.raw)
    assert parse(envelope.raw) == envelope
    sedes = List([big_endian_int, big_endian_int, binary, binary, big_endian_int])
    assert tuple(oracle.decode(envelope.raw, sedes)) == fields(envelope)
    assert oracle.encode(list(fields(envelope))) == envelope.raw


@given(st.lists(st.sampled_from(ITEMS), min_size=3, max_size=7))
@examples(400)
@example([b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84abcd", b"\x83abc"])
@example([b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84abcd", b"\x83abc", b"\x07", b"\x07"])
@example([b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84ab"])
def test_any_items_are_read_as_the_general_reader_reads_them(items: list[bytes]) -> None:
    check(rlp.pack(items))


GOOD = (b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84abcd", b"\x83abc", b"\x07")


def test_every_item_in_every_place_is_read_as_the_general_reader_reads_it() -> None:
    for place in range(len(GOOD)):
        for item in ITEMS:
            check(rlp.pack([*GOOD[:place], item, *GOOD[place + 1 :]]))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    raw = draw(envelopes.filter(lambda envelope: len(envelope.raw) < 400)).raw
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(len(raw), 24)))
        cut_out = draw(st.integers(0, 2))
        raw = raw[:at] + draw(st.binary(max_size=2)) + raw[at + cut_out :]
    return raw


@given(mutated() | st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: b"\xd0" + tail))
@examples(400)
def test_any_bytes_are_read_as_the_general_reader_reads_them(data: bytes) -> None:
    check(data)


def test_every_truncated_or_extended_envelope_is_refused() -> None:
    raw = make(1_600_000_050, 50, b"abcd", bytes(284), 77).raw
    for size in range(len(raw)):
        check(raw[:size])
        with pytest.raises(PeerError):
            parse(raw[:size])
    for tail in (b"\x00", b"\x80", b"\xc0", raw):
        with pytest.raises(PeerError):
            parse(raw + tail)


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
    """Find it by looking at whole envelopes."""
    nonce = start
    while (found := with_nonce(envelope, nonce)).pow(late) < least:
        nonce = (nonce + 1) % (1 << 64)
    return found


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
    if hashes(envelope, least, late=late) <= 1 << 9:
        found = mine(envelope, least, start=start, late=late)
        assert found == one_by_one(envelope, least, start, late)
        assert found.pow(late) >= least
        assert found.pow() >= least


def test_a_spent_budget_returns_the_best_nonce_found() -> None:
    first = one_by_one(ENVELOPE, 2e-3, 0, EXTRA_TTL_SECONDS)
    assert mine(ENVELOPE, 2e-3, start=0, budget=first.nonce + 1) == first
    with pytest.raises(NotMined) as spent:
        mine(ENVELOPE, 2e-3, start=0, budget=first.nonce)
    tried = [with_nonce(ENVELOPE, number) for number in range(first.nonce)]
    assert spent.value.best in tried
    assert spent.value.best.pow() == max(each.pow() for each in tried)
    assert isinstance(spent.value, Misuse)
    assert f"in {first.nonce} hashes" in str(spent.value)
    assert "shorten the ttl" in str(spent.value)
    with pytest.raises(NotMined):
        mine(ENVELOPE, 2e-3, start=0, budget=0)


def test_an_envelope_with_no_time_to_live_needs_work_only_where_it_may_be_early() -> None:
    envelope = make(NOW, 0, b"abcd", b"x")
    assert mine(envelope, 1e9, start=5, budget=1, late=0) == with_nonce(envelope, 5)
    assert hashes(envelope, 1e9, late=0) == 1
    with pytest.raises(NotMined):
        mine(envelope, 1e9, start=5, budget=1)


@pytest.mark.parametrize("behind", [0, 1, MAX_CLOCK_AHEAD_SECONDS])
def test_a_mined_envelope_is_accepted_by_a_peer_whose_clock_is_behind(behind: int) -> None:
    policy = Policy(min_pow=2e-3)
    verdict = judge(mine(ENVELOPE, policy.min_pow, start=0), NOW - behind, policy)
    assert verdict.refusal is None
    assert verdict.pow >= policy.min_pow


def test_twice_the_bytes_or_the_seconds_is_twice_the_work() -> None:
    bare = len(ENVELOPE.bare)
    assert hashes(ENVELOPE, 1 / (bare * 50), late=0) == 1
    assert hashes(ENVELOPE, 2 / (bare * 50), late=0) == 2
    assert hashes(ENVELOPE, 2.1 / (bare * 50), late=0) == 4
    assert hashes(ENVELOPE, 1024 / (bare * 61)) == 1024
    assert hashes(ENVELOPE, 0.0) == 1
    short, long = make(NOW, 200, b"abcd", bytes(1000)), make(NOW, 200, b"abcd", bytes(4000))
    assert hashes(long, 0.01) == 4 * hashes(short, 0.01)


def test_mining_takes_as_many_hashes_as_estimated() -> None:
    wanted = hashes(ENVELOPE, 2e-3)
    needed = []
    start = 0
    for _ in range(200):
        found = mine(ENVELOPE, 2e-3, start=start).nonce
        needed.append(found - start + 1)
        start = found + 1
    assert wanted == 64
    assert math.isclose(sum(needed) / len(needed), wanted, rel_tol=0.25)
