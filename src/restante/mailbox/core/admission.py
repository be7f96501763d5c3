"""Admission: which connections are admitted, and on which terms. Each connection is decided once, when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from restante.common.client_address import Client, identify
from restante.common.errors import PeerError
from restante.common.net import Network
from restante.common.newcomer_admission import NewcomerAdmission
from restante.mailbox.core.model import Now, Policy
from restante.mailbox.core.quotas import CONNECTION_ABUSE_SCORE, AddressQuota
from restante.mailbox.protocol.hashcash import MAX_BITS, Demand, Mode, offer
from restante.mailbox.protocol.refusals import TOO_MANY_CONNECTIONS, TOO_MANY_FROM_ADDRESS

# ── the work that `--permission adaptive` demands of all clients ────────────────────────────────────


RISE_INTERVAL_SECONDS: Final = 10
"""Seconds between steps up while connections come too fast. By then the connections from before the previous
step have ended."""

FALL_INTERVAL_SECONDS: Final = 30
"""Seconds between steps down. It is slower than up, so that an attack that pauses and returns meets the same
demand."""

MAX_STEPS: Final = 9
"""Maximum number of steps. The first demands the configured bits; eight more bits are 256 times the work."""


class LoadLevel:
    """The work that is demanded of all clients in mode `adaptive`.

    It rises while connections come faster than `--permission-load`, and falls while they come at less than half that
    rate.
    """

    def __init__(self) -> None:
        self.steps = 0
        """0: no work is demanded; n: the configured bits plus n - 1."""
        self.changes = 0
        """How often `steps` has changed."""
        self.rate = 0.0
        """New connections a second, smoothed over about ten seconds."""
        self._since = RISE_INTERVAL_SECONDS

    @property
    def state(self) -> tuple[int, int, float, int]:
        """The steps, the changes, the rate, and the seconds since the last change; for another level's `state`."""
        return self.steps, self.changes, self.rate, self._since

    @state.setter
    def state(self, state: tuple[int, int, float, int]) -> None:
        self.steps, self.changes, self.rate, self._since = state

    def tick(self, connections: int, load: float) -> bool:
        """Record the number of new connections in the last second, and return whether the demand has changed."""
        self.rate += (connections - self.rate) / 10
        self._since += 1
        before = self.steps
        if self.rate > load and self._since >= RISE_INTERVAL_SECONDS:
            self.steps = min(MAX_STEPS, self.steps + 1)
        elif self.rate < load / 2 and self._since >= FALL_INTERVAL_SECONDS:
            self.steps = max(0, self.steps - 1)
        if self.steps == before:
            return False
        self._since = 0
        self.changes += 1
        return True

    def bits(self, base: int) -> int | None:
        """Return the bits that are demanded of all clients, or None."""
        return min(MAX_BITS, base + self.steps - 1) if self.steps else None


# ── admission ─────────────────────────────────────────────────────────────────────────────────────


class AdmissionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which the operator admits connections."""

    mode: Mode = "none"
    bits: int
    """Difficulty in bits whenever work is demanded; mode `adaptive` may raise it."""
    load: float
    """Connections a second above which mode `adaptive` demands work of all clients."""
    trusted: Sequence[Network] = ()
    """Proxies whose headers name the client."""


class AdmissionResult(msgspec.Struct, frozen=True):
    """Whether a connection is admitted, and on which terms."""

    client: Client
    address_quotas: tuple[AddressQuota, ...]
    """The quotas of the addresses that it counts for: none, one, or two if a proxy's headers differ."""
    address_id: str
    demand: Demand | None
    offer: dict[str, Any] | None
    """The welcome's `permission-required`."""
    verdict: PeerError | None
    """Why the connection is rejected. None: it is admitted."""
    at_once: bool = False
    """Whether it is closed without time to clean up, because many connections of its address were refused."""


