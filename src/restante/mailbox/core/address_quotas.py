"""The quotas of each address.

Addresses of one household (restante.common.net) share a quota. The registry knows a household by a keyed hash whose
key lives as long as the process. Logs and usage records name it by another keyed hash, whose key lives for a day.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from restante.common.net import Address, household
from restante.common.token_bucket import Bucket
from restante.mailbox.core.limits import SECONDS_PER_DAY, Limits
from restante.mailbox.protocol.hashcash import MAX_BITS

MAX_ADDRESSES: Final = 100_000
"""Maximum number of address quotas in memory, of about 500 bytes each. Beyond it, each new quota replaces one that
has nothing live."""

FORGET_CHECKS_PER_SECOND: Final = 500
"""Address quotas that are checked for idleness in a second. This takes 0.7 ms, and 200 s for all of them."""

EVICTION_CHECKS: Final = 50
"""Maximum number of address quotas that are checked to make room for a new one. This takes 0.03 ms. If all of them
have something live, none is removed, and the registry exceeds `MAX_ADDRESSES`."""

MAX_KNOWN_NAMEPLATES: Final = 64
"""Maximum number of live nameplates that an address is known to have claimed, the latest ones. Claiming one of them
again, after a lost connection, is not a new guess."""

ABUSE_SCORE_TOLERATED: Final = 80
"""Abuse score above which an adaptive server demands work of an address. A claim beyond `address_claims` and a
denied permission add 2 points, a nameplate that the address had not claimed before adds 1, a connection adds 0.1. An
office that reconnects after an outage scores 20, a class of thirty that sends and receives scores 36."""

ABUSE_SCORE_DECAY: Final = 1 / 15
"""Points that the abuse score loses each second: four a minute."""

ABUSE_SCORE_PER_BIT: Final = 10
"""Points above ABUSE_SCORE_TOLERATED for each extra bit."""


REFUSALS_PER_SECOND: Final = 20
"""Refused connections of an address that get a second to clean up. More are closed at once: otherwise an address
could keep any number open, a second each."""


HANDSHAKES_PER_CONNECT: Final = 2
"""TLS handshakes of an address for each connection that `address_connects` allows it. Who connects too often is told
so after the handshake; who has twice as many handshakes is closed before another one, which would take 0.5 to 2 ms of
processor time."""


class AddressQuota:
    """What one address has live, and its rates and abuse score."""

    __slots__ = (
        *("_claims", "_connects", "_handshakes", "_recent", "_records", "_refusals", "_abuse_score"),
        *("address_id", "connections", "pending_requests", "demanded", "nameplates", "stored"),
    )

    def __init__(self) -> None:
        self.address_id: str | None = None
        """The name in logs of the client that connected last."""
        self.pending_requests = 0
        """Connections that have not requested a WebSocket yet."""
        self.connections = 0
        self.nameplates = 0
        """Live nameplates that this address created."""
        self.stored = 0
        """Bytes of live mailboxes and messages that this address created."""
        self.demanded = 0
        """Bits that were last demanded of this address because of its own abuse score; 0: none."""
        self._claims = Bucket()
        self._connects = Bucket()
        self._handshakes = Bucket()
        self._refusals = Bucket()
        self._recent: dict[int, None] = {}
        """Keys of nameplates. A name may belong to another nameplate later; a key may not."""
        self._records = Bucket()
        self._abuse_score = Bucket()

    @property
    def live(self) -> bool:
        """Whether the address has a live connection, nameplate or mailbox."""
        return bool(self.pending_requests or self.connections or self.nameplates or self.stored)

    def idle(self, now: float, limits: Limits) -> bool:
        """Return whether the quota holds nothing that must be remembered."""
        return not (
            self.live
            or self._claims.spent(now, limits.address_claims / 60)
            or self._connects.spent(now, limits.address_connects / 60)
            or self._handshakes.spent(now, HANDSHAKES_PER_CONNECT * limits.address_connects / 60)
            or self._refusals.spent(now, REFUSALS_PER_SECOND)
            or self._records.spent(now, limits.address_records / SECONDS_PER_DAY)
            or self._abuse_score.spent(now, ABUSE_SCORE_DECAY)
        )

    def charge_connect(self, now: float, limits: Limits) -> float:
        """Charge a new connection. Return 0, or the seconds after which it may try again if it comes too fast."""
        self.connections += 1
        rate = limits.address_connects / 60
        if rate and self._connects.spent(now, rate) + 1 > limits.address_connects_at_once:
            return self._connects.wait(now, rate, limits.address_connects_at_once - 1)
        self._connects.take(now, rate, 1)
        return 0.0

    def charge_handshake(self, now: float, limits: Limits) -> bool:
        """Charge a TLS handshake, and return whether it may begin."""
        rate = HANDSHAKES_PER_CONNECT * limits.address_connects / 60
        most = HANDSHAKES_PER_CONNECT * limits.address_connects_at_once
        if rate and self._handshakes.spent(now, rate) + 1 > most:
            return False
        self._handshakes.take(now, rate, 1)
        return True

    def charge_refusal(self, now: float) -> bool:
        """Charge a refused connection; return whether it must be closed at once, without time to clean up."""
        if self._refusals.spent(now, REFUSALS_PER_SECOND) + 1 > REFUSALS_PER_SECOND:
            return True
        self._refusals.take(now, REFUSALS_PER_SECOND, 1)
        return False

    def charge_claim(self, key: int | None, now: float, limits: Limits) -> float:
        """Charge an allocation, or a claim of a nameplate that the address has not claimed before.

        `key` is the nameplate's key, or None if no such nameplate is live. Return 0, or the seconds after which the
        address may try again.
        """
        if key in self._recent:
            return 0.0
        rate = limits.address_claims / 60
        if rate and self._claims.spent(now, rate) + 1 > limits.address_claims_at_once:
            self.add_abuse_score(now, 2.0)
            return self._claims.wait(now, rate, limits.address_claims_at_once - 1)
        self._claims.take(now, rate, 1)
        self.add_abuse_score(now, 1.0)
        return 0.0

    def remember_nameplate(self, key: int) -> None:
        """Remember a live nameplate of this address: claiming it again is not a guess."""
        self._recent[key] = None
        if len(self._recent) > MAX_KNOWN_NAMEPLATES:
            del self._recent[next(iter(self._recent))]

    def charge_record(self, now: float, limits: Limits) -> bool:
        """Charge a usage record, and return whether the server may write it."""
        rate = limits.address_records / SECONDS_PER_DAY
        if rate and self._records.spent(now, rate) + 1 > limits.address_records:
            return False
        self._records.take(now, rate, 1)
        return True

    def add_abuse_score(self, now: float, points: float) -> None:
        """Add points to the abuse score, which falls by itself. `now` is in seconds of service."""
        self._abuse_score.take(now, ABUSE_SCORE_DECAY, points)

    def bits(self, now: float, base: int) -> int | None:
        """Return the bits that an adaptive server demands of this address, or None."""
        over = self._abuse_score.spent(now, ABUSE_SCORE_DECAY) - ABUSE_SCORE_TOLERATED
        return min(MAX_BITS, base + int(over // ABUSE_SCORE_PER_BIT)) if over > 0 else None


class AddressRegistry:
    """The quotas of all addresses, and the names of addresses in logs."""

    def __init__(self, secret: Callable[[], bytes]) -> None:
        self._secret = secret
        self._key = secret()
        self._day = -1
        self._day_key = b""
        self.quotas: OrderedDict[bytes, AddressQuota] = OrderedDict()
        """The least recently checked quota is first. A plain dict whose first item is removed repeatedly becomes
        slow at finding the next one."""

    def get_or_add(self, address: Address) -> AddressQuota:
        """Return the quota of an address; add one if it has none."""
        key = _hash(address, self._key)
        quota = self.quotas.get(key)
        if quota is None:
            if len(self.quotas) >= MAX_ADDRESSES:
                self._forget_one()
            quota = self.quotas[key] = AddressQuota()
        return quota

    def day_id(self, address: Address, wall: float) -> str:
        """Return the address's name in logs and usage records. It changes at 00:00 UTC."""
        day = int(wall // SECONDS_PER_DAY)
        if day != self._day:
            self._day, self._day_key = day, self._secret()
        return _hash(address, self._day_key).hex()[:10]

    def forget(self, now: float, limits: Limits) -> None:
        """Remove idle quotas, checking FORGET_CHECKS_PER_SECOND of them. The server calls this once a second."""
        for _ in range(min(FORGET_CHECKS_PER_SECOND, len(self.quotas))):
            key, quota = self.quotas.popitem(last=False)
            if not quota.idle(now, limits):
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
