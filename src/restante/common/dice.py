"""A source of randomness. The rules receive it as an argument, so that tests can replace it."""

from __future__ import annotations

import os
import secrets
from typing import Protocol


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
