"""The clock and the secrets of a running server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final, Protocol

MAX_CLOCK_STEP_SECONDS: Final = 2.0
"""Maximum number of seconds that count between two reads of the clock. `tick` reads it once a second. If more time
has passed, the process was stopped or its machine paused while CLOCK_MONOTONIC went on (man 2 clock_gettime)."""


class Clock(Protocol):
    """The wall clock in seconds since 1970, and a monotonic clock in seconds since some fixed moment."""

    def wall(self) -> float:
        """Return the seconds since 1970."""

    def monotonic(self) -> float:
        """Return the seconds of the monotonic clock."""


class SystemClock:
    """The system's clock. Its monotonic time advances only while the process runs."""

    wall = staticmethod(time.time)

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._previous = monotonic()
        self._skipped = 0.0
        """Seconds of pauses that do not count."""

    def monotonic(self) -> float:
        """Return a time in seconds that advances by at most `MAX_CLOCK_STEP_SECONDS` between two calls."""
        now = self._monotonic()
        if now - self._previous > MAX_CLOCK_STEP_SECONDS:
            self._skipped += now - self._previous - MAX_CLOCK_STEP_SECONDS
        self._previous = now
        return now - self._skipped


def system_secret() -> bytes:
    """Return 32 random bytes."""
    return secrets.token_bytes(32)
