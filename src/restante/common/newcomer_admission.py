"""Whether a connection may begin: what is decided of its address before its request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from restante.common.address_registry import AddressRegistry, BaseQuota, PendingRequest
from restante.common.client_address import identify
from restante.common.net import Network

Q = TypeVar("Q", bound=BaseQuota)


class NewcomerAdmission(Generic[Q]):
    """Counts the connections of each address that have sent no request, and their TLS handshakes."""

    def __init__(self, make_quota: Callable[[], Q], secret: Callable[[], bytes]) -> None:
        self.addresses = AddressRegistry(make_quota, secret)

    @property
    def trusted(self) -> Sequence[Network]:
        """Return the proxies that may name clients."""
        raise NotImplementedError

    @property
    def max_pending(self) -> int:
        """Return the maximum number of connections of an address that have sent no request; 0: any number."""
        raise NotImplementedError

    @property
    def connects(self) -> tuple[float, float]:
        """Return how many connections an address may make a second, and how many at once. 0 a second: any number."""
        raise NotImplementedError

    def begin_request(self, peer: Sequence[Any], wall: float) -> PendingRequest:
        """Count a connection before its request. It ends with `AddressRegistry.end_request`.

        Connections through a trusted proxy are not counted, because their address is not known before the request.
        """
        return self.addresses.begin_request(identify(peer, {}, self.trusted), self.max_pending, wall)

    def charge_handshake(self, pending: PendingRequest, now: float) -> bool:
        """Charge a TLS handshake to the addresses of a connection, and return whether it may begin."""
        allowed = [quota.charge_handshake(now, *self.connects) for quota in pending.address_quotas]
        return all(allowed)  # `all` of a generator would stop at the first

    def address_id(self, peer: Sequence[Any], wall: float) -> str:
        """Return the address id of a peer."""
        return self.addresses.day_id(identify(peer, {}, self.trusted).address, wall)
