"""Filters over topics: both forms, and what matches what."""

from __future__ import annotations

import random

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


def test_one_topic_in_25_has_two_forms() -> None:
    """Two of its three bits are in one byte, and the later overwrites the earlier."""
    chance = random.Random(1)
    drawn = [chance.randbytes(4) for _ in range(20_000)]
    differ = sum(bloom.kept(topic) != bloom.of([topic]) for topic in drawn)
    assert 0.036 < differ / len(drawn) < 0.046


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


@given(topics)
@examples(50)
def test_everything_passes_a_full_filter_and_nothing_an_empty_one(topic: bytes) -> None:
    assert bloom.passes(bloom.ALL_BITS, topic)
    assert not bloom.passes(bloom.of([]), topic)


@given(st.binary(min_size=64, max_size=64))
@examples(100)
def test_a_filter_is_written_as_it_was_read(data: bytes) -> None:
    assert bloom.write(bloom.read(data)) == data


def test_no_filter_means_a_full_node_and_a_filter_of_zeros_matches_nothing() -> None:
    assert bloom.read(b"") == bloom.ALL_BITS == bloom.read(b"\xff" * 64)
    assert bloom.read(bytes(64)) == 0
