"""Randomness that is the same in every run."""

from __future__ import annotations

from random import Random

from restante.waku.envelope.keys import Key


class Seeded:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def key(self) -> Key:
        return Key(self._random.randbytes(32))

    def draw(self, size: int) -> bytes:
        return self._random.randbytes(size)


class Fixed:
    """Dice that fell already: keys and bytes in the order of their use, then anything."""

    def __init__(self, keys: list[Key], draws: list[bytes]) -> None:
        self._keys, self._draws = keys, draws
        self._rest = Seeded(0)

    def key(self) -> Key:
        return self._keys.pop(0) if self._keys else self._rest.key()

    def draw(self, size: int) -> bytes:
        return self._draws.pop(0) if self._draws else self._rest.draw(size)
