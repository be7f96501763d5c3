"""RLP: what is written is what everybody writes, and what is read is nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import rlp as oracle
from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope import rlp
from restante.waku.envelope.rlp import RlpError
from support.mutation import mutated
from support.vectors import load, unhex

VECTORS = load("rlp")

items = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=6), max_leaves=40)
encoded = items.map(rlp.encode)


def as_strings(item: Any) -> Any:
    """What a decoder gives for it: numbers are strings on the wire."""
    if isinstance(item, list):
        return [as_strings(one) for one in item]
    if isinstance(item, int):
        return item.to_bytes((item.bit_length() + 7) // 8, "big")
    return item


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: vector["rlp"][:20])
def test_the_examples_of_the_specification_are_written_and_read(vector: dict[str, Any]) -> None:
    item, wire = unhex(vector["item"]), bytes.fromhex(vector["rlp"])
    assert rlp.encode(item) == wire
    assert rlp.decode(wire) == as_strings(item)


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: vector["rlp"][:20] or "nothing")
def test_non_canonical_rlp_is_refused(vector: dict[str, str]) -> None:
    with pytest.raises(RlpError, match=vector["words"]):
        rlp.decode(bytes.fromhex(vector["rlp"]))


@given(items)
def test_items_are_written_as_the_library_writes_them_and_read_back(item: Any) -> None:
    assert rlp.encode(item) == oracle.encode(item)
    assert rlp.decode(rlp.encode(item)) == item


@given(st.integers(0, 2**72))
def test_numbers_are_written_as_the_library_writes_them(number: int) -> None:
    wire = rlp.encode(number)
    assert wire == oracle.encode(number)
    assert rlp.uint(rlp.decode(wire), 80) == number


@given(st.binary(max_size=200) | mutated(encoded))
def test_the_library_and_the_reader_accept_the_same_bytes(wire: bytes) -> None:
    try:
        expected = oracle.decode(wire)
    except oracle.DecodingError:
        with pytest.raises(RlpError):
            rlp.decode(wire)
    else:
        assert rlp.decode(wire) == expected


@given(st.binary() | mutated(encoded), st.binary(min_size=1, max_size=9))
def test_a_tail_is_ignored_where_it_is_allowed(wire: bytes, tail: bytes) -> None:
    try:
        expected = rlp.decode(wire)
    except RlpError:
        return
    assert rlp.decode(wire + tail, tail=True) == expected
    with pytest.raises(RlpError):
        rlp.decode(wire + tail)


@given(items.filter(lambda item: isinstance(item, list)))
def test_spans_are_where_the_items_are(item: list[Any]) -> None:
    wire = b"before" + rlp.encode(item) + b"after"
    found = rlp.spans(wire, 6, len(wire) - 5)
    assert [rlp.decode(wire[span.at : span.stop]) for span in found] == item
    assert [wire[span.start : span.stop] for span in found if not span.is_list] == [
        one for one in item if isinstance(one, bytes)
    ]


def test_lists_may_be_nested_up_to_the_maximum_depth() -> None:
    item: Any = []
    for _ in range(rlp.MAX_DEPTH - 1):
        item = [item]
    assert rlp.decode(rlp.encode(item)) == item
    with pytest.raises(RlpError, match="deeper"):
        rlp.decode(rlp.encode([item]))


def test_invalid_numbers_and_booleans_are_refused() -> None:
    for item, words in (([], "number is expected"), (b"\0\1", "leading zero"), (b"\1" * 5, "32 bits")):
        with pytest.raises(RlpError, match=words):
            rlp.uint(item, 32)
    assert rlp.uint(b"\xff" * 4, 32) == 2**32 - 1
    for item in ([], b"\2", b"\0", b"\1\1"):
        with pytest.raises(RlpError, match="boolean"):
            rlp.boolean(item)
    assert [rlp.boolean(rlp.decode(rlp.encode(value))) for value in (True, False)] == [True, False]


def test_strings_and_lists_have_the_sizes_they_must_have() -> None:
    assert rlp.string(b"abc") == rlp.string(b"abc", 0, 3) == b"abc"
    assert rlp.items([b"a"]) == rlp.items([b"a"], 1, 2) == [b"a"]
    with pytest.raises(RlpError, match="of 0 or 4 bytes"):
        rlp.string(b"abc", 0, 4)
    with pytest.raises(RlpError, match="string is expected"):
        rlp.string([])
    with pytest.raises(RlpError, match="of 2 items"):
        rlp.items([b"a"], 2)
    for read in (lambda: rlp.spans(b"\x83dog"), lambda: rlp.items(b"dog")):
        with pytest.raises(RlpError, match="list is expected"):
            read()
