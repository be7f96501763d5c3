"""Token buckets: a rate, and a burst above it."""

from __future__ import annotations


class Bucket:
    """A token bucket that may run into debt."""

    __slots__ = ("_at", "_spent")

    def __init__(self) -> None:
        self._spent = 0.0
        self._at = 0.0

    @property
    def level(self) -> tuple[float, float]:
        """The tokens that were spent and not refilled, and the time of that; for another bucket's `level`."""
        return self._spent, self._at

    @level.setter
    def level(self, level: tuple[float, float]) -> None:
        self._spent, self._at = level

    def spent(self, now: float, rate: float) -> float:
        """Return the tokens that were taken and are not refilled yet."""
        if now > self._at:
            self._spent = max(0.0, self._spent - (now - self._at) * rate)
            self._at = now
        return self._spent

    def take(self, now: float, rate: float, amount: float) -> None:
        """Remove tokens. The bucket may run into debt. A negative number adds some, until it is full."""
        self._spent = max(0.0, self.spent(now, rate) + amount)

    def wait(self, now: float, rate: float, limit: float) -> float:
        """Return the seconds until no more than `limit` tokens are spent."""
        return max(0.0, self.spent(now, rate) - limit) / rate
