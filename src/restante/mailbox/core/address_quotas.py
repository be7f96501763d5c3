"""What each address has used up.

An address counts as its household (restante.common.net). It is kept as a keyed hash whose key
lives as long as the process; in logs and usage records it is another one, whose key lives for a day.
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
"""Address quotas that are kept, of some 500 bytes each. Beyond that, one that has nothing live is forgotten for
each that comes."""

FORGET_CHECKS_PER_SECOND: Final = 500
"""Address quotas looked at in a second: 0.7 ms, and all of them in 200 s."""

EVICTION_CHECKS: Final = 50
"""Address quotas looked at for a new one: 0.03 ms. If all of them have something live, there is one more than
`MAX_ADDRESSES`."""

MAX_KNOWN_NAMEPLATES: Final = 64
"""Live nameplates an address claimed last: to claim one of them again, after a lost connection, is no new guess."""

ABUSE_SCORE_TOLERATED: Final = 80
"""Points before an adaptive server demands work of an address: a claim that was refused for being one too
many and a denied permission are 2, a nameplate it had not claimed before is 1, a connection a tenth. An office that
comes back after an outage has 20, a class of thirty that sends and receives 36."""

ABUSE_SCORE_DECAY: Final = 1 / 15
"""Points a second that are forgiven: four a minute."""

ABUSE_SCORE_PER_BIT: Final = 10
"""Points for each bit more."""


class AddressQuota:
    """What one address has, and has used up."""

    __slots__ = (
        *("_claims", "_connects", "_recent", "_records", "_abuse_score"),
        *("connections", "pending_requests", "demanded", "nameplates", "stored"),
    )

    def __init__(self) -> None:
        self.pending_requests = 0
        """Connections that have not asked for a WebSocket yet."""
        self.connections = 0
        self.nameplates = 0
        """Live ones that were made from here."""
        self.stored = 0
        """Bytes of live mailboxes and messages that were made from here."""
        self.demanded = 0
        """Bits that were demanded of it last, for what it had done itself."""
        self._claims = Bucket()
        self._connects = Bucket()
        self._recent: dict[int, None] = {}
        """Keys of nameplates. Names would do for another nameplate, too, that has one of them later."""
        self._records = Bucket()
        self._abuse_score = Bucket()

    @property
    def live(self) -> bool:
        """Something that was made from here lives."""
        return bool(self.pending_requests or self.connections or self.nameplates or self.stored)

    def idle(self, now: float, limits: Limits) -> bool:
        """Tell whether there is nothing to remember."""
        return not (
            self.live
            or self._claims.spent(now, limits.address_claims / 60)
            or self._connects.spent(now, limits.address_connects / 60)
            or self._records.spent(now, limits.address_records / SECONDS_PER_DAY)
            or self._abuse_score.spent(now, ABUSE_SCORE_DECAY)
        )

    def charge_connect(self, now: float, limits: Limits) -> float:
        """Take note of a connection; gives the seconds after which it may try again, 0 where it may stay."""
        self.connections += 1
        rate = limits.address_connects / 60
        if rate and self._connects.spent(now, rate) + 1 > limits.address_connects_at_once:
            return self._connects.wait(now, rate, limits.address_connects_at_once - 1)
        self._connects.take(now, rate, 1)
        return 0.0

    def charge_claim(self, key: int | None, now: float, limits: Limits) -> float:
        """Charge a claim of a nameplate that it does not know, or an allocation. `key` is None where none lives.

        Return the seconds that it must wait; 0: it may go on.
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
        """Note a live nameplate that is no guess."""
        self._recent[key] = None
        if len(self._recent) > MAX_KNOWN_NAMEPLATES:
            del self._recent[next(iter(self._recent))]

    def charge_record(self, now: float, limits: Limits) -> bool:
        """Charge a usage record; tells whether it may be written."""
        rate = limits.address_records / SECONDS_PER_DAY
        if rate and self._records.spent(now, rate) + 1 > limits.address_records:
            return False
        self._records.take(now, rate, 1)
        return True

    def add_abuse_score(self, now: float, points: float) -> None:
        self._abuse_score.take(now, ABUSE_SCORE_DECAY, points)

    def bits(self, now: float, base: int) -> int | None:
        """Give the work that an adaptive server demands of this address; None: none."""
        over = self._abuse_score.spent(now, ABUSE_SCORE_DECAY) - ABUSE_SCORE_TOLERATED
        return min(MAX_BITS, base + int(over // ABUSE_SCORE_PER_BIT)) if over > 0 else None


class AddressRegistry:
    """The quotas of all addresses, and the names that addresses go by."""

    def __init__(self, secret: Callable[[], bytes]) -> None:
        self._secret = secret
        self._key = secret()
        self._day = -1
        self._day_key = b""
        self.quotas: OrderedDict[bytes, AddressQuota] = OrderedDict()
        """Those that were looked at last are the last. A dict that loses its first again and again is slow to find
        the next one."""

    def get_or_add(self, address: Address) -> AddressQuota:
        """Return the quota that this address counts for."""
        key = _hash(address, self._key)
        quota = self.quotas.get(key)
        if quota is None:
            if len(self.quotas) >= MAX_ADDRESSES:
                self._forget_one()
            quota = self.quotas[key] = AddressQuota()
        return quota

    def day_id(self, address: Address, wall: float) -> str:
        """Give the address's name in logs and usage records: another one from 00:00 UTC on."""
        day = int(wall // SECONDS_PER_DAY)
        if day != self._day:
            self._day, self._day_key = day, self._secret()
        return _hash(address, self._day_key).hex()[:10]

    def forget(self, now: float, limits: Limits) -> None:
        """Drop quotas of which there is nothing to remember; to be called once a second, and looks at some."""
        for _ in range(min(FORGET_CHECKS_PER_SECOND, len(self.quotas))):
            key, quota = self.quotas.popitem(last=False)
            if not quota.idle(now, limits):
                self.quotas[key] = quota

    def _forget_one(self) -> None:
        """Drop a quota that has nothing live, if there is one among the next."""
        for _ in range(min(EVICTION_CHECKS, len(self.quotas))):
            key, quota = self.quotas.popitem(last=False)
            if not quota.live:
                return
            self.quotas[key] = quota


def _hash(address: Address, key: bytes) -> bytes:
    return blake2b(household(address), key=key, digest_size=8).digest()
