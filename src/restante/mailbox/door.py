"""The door: who comes in, and on which terms. Decides for each connection once, when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from restante.errors import PeerError
from restante.mailbox.addresses import Account, Addresses, Client, Network, who
from restante.mailbox.limits import UNLIMITED, Limits
from restante.mailbox.model import Now
from restante.mailbox.permission import Demand, Mode, Tide, offer

CONNECTION_STRAIN: Final = 0.1
"""What a connection adds to its address's strain (addresses.PATIENCE)."""

FULL: Final = "the server has no room for more connections"
TOO_MANY: Final = "too many connections from your address"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator wants of those who come."""

    mode: Mode = "none"
    bits: int = 20
    """What is demanded at least, where anything is."""
    load: float = 200.0
    """Connections a second above which mode `adaptive` demands work of everybody."""
    trusted: Sequence[Network] = ()
    """Proxies that say who their clients are."""


class Entrance(msgspec.Struct, frozen=True):
    """The terms on which a connection was let in."""

    client: Client
    account: Account | None
    address_id: str
    demand: Demand | None
    offer: dict[str, Any] | None
    """The welcome's `permission-required`."""
    verdict: PeerError | None
    """Why it may not stay."""


class Door:
    """Knows addresses, and how hard it is to come in."""

    def __init__(self, terms: Terms, secret: Callable[[], bytes]) -> None:
        self.terms = terms
        self.limits: Limits = UNLIMITED
        self.addresses = Addresses(secret)
        self.tide = Tide()
        self.demanded = 0
        """Connections of which work was demanded, all told."""
        self.changes = 0
        """How often what is demanded of some address has changed."""
        self.news: dict[str, int] = {}
        """Which those were, by address id, and the bits that are demanded of them now; whoever logs it clears it."""
        self._secret = secret
        self._came = 0

    def enter(self, peer: Sequence[Any], headers: Mapping[str, str], now: Now, connections: int) -> Entrance:
        """Decide about a connection; `connections` are there already. One that may stay ends with `leave`."""
        limits = self.limits
        self._came += 1
        client = who(peer, headers, self.terms.trusted)
        account, wait = None, 0.0
        if client.counted:
            account = self.addresses.account(client.address)
            wait = account.connect(now.service, limits)
            account.strain(now.service, CONNECTION_STRAIN)
        verdict = None
        if limits.connections and connections >= limits.connections:
            verdict = PeerError(1013, FULL, hint="try again later")
        elif account is not None and limits.address_connections and account.connections > limits.address_connections:
            verdict = PeerError(1008, TOO_MANY, hint=f"{limits.address_connections} may be open at a time")
        elif wait:
            verdict = PeerError(1008, TOO_MANY, hint=f"they come too fast; try again in {math.ceil(wait)} s")
        address_id = self.addresses.day_id(client.address, now.wall)
        demand = self._demand(account, address_id, now)
        if verdict is not None and account is not None:  # who is refused keeps nobody else out
            account.connections -= 1
        return Entrance(
            client,
            account if verdict is None else None,
            address_id,
            demand,
            None if self.terms.mode == "none" else offer(demand),
            verdict,
        )

    def leave(self, account: Account | None) -> None:
        if account is not None:
            account.connections -= 1

    def _demand(self, account: Account | None, address_id: str, now: Now) -> Demand | None:
        terms = self.terms
        if terms.mode == "none":
            return None
        bits = terms.bits
        if terms.mode == "adaptive":
            of_all = self.tide.bits(terms.bits) or 0
            of_it = 0 if account is None else account.bits(now.service, terms.bits) or 0
            if account is not None and of_it != account.demanded:
                account.demanded = of_it
                self.changes += 1
                self.news[address_id] = of_it
            bits = max(of_all, of_it)
        if not bits:
            return None
        self.demanded += 1
        return Demand(bits, self._secret()[:12].hex())

    def tick(self) -> bool:
        """Let a second go by; tells whether what is demanded of everybody has changed."""
        came, self._came = self._came, 0
        return self.terms.mode == "adaptive" and self.tide.tick(came, self.terms.load)
