"""Addresses: whom a connection counts for, and what that address has used up.

An address counts as its household (restante.common.net). It is kept as a keyed hash whose key
lives as long as the process; in logs and usage records it is another one, whose key lives for a day.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from restante.common.net import Address, household, read
from restante.common.token_bucket import Bucket
from restante.mailbox.core.limits import Limits
from restante.mailbox.protocol.hashcash import MOST_BITS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DAY: Final = 86400.0

MOST: Final = 100_000
"""Accounts that are kept, of some 500 bytes each. Beyond that, one that has nothing live is forgotten for each that
comes."""

LOOKS: Final = 500
"""Accounts looked at in a second: 0.7 ms, and all of them in 200 s."""

LOOKS_FOR_ROOM: Final = 50
"""Accounts looked at for a new one: 0.03 ms. If all of them have something live, there is one more than `MOST`."""

RECENT: Final = 64
"""Live nameplates an address claimed last: to claim one of them again, after a lost connection, is no new guess."""

PATIENCE: Final = 80
"""Points of strain before an adaptive server demands work of an address: a claim that was refused for being one too
many and a denied permission are 2, a nameplate it had not claimed before is 1, a connection a tenth. An office that
comes back after an outage has 20, a class of thirty that sends and receives 36."""

RELIEF: Final = 1 / 15
"""Points a second that are forgiven: four a minute."""

STRAIN_STEP: Final = 10
"""Points for each bit more."""


# ── who is it? ───────────────────────────────────────────────────────────────────────────────────


class Client(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end, as far as we can know."""

    address: Address
    port: int
    """0: not known."""
    counted: bool
    """Limits per address apply. They do not to a loopback or private peer, behind which anybody may be, unless it is
    a trusted proxy that says who."""
    unheeded: bool = False
    """It may be a proxy that names its clients, and is not trusted."""
    other: Address | None = None
    """What X-Real-IP says, where X-Forwarded-For says something else. The client may have invented one of them."""


def who(peer: Sequence[Any], headers: Mapping[str, str], trusted: Sequence[Network]) -> Client:
    """Find out who is at the other end of a connection from this peer, whose request had these headers.

    What a header says counts only if a trusted proxy said it. Of X-Forwarded-For that is its last entry that is not
    a trusted proxy's own; without one, X-Real-IP. Where both are there and differ, what X-Real-IP says is `other`. A
    header that is there more than once is given with commas. Clients that a proxy names in a way that cannot be read
    count together, as the proxy.
    """
    address = read(str(peer[0]))
    assert address is not None, "the kernel knows its addresses"
    hidden = _hidden(address)
    forwarded, real = headers.get("X-Forwarded-For"), headers.get("X-Real-IP")
    if not _among(address, trusted):
        return Client(address, int(peer[1]), counted=not hidden, unheeded=hidden and bool(forwarded or real))
    real_ip = read((real or "").rpartition(",")[2].strip())
    named = _last_stranger(forwarded, trusted) if forwarded else real_ip
    # To a proxy behind another one, X-Real-IP may be the other proxy.
    other = None if real_ip is None or real_ip == named or _among(real_ip, trusted) else real_ip
    if named is None:
        return Client(address, int(peer[1]), counted=bool(forwarded or real), other=other)
    port = headers.get("X-Real-Port", "").rpartition(",")[2].strip()
    readable = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return Client(named, int(port) if readable else 0, counted=True, other=other)


_PRIVATE: Final = [
    # RFC 1918, RFC 3927, RFC 4193, RFC 4291. Python's is_private has more, which are routed, or nobody's.
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
]


@lru_cache(1024)  # to look through all private networks takes 10 µs
def _hidden(address: Address) -> bool:
    """Return whether the address is loopback or private, so that many clients may share it."""
    return address.is_loopback or _among(address, _PRIVATE)


def _last_stranger(forwarded: str, trusted: Sequence[Network]) -> Address | None:
    named = None
    for entry in reversed(forwarded.split(",")[-16:]):
        named = read(_bare(entry.strip()))
        if named is None or not _among(named, trusted):
            return named
    return named


