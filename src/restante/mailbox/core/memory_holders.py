"""The memory that connections hold: commands that wait to be executed, receive buffers, and unread replies.

All connections together may hold `owed_bytes`. Beyond that, the server closes connections, in an order that spares
new holders and addresses that hold little. An attacker holds much memory, or has many connections, or holds the
memory for longer than it takes to send a message.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

from restante.mailbox.core.limits import KIB

SPARED_BYTES: Final = 64 * KIB
"""Bytes that an address may hold before its connections are among the first that are closed. A client that sent a few
messages of a few KiB holds less."""

LONG_HOLD_SECONDS: Final = 10
"""Seconds after which holding memory for longer no longer raises a connection's priority for closing. On most lines,
sending 2 MiB takes less."""

FREED_FRACTION: Final = 8
"""When the holders exceed `owed_bytes`, the server frees the excess and `owed_bytes` divided by this. It frees that
much at once because sorting the holders takes milliseconds."""


class MemoryHolder(Protocol):
    """A connection, as `MemoryHolders` sees it."""

    @property
    def holding(self) -> int:
        """Return how many bytes the connection holds."""

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Return the addresses that the connection counts for, as values that are equal for equal addresses."""

    def give_up(self) -> None:
        """Release all memory that the connection holds, and close it."""


class MemoryHolders:
    """The connections that hold memory, and the second since which each holds it."""

    def __init__(self) -> None:
        self._since: dict[MemoryHolder, int] = {}

    def note(self, holder: MemoryHolder, second: int, *, anew: bool = False) -> None:
        """Record that the memory that a connection holds has changed. `anew`: it held none in between."""
        if anew or not holder.holding:
            self._since.pop(holder, None)
        if holder.holding and holder not in self._since:
            self._since[holder] = second

    def __len__(self) -> int:
        return len(self._since)

    def close(self, excess: int, second: int) -> None:
        """Close connections until `excess` bytes are free or no connection holds memory."""
        sizes = {holder: size for holder in self._since if (size := holder.holding)}
        self._since = {holder: self._since[holder] for holder in sizes}
        by_address = Counter[Hashable]()
        for holder, size in sizes.items():
            for address in holder.addresses:
                by_address[address] += size

        def excessive(holder: MemoryHolder) -> int:
            return max(0, *(by_address[address] - SPARED_BYTES for address in holder.addresses))

        # Among equals, the number sorts the one that has held memory for longest first.
        order = [
            (-excessive(holder) * min(LONG_HOLD_SECONDS, second - since + 1), number, holder)
            for number, (holder, since) in enumerate(self._since.items())
        ]
        heapq.heapify(order)
        while excess > 0 and order:
            _, _, holder = heapq.heappop(order)
            excess -= sizes[holder]
            holder.give_up()
