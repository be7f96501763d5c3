"""Quotas per address, and the bytes that the relay has passed on: of each address today, and of all.

What is counted for a day or a month survives a restart, as plain data (`SavedTraffic`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from restante.common.address_registry import SECONDS_PER_DAY, BaseQuota
from restante.common.token_bucket import Bucket
from restante.relay.core.limits import Limits

MAX_DAY_ADDRESSES: Final = 10_000
"""Addresses whose bytes of a day are counted. Each save reads all of them: 11 ms."""


class DayBytes:
    """The bytes that pairs of one address have passed on in a day."""

    __slots__ = ("address_id", "bytes", "turn")

    def __init__(self, turn: int, address_id: str | None, size: int = 0) -> None:
        self.turn = turn
        """`Traffic.turn` of the day."""
        self.address_id = address_id
        """None: the address has no name of this day, because nobody has connected from it today. One of its pairs
        runs since the day before, or a proxy has named it as the second address of a client. Its bytes are counted,
        but not saved before it has a name."""
        self.bytes = size


class AddressQuota(BaseQuota):
    """What one address uses now, and its usage records and bytes of this day."""

    __slots__ = ("_records", "address_id", "address_id_turn", "day_bytes", "pairs", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.address_id: str | None = None
        """The name in logs of the client that connected last."""
        self.address_id_turn = -1
        """`Traffic.turn` of the day on which `address_id` is its name."""
        self.waiting = 0
        """Connections that wait for another side or have not sent their request yet."""
        self.pairs = 0
        self.day_bytes: DayBytes | None = None
        """None: it had no pair yet. It may be of an earlier day."""
        self._records = Bucket()

    @property
    def live(self) -> bool:
        """Whether the address has a connection."""
        return bool(self.pending_requests or self.waiting or self.pairs)

    def idle(self, now: float, limits: Limits) -> bool:
        """Return whether the quota can be forgotten. `Traffic` remembers the bytes."""
        return not (self.live or self._records.spent(now, limits.address_records / SECONDS_PER_DAY))

    def charge_record(self, now: float, limits: Limits) -> bool:
        """Charge a usage record, and return whether it may be written."""
        rate = limits.address_records / SECONDS_PER_DAY
        if rate and self._records.spent(now, rate) + 1 > limits.address_records:
            return False
        self._records.take(now, rate, 1)
        return True


class SavedTraffic(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The counts of a day and a month, which survive a restart."""

    day: int
    """Days since 1970 (UTC)."""
    day_bytes: int
    month: str
    """The calendar month (UTC), as in 2026-11."""
    month_bytes: int
    address_bytes: dict[str, int]
    """Bytes of the day by address id. An id means the same address as long as the key of the day is the same."""


class Traffic:
    """The bytes that the relay has passed on."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes since the start."""
        self.day = -1
        """The day that is counted, in days since 1970 (UTC). `begin_day` sets it."""
        self.turn = 0
        """How often a day has begun. If the clock is set back, a day begins again, with counts of 0."""
        self.day_bytes = 0
        self.month = ""
        """The calendar month (UTC) that is counted. If the relay was started with a clock that is behind, it is later
        than that of the clock. It ends when the clock comes to another month."""
        self.month_bytes = 0
        self._clock_month = ""
        self._by_address_id: OrderedDict[str, DayBytes] = OrderedDict()
        """Counts of this day. The one whose address was paired least recently is first, and is forgotten if there are
        more than MAX_DAY_ADDRESSES."""

    def begin_day(self, wall: float) -> None:
        """Begin to count another day, and another month, if one has begun."""
        day = int(wall // SECONDS_PER_DAY)
        if day == self.day:
            return
        self.day, self.day_bytes = day, 0
        self.turn += 1
        self._by_address_id.clear()
        month = month_of(wall)
        if month not in {self._clock_month, self.month}:
            self.month, self.month_bytes = month, 0
        self._clock_month = month

    def name(self, quota: AddressQuota, address_id: str) -> None:
        """Set the name of an address for this day: it has connected."""
        quota.address_id, quota.address_id_turn = address_id, self.turn
        unnamed = quota.day_bytes
        if unnamed is not None and unnamed.turn == self.turn and unnamed.address_id is None:
            if address_id in self._by_address_id:
                unnamed.bytes += self._by_address_id[address_id].bytes
            unnamed.address_id = address_id
            self._add(unnamed)

    def day_bytes_of(self, quota: AddressQuota) -> int:
        """Return the bytes of an address on this day."""
        day_bytes = self._find(quota)
        return 0 if day_bytes is None else day_bytes.bytes

    def counters(self, address_quotas: Iterable[AddressQuota]) -> tuple[DayBytes, ...]:
        """Return where the bytes of a pair of these addresses are counted on this day."""
        return tuple(dict.fromkeys(map(self._find_or_add, address_quotas)))

    def top(self, number: int) -> list[tuple[str, int]]:
        """Return the address ids with the most bytes on this day, and the bytes. It looks at all of them."""
        return heapq.nlargest(number, self._address_bytes(), key=lambda count: count[1])

    def saved(self) -> SavedTraffic:
        """Return the counts as plain data."""
        return SavedTraffic(
            day=self.day,
            day_bytes=self.day_bytes,
            month=self.month,
            month_bytes=self.month_bytes,
            address_bytes=dict(self._address_bytes()),
        )

    def restore(self, saved: SavedTraffic, wall: float) -> None:
        """Continue with saved counts. Those of another day than that of `wall`, or of an earlier month, are ignored.

        A later month goes on: the clock is behind, or was ahead. If it was, the month ends with that of the clock.
        """
        self.begin_day(wall)
        if saved.month >= self.month:
            self.month = saved.month
            self.month_bytes += saved.month_bytes
        if saved.day == self.day:
            self.day_bytes += saved.day_bytes
            for address_id, size in saved.address_bytes.items():
                self._add(DayBytes(self.turn, address_id, size))

    def _address_bytes(self) -> Iterator[tuple[str, int]]:
        return ((name, day_bytes.bytes) for name, day_bytes in self._by_address_id.items() if day_bytes.bytes)

    def _find(self, quota: AddressQuota) -> DayBytes | None:
        day_bytes = quota.day_bytes
        if day_bytes is not None and day_bytes.turn == self.turn:
            return day_bytes
        if quota.address_id is None or quota.address_id_turn != self.turn:
            return None
        return self._by_address_id.get(quota.address_id)

    def _find_or_add(self, quota: AddressQuota) -> DayBytes:
        day_bytes = self._find(quota)
        if day_bytes is None:
            day_bytes = DayBytes(self.turn, quota.address_id if quota.address_id_turn == self.turn else None)
        quota.day_bytes = day_bytes
        if day_bytes.address_id is not None:
            self._add(day_bytes)
        return day_bytes

    def _add(self, day_bytes: DayBytes) -> None:
        assert day_bytes.address_id is not None
        self._by_address_id[day_bytes.address_id] = day_bytes
        self._by_address_id.move_to_end(day_bytes.address_id)
        if len(self._by_address_id) > MAX_DAY_ADDRESSES:
            self._by_address_id.popitem(last=False)


def month_of(wall: float) -> str:
    """Return the calendar month (UTC) of a time, as in 2026-11."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m")
