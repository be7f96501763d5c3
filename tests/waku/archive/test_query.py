"""Cursors: 36 bytes, read as what they were written for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.waku.archive import ids
from restante.waku.archive.history.query import PAGE_CURSOR_BYTES, cursor, read_cursor
from waku.archive.engine import query

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
