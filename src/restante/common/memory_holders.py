"""The memory that connections hold: unfinished requests, receive buffers, commands that wait, and unread replies.

All connections together may hold `held_bytes`. Beyond that, the server closes connections, in an order that spares
new holders and addresses that hold little. An attacker holds much memory, or has many connections, or holds the
memory for longer than it takes to send a message.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, Protocol

SPARED_BYTES: Final = 64 * 1024
"""Bytes that an address may hold before its connections are among the first that are closed. A client that sent a few
messages of a few KiB holds less."""

LONG_HOLD_SECONDS: Final = 10
"""Seconds after which holding memory for longer no longer raises an address's priority for closing. On most lines,
sending 2 MiB takes less."""

FREED_FRACTION: Final = 256
"""When the holders exceed `held_bytes`, the server frees the excess and `held_bytes` divided by this: a megabyte.
More would take longer: closing a connection takes 30 µs, and it may hold as little as 10 KiB. Less would sort the
addresses more often, which takes up to 3 ms."""


class MemoryHolder(Protocol):
    """A connection, as `MemoryHolders` sees it."""

    @property
    def held_bytes(self) -> int:
        """Return how many bytes the connection holds."""

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Return the addresses that the connection counts for, as values that are equal for equal addresses.

        They do not change while it holds memory.
        """

    def give_up(self) -> None:
        """Release all memory that the connection holds, and close it."""


class HolderRecord:
    """The bytes that a connection held when they were last noted, and the second since which it holds any."""

    __slots__ = ("addresses", "since", "size")

    def __init__(self, holder: MemoryHolder, second: int) -> None:
        self.addresses = holder.addresses
        self.since = second
        self.size = 0


class MemoryHolders:
    """The connections that hold memory, and the sum for each address.

    The sums are kept up to date, because computing them each time would take 100 ms for 20,000 connections.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[MemoryHolder, HolderRecord] = OrderedDict()
        """All holders, the oldest first. A plain dict whose first item is removed repeatedly becomes slow at finding
        the next one. So do those of `_of_address`."""
        self._of_address: dict[Hashable, OrderedDict[MemoryHolder, HolderRecord]] = {}
        self._sums = Counter[Hashable]()

    def note(self, holder: MemoryHolder, second: int, *, anew: bool = False) -> None:
        """Record that the memory that a connection holds has changed. `anew`: it held none in between."""
        size = holder.held_bytes
        if anew or not size:
            self._forget(holder)
        if not size:
            return
        record = self._records.get(holder)
        if record is None:
            record = self._records[holder] = HolderRecord(holder, second)
            for address in record.addresses:
                self._of_address.setdefault(address, OrderedDict())[holder] = record
        for address in record.addresses:
            self._sums[address] += size - record.size
        record.size = size

    def held_since(self, holder: MemoryHolder) -> int | None:
        """Return the second since which a connection holds memory. None: it holds none."""
        record = self._records.get(holder)
        return None if record is None else record.since

    def backdate(self, holder: MemoryHolder, second: int) -> None:
        """Let a connection have held its memory since a second. Call this for the oldest holder first."""
        record = self._records.get(holder)
        if record is None:
            return
        record.since = second
        self._records.move_to_end(holder)
        for address in record.addresses:
            self._of_address[address].move_to_end(holder)

    def _forget(self, holder: MemoryHolder) -> None:
        record = self._records.pop(holder, None)
        if record is None:
            return
        for address in record.addresses:
            self._sums[address] -= record.size
            of_address = self._of_address[address]
            del of_address[holder]
            if not of_address:
                del self._of_address[address], self._sums[address]

    def __len__(self) -> int:
        return len(self._records)

    def close(self, excess: int, second: int) -> None:
        """Close connections until `excess` bytes are free or no connection holds memory."""
        for holder in self._in_order(second):
            if excess <= 0:
                return
            excess -= holder.held_bytes
            self._forget(holder)
            holder.give_up()

    def _in_order(self, second: int) -> Iterator[MemoryHolder]:
        """Return the holders in the order in which they are closed. The caller forgets each before the next.

        The oldest of the address with the highest priority is first. When no address holds more than SPARED_BYTES,
        the oldest of all is.
        """
        # Of addresses with the same priority, the one that has held memory for longest comes first, by its number.
        order = [
            (-self._priority(address, second), number, address)
            for number, (address, size) in enumerate(self._sums.items())
            if size > SPARED_BYTES
        ]
        heapq.heapify(order)
        while order:
            before, number, address = order[0]
            now = -self._priority(address, second)
            if not now:
                heapq.heappop(order)
            elif now != before:  # its priority fell, because one of its connections was closed
                heapq.heapreplace(order, (now, number, address))
            else:
                yield next(iter(self._of_address[address]))
        while self._records:
            yield next(iter(self._records))

    def _priority(self, address: Hashable, second: int) -> int:
        """Return the bytes above SPARED_BYTES that an address holds, times the seconds; 0 if there are none."""
        beyond = self._sums[address] - SPARED_BYTES
        if beyond <= 0:
            return 0
        oldest = next(iter(self._of_address[address].values()))
        return beyond * min(LONG_HOLD_SECONDS, second - oldest.since + 1)
