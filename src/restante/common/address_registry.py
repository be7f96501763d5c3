"""The quotas of addresses, and the names of addresses in logs.

Addresses of one household (restante.common.net) share a quota. The registry knows a household by a keyed hash whose
key lives as long as the process. Logs and usage records name it by another keyed hash, whose key lives for a day.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Generic, TypeVar

import msgspec

from restante.common.client_address import Client
from restante.common.net import Address, household
from restante.common.token_bucket import Bucket

SECONDS_PER_DAY: Final = 86400.0

MAX_ADDRESSES: Final = 100_000
"""Maximum number of address quotas in memory, of about 500 bytes each. Beyond it, each new quota replaces one that
has nothing live."""

FORGET_CHECKS_PER_SECOND: Final = 500
"""Address quotas that are checked for idleness in a second. This takes 0.7 ms, and 200 s for all of them."""

EVICTION_CHECKS: Final = 50
"""Maximum number of address quotas that are checked to make room for a new one. This takes 0.03 ms. If all of them
have something live, none is removed, and the registry exceeds `MAX_ADDRESSES`."""


HANDSHAKES_PER_CONNECT: Final = 2
"""TLS handshakes of an address for each connection that it may make. Who connects too often is told so after the
handshake; who has twice as many handshakes is closed before another one, which would take 0.5 to 2 ms of processor
time."""


class BaseQuota:
    """What one address uses before its requests. A server adds what else it limits."""

    __slots__ = ("_handshakes", "pending_requests")

    def __init__(self) -> None:
        self.pending_requests = 0
        """Connections whose request has not come yet."""
        self._handshakes = Bucket()

    @property
    def live(self) -> bool:
        """Whether the address has something that is counted now, such as a connection."""
        return self.pending_requests > 0

    def charge_handshake(self, now: float, connects_per_second: float, connects_at_once: float) -> bool:
        """Charge a TLS handshake, and return whether it may begin. A rate of 0 allows any number."""
        rate = HANDSHAKES_PER_CONNECT * connects_per_second
        if rate and self._handshakes.spent(now, rate) + 1 > HANDSHAKES_PER_CONNECT * connects_at_once:
            return False
        self._handshakes.take(now, rate, 1)
        return True

    def remembers_handshakes(self, now: float, connects_per_second: float) -> bool:
        """Return whether there were so many TLS handshakes lately that they must be remembered."""
        return self._handshakes.spent(now, HANDSHAKES_PER_CONNECT * connects_per_second) > 0


class PendingRequest(msgspec.Struct, frozen=True):
    """A connection whose request has not come yet."""

    address_quotas: tuple[BaseQuota, ...]
    """The quotas of the address that it counts for. Empty if the address is not known yet."""
    address_id: str
    refused: bool = False
    """Whether too many connections of its address have sent no request: it is closed at once."""


Q = TypeVar("Q", bound=BaseQuota)


class AddressRegistry(Generic[Q]):
    """The quotas of all addresses, and the names of addresses in logs."""

    def __init__(self, make_quota: Callable[[], Q], secret: Callable[[], bytes]) -> None:
        """Make an empty registry. `secret` returns new random bytes for the keys of its hashes."""
        self._make_quota = make_quota
        self._secret = secret
        self.key = secret()
        """The key of the hashes by which quotas are known."""
        self.day = -1
        """The day of the address ids, in days since 1970 (UTC)."""
        self.day_key = b""
        """The key of the address ids of this day."""
        self.quotas: OrderedDict[bytes, Q] = OrderedDict()
        """The least recently checked quota is first. A plain dict whose first item is removed repeatedly becomes
        slow at finding the next one."""

    def get_or_add(self, address: Address) -> Q:
        """Return the quota of an address; add one if it has none."""
        key = _hash(address, self.key)
        quota = self.quotas.get(key)
        if quota is None:
            if len(self.quotas) >= MAX_ADDRESSES:
                self._forget_one()
            quota = self.quotas[key] = self._make_quota()
        return quota

    def quotas_of(self, client: Client) -> tuple[Q, ...]:
        """Return the quotas of the addresses that a client counts for: none, one, or two."""
        if not client.counted:
            return ()
        addresses = (client.address,) if client.other_address is None else (client.address, client.other_address)
        return tuple(dict.fromkeys(map(self.get_or_add, addresses)))  # the two may have the same quota

    def begin_request(self, client: Client, limit: int, wall: float) -> PendingRequest:
        """Count a connection before its request. It ends with `end_request`.

        `limit` is the maximum number of these connections of an address; 0: any number.
        """
        address_quotas, address_id = self.quotas_of(client), self.day_id(client.address, wall)
        if limit and any(quota.pending_requests >= limit for quota in address_quotas):
            return PendingRequest((), address_id, refused=True)
        for quota in address_quotas:
            quota.pending_requests += 1
        return PendingRequest(address_quotas, address_id)

    def end_request(self, pending: PendingRequest) -> None:
        """Record that a request has come, or that its connection is gone."""
        for quota in pending.address_quotas:
            quota.pending_requests -= 1

    def day_id(self, address: Address, wall: float) -> str:
        """Return the address's name in logs and usage records. It changes at 00:00 UTC."""
        self.begin_day(wall)
        return _hash(address, self.day_key).hex()[:10]

    def begin_day(self, wall: float) -> None:
        """Forget the key of the day before, if another day has begun."""
        day = int(wall // SECONDS_PER_DAY)
        if day != self.day:
            self.day, self.day_key = day, self._secret()
            _hash.cache_clear()  # it has the key of the day before

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


@lru_cache(1024)  # each connection asks twice, and household and hash take 12,000 instructions
def _hash(address: Address, key: bytes) -> bytes:
    return blake2b(household(address), key=key, digest_size=8).digest()
