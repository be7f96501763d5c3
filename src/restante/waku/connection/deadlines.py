"""When something is to be done about a connection: the time of each thing, and one timer for the next of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

NEVER: Final = math.inf

WRITE_STALL_TIMEOUT: Final = 20.0
"""Seconds that a peer may leave what we send unread, when it is more than it may owe (geth p2p/server.go:65)."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that a Disconnect has to reach the peer."""

STATUS_TIMEOUT: Final = 10.0
"""Seconds after its Hello that a peer has for its Status; status-go waits for as long as it is there."""

TIMER_STEP: Final = 0.1
"""Seconds; all whose time comes between one and the next are looked at together: to be woken for each of a thousand
silent peers, and again for each answer, takes as long as to ask them."""

EARLY: Final = 0.001
"""Seconds that a timer may go off before its time: the loop counts in whole milliseconds."""


class Deadlines:
    """Deadlines of one connection, in seconds of the loop's clock; `NEVER` where nothing is waited for.

    Call `arm` after one was changed, and `went_off` first of all when the timer has.
    """

    __slots__ = ("_armed", "_timer", "close", "resume", "session", "stall", "status")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._armed = NEVER
        """When the timer goes off."""
        self.clear()

    def clear(self) -> None:
        """Wait for nothing."""
        self.session = NEVER
        """The session wants to look at the clock."""
        self.status = NEVER
        """The peer's Status must have come."""
        self.resume = NEVER
        """The peer may be read again, after more than it may send."""
        self.stall = NEVER
        """The peer must have read something."""
        self.close = NEVER
        """The last words must have reached the peer."""

    def set_session(self, due: float | None) -> None:
        """Set when the session wants to look at the clock; None: never."""
        self.session = NEVER if due is None else math.ceil(due / TIMER_STEP) * TIMER_STEP

    def arm(self, loop: asyncio.AbstractEventLoop, on_time: Callable[[], None]) -> None:
        """Set the timer to the first of them."""
        at = min(self.session, self.status, self.resume, self.stall, self.close)
        if at == self._armed:
            return
        self._armed = at
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at == NEVER else loop.call_at(at, on_time)

    def went_off(self, now: float) -> float:
        """Forget the timer; return the time up to which deadlines are over."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed = None, NEVER
        return now + EARLY
