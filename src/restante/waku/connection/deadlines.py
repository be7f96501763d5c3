"""The deadlines of a connection, with one timer for the next of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

NEVER: Final = math.inf

WRITE_STALL_TIMEOUT: Final = 20.0
"""Seconds within which a peer must read something when more than it may owe is unread (geth p2p/server.go:65)."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds within which a Disconnect must reach the peer."""

STATUS_TIMEOUT: Final = 10.0
"""Seconds after its Hello within which a peer must send its Status. status-go waits without a limit."""

TIMER_STEP: Final = 0.1
"""Seconds to which the session's deadlines are rounded up, so that those of many connections are handled together. To
wake up for each of a thousand silent peers, and again for each answer, takes as long as to ping them."""

EARLY: Final = 0.001
"""Seconds by which a timer may fire early: the loop counts in whole milliseconds."""


class Deadlines:
    """The deadlines of one connection, in seconds of the loop's clock. `NEVER` means that nothing is due.

    Call `arm` after a change. When the timer fires, call `fired` first.
    """

    __slots__ = ("_armed", "_timer", "close", "resume", "session", "stall", "status")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._armed = NEVER
        """When the timer fires."""
        self.clear()

    def clear(self) -> None:
        """Remove all deadlines."""
        self.session = NEVER
        """The session's `handle_timeout` is due."""
        self.status = NEVER
        """The peer's Status must have arrived."""
        self.resume = NEVER
        """The peer may be read again, after its address has sent more than it may."""
        self.stall = NEVER
        """The peer must have read something."""
        self.close = NEVER
        """The Disconnect must have reached the peer."""

    def set_session(self, due: float | None) -> None:
        """Set when the session's `handle_timeout` is due, rounded up to a multiple of `TIMER_STEP`. None: never."""
        self.session = NEVER if due is None else math.ceil(due / TIMER_STEP) * TIMER_STEP

    def arm(self, loop: asyncio.AbstractEventLoop, on_time: Callable[[], None]) -> None:
        """Set the timer to the next deadline."""
        at = min(self.session, self.status, self.resume, self.stall, self.close)
        if at == self._armed:
            return
        self._armed = at
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at == NEVER else loop.call_at(at, on_time)

    def fired(self, now: float) -> float:
        """Record that the timer has fired. Return the time up to which deadlines have passed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed = None, NEVER
        return now + EARLY
