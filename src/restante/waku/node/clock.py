"""The clock of a node, passed as an argument."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class NodeClock(Protocol):
    """What a node requires of a clock."""

    def wall(self) -> float:
        """Return the seconds since 1970."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set back."""

    async def pause(self, seconds: float) -> None:
        """Wait."""


class SystemNodeClock:
    """The clock of the system."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    pause = staticmethod(asyncio.sleep)
