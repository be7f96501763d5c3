"""Many envelopes' fields: whatever the bytes are, they are those that the reader of one finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.clean.fields import Fields
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope, make, parse
from restante.waku.envelope.rlp import RlpError
from support.effort import examples
from support.mutation import mutated
from support.waku.strategies import ITEMS, envelopes

GOOD = (b"\x84\x5f\x5e\x10\x32", b"\x32", b"\x84abcd", b"\x83abc", b"\x07")

LENGTHS = (0, 1, 2, 48, 49, 50, 54, 55, 56, 57, 240, 250, 255, 256, 257, 65_500, 65_535, 65_536, 65_537)
"""Bytes of data about where a length takes a byte more: its own, the list's, or that of the list without nonce."""


def read(raw: bytes) -> Envelope | None:
    try:
        return parse(raw)
    except RlpError:
        return None


def check(raws: list[bytes]) -> None:
    """What is good is an envelope, with these fields; among whatever others."""
    found = Fields(raws)
    numbers = zip(*(column.tolist() for column in (found.expiry, found.ttl, found.topic, found.nonce)), strict=True)
    wanted = [read(raw) for raw in raws]
    for good, fields, envelope in zip(found.good.tolist(), numbers, wanted, strict=True):
        if good:
            assert envelope is not None
            assert fields == (envelope.expiry, envelope.ttl, int.from_bytes(envelope.topic), envelope.nonce)
    for good, work, envelope in zip(found.good.tolist(), found.compute_pow().tolist(), wanted, strict=True):
        if good and envelope is not None:
            assert work == envelope.pow()


def missed(raws: list[bytes]) -> list[bytes]:
    """Return the envelopes that are not found to be good."""
    good = Fields(raws).good.tolist()
    return [raw for raw, found in zip(raws, good, strict=True) if not found and read(raw) is not None]


def test_every_length_is_read_and_the_work_is_done_on_the_right_bytes() -> None:
    raws = [
        make(1_700_000_050, ttl, b"abcd", bytes([0xFF]) * length, nonce).raw
        for length in LENGTHS
        for ttl in (0, 1, 0x7F, 0x80, 0xFFFFFFFF)
        for nonce in (0, 1, 0x7F, 0x80, 0xFFFF, 2**64 - 1)
    ]
    check(raws)
    assert missed(raws) == []


raw_envelopes = envelopes.map(lambda envelope: envelope.raw)
packed_items = st.lists(st.sampled_from(ITEMS), min_size=3, max_size=7).map(rlp.pack)


@given(
    st.lists(raw_envelopes, max_size=10),
    st.lists(mutated(raw_envelopes) | st.binary(max_size=40) | packed_items, max_size=20),
)
@examples(250)
def test_any_bytes_are_read_as_the_reader_of_one_reads_them(good: list[bytes], others: list[bytes]) -> None:
    check([*good, *others])
    assert missed(good) == []


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_every_item_in_every_place_is_read_as_the_reader_of_one_reads_it(place: int) -> None:
    raws = [rlp.pack([*GOOD[:place], item, *GOOD[place + 1 :]]) for item in ITEMS]
    check(raws)
    assert missed(raws) == []


HEADS = (
    *(b"\xc0", b"\xf7", b"\xf8", b"\xf8\x37", b"\xf8\x38", b"\xf9\x00\x38", b"\xf9\xff\xff", b"\xfa\x00\x01\x00"),
    *(b"\xfb\x00\x00\x00\x38", b"\xff" * 9, b"\xf8\x00", b"\x80", b"\x84", b"\xb8\x38", b"\x00", b"\x7f"),
)


def test_envelopes_with_wrong_lengths_are_not_valid() -> None:
    body = b"".join(GOOD)
    raws = [head + rest for head in HEADS for rest in (b"", body, body[:-1], body + b"\0", bytes(64))]
    check([*raws, rlp.pack(GOOD)])
    assert Fields([*raws, rlp.pack(GOOD)]).good.tolist() == [False] * len(raws) + [True]
