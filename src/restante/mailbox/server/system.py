"""Time and chance of a running server."""

from __future__ import annotations

import secrets
import time
from base64 import b32encode
from collections.abc import Callable
from typing import Final

MAX_CLOCK_STEP_SECONDS: Final = 2.0
"""Seconds between two looks at the clock that count, at most. `tick` looks once a second: when more have gone by, the
process was stopped, or its machine paused, and CLOCK_MONOTONIC went on (man 2 clock_gettime)."""


class SystemClock:
    """The real one; its monotonic time goes on only while the process runs."""

    wall = staticmethod(time.time)

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen = self._now = monotonic()

    def monotonic(self) -> float:
        """Return seconds since the start. Between two calls count `MAX_CLOCK_STEP_SECONDS` at most."""
        seen = self._monotonic()
        passed = seen - self._seen
        self._seen = seen
        self._now += passed if passed < MAX_CLOCK_STEP_SECONDS else MAX_CLOCK_STEP_SECONDS  # noqa: FURB136 - called for every command
        return self._now


def system_secret() -> bytes:
    """Give 32 random bytes."""
    return secrets.token_bytes(32)


class SystemDice:
    """Unguessable ones."""

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def mailbox_id(self) -> str:
        """Give 64 random bits as 13 letters and digits, as the reference does (server.py:4, 0.8.0)."""
        return b32encode(secrets.token_bytes(8)).decode().strip("=").lower()
