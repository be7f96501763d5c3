"""Why a socket is not read for the time being. It is read again when no reason is left."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_FRAMES_PER_SECOND: Final = 1000
"""Frames of one connection in a second that are no commands, like pings and fragments. After them it is not read
until the next second. Commands have limits of their own. Without a limit of `commands` there is none."""


class ReadPauses:
    """The reasons for which a socket is not read, as bits. A transport that is closing is passed as None."""

    BACKLOG: Final = 1
    """The connection's commands wait in the commit loop."""

    FRAME_RATE: Final = 2
    """Too many frames that are no commands came within a second."""

    READ_BUDGET: Final = 4
    """The read budget of this turn of the loop is exhausted (read_budget.py)."""

    CLOSING: Final = 8
    """Nothing that comes is wanted any more."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        self.reasons = 0

    def add(self, reason: int, transport: asyncio.Transport | None) -> None:
        """Add a reason, and stop reading."""
        if transport is not None and not self.reasons:
            transport.pause_reading()
        self.reasons |= reason

    def remove(self, reasons: int, transport: asyncio.Transport | None) -> None:
        """Remove reasons, and read again if none is left."""
        left = self.reasons & ~reasons
        if transport is not None and self.reasons and not left:
            transport.resume_reading()
        self.reasons = left
