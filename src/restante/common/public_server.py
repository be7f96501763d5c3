"""A server that strangers connect to: what their connections pass before their requests.

A connection may have to begin with a PROXY header, and with TLS. The server counts it for its address, and the memory
that it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from restante.common.address_registry import PendingRequest
from restante.common.certificate import ServerCertificate
from restante.common.client_address import Client
from restante.common.listeners import Listeners, SocketOption
from restante.common.listening import ListenAddress
from restante.common.logs import log
from restante.common.memory_holders import FREED_FRACTION, MemoryHolder, MemoryHolders
from restante.common.newcomer_admission import NewcomerAdmission
from restante.common.newcomers import Newcomer
from restante.common.proxy_header import THIS_MACHINE, ProxyHeaderReader, SocketPeer, is_trusted
from restante.common.read_budget import ReadBudget
from restante.common.refusals import RefusalCounts, RefusalKind
from restante.common.system import Clock
from restante.common.tls_handshake import TlsHandshake


class NewcomerRefusals(msgspec.Struct, frozen=True):
    """The kinds of refusals before a request."""

    no_proxy_header: RefusalKind
    """A connection did not begin with the PROXY header that its port demands."""
    too_many_pending: RefusalKind
    """An address has too many connections without a request."""
    too_many_handshakes: RefusalKind
    """An address has begun too many TLS handshakes."""
    no_room: RefusalKind
    """A connection was closed for the memory that it took before its request."""
    no_request: RefusalKind | None = None
    """No request came in time. None: the server does not count that as a refusal."""


class PublicServer:
    """Listens, and lets connections in. The server that derives from it reads their requests."""

    def __init__(
        self,
        admission: NewcomerAdmission[Any],
        refusal_counts: RefusalCounts,
        refusals: NewcomerRefusals,
        clock: Clock,
        descriptors: int,
        options: Sequence[SocketOption],
    ) -> None:
        """Make a server that does not listen yet.

        `descriptors`: the maximum number of files that may be open. `options`: as in `Listeners`.
        """
        self.listeners = Listeners(self._connected, descriptors, options)
        self.clock = clock
        self.second = 0
        """Seconds since the start: the server's `tick` counts them."""
        self.reading_bytes = 0
        """Bytes of memory in which requests and messages of all connections are being read."""
        self.memory_holders = MemoryHolders()
        self.makes_room = True
        """Whether connections are closed for their memory. Not while some of another process's are not here yet."""
        self.read_budget = ReadBudget()
        self.certificate: ServerCertificate | None = None
        """The certificate for TLS. None: connections are not encrypted here."""
        self.newcomers = 0
        """Connections whose request has not come yet."""
        self.unnamed = 0
        """Connections whose PROXY header has not come yet."""
        self.failed_handshakes = 0
        """Connections whose TLS handshake failed, since the start."""
        self._newcomers = admission
        self._refusal_counts = refusal_counts
        self._refusals = refusals
        self._warned: set[str] = set()
        """Warnings about proxies that were logged, each once."""

    # ── what the deriving server says ─────────────────────────────────────────────────────────────

    @property
    def handshake_seconds(self) -> float:
        """Return the seconds within which the request must come, with the TLS handshake."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """Return the bytes of memory that connections hold, which `max_held_bytes` limits."""
        raise NotImplementedError

    @property
    def max_held_bytes(self) -> int:
        """Return the maximum of `held_bytes`; 0: any number."""
        raise NotImplementedError

    def quota_time(self) -> float:
        """Return the time, in seconds, by which the quotas of addresses count."""
        raise NotImplementedError

    def first_bytes(
        self, peer: SocketPeer | None, newcomer: Newcomer | None = None, deadline: float | None = None
    ) -> asyncio.BufferedProtocol:
        """Return the protocol that reads the request.

        `peer` is the client if the socket does not know it. `newcomer` has a place already, if the connection began
        with a TLS handshake. `deadline`: the time of the loop at which the request must be complete; by default
        `handshake_seconds` after the beginning.
        """
        raise NotImplementedError

    # ── how a connection comes in ─────────────────────────────────────────────────────────────────

    def _connected(self, address: ListenAddress) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        if address.proxied:
            deliver = partial(self._client_named, address)
            return ProxyHeaderReader(
                self._trusts, self.handshake_seconds, deliver, self._refuse_proxy, self._count_unnamed
            )
        return self._client_named(address, THIS_MACHINE if address.is_unix else None)

    def _client_named(self, address: ListenAddress, peer: SocketPeer | None) -> asyncio.BaseProtocol:
        """Return the protocol of a connection from a client. None: its socket knows the address."""
        if self.certificate is not None and self.speaks_tls(address):
            return TlsHandshake(self, self.certificate.context, peer)
        return self.first_bytes(peer)

    def speaks_tls(self, address: ListenAddress) -> bool:
        """Return whether connections to an address begin with TLS."""
        return self.certificate is not None and not address.plain

    def _trusts(self, proxy: SocketPeer) -> bool:
        """Return whether a peer may name its clients in a PROXY header."""
        return is_trusted(proxy, self._newcomers.trusted)

    def _count_unnamed(self, change: int) -> None:
        """Count a connection whose PROXY header has not come, or count it no longer."""
        self.unnamed += change

    def _refuse_proxy(self, proxy: SocketPeer) -> None:
        """Count a connection that had to begin with a PROXY header of a trusted proxy, and did not."""
        self._count(self._refusals.no_proxy_header, self._newcomers.address_id(proxy, self.clock.wall()))
        self._warn_once(
            "connections without a valid PROXY header from a --trust-proxy network are closed:"
            " configure the proxy to send one, or listen without proxy:"
        )

    def begin_request(self, peer: Sequence[Any]) -> PendingRequest:
        """Count a connection that has not sent its request, or its refusal if its address has too many of them."""
        pending = self._newcomers.begin_request(peer, self.clock.wall())
        if pending.refused:
            self._count(self._refusals.too_many_pending, pending.address_id)
        else:
            self.newcomers += 1
        return pending

    def end_request(self, pending: PendingRequest) -> None:
        """Stop counting a connection without a complete request, because it has one or is closed."""
        self.newcomers -= 1
        self._newcomers.addresses.end_request(pending)

    def admit_handshake(self, pending: PendingRequest) -> bool:
        """Charge a TLS handshake, and count the refusal if the address has had too many."""
        if self._newcomers.charge_handshake(pending, self.quota_time()):
            return True
        self._count(self._refusals.too_many_handshakes, pending.address_id)
        return False

    def count_failed_handshake(self) -> None:
        """Count a connection whose TLS handshake failed."""
        self.failed_handshakes += 1

    def count_late_request(self, pending: PendingRequest) -> None:
        """Count a connection whose request, or whose TLS handshake before it, does not come in time."""
        if self._refusals.no_request is not None:
            self._count(self._refusals.no_request, pending.address_id)

    def give_up_request(self, pending: PendingRequest) -> None:
        """Count a connection that was closed to make room before its request was complete."""
        self._count(self._refusals.no_room, pending.address_id)

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""
        self.reading_bytes += change
        self.memory_holders.note(holder, self.second)

    def make_room(self) -> None:
        """Close connections if all together hold more memory than `max_held_bytes`."""
        limit = self.max_held_bytes
        if limit and self.makes_room and self.held_bytes > limit:
            self.memory_holders.close(self.held_bytes - limit + limit // FREED_FRACTION, self.second)

    def warn_of_proxies(self, client: Client) -> None:
        """Log once if a proxy that names clients is not trusted, or names two different ones."""
        if client.untrusted_proxy:
            self._warn_once(
                "ignoring the client addresses in headers of a proxy that is not trusted: name its network with"
                " --trust-proxy, like --trust-proxy 127.0.0.0/8"
            )
        if client.other_address is not None:
            self._warn_once(
                "X-Forwarded-For and X-Real-IP of a trusted proxy name different clients: both addresses are charged."
                " Configure the proxy to set both headers, or to remove the one that it does not set"
            )

    def _count(self, kind: RefusalKind, address_id: str | None) -> None:
        self._refusal_counts.count(kind.reason, address_id)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message)
