"""The work that `--permission adaptive` demands of all clients. It grows while connections come too fast."""

from __future__ import annotations

from typing import Final

from restante.mailbox.protocol.hashcash import MAX_BITS

RISE_INTERVAL_SECONDS: Final = 10
"""Seconds between steps up while connections come too fast. By then the connections from before the previous
step have ended."""

FALL_INTERVAL_SECONDS: Final = 30
"""Seconds between steps down. It is slower than up, so that an attack that pauses and returns meets the same
demand."""

MAX_STEPS: Final = 9
"""Maximum number of steps. The first demands the configured bits; eight more bits are 256 times the work."""


class LoadLevel:
    """The work that is demanded of all clients in mode `adaptive`.

    It rises while connections come faster than `--permission-load`, and falls while they come at less than half that
    rate.
    """

    def __init__(self) -> None:
        self.steps = 0
        """0: no work is demanded; n: the configured bits plus n - 1."""
        self.changes = 0
        """How often `steps` has changed."""
        self.rate = 0.0
        """New connections a second, smoothed over about ten seconds."""
        self._since = RISE_INTERVAL_SECONDS

    def tick(self, connections: int, load: float) -> bool:
        """Record the number of new connections in the last second, and return whether the demand has changed."""
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
        """Return the bits that are demanded of all clients, or None."""
        return min(MAX_BITS, base + self.steps - 1) if self.steps else None
