"""The WebSocket server: it listens, welcomes clients, keeps connections alive, and drains.

connection.py handles the frames of one WebSocket.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any, Final

import msgspec
from picows import WSCloseCode, WSMsgType, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.client_address import Client
from restante.common.errors import PeerError
from restante.common.logs import MAX_LOGGED_ADDRESSES, log
from restante.common.net import address_text
from restante.common.newcomers import Newcomer
from restante.common.proxy_header import SocketPeer
from restante.common.public_server import NewcomerRefusals, PublicServer
from restante.common.system import Clock
from restante.common.websocket_request import Answer, Upgrade, WebSocketRequest, websocket_protocol
from restante.mailbox.core.admission import Admission, AdmissionResult, AdmissionTerms
from restante.mailbox.core.dispatcher import SERVICE_RESTART
from restante.mailbox.core.limits import Limits
from restante.mailbox.protocol import messages
from restante.mailbox.protocol.refusals import (
    MUST_BIND,
    NO_PROXY_HEADER,
    NO_ROOM_FOR_REQUESTS,
    TOO_BIG,
    TOO_MANY_HANDSHAKES,
    TOO_MANY_WITHOUT_REQUEST,
)
from restante.mailbox.server.commit_loop import CommitLoop
from restante.mailbox.server.connection import Framing, ReadPauses, Socket
from restante.mailbox.server.receive_buffer import USUAL_READ_BYTES, ReceiveBuffer
from restante.mailbox.server.send_budget import SendBudget
from restante.mailbox.server.user_address import UserAddress

# ── The welcome: the first message to a client ────────────────────────────────────────────────────


class WelcomeOptions(msgspec.Struct, frozen=True):
    """The operator's settings for the welcome."""

    motd: str | None = None
    current_cli_version: str | None = None
    error: str | None = None

    def welcome(self, client: Client, permission: dict[str, Any] | None = None) -> bytes:
        """Return the encoded welcome for a client."""
        welcome: dict[str, Any] = {}
        if self.motd is not None:
            welcome["motd"] = self.motd
        if self.current_cli_version is not None:
            welcome["current_cli_version"] = self.current_cli_version
        if self.error is not None:
            welcome["error"] = self.error
        if permission is not None:
            welcome["permission-required"] = permission
        address = client.address
        # The client's address as the server sees it. Clients need it for hole punching (server_websocket.py:145,
        # 0.8.0).
        welcome["your-address"] = {f"ipv{address.version}": address_text(address), "port": client.port}
        return messages.encode(messages.Welcome(welcome))


# ── server ────────────────────────────────────────────────────────────────────────────────────────


MAX_FRAME_PER_MESSAGE: Final = 2
"""Maximum size of a frame that is read, in multiples of the maximum size of a message. The sender of such a frame is
told the error. A larger frame is closed with 1009 before its payload is read."""

PING_INTERVAL_SECONDS: Final = 25
"""Seconds between two pings of a connection. nginx and others cut connections that are silent for 60 s
(proxy_read_timeout), so the reference's pings, every 60 s, come too late (server_websocket.py:392, 0.8.0). Some NATs
and load balancers cut after 30 s."""

MAX_PINGS_PER_TURN: Final = 200
"""Pings that are sent in one turn of the loop: 2 ms. All connections may have been made in the same second of the
ping interval."""

SILENCE_TIMEOUT_SECONDS: Final = 600
"""Seconds without a frame, not even a pong, after which a connection is considered dead, as in the reference."""

MIN_BYTES_PER_SECOND: Final = 1024
"""Bytes a second, between two pings, at which an incomplete frame counts as a sign of life: its client cannot answer
pings before its end. So a message of 2 MiB takes 35 minutes at most."""

DRAIN_SECONDS: Final = 5.0
"""Seconds to wait until everything that was sent has reached the clients."""

NEWCOMER_SECONDS: Final = 1.0
"""Seconds that connections without a request have before another process goes on with the others."""

