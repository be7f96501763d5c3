"""What each address has used up: its peers share it, and to come again does not make one a newcomer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from restante.common.token_bucket import Bucket
from restante.waku.limits import Limits

REMEMBERED_ADDRESSES: Final = 10_000
"""Addresses that are remembered when nobody is here from there; the one longest unused is forgotten first."""

MAX_EVICTION_LOOKS: Final = 8
"""Quotas that are looked at for each new one. To come costs little though thousands are in use, and each new one
makes room for itself and for seven that could not be forgotten before."""

SECONDS_PER_MINUTE: Final = 60.0

Name = TypeVar("Name")
Used = TypeVar("Used")


class AddressQuota:
    """One address."""

    __slots__ = ("_bytes", "_connects", "_envelopes", "connections")

    def __init__(self) -> None:
        self.connections = 0
        """Connections that it has now."""
        self._bytes = Bucket()
        self._connects = Bucket()
        self._envelopes = Bucket()

    def take_connection(self, now: float, limits: Limits) -> bool:
        """Count a new connection; return whether there may be one."""
        rate = limits.address_connects / SECONDS_PER_MINUTE
        if rate and self._connects.wait(now, rate, limits.address_connects_at_once):
            return False
        self._connects.take(now, rate, 1)
        return True

    def charge(self, now: float, limits: Limits, size: int, envelopes: int) -> None:
        """Count what one of its peers has sent."""
        if size:
            self._bytes.take(now, limits.address_bytes, size)
        if envelopes:
            self._envelopes.take(now, limits.address_envelopes, envelopes)

    def wait(self, now: float, limits: Limits) -> float:
        """Give the seconds for which none of its peers should be read."""
        wait = 0.0
        if limits.address_bytes:
            wait = self._bytes.wait(now, limits.address_bytes, limits.address_bytes_at_once)
        if limits.address_envelopes:
            rate, most = limits.address_envelopes, limits.address_envelopes_at_once
            wait = max(wait, self._envelopes.wait(now, rate, most))
        return wait


class Quotas:
    """All of them."""

    def __init__(self) -> None:
        self._quotas: OrderedDict[str, AddressQuota] = OrderedDict()

    def obtain(self, address: str) -> AddressQuota:
        """Return the quota of an address."""
        quota = self._quotas.get(address)
        if quota is None:
            make_room(self._quotas, REMEMBERED_ADDRESSES, lambda each: bool(each.connections))
            quota = self._quotas[address] = AddressQuota()
        self._quotas.move_to_end(address)
        return quota


def make_room(quotas: OrderedDict[Name, Used], most: int, in_use: Callable[[Used], bool]) -> None:
    """Make room for a new quota among so many; none is forgotten in use, or what it has would be given twice."""
    for _ in range(MAX_EVICTION_LOOKS):
        if len(quotas) < most:
            return
        name = next(iter(quotas))
        if in_use(quotas[name]):
            quotas.move_to_end(name)
        else:
            del quotas[name]
