"""How much work `--permission adaptive` demands: more while connections come too fast."""

from __future__ import annotations

from typing import Final

from restante.mailbox.protocol.hashcash import MAX_BITS

RISE_INTERVAL_SECONDS: Final = 10
"""Seconds between steps up while connections come too fast: what came before the last step has ended by then."""

FALL_INTERVAL_SECONDS: Final = 30
"""Seconds between steps down: slower than up, so that a wave that comes and goes finds the demand as it left it."""

MAX_STEPS: Final = 9
"""Steps at most. Eight bits more are 256 times the work."""


class LoadLevel:
    """How much is demanded of everybody in mode `adaptive`.

    Rises while connections come faster than the operator wants, falls when they come at less than half that rate.
    """

    def __init__(self) -> None:
        self.steps = 0
        """0: nothing; n: the configured bits and n - 1 more."""
        self.changes = 0
        """How often it has risen or fallen."""
        self.rate = 0.0
        """Connections a second, smoothed over about ten seconds."""
        self._since = RISE_INTERVAL_SECONDS

    def tick(self, connections: int, load: float) -> bool:
        """Take note of a second in which so many connections came; return whether the demand has changed."""
        self.rate += (connections - self.rate) / 10
        self._since += 1
        before = self.steps
        if self.rate > load and self._since >= RISE_INTERVAL_SECONDS:
            self.steps = min(MAX_STEPS, self.steps + 1)
        elif self.rate < load / 2 and self._since >= FALL_INTERVAL_SECONDS:
            self.steps = max(0, self.steps - 1)
        if self.steps == before:
            return False
        self._since = 0
        self.changes += 1
        return True

    def bits(self, base: int) -> int | None:
        """Return what is demanded of everybody; None: nothing."""
        return min(MAX_BITS, base + self.steps - 1) if self.steps else None
