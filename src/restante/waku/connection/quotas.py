"""Quotas per address. All peers of an address share one, and reconnecting does not renew it.

An address is an IPv4 address or an IPv6 /64. The addresses of an IPv6 /56 also have a quota together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from restante.common import net
from restante.common.token_bucket import Bucket
from restante.waku.limits import Limits

MAX_REMEMBERED_ADDRESSES: Final = 10_000
"""Addresses whose quotas are remembered. The least recently used is forgotten first, unless it has connections."""

MAX_EXAMINED_QUOTAS: Final = 8
"""Quotas that are examined for each new one. So a new one costs little even if thousands are in use. As each may
remove more than one, the map shrinks again after it had to grow."""

SECONDS_PER_MINUTE: Final = 60.0

SITE_SHARE: Final = 4
"""How many times the limits of one IPv6 /64 apply to a /56, its site. A site has 256 of them, so without a limit it
could do as much as 256 IPv4 addresses. It is more than 1, because a mobile network gives each telephone a /64
(RFC 7278, 1)."""

Name = TypeVar("Name")
Quota = TypeVar("Quota")


class AddressQuota:
    """What the peers of one address, or of an IPv6 /56, have used up."""

    __slots__ = ("_bytes", "_connects", "_envelopes", "_share", "connections", "network", "of_site", "site")

    def __init__(self, address: str = "", share: int = 1) -> None:
        self.network = net.network_of(address)
        self.site = net.site_of(address)
        self.connections = 0
        """Open connections."""
        self.of_site: AddressQuota | None = None
        """The quota of the site, which is charged, too. None: the address is the site."""
        self._share = share
        """How many times each limit of an address applies."""
        self._bytes = Bucket()
        self._connects = Bucket()
        self._envelopes = Bucket()

    def has_room(self, limit: int) -> bool:
        """Return whether there may be another connection, if an address may have `limit` of them."""
        return self.connections < limit * self._share and (self.of_site is None or self.of_site.has_room(limit))

    def count_connections(self, change: int) -> None:
        """Count connections that were opened, or, with a negative number, closed."""
        self.connections += change
        if self.of_site is not None:
            self.of_site.count_connections(change)

    def take_connection(self, now: float, limits: Limits) -> bool:
        """Charge a new connection. Return False, and charge nothing, if the rate is exceeded."""
        rate = self._share * limits.address_connects / SECONDS_PER_MINUTE
        if rate and self._connects.wait(now, rate, self._share * limits.address_connects_at_once):
            return False
        if self.of_site is not None and not self.of_site.take_connection(now, limits):
            return False
        self._connects.take(now, rate, 1)
        return True

    def charge(self, now: float, limits: Limits, size: int, envelopes: int) -> None:
        """Charge bytes and envelopes that a peer has sent."""
        if size:
            self._bytes.take(now, self._share * limits.address_bytes, size)
        if envelopes:
            self._envelopes.take(now, self._share * limits.address_envelopes, envelopes)
        if self.of_site is not None:
            self.of_site.charge(now, limits, size, envelopes)

    def wait(self, now: float, limits: Limits) -> float:
        """Return the seconds for which no peer of the address should be read."""
        wait, share = 0.0, self._share
        if limits.address_bytes:
            wait = self._bytes.wait(now, share * limits.address_bytes, share * limits.address_bytes_at_once)
        if limits.address_envelopes:
            rate, at_once = share * limits.address_envelopes, share * limits.address_envelopes_at_once
            wait = max(wait, self._envelopes.wait(now, rate, at_once))
        if self.of_site is not None:
            wait = max(wait, self.of_site.wait(now, limits))
        return wait


class AddressQuotas:
    """The quotas of all addresses."""

    def __init__(self) -> None:
        self._quotas: OrderedDict[str, AddressQuota] = OrderedDict()

    def obtain(self, address: str) -> AddressQuota:
        """Return the quota of an address, a new one if necessary. Addresses are text as of `net.household_text`."""
        quota = self._obtain(address, 1)
        if quota.site != address:  # its quota may have been forgotten, but not while it has connections
            quota.of_site = self._obtain(quota.site, SITE_SHARE)
        return quota

    def _obtain(self, name: str, share: int) -> AddressQuota:
        quota = self._quotas.get(name)
        if quota is None:
            make_room(self._quotas, MAX_REMEMBERED_ADDRESSES, lambda quota: bool(quota.connections))
            quota = self._quotas[name] = AddressQuota(name, share)
        self._quotas.move_to_end(name)
        return quota


def make_room(quotas: OrderedDict[Name, Quota], limit: int, in_use: Callable[[Quota], bool]) -> None:
    """Remove old quotas that are not in use if there are `limit` or more.

    A quota in use stays: a new one would allow its owner everything twice.
    """
    for _ in range(MAX_EXAMINED_QUOTAS):
        if len(quotas) < limit:
            return
        name = next(iter(quotas))
        if in_use(quotas[name]):
            quotas.move_to_end(name)
        else:
            del quotas[name]
