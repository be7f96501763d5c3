"""The log of requests to the admin port with a wrong token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from restante.common.logs import log

LOG_SECONDS: Final = 60.0
"""Seconds between two log lines about wrong tokens, so that who guesses does not fill the disk."""


class WrongTokens:
    """Logs requests with a wrong token: the first one, and then how many there were in each minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = 0
        self._silent_until = float("-inf")

    def refused(self) -> None:
        """Count a request, and log it if that is due."""
        self._times += 1
        now = self._clock()
        if now >= self._silent_until:
            log.warning("requests to the admin port had a wrong token", times=self._times)
            self._times, self._silent_until = 0, now + LOG_SECONDS
