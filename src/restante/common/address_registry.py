"""The quotas of addresses, and the names of addresses in logs.

Addresses of one household (restante.common.net) share a quota. The registry knows a household by a keyed hash whose
key lives as long as the process. Logs and usage records name it by another keyed hash, whose key lives for a day.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Generic, Protocol, TypeVar

from restante.common.net import Address, household

SECONDS_PER_DAY: Final = 86400.0

MAX_ADDRESSES: Final = 100_000
"""Maximum number of address quotas in memory, of about 500 bytes each. Beyond it, each new quota replaces one that
has nothing live."""

FORGET_CHECKS_PER_SECOND: Final = 500
"""Address quotas that are checked for idleness in a second. This takes 0.7 ms, and 200 s for all of them."""

EVICTION_CHECKS: Final = 50
"""Maximum number of address quotas that are checked to make room for a new one. This takes 0.03 ms. If all of them
have something live, none is removed, and the registry exceeds `MAX_ADDRESSES`."""


class Quota(Protocol):
    """What one address uses of its limits."""

    @property
    def live(self) -> bool:
        """Whether the address has something that is counted now, such as a connection."""


Q = TypeVar("Q", bound=Quota)


class AddressRegistry(Generic[Q]):
    """The quotas of all addresses, and the names of addresses in logs."""

    def __init__(self, make_quota: Callable[[], Q], secret: Callable[[], bytes]) -> None:
        """Make an empty registry. `secret` returns new random bytes for the keys of its hashes."""
        self._make_quota = make_quota
        self._secret = secret
        self._key = secret()
        self._day = -1
        self._day_key = b""
        self.quotas: OrderedDict[bytes, Q] = OrderedDict()
        """The least recently checked quota is first. A plain dict whose first item is removed repeatedly becomes
        slow at finding the next one."""

    def get_or_add(self, address: Address) -> Q:
        """Return the quota of an address; add one if it has none."""
        key = _hash(address, self._key)
        quota = self.quotas.get(key)
        if quota is None:
            if len(self.quotas) >= MAX_ADDRESSES:
                self._forget_one()
            quota = self.quotas[key] = self._make_quota()
        return quota

    def day_id(self, address: Address, wall: float) -> str:
        """Return the address's name in logs and usage records. It changes at 00:00 UTC."""
        day = int(wall // SECONDS_PER_DAY)
        if day != self._day:
            self._day, self._day_key = day, self._secret()
        return _hash(address, self._day_key).hex()[:10]

    def forget(self, idle: Callable[[Q], bool]) -> None:
        """Remove idle quotas, checking FORGET_CHECKS_PER_SECOND of them. The server calls this once a second."""
        for _ in range(min(FORGET_CHECKS_PER_SECOND, len(self.quotas))):
            key, quota = self.quotas.popitem(last=False)
            if not idle(quota):
                self.quotas[key] = quota

    def _forget_one(self) -> None:
        """Remove one quota that has nothing live, if there is one among the next EVICTION_CHECKS."""
        for _ in range(min(EVICTION_CHECKS, len(self.quotas))):
            key, quota = self.quotas.popitem(last=False)
            if not quota.live:
                return
            self.quotas[key] = quota


def _hash(address: Address, key: bytes) -> bytes:
    return blake2b(household(address), key=key, digest_size=8).digest()