CLOSING_SECONDS: Final = 1.0
"""Seconds that connections that no other process can go on with have to read what was sent to them, while the others
wait."""

CLOSE_ALL_SECONDS: Final = 1.0
"""Seconds that connections have to read what was sent to them when a term is over."""

CLEANUP_SECONDS: Final = 1.0
"""Seconds that a rejected client has to release and close: two round trips to anywhere, and the client's
processing."""

MAX_UNBOUND_CLOSED_PER_SECOND: Final = 250
"""Connections closed in one second because they did not bind in time. Closing one takes some 26 µs."""

GREETING: Final = b"Wormhole Relay\n"
"""Body of the answer to `GET /`: the reference's text, which monitors look for (web.py:10, 0.8.0)."""

WEBSOCKET_VERSION: Final = "13"

# A lookup in the class of an enumeration takes 2,000 instructions (Python 3.11).
OK: Final = HTTPStatus.OK
BAD_REQUEST: Final = HTTPStatus.BAD_REQUEST
NOT_FOUND: Final = HTTPStatus.NOT_FOUND


def _upgrade_required() -> WSUpgradeResponseWithListener:
    """Return the answer to a request for another version of WebSocket.

    Sources: RFC 6455 section 4.4 for the version; RFC 9110 section 15.5.22 for Upgrade.
    """
    headers = {"Sec-WebSocket-Version": WEBSOCKET_VERSION, "Upgrade": "websocket", "Content-Length": "0"}
    response = WSUpgradeResponse.create_error_response(HTTPStatus.UPGRADE_REQUIRED, extra_headers=headers)
    return WSUpgradeResponseWithListener(response, None)


