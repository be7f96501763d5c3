"""Filters over topics: both forms, and what matches what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope import bloom
from support.effort import examples
from support.vectors import load

topics = st.binary(min_size=4, max_size=4)


def wire(places: dict[str, str]) -> bytes:
    found = bytearray(bloom.FILTER_BYTES)
    for place, byte in places.items():
        found[int(place)] = int(byte, 16)
    return bytes(found)


def test_both_forms_are_those_of_the_vectors() -> None:
    for vector in load("blooms"):
        topic = bytes.fromhex(vector["topic"])
        assert bloom.write(bloom.kept(topic)) == wire(vector["kept"])
        assert bloom.write(bloom.of([topic])) == wire(vector["of"])


@given(topics)
@examples(300)
def test_the_stored_bits_are_a_part_of_the_set_bits(topic: bytes) -> None:
    assert bloom.kept(topic) & bloom.of([topic]) == bloom.kept(topic) != 0
    assert 1 <= bloom.kept(topic).bit_count() <= bloom.of([topic]).bit_count() <= 3


@given(st.lists(topics, min_size=1, max_size=5), topics)
@examples(300)
def test_a_filter_lets_its_topics_through_in_either_form(asked: list[bytes], other: bytes) -> None:
    for topic in asked:
        assert bloom.passes(bloom.of(asked), topic)
    overwritten = 0
    for topic in asked:  # as status-go asks: the overwritten filters of the topics, together
        overwritten |= bloom.kept(topic)
    assert all(bloom.passes(overwritten, topic) for topic in asked)
    sample = bloom.kept(other)
    assert bloom.passes(bloom.of(asked), other) == (bloom.of(asked) | sample == bloom.of(asked))


@given(st.binary(min_size=64, max_size=64))
@examples(100)
def test_a_filter_is_written_as_it_was_read(data: bytes) -> None:
    assert bloom.write(bloom.read(data)) == data


def test_no_filter_means_a_full_node_and_a_filter_of_zeros_matches_nothing() -> None:
    assert bloom.read(b"") == bloom.ALL_BITS == bloom.read(b"\xff" * 64)
    assert bloom.read(bytes(64)) == bloom.of([]) == 0
    assert bloom.passes(bloom.ALL_BITS, b"abcd")
    assert not bloom.passes(0, b"abcd")
