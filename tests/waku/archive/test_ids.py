"""Ids and cursors: in the order of time, the same envelope finds itself, and a search ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.waku.archive import ids
from restante.waku.archive.history.query import PAGE_CURSOR_BYTES, cursor, read_cursor
from support.waku.envelopes import T0, alike, envelope
from waku.archive.engine import query


def test_an_id_is_the_time_and_the_first_31_bits_of_the_hash() -> None:
    made = alike(envelope(7), b"\xff\xff\xff\xfe")
    assert ids.home(made) == (T0 + 7) << 31 | 0x7FFFFFFF
    assert ids.home(alike(envelope(0xFFFFFFFF - T0), b"\xff\xff\xff\xff")) == ids.MAX_ID == 2**63 - 1


@given(st.binary(min_size=4, max_size=4))
def test_a_topic_is_a_number_of_four_bytes(topic: bytes) -> None:
    assert -(2**31) <= ids.number(topic) < 2**31
    assert ids.topic(ids.number(topic)) == topic


@given(st.lists(st.binary(max_size=6)))
def test_many_topics_are_written_like_single_ones(topics: list[bytes]) -> None:
    assert ids.numbers(topics) == tuple(ids.number(topic) for topic in topics if len(topic) == 4)


def test_an_id_that_is_taken_is_replaced_by_the_next_lower_free_one_of_its_second() -> None:
    rows = {1000: b"a", 999: b"b"}
    assert ids.place(1001, b"c", rows.get) == 1001
    assert ids.place(1000, b"c", rows.get) == 998
    assert ids.place(1000, b"a", rows.get) is None
    assert ids.place(1000, b"b", rows.get) is None
    bottom = ids.floor(5)
    assert ids.place(bottom, b"b", {bottom: b"a"}.get) is None
    assert ids.place(bottom + 1, b"b", {bottom + 1: b"a"}.get) == bottom


def test_the_search_for_a_free_id_ends() -> None:
    tried: list[int] = []

    def full(at: int) -> bytes:
        tried.append(at)
        return b"a"

    home = ids.floor(5) + 1_000_000
    assert ids.place(home, b"b", full) is None
    assert tried == list(range(home, home - ids.PROBES, -1))


IDS = st.integers(0, ids.MAX_ID)


def test_a_cursor_is_the_time_and_the_hash_as_in_status_go() -> None:
    """The key of mailserver/db_key.go, without its topic."""
    name = bytes.fromhex("bc10" + "42" * 30)
    at = ids.named(0x5F5E1000, name)
    assert cursor(at, name) == bytes.fromhex("5f5e1000bc10" + "42" * 30)
    assert read_cursor(cursor(at, name)) == (at, name)


@given(IDS, st.none() | st.binary(min_size=32, max_size=32))
def test_a_place_that_differs_from_its_hash_is_kept(at: int, name: bytes | None) -> None:
    written = cursor(at, name)
    assert len(written) == PAGE_CURSOR_BYTES
    if name is not None and ids.named(at >> ids.BITS, name) == at:
        assert read_cursor(written) == (at, name)
    else:
        assert read_cursor(written) == (at, None)


@given(st.binary(min_size=36, max_size=36))
def test_any_36_bytes_are_a_cursor(wire: bytes) -> None:
    at, name = read_cursor(wire)
    assert cursor(at, name) == wire


def test_a_cursor_has_36_bytes_and_a_page_a_limit_of_at_least_one() -> None:
    for size in (0, 35, 37):
        with pytest.raises(Misuse, match="36 bytes"):
            query(after=bytes(size))
    with pytest.raises(Misuse, match="at least 1"):
        query(limit=0)
