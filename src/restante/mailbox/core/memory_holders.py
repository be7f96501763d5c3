"""Memory that connections hold: what they sent and is not done yet, and what they were sent and did not read.

All together may hold `owed_bytes`. Beyond that, connections are closed, in an order that spares newcomers and
addresses that hold little. An attacker holds much, or has many connections, or holds it for longer than a message
takes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

from restante.mailbox.core.limits import KIB

SPARED_BYTES: Final = 64 * KIB
"""Bytes that an address may hold before its connections are closed in the first place: a client that sent a few
messages of some KiB holds less."""

LONG_HOLD_SECONDS: Final = 10
"""Seconds after which a connection has held its bytes for long. To send 2 MiB takes less, on most lines."""

FREED_FRACTION: Final = 8
"""Of `owed_bytes`, one part in so many is freed at once: sorting the holders takes milliseconds."""


class MemoryHolder(Protocol):
    """A connection."""

    @property
    def holding(self) -> int:
        """Bytes that it holds."""

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Whom it counts for: each is equal for all connections from one address."""

    def give_up(self) -> None:
        """Let go of all that it holds, and close."""


class MemoryHolders:
    """The connections that hold memory, and since when."""

    def __init__(self) -> None:
        self._since: dict[MemoryHolder, int] = {}

    def note(self, holder: MemoryHolder, second: int, *, anew: bool = False) -> None:
        """Note that what a connection holds has changed. `anew`: it held nothing before."""
        if anew or not holder.holding:
            self._since.pop(holder, None)
        if holder.holding and holder not in self._since:
            self._since[holder] = second

    def __len__(self) -> int:
        return len(self._since)

    def close(self, excess: int, second: int) -> None:
        """Close connections until so many bytes are free, or nobody holds any."""
        sizes = {holder: size for holder in self._since if (size := holder.holding)}
        self._since = {holder: self._since[holder] for holder in sizes}
        by_address = Counter[Hashable]()
        for holder, size in sizes.items():
            for address in holder.addresses:
                by_address[address] += size

        def excessive(holder: MemoryHolder) -> int:
            return max(0, *(by_address[address] - SPARED_BYTES for address in holder.addresses))

        order = [
            (-excessive(holder) * min(LONG_HOLD_SECONDS, second - since + 1), number, holder)
            for number, (holder, since) in enumerate(self._since.items())  # of equals, who has held for longest
        ]
        heapq.heapify(order)
        while excess > 0 and order:
            _, _, holder = heapq.heappop(order)
            excess -= sizes[holder]
            holder.give_up()