class Admission(NewcomerAdmission[AddressQuota]):
    """Decides about connections, by their addresses and the load."""

    def __init__(self, terms: AdmissionTerms, secret: Callable[[], bytes], policy: Policy | None = None) -> None:
        super().__init__(AddressQuota, secret)
        self.terms = terms
        self.policy = policy or Policy()
        self.load_level = LoadLevel()
        self.demanded = 0
        """Connections of which work was demanded, since the start."""
        self.changes = 0
        """How often the demand on an address has changed."""
        self.changed_bits: dict[str, int] = {}
        """The addresses whose demand has changed, by address id, and their new bits. The caller that logs them clears
        it."""
        self._secret = secret
        self._connections_this_second = 0

    @property
    def trusted(self) -> Sequence[Network]:
        """Return the proxies that may name clients."""
        return self.terms.trusted

    @property
    def max_pending(self) -> int:
        """Return as many connections without a request as an address may have open ones."""
        return self.policy.limits.address_connections

    @property
    def connects(self) -> tuple[float, float]:
        """Return how many connections an address may make a second, and how many at once."""
        return self.policy.limits.address_connects / 60, self.policy.limits.address_connects_at_once

    @property
    def difficulty(self) -> int:
        """Return the bits of proof of work that are demanded of all clients; 0: none."""
        if self.terms.mode == "adaptive":
            return self.load_level.bits(self.terms.bits) or 0
        return self.terms.bits if self.terms.mode == "hashcash" else 0

    def admit(self, peer: Sequence[Any], headers: Mapping[str, str], now: Now, connections: int) -> AdmissionResult:
        """Decide about a connection when `connections` are admitted already. If admitted, it ends with `release`."""
        limits = self.policy.limits
        self._connections_this_second += 1
        client = identify(peer, headers, self.terms.trusted)
        address_quotas, wait = self.addresses.quotas_of(client), 0.0
        for quota in address_quotas:
            wait = max(wait, quota.charge_connect(now.service, limits))
            quota.add_abuse_score(now.service, CONNECTION_ABUSE_SCORE)
        limit, verdict = limits.address_connections, None
        if limits.connections and connections >= limits.connections:
            verdict = TOO_MANY_CONNECTIONS.error(1013, "try again later")
        elif limit and any(quota.connections > limit for quota in address_quotas):
            verdict = TOO_MANY_FROM_ADDRESS.error(1008, f"{limit} may be open at a time")
        elif wait:
            verdict = TOO_MANY_FROM_ADDRESS.error(1008, f"they come too fast; try again in {math.ceil(wait)} s")
        address_id = self.addresses.day_id(client.address, now.wall)
        for quota in address_quotas:
            quota.address_id = address_id
        demand = self._decide_demand(address_quotas, address_id, now)
        at_once = False
        if verdict is not None:  # a refused connection does not count against the address
            self.release(address_quotas)
            refusals = [quota.charge_refusal(now.service) for quota in address_quotas]  # `any` would stop early
            at_once = any(refusals)
        return AdmissionResult(
            client,
            address_quotas if verdict is None else (),
            address_id,
            demand,
            None if self.terms.mode == "none" else offer(demand),
            verdict,
            at_once,
        )

    def release(self, address_quotas: tuple[AddressQuota, ...]) -> None:
        """Count one open connection less for these addresses."""
        for quota in address_quotas:
            quota.connections -= 1

    def forget_idle(self, now: float) -> None:
        """Forget addresses that have nothing to be remembered. Call this once a second."""
        limits = self.policy.limits
        self.addresses.forget(lambda quota: quota.idle(now, limits))

    def _decide_demand(self, address_quotas: tuple[AddressQuota, ...], address_id: str, now: Now) -> Demand | None:
        terms = self.terms
        if terms.mode == "none":
            return None
        bits = self.difficulty
        if terms.mode == "adaptive":
            for quota in address_quotas:
                address_bits = quota.bits(now.service, terms.bits) or 0
                if address_bits != quota.demanded:
                    quota.demanded = address_bits
                    self.changes += 1
                    self.changed_bits[address_id] = address_bits
                bits = max(bits, address_bits)
        if not bits:
            return None
        self.demanded += 1
        return Demand(bits, self._secret()[:12].hex())

    def tick(self) -> bool:
        """End a second. Return whether the demand on all clients has changed."""
        connections, self._connections_this_second = self._connections_this_second, 0
        return self.terms.mode == "adaptive" and self.load_level.tick(connections, self.terms.load)
