"""What an address has used up is remembered when nobody is here from there, for as long as there is room."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from restante.waku.connection import quotas
from restante.waku.connection.quotas import LOOKS, Accounts, forget


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are remembered."""
    monkeypatch.setattr(quotas, "REMEMBERED", 3)


def test_the_account_that_is_longest_unused_is_forgotten_first() -> None:
    those = Accounts()
    first, second = those.of("a"), those.of("b")
    assert those.of("a") is first
    those.of("c")
    those.of("d")
    assert those.of("a") is first
    assert those.of("b") is not second


def test_an_account_in_use_is_kept_and_keeps_no_other() -> None:
    those = Accounts()
    staying = those.of("staying")
    staying.connections = 1
    for number in range(100):
        those.of(f"passing {number}")
        assert len(those._accounts) <= 3
    assert those.of("staying") is staying
    staying.connections = 0
    for number in range(3):
        those.of(f"late {number}")
    assert those.of("staying") is not staying


def test_thousands_in_use_are_not_looked_through_for_each_that_comes() -> None:
    those = OrderedDict.fromkeys(range(5000), True)
    looked: list[int] = []

    def in_use(used: bool) -> bool:
        looked.append(1)
        return used

    forget(those, 3, in_use)
    assert len(looked) == LOOKS
    assert len(those) == 5000
    those = OrderedDict.fromkeys(those, False)
    forget(those, 3, in_use)
    assert len(those) == 5000 - LOOKS, "what could not be forgotten before goes later"
