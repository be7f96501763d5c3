"""The clock of a node, as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock."""

    def wall(self) -> float:
        """Give the seconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds that nobody sets back."""


class SystemClock:
    """The real one."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
