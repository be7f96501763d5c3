"""A source of randomness. The rules receive it as an argument, so that tests can replace it."""

from __future__ import annotations

import os
import secrets
from typing import Final, Protocol


class Dice(Protocol):
    """A source of unpredictable bytes and numbers."""

    def draw(self, size: int) -> bytes:
        """Return `size` random bytes."""

    def below(self, bound: int) -> int:
        """Return a uniformly random number from 0 to bound - 1."""


class SystemDice:
    """The operating system's randomness, which is cryptographically secure."""

    draw = staticmethod(os.urandom)
    below = staticmethod(secrets.randbelow)


POOL_BYTES: Final = 1024


class BufferedDice:
    """The same randomness, of which POOL_BYTES are fetched at a time, for a server that needs a few bytes often."""

    def __init__(self) -> None:
        self._pool = b""
        """The bytes that were fetched. `_used` of them were drawn."""
        self._used = 0

    def draw(self, size: int) -> bytes:
        """Return `size` random bytes."""
        start, self._used = self._used, self._used + size
        if self._used > len(self._pool):
            self._pool, start, self._used = os.urandom(max(size, POOL_BYTES)), 0, size
        return self._pool[start : self._used]

    def below(self, bound: int) -> int:
        """Return a uniformly random number from 0 to bound - 1."""
        size = (bound.bit_length() + 7) // 8
        usable = 256**size - 256**size % bound  # of larger numbers, some remainders would be more frequent
        while (number := int.from_bytes(self.draw(size))) >= usable:
            pass
        return number % bound
