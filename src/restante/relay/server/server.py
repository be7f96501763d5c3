"""The relay: it listens, answers requests, and connects the two sides of each pair.

connection.py reads requests, core/relay.py decides, and pair.py passes on bytes.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL
from typing import Any, Final, cast

from picows import WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.address_registry import PendingRequest
from restante.common.client_address import identify
from restante.common.logs import log
from restante.common.net import Network
from restante.common.newcomer_admission import NewcomerAdmission
from restante.common.newcomers import Newcomer
from restante.common.proxy_header import SocketPeer
from restante.common.public_server import NewcomerRefusals, PublicServer
from restante.common.refusals import Refusal
from restante.common.system import Clock
from restante.common.transfer_records import TransferResult
from restante.common.websocket_request import Answer, WebSocketRequest, websocket_protocol
from restante.relay.core.limits import MIB, Limits
from restante.relay.core.pacing import Rates
from restante.relay.core.quotas import AddressQuota
from restante.relay.core.relay import Now, Pair, Paired, Refused, Relay, Side
from restante.relay.protocol.refusals import (
    NO_DESCRIPTORS,
    NO_PROXY_HEADER,
    NO_REQUEST,
    NO_ROOM,
    TOO_MANY_HANDSHAKES,
    TOO_MANY_PENDING,
)
from restante.relay.protocol.request import BAD_HANDSHAKE, IMPATIENT, Request
from restante.relay.server.connection import (
    READ_BUFFER_BYTES,
    ClosingConnections,
    Connection,
    LineConnection,
    MessageReader,
    WebSocketConnection,
)
from restante.relay.server.pair import StreamPair, StreamPairs
from restante.relay.server.streams import Stream

KEEP_ALIVE_SECONDS: Final = 60
"""Seconds of silence after which the kernel asks whether the other end is there. Some NATs forget a connection that
is silent for minutes."""

KEEP_ALIVE_INTERVAL_SECONDS: Final = 20
KEEP_ALIVE_TRIES: Final = 6
"""How often it asks, and after how many tries without an answer the connection is dead: three minutes in all."""

SOCKET_OPTIONS: Final = (
    (SOL_SOCKET, SO_KEEPALIVE, 1),
    (IPPROTO_TCP, TCP_KEEPIDLE, KEEP_ALIVE_SECONDS),
    (IPPROTO_TCP, TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_SECONDS),
    (IPPROTO_TCP, TCP_KEEPCNT, KEEP_ALIVE_TRIES),
)

PING_SECONDS: Final = 25
"""Seconds between two pings of a WebSocket. nginx and others cut connections that are silent for 60 s
(proxy_read_timeout)."""

MAX_FRAME_BYTES: Final = MIB
"""Maximum size of a WebSocket's frame, which picows reads whole. magic-wormhole.rs sends records of at most 16 KiB,
and other clients of 256 KiB."""

MAX_REQUEST_MEMORY_BYTES: Final = 64 * MIB
"""Bytes of memory of all connections that have sent no request. Beyond it those that take most are closed."""

HANDSHAKES_PER_SECOND: Final = 5.0
HANDSHAKES_AT_ONCE: Final = 100.0
"""Connections with TLS of an address, a second and at once, as of 20 browsers that start transfers."""

GREETING: Final = b"Restante transit relay\n"
"""Body of the answer to `GET /`, for people and monitors."""

NEWCOMER_REFUSALS: Final = NewcomerRefusals(
    NO_PROXY_HEADER, TOO_MANY_PENDING, TOO_MANY_HANDSHAKES, NO_ROOM, NO_REQUEST
)

# A lookup in the class of an enumeration takes 2,000 instructions (Python 3.11).
OK: Final = HTTPStatus.OK
BAD_REQUEST: Final = HTTPStatus.BAD_REQUEST


class Admission(NewcomerAdmission[AddressQuota]):
    """Which connections may begin."""

    def __init__(self, secret: Callable[[], bytes], relay: Relay, trusted: Sequence[Network]) -> None:
        super().__init__(AddressQuota, secret)
        self._relay = relay
        self._trusted = trusted

    @property
    def trusted(self) -> Sequence[Network]:
        """Return the proxies that may name clients."""
        return self._trusted

    @property
    def max_pending(self) -> int:
        """Return as many connections without a request as an address may have waiting ones."""
        return self._relay.limits.address_waiting

    @property
    def connects(self) -> tuple[float, float]:
        """Return how many TLS connections an address may make a second, and how many at once."""
        return HANDSHAKES_PER_SECOND, HANDSHAKES_AT_ONCE


class Server(PublicServer):
    """Accepts connections, and makes pairs of them."""

    def __init__(self, relay: Relay, clock: Clock, admission: Admission, *, descriptors: int) -> None:
        """Make a server that does not listen yet. `descriptors`: the maximum number of files that may be open."""
        super().__init__(admission, relay.refusal_counts, NEWCOMER_REFUSALS, clock, descriptors, SOCKET_OPTIONS)
        self.relay = relay
        self.admission = admission
        self.opened = 0
        """Connections since the start."""
        self.closing = ClosingConnections()
        self.pairs = StreamPairs(_rates(relay.limits))
        self.running: dict[Pair, StreamPair] = {}
        """The pairs that run, and their streams."""
        self.draining = False
        self._all_ended = asyncio.Event()
        """Set while there is no pair."""
        self._all_ended.set()

    # ── before the request ────────────────────────────────────────────────────────────────────────

    @property
    def handshake_seconds(self) -> float:
        """Return the seconds within which a client must send its request."""
        return self.relay.limits.handshake

    @property
    def held_bytes(self) -> int:
        """Return the memory of connections without a request."""
        return self.reading_bytes

    @property
    def max_held_bytes(self) -> int:
        """Return the limit of `held_bytes`."""
        return MAX_REQUEST_MEMORY_BYTES

    def quota_time(self) -> float:
        """Return the time by which the quotas of addresses count."""
        return self.clock.monotonic()

    def now(self) -> Now:
        """Return the time."""
        return Now(self.clock.wall(), self.clock.monotonic())

    def first_bytes(
        self, peer: SocketPeer | None, newcomer: Newcomer | None = None, deadline: float | None = None
    ) -> asyncio.BufferedProtocol:
        """Return the protocol that reads the request."""
        return LineConnection(self, peer, newcomer, deadline)

    # ── WebSockets ────────────────────────────────────────────────────────────────────────────────

    def websocket_request(
        self, peer: SocketPeer | None, newcomer: Newcomer, deadline: float | None
    ) -> WebSocketRequest:
        """Return the protocol that reads the request of a WebSocket."""
        return WebSocketRequest(self, peer, newcomer, deadline)

    def websocket(self, peer: SocketPeer | None, handshake_timeout: float) -> WSProtocol:
        """Return the protocol that reads a request and then speaks WebSocket."""
        return websocket_protocol(
            partial(self._answer, peer=peer),
            handshake_timeout=handshake_timeout,
            max_frame_size=MAX_FRAME_BYTES,
            read_buffer_size=READ_BUFFER_BYTES,
        )

    def receiver(self, websocket: WSProtocol) -> asyncio.BufferedProtocol:
        """Return the protocol that reads what follows the request."""
        return MessageReader(websocket)

    def answer_plain(self, path: bytes) -> Answer:
        """Return the status and body that answer a GET without an upgrade. Any path is that of a WebSocket."""
        return (OK, GREETING) if path.partition(b"?")[0] == b"/" else (BAD_REQUEST, None)

    def _answer(
        self, request: WSUpgradeRequest, peer: SocketPeer | None
    ) -> WebSocketConnection | WSUpgradeResponseWithListener:
        """Return what answers a request for an upgrade."""
        tokens = [token.strip() for token in request.headers.get("connection", "").lower().split(",")]
        if "upgrade" not in tokens:
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(GREETING), None)
        request.headers["connection"] = "Upgrade"  # Firefox sends "keep-alive, Upgrade"; picows reads one value
        return WebSocketConnection(self, peer)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def begin_request(self, peer: Sequence[Any]) -> PendingRequest:
        """Count a connection that has not sent its request, or its refusal."""
        self.opened += 1
        return super().begin_request(peer)

    def open(
        self, connection: Connection, peer: Sequence[Any], headers: Mapping[str, str], descriptor: int
    ) -> Side | None:
        """Return the side of a new connection, or None if it is refused."""
        self.listeners.note_descriptor(descriptor, self.connected)
        now, client = self.now(), identify(peer, headers, self.admission.trusted)
        self.warn_of_proxies(client)
        addresses = self.admission.addresses
        address_id = addresses.day_id(client.address, now.wall)
        side = self.relay.open(connection, addresses.quotas_of(client), address_id, now)
        return None if isinstance(side, Refusal) else side

    def withdraw(self, connection: Connection) -> None:
        """End the side of a connection whose request is one of HTTP."""
        if connection.side is not None:
            self.relay.withdraw(connection.side)
            connection.side = None

    def requested(self, connection: Connection, request: Request, leftover: bytes = b"") -> None:
        """Handle a request: the connection waits, is one of a pair from now on, or is refused."""
        side = connection.side
        assert side is not None
        result = self.relay.request(side, request, self.now())
        if isinstance(result, Refused):
            for refused in result.sides:
                _ended(refused).answer(BAD_HANDSHAKE)
        elif isinstance(result, Paired):
            for redundant in result.redundant:
                _ended(redundant).close()
            self._connect(result.pair, leftover)
        elif leftover:
            self.end(connection, "impatient")
            connection.answer(IMPATIENT)

    def end(self, connection: Connection, result: TransferResult | None = None) -> None:
        """Record that a connection has ended before `ok`."""
        if connection.side is not None:
            self.relay.end(connection.side, self.now(), result)
            connection.side = None

    def time_out(self, connection: Connection) -> None:
        """Record that a connection has sent no request in time."""
        if connection.side is not None:
            self.relay.time_out(connection.side, self.now())
            connection.side = None

    # ── pairs ─────────────────────────────────────────────────────────────────────────────────────

    def _connect(self, pair: Pair, leftover: bytes) -> None:
        """Begin to pass on the bytes of a pair, or close its connections if that cannot be done."""
        first, second = _ended(pair.first), _ended(pair.second)
        left, streams = [first, second], list[Stream]()
        try:
            while left:
                streams.append(left[0].stream())
                del left[0]
            self.running[pair] = self.pairs.begin(
                streams[0],
                streams[1],
                leftover,
                pair.address_quotas,
                partial(self.relay.count_bytes, pair),
                partial(self._pair_ended, pair),
            )
        except OSError as error:
            if error.errno == errno.EMFILE:
                self._count(NO_DESCRIPTORS, pair.first.address_id)
            has_gone = isinstance(error, ConnectionError)  # a side, in this turn of the loop
            self.relay.end_pair(pair, self.now(), "happy" if has_gone else "errory")
            for still_open in (*streams, *left):
                still_open.close()
            return
        self._all_ended.clear()
        self._set_rate(pair)

    def _pair_ended(self, pair: Pair) -> None:
        self.running.pop(pair, None)  # it is not there if it could not begin
        if not self.running:
            self._all_ended.set()
        self.relay.end_pair(pair, self.now())

    def _set_rate(self, pair: Pair) -> None:
        self.running[pair].slow_down(self.relay.slow_rate(pair) or 0)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Do what is due once a second."""
        self.second += 1
        now = self.now()
        self.admission.addresses.begin_day(now.wall)
        for side in self.relay.expire(now):
            _ended(side).close()
        limits = self.relay.limits
        self.admission.addresses.forget(lambda quota: quota.idle(now.service, limits))
        for pair in list(self.running):
            self._set_rate(pair)
        turn = self.second % PING_SECONDS
        for connection in self.connections():
            if (id(connection) >> 4) % PING_SECONDS == turn:  # not all are pinged in the same turn of the loop
                connection.ping()

    @property
    def connected(self) -> int:
        """The number of connections that wait, and of those of pairs."""
        return 2 * len(self.running) + self.relay.waiting

    def connections(self) -> list[Connection]:
        """Return the connections that wait, and those of pairs."""
        sides = [*self.relay.waiting_sides(), *(side for pair in self.running for side in (pair.first, pair.second))]
        return [cast("Connection", side.connection) for side in sides]

    def apply_limits(self, limits: Limits) -> None:
        """Apply other limits, also to connections that are open."""
        self.relay.limits = limits
        self.pairs.set_rates(_rates(limits))

    async def drain(self, seconds: float) -> None:
        """Accept no more, close the connections that wait, and let pairs run for some seconds. Then end them."""
        self.draining = True
        self.listeners.close(self.connected)
        for side in self.relay.drain(self.now()):
            _ended(side).close()
        if self.running:
            log.info("waiting for pairs to end", pairs=len(self.running), seconds=seconds)
        await self._wait_for_pairs(seconds)
        for running in self.running.values():
            running.abort()
        await self._wait_for_pairs(None)
        self.pairs.close()

    async def _wait_for_pairs(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._all_ended.wait()
        except TimeoutError:
            pass


def _ended(side: Side) -> Connection:
    """Return the connection of a side that does not wait any more."""
    connection = cast("Connection", side.connection)
    connection.side = None
    return connection


def _rates(limits: Limits) -> Rates:
    return Rates(pair=limits.pair_rate, address=limits.address_rate, total=limits.rate)
