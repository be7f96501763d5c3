"""A pair after `ok`: what one side sends is passed on to the other, until one ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from restante.relay.core.pacing import Rates
from restante.relay.server.streams import Stream


class Pairs:
    """What all pairs of a server share: the pipes, a buffer, the rates and the timer of those that wait."""

    def __init__(self, rates: Rates) -> None:
        """Prepare pipes within the limits of this process. A loop is running."""

    def set_rates(self, rates: Rates) -> None:
        """Apply other rates, also to the pairs that run."""

    def begin(
        self,
        first: Stream,
        second: Stream,
        leftover: bytes,
        addresses: Sequence[Hashable],
        on_bytes: Callable[[int], bool],
        on_end: Callable[[], None],
    ) -> Pair:
        """Send `ok` to both sides and `leftover` to the first, and relay from then on.

        `leftover`: what came behind the line of the second side. `addresses`: what the rate of an address counts,
        of both sides. `on_bytes(n)` is called with the bytes that were passed on since its last call; if it returns
        False, the pair ends at once. `on_end()` is called once, when both sides are closed, and never from here.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the pipes and the timer. All pairs have ended."""


class Pair:
    """Two sides, of which each gets what the other sends."""

    def slow_down(self, rate: float) -> None:
        """Pass on at most so many bytes a second in both directions together. 0: as fast as the rates allow."""

    def abort(self) -> None:
        """Close both sides at once. `on_end` is called in the next turn of the loop."""