def _bare(entry: str) -> str:
    """Take away a port: 192.0.2.1:443, [2001:db8::1]:443."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _among(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def networks(texts: Sequence[str]) -> list[Network]:
    """Read networks like 127.0.0.0/8 and ::1. Raises ValueError, whose text says what is wrong."""
    return [ipaddress.ip_network(text, strict=False) for text in texts]


# ── what it has used up ──────────────────────────────────────────────────────────────────────────


class Account:
    """What one address has, and has used up."""

    __slots__ = (
        *("_claims", "_connects", "_recent", "_records", "_strain"),
        *("asking", "connections", "demanded", "nameplates", "stored"),
    )

    def __init__(self) -> None:
        self.asking = 0
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
        self._strain = Bucket()

    @property
    def live(self) -> bool:
        """Something that was made from here lives."""
        return bool(self.asking or self.connections or self.nameplates or self.stored)

    def idle(self, now: float, limits: Limits) -> bool:
        """Tell whether there is nothing to remember."""
        return not (
            self.live
            or self._claims.spent(now, limits.address_claims / 60)
            or self._connects.spent(now, limits.address_connects / 60)
            or self._records.spent(now, limits.address_records / DAY)
            or self._strain.spent(now, RELIEF)
        )

    def connect(self, now: float, limits: Limits) -> float:
        """Take note of a connection; gives the seconds after which it may try again, 0 where it may stay."""
        self.connections += 1
        rate = limits.address_connects / 60
        if rate and self._connects.spent(now, rate) + 1 > limits.address_connects_at_once:
            return self._connects.wait(now, rate, limits.address_connects_at_once - 1)
        self._connects.take(now, rate, 1)
        return 0.0

    def claim(self, key: int | None, now: float, limits: Limits) -> float:
        """Charge a claim of a nameplate that it does not know, or an allocation. `key` is None where none lives.

        Return the seconds that it must wait; 0: it may go on.
        """
        if key in self._recent:
            return 0.0
        rate = limits.address_claims / 60
        if rate and self._claims.spent(now, rate) + 1 > limits.address_claims_at_once:
            self.strain(now, 2.0)
            return self._claims.wait(now, rate, limits.address_claims_at_once - 1)
        self._claims.take(now, rate, 1)
        self.strain(now, 1.0)
        return 0.0

    def knows(self, key: int) -> None:
        """Note a live nameplate that is no guess."""
        self._recent[key] = None
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def record(self, now: float, limits: Limits) -> bool:
        """Charge a usage record; tells whether it may be written."""
        rate = limits.address_records / DAY
        if rate and self._records.spent(now, rate) + 1 > limits.address_records:
            return False
        self._records.take(now, rate, 1)
        return True

    def strain(self, now: float, points: float) -> None:
        self._strain.take(now, RELIEF, points)

    def bits(self, now: float, base: int) -> int | None:
        """Give the work that an adaptive server demands of this address; None: none."""
        over = self._strain.spent(now, RELIEF) - PATIENCE
        return min(MOST_BITS, base + int(over // STRAIN_STEP)) if over > 0 else None


class Addresses:
    """All accounts, and the names that addresses go by."""

    def __init__(self, secret: Callable[[], bytes]) -> None:
        self._secret = secret
        self._key = secret()
        self._day = -1
        self._day_key = b""
        self.accounts: OrderedDict[bytes, Account] = OrderedDict()
        """Those that were looked at last are the last. A dict that loses its first again and again is slow to find
        the next one."""

    def account(self, address: Address) -> Account:
        """Give the account that this address counts for."""
        key = _hash(address, self._key)
        account = self.accounts.get(key)
        if account is None:
            if len(self.accounts) >= MOST:
                self._forget_one()
            account = self.accounts[key] = Account()
        return account

    def day_id(self, address: Address, wall: float) -> str:
        """Give the address's name in logs and usage records: another one from 00:00 UTC on."""
        day = int(wall // DAY)
        if day != self._day:
            self._day, self._day_key = day, self._secret()
        return _hash(address, self._day_key).hex()[:10]

    def forget(self, now: float, limits: Limits) -> None:
        """Drop accounts of which there is nothing to remember; to be called once a second, and looks at some."""
        for _ in range(min(LOOKS, len(self.accounts))):
            key, account = self.accounts.popitem(last=False)
            if not account.idle(now, limits):
                self.accounts[key] = account

    def _forget_one(self) -> None:
        """Drop an account that has nothing live, if there is one among the next."""
        for _ in range(min(LOOKS_FOR_ROOM, len(self.accounts))):
            key, account = self.accounts.popitem(last=False)
            if not account.live:
                return
            self.accounts[key] = account


def _hash(address: Address, key: bytes) -> bytes:
    return blake2b(household(address), key=key, digest_size=8).digest()