KERNEL_RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that the kernel buffers for a connection that is not read (it doubles this), and that one read can return."""

SOCKET_OPTIONS: Final = ((SOL_SOCKET, SO_RCVBUF, KERNEL_RECEIVE_BUFFER_BYTES),)

NEWCOMER_REFUSALS: Final = NewcomerRefusals(
    NO_PROXY_HEADER, TOO_MANY_WITHOUT_REQUEST, TOO_MANY_HANDSHAKES, NO_ROOM_FOR_REQUESTS
)


class Server(PublicServer):
    """Accepts connections, keeps them alive, and closes them."""

    def __init__(
        self,
        commit_loop: CommitLoop,
        clock: Clock,
        welcome_options: WelcomeOptions,
        admission: Admission,
        *,
        descriptors: int,
        binary: bool = False,
    ) -> None:
        """Make a server that does not listen yet.

        `descriptors` is the maximum number of files that the process may have open. `binary` is whether to send
        binary frames, as spec 000 says. Every shipped client expects text frames.
        """
        self.commit_loop = commit_loop
        super().__init__(
            admission,
            commit_loop.dispatcher.quotas.refusal_counts,
            NEWCOMER_REFUSALS,
            clock,
            descriptors,
            SOCKET_OPTIONS,
        )
        self.admission = admission
        self.policy = self.admission.policy = commit_loop.dispatcher.policy
        self.welcome_options = welcome_options
        self.framing = Framing(WSMsgType.BINARY if binary else WSMsgType.TEXT)
        """Makes the frames that are sent."""
        self.buckets: list[set[Socket]] = [set() for _ in range(PING_INTERVAL_SECONDS)]
        """All sockets, by the second of the ping interval in which they are pinged."""
        self.cleanup_seconds = CLEANUP_SECONDS
        self.draining = False
        self.listens = True
        """Whether clients can connect: to sockets of its own, or to those that the process before it has left."""
        self.admitted: set[Socket] = set()
        self.owed_bytes = 0
        """Bytes owed to all sockets."""
        self.send_budget = SendBudget()
        commit_loop.before_long = self._reserve_turn
        self.unbound: OrderedDict[Socket, int] = OrderedDict()
        """Sockets that may not have bound yet, and the second in which they connected. A plain dict whose first item
        is removed again and again becomes slow at finding the next one."""
        self.slowed: list[Socket] = []
        """Sockets that are not read until the next second."""
        self.user_addresses: list[UserAddress] = []
        """The URL of each listening socket."""

    def _reserve_turn(self) -> None:
        """Leave the next turn of the loop to the commit loop, which parses or handles a long message: up to 5 ms."""
        self.read_budget.reserve()
        self.send_budget.reserve()

    def websocket(self, peer: SocketPeer | None, handshake_timeout: float) -> WSProtocol:
        """Return the protocol that reads a request and then speaks WebSocket."""
        return self._websocket(self._answer if peer is None else partial(self._answer, peer=peer), handshake_timeout)

    def websocket_of(self, socket: Socket) -> WSProtocol:
        """Return the protocol that speaks WebSocket with a client whose request was answered by another process."""
        return self._websocket(lambda _request: socket, self.limits.handshake)

    def _websocket(self, answer: Upgrade, handshake_timeout: float) -> WSProtocol:
        return websocket_protocol(
            answer,
            handshake_timeout=handshake_timeout,
            max_frame_size=MAX_FRAME_PER_MESSAGE * self.limits.message_bytes,
            read_buffer_size=USUAL_READ_BYTES,
        )

    def first_bytes(
        self, peer: SocketPeer | None, newcomer: Newcomer | None = None, deadline: float | None = None
    ) -> asyncio.BufferedProtocol:
        """Return the protocol that reads a request for a WebSocket."""
        return WebSocketRequest(self, peer, newcomer, deadline)

    def quota_time(self) -> float:
        """Return the seconds that the service has run in total."""
        return self.commit_loop.now().service

    def receiver(self, websocket: WSProtocol) -> asyncio.BufferedProtocol:
        """Return the protocol that reads what follows the request."""
        return ReceiveBuffer(websocket, self.read_budget)

    @property
    def handshake_seconds(self) -> float:
        """Return the seconds within which a client must request the WebSocket."""
        return self.limits.handshake

    def _answer(
        self, request: WSUpgradeRequest, peer: SocketPeer | None = None
    ) -> Socket | WSUpgradeResponseWithListener | None:
        """Return what answers a request for an upgrade. None: picows answers with 404."""
        status, body = self.answer_plain(request.path)
        if status is NOT_FOUND:
            return None
        if body is not None:
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(body), None)
        if self.draining:  # it connected before the server stopped listening
            response = WSUpgradeResponse.create_error_response(HTTPStatus.SERVICE_UNAVAILABLE)
            return WSUpgradeResponseWithListener(response, None)
        connection = request.headers.get("connection", "")
        if "," in connection and "upgrade" in [token.strip() for token in connection.lower().split(",")]:
            request.headers["connection"] = "Upgrade"  # Firefox sends "keep-alive, Upgrade"; picows reads one value
        versions = request.headers.getall("sec-websocket-version", [])
        if versions and versions != [WEBSOCKET_VERSION]:  # picows accepts the drafts 7 and 8, too
            return _upgrade_required()
        return Socket(self, peer)

    def answer_plain(self, path: bytes) -> Answer:
        """Return the status and body that answer a GET of a path without an upgrade."""
        path = path.partition(b"?")[0]
        if path == b"/":
            return OK, GREETING
        if path == b"/v1" or path.startswith(b"/v1/"):
            return BAD_REQUEST, None
        return NOT_FOUND, None

    def apply_settings(self, welcome_options: WelcomeOptions, terms: AdmissionTerms, limits: Limits) -> None:
        """Apply new settings. Open connections keep the terms of their welcome."""
        self.welcome_options = welcome_options
        self.admission.terms = terms
        self.policy.limits = limits

    def admit(
        self, socket: Socket, peer: tuple[Any, ...], headers: Mapping[str, str], descriptor: int
    ) -> AdmissionResult:
        """Admit a connection, or decide that it will be closed, and return the result."""
        result = self.admission.admit(peer, headers, self.commit_loop.now(), len(self.admitted))
        if result.verdict is None:
            self.admitted.add(socket)
        self.listeners.note_descriptor(descriptor, len(self.admitted))
        self.buckets[socket.bucket % PING_INTERVAL_SECONDS].add(socket)
        self.unbound[socket] = self.second
        self.warn_of_proxies(result.client)
        return result

    def restore_socket(self, socket: Socket, *, admitted: bool) -> None:
        """Count a connection that another process has left. One that was not admitted has no quotas."""
        if admitted:
            self.admitted.add(socket)
        for quota in socket.connection.address_quotas:
            quota.connections += 1
        self.buckets[socket.bucket % PING_INTERVAL_SECONDS].add(socket)

    def connection_closed(self, socket: Socket) -> None:
        """Forget a connection that has closed, and release its place in the quotas of its addresses."""
        self.admitted.discard(socket)
        self.buckets[socket.bucket % PING_INTERVAL_SECONDS].discard(socket)
        self.unbound.pop(socket, None)
        self.admission.release(socket.connection.address_quotas)

    def greeting(self, result: AdmissionResult) -> bytes:
        """Return the encoded welcome, with what this connection was offered."""
        return self.welcome_options.welcome(result.client, result.offer)

    def slow_down(self, socket: Socket) -> None:
        """Leave a connection over its rate of frames unread until the next second."""
        self.slowed.append(socket)

    def count_refusal(self, socket: Socket, reason: str) -> None:
        """Count a connection that was closed because of a limit."""
        self._refusal_counts.count(reason, socket.connection.session.address_id)

    @property
    def limits(self) -> Limits:
        """Return the limits in effect."""
        return self.policy.limits

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all connections that are owed, being read, or waiting to be handled."""
        return self.owed_bytes + self.reading_bytes + self.commit_loop.queue.held_bytes

    @property
    def max_held_bytes(self) -> int:
        """Return the limit of `held_bytes`."""
        return self.limits.held_bytes

    def too_big(self) -> PeerError:
        """Return the error for a message above `message_bytes`."""
        limit = self.limits.message_bytes
        return TOO_BIG.error(1009, f"a message has at most {limit} bytes")

    def sockets(self) -> list[Socket]:
        """Return all connections, also rejected ones that are still open."""
        return [socket for bucket in self.buckets for socket in bucket]

    def tick(self) -> None:
        """Do what is due each second: read slowed sockets again, close, forget, log and ping."""
        self.second += 1
        slowed, self.slowed = self.slowed, []
        for socket in slowed:
            socket.read_again(ReadPauses.FRAME_RATE)
        self._close_unbound()
        self.admission.forget_idle(self.commit_loop.now().service)
        self._log_changed_work()
        self._ping(list(self.buckets[self.second % PING_INTERVAL_SECONDS]))

    def _log_changed_work(self) -> None:
        """Log the proof of work that is demanded, for some addresses and for all, if it has changed."""
        changed, self.admission.changed_bits = self.admission.changed_bits, {}
        for address_id, bits in list(changed.items())[:MAX_LOGGED_ADDRESSES]:
            log.info("the proof of work for an address has changed", address=address_id, bits=bits)
        if changed:
            log.info(
                "the proof of work for some addresses has changed",
                addresses=len(changed),
                changes=self.admission.changes,
            )
        if self.admission.tick():
            load_level = self.admission.load_level
            log.warning(
                "the proof of work for all clients has changed",
                bits=load_level.bits(self.admission.terms.bits) or 0,
                connections_a_second=round(load_level.rate),
                changes=load_level.changes,
            )

    def _ping(self, sockets: list[Socket]) -> None:
        """Ping sockets, and drop those that have been silent for too long."""
        for socket in sockets[-MAX_PINGS_PER_TURN:]:
            socket.note_progress(self.second, MIN_BYTES_PER_SECOND * PING_INTERVAL_SECONDS)
            if self.second - socket.last_frame_second > SILENCE_TIMEOUT_SECONDS and not socket.read_pauses:
                socket.drop()
            else:
                socket.ping()
        del sockets[-MAX_PINGS_PER_TURN:]
        if sockets:
            asyncio.get_running_loop().call_soon(self._ping, sockets)

    def _close_unbound(self) -> None:
        """Close sockets that did not bind in time."""
        for _ in range(MAX_UNBOUND_CLOSED_PER_SECOND):
            socket, connected_second = next(iter(self.unbound.items()), (None, 0))
            if socket is None or self.second - connected_second <= self.limits.bind:
                return
            del self.unbound[socket]
            connection, backlog = socket.connection, socket.connection.backlog
            if connection.session.app_id is None and not (backlog.queued or backlog.waiting):
                seconds = f"{self.limits.bind:g} s"
                self.commit_loop.refuse(connection, MUST_BIND.error(1008, f"within {seconds} of connecting"))

    async def drain(self, running: asyncio.Task[None]) -> None:
        """Stop accepting and reading, answer what was read, and close all connections."""
        self.draining = True
        self.listeners.close(len(self.admitted))
        self._ignore(self.sockets())
        self.commit_loop.stop()
        await running
        await self._send_away(self.sockets())

    async def close_all(self) -> None:
        """Stop accepting, and close all connections: another server may serve their clients, who may come again."""
        self.draining = True
        self.listeners.close(len(self.admitted))
        self._ignore(self.sockets())
        await self._send_away(self.sockets(), CLOSE_ALL_SECONDS, SERVICE_RESTART)

    def _ignore(self, sockets: list[Socket]) -> None:
        """Read connections and ignore it, because unread data resets a connection when its socket is closed."""
        for socket in sockets:
            socket.ignores_input = True
            socket.read_again(ReadPauses.BACKLOG | ReadPauses.FRAME_RATE | ReadPauses.HAND_OVER)

    async def _send_away(
        self, sockets: list[Socket], seconds: float = DRAIN_SECONDS, code: int = WSCloseCode.GOING_AWAY.value
    ) -> None:
        """Close connections after what was sent to them, at most after some seconds."""
        for socket in sockets:
            socket.hang_up(code, "server restarts")
        deadline = self.clock.monotonic() + seconds
        while any(socket.unsent() for socket in sockets) and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the kernel has no event for it
        for socket in sockets:
            socket.drop()

    async def hold(self, seconds: float) -> int:
        """Stop accepting and reading after the current batch, because another process may go on.

        Connections are closed after that if they cannot be left: with TLS of ours, because of their keys, or with a
        frame whose bytes are not known. Return how many. Connections without a request have a second for it.
        `release` undoes all but what was closed. Raises TimeoutError if the batch takes more than `seconds`: then
        nothing was closed.
        """
        self.listeners.hold()
        deadline = self.clock.monotonic() + NEWCOMER_SECONDS
        await asyncio.sleep(0)  # who was accepted just now is counted
        while (self.newcomers or self.unnamed) and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # who comes need not tell us
        for socket in self.sockets():
            if not socket.has_tls:
                socket.hold()
        async with asyncio.timeout(seconds):
            await self.commit_loop.hold()
        await asyncio.sleep(0)  # what was read before is parsed, and pings are answered
        unusable = [socket for socket in self.sockets() if socket.has_tls or socket.unread() is None]
        for socket in unusable:
            if not socket.has_tls:
                socket.hang_up(WSCloseCode.SERVICE_RESTART.value, "server restarts")
        self._ignore(unusable)
        await self._send_away(unusable, CLOSING_SECONDS)
        await asyncio.sleep(0)  # they are forgotten
        return len(unusable)

    async def release(self) -> None:
        """Accept and read again."""
        self.commit_loop.release()
        for socket in self.sockets():
            socket.read_again(ReadPauses.HAND_OVER)
        await self.listeners.release()
