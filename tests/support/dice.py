"""Dice that fall as a test chooses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from random import Random


class FakeDice:
    """Shows a function of a number's place and bound, draws one of its size; without them, counts from 0 and 1."""

    def __init__(
        self, show: Callable[[int, int], int] | None = None, draw: Callable[[int], bytes] | None = None
    ) -> None:
        self._show = show or int.__mod__
        self._places, drawn = itertools.count(), itertools.count(1)
        self._draw = draw or (lambda size: next(drawn).to_bytes(size))

    def below(self, bound: int) -> int:
        number = self._show(next(self._places), bound)
        assert 0 <= number < bound
        return number

    def draw(self, size: int) -> bytes:
        return self._draw(size)


class Seeded(FakeDice):
    def __init__(self, seed: int) -> None:
        chance = Random(seed)
        super().__init__(lambda _place, bound: chance.randrange(bound), chance.randbytes)


class Fixed(FakeDice):
    """Dice that draw these, in the order of use, then anything."""

    def __init__(self, draws: Iterable[bytes]) -> None:
        first, rest = iter(draws), Seeded(0)
        super().__init__(draw=lambda size: next(first, None) or rest.draw(size))
