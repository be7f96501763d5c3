"""What an address has used up is remembered when nobody is here from there, for as long as there is room."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from restante.waku.connection import quotas
from restante.waku.connection.quotas import MAX_EVICTION_LOOKS, Quotas, make_room


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are remembered."""
    monkeypatch.setattr(quotas, "REMEMBERED_ADDRESSES", 3)


def test_the_quota_that_is_longest_unused_is_forgotten_first() -> None:
    those = Quotas()
    first, second = those.obtain("a"), those.obtain("b")
    assert those.obtain("a") is first
    those.obtain("c")
    those.obtain("d")
    assert those.obtain("a") is first
    assert those.obtain("b") is not second


def test_a_quota_in_use_is_kept_and_does_not_keep_others() -> None:
    those = Quotas()
    staying = those.obtain("staying")
    staying.connections = 1
    for number in range(100):
        those.obtain(f"passing {number}")
        assert len(those._quotas) <= 3
    assert those.obtain("staying") is staying
    staying.connections = 0
    for number in range(3):
        those.obtain(f"late {number}")
    assert those.obtain("staying") is not staying


def test_thousands_of_quotas_in_use_are_not_searched_for_each_new_one() -> None:
    those = OrderedDict.fromkeys(range(5000), True)
    looked: list[int] = []

    def in_use(used: bool) -> bool:
        looked.append(1)
        return used

    make_room(those, 3, in_use)
    assert len(looked) == MAX_EVICTION_LOOKS
    assert len(those) == 5000
    those = OrderedDict.fromkeys(those, False)
    make_room(those, 3, in_use)
    assert len(those) == 5000 - MAX_EVICTION_LOOKS, "what could not be forgotten before goes later"
