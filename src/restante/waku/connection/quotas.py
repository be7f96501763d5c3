"""Quotas per address. All peers of an address share one, and reconnecting does not renew it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from restante.common.token_bucket import Bucket
from restante.waku.limits import Limits

REMEMBERED_ADDRESSES: Final = 10_000
"""Addresses whose quotas are remembered. The least recently used is forgotten first, unless it has connections."""

MAX_EVICTION_LOOKS: Final = 8
"""Quotas that are examined for each new one. So a new one costs little even if thousands are in use. As each may
remove more than one, the map shrinks again after it had to grow."""

SECONDS_PER_MINUTE: Final = 60.0

Name = TypeVar("Name")
Used = TypeVar("Used")


class AddressQuota:
    """What the peers of one address have used up."""

    __slots__ = ("_bytes", "_connects", "_envelopes", "connections")

    def __init__(self) -> None:
        self.connections = 0
        """Open connections."""
        self._bytes = Bucket()
        self._connects = Bucket()
        self._envelopes = Bucket()

    def take_connection(self, now: float, limits: Limits) -> bool:
        """Charge a new connection. Return False, and charge nothing, if the rate is exceeded."""
        rate = limits.address_connects / SECONDS_PER_MINUTE
        if rate and self._connects.wait(now, rate, limits.address_connects_at_once):
            return False
        self._connects.take(now, rate, 1)
        return True

    def charge(self, now: float, limits: Limits, size: int, envelopes: int) -> None:
        """Charge bytes and envelopes that a peer has sent."""
        if size:
            self._bytes.take(now, limits.address_bytes, size)
        if envelopes:
            self._envelopes.take(now, limits.address_envelopes, envelopes)

    def wait(self, now: float, limits: Limits) -> float:
        """Return the seconds for which no peer of the address should be read."""
        wait = 0.0
        if limits.address_bytes:
            wait = self._bytes.wait(now, limits.address_bytes, limits.address_bytes_at_once)
        if limits.address_envelopes:
            rate, most = limits.address_envelopes, limits.address_envelopes_at_once
            wait = max(wait, self._envelopes.wait(now, rate, most))
        return wait


class Quotas:
    """The quotas of all addresses."""

    def __init__(self) -> None:
        self._quotas: OrderedDict[str, AddressQuota] = OrderedDict()

    def obtain(self, address: str) -> AddressQuota:
        """Return the quota of an address, a new one if necessary."""
        quota = self._quotas.get(address)
        if quota is None:
            make_room(self._quotas, REMEMBERED_ADDRESSES, lambda each: bool(each.connections))
            quota = self._quotas[address] = AddressQuota()
        self._quotas.move_to_end(address)
        return quota


def make_room(quotas: OrderedDict[Name, Used], most: int, in_use: Callable[[Used], bool]) -> None:
    """Remove old quotas that are not in use if there are `most` or more.

    A quota in use stays: a new one would allow its owner everything twice.
    """
    for _ in range(MAX_EVICTION_LOOKS):
        if len(quotas) < most:
            return
        name = next(iter(quotas))
        if in_use(quotas[name]):
            quotas.move_to_end(name)
        else:
            del quotas[name]
