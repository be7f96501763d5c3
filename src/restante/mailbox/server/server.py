"""The WebSocket server: it listens, welcomes clients, keeps connections alive, and drains.

connection.py handles the frames of one WebSocket.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from msgspec.structs import replace
from picows import (
    WSCloseCode,
    WSMsgType,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

from restante.common.errors import PeerError
from restante.common.logs import log
from restante.common.settings import unusable
from restante.common.signals import too_few_descriptors
from restante.mailbox.core.admission import Admission, AdmissionResult, AdmissionTerms, PendingRequest
from restante.mailbox.core.limits import Limits, RateLimiter
from restante.mailbox.core.memory_holders import FREED_FRACTION, MemoryHolder, MemoryHolders
from restante.mailbox.server.commit_loop import MAX_LOGGED_ADDRESSES, Clock, CommitLoop
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.descriptors import (
    MIN_FREE_DESCRIPTORS,
    RESERVED_DESCRIPTORS,
    free_descriptors,
    needed_descriptors,
    open_descriptors,
)
from restante.mailbox.server.first_request import Answer, FirstBytes, websocket_protocol
from restante.mailbox.server.frames import first_byte
from restante.mailbox.server.read_budget import ReadBudget
from restante.mailbox.server.read_pauses import ReadPauses
from restante.mailbox.server.refusals import MUST_BIND, NO_ROOM_FOR_REQUESTS, TOO_BIG, TOO_MANY_WITHOUT_REQUEST
from restante.mailbox.server.send_budget import SendBudget
from restante.mailbox.server.system import system_secret
from restante.mailbox.server.welcome import WelcomeOptions

MAX_FRAME_PER_MESSAGE: Final = 2
"""Maximum size of a frame that is read, in multiples of the maximum size of a message. The sender of such a frame is
told the error. A larger frame is closed with 1009 before its payload is read."""

KERNEL_RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that the kernel buffers for a connection that is not read (it doubles this), and that one read can return."""

ACCEPT_BACKLOG: Final = 128
"""Maximum number of connections that wait in the kernel. uvloop 0.23, with libuv 1.52, accepts one in each turn
of the loop: 0.2 ms. A client that finds no place tries again after a second (tcp(7), tcp_abort_on_overflow)."""

PING_INTERVAL_SECONDS: Final = 25
"""Seconds between two pings of a connection. nginx and others cut connections that are silent for 60 s
(proxy_read_timeout), so the reference's pings, every 60 s, come too late (server_websocket.py:392, 0.8.0). Some NATs
and load balancers cut after 30 s."""

MAX_PINGS_PER_TURN: Final = 200
"""Pings that are sent in one turn of the loop: 2 ms. All connections may have been made in the same second of the
ping interval."""

SILENCE_TIMEOUT_SECONDS: Final = 600
"""Seconds without a frame, not even a pong, after which a connection is considered dead, as in the reference."""

DRAIN_TIMEOUT: Final = 5.0
"""Seconds to wait until everything that was sent has reached the clients."""

CLEANUP_SECONDS: Final = 1.0
"""Seconds that a rejected client has to release and close: two round trips to anywhere, and the client's
processing."""

READ_BUFFER_BYTES: Final = 2048
"""Initial bytes of a connection's read buffer, which grows with its frames. Most of a connection's memory
(bench/README.md)."""

MAX_UNBOUND_CLOSED_PER_SECOND: Final = 250
"""Connections closed in one second because they did not bind in time. Closing one takes some 26 µs."""

GREETING: Final = b"Wormhole Relay\n"
"""Body of the answer to `GET /`: the reference's text, which monitors look for (web.py:10, 0.8.0)."""


class Server:
    """Accepts connections, keeps them alive, and closes them."""

    def __init__(
        self,
        commit_loop: CommitLoop,
        clock: Clock,
        welcome_options: WelcomeOptions,
        admission: Admission | None = None,
        *,
        descriptors: int = 1 << 20,
    ) -> None:
        self.commit_loop = commit_loop
        self.descriptors = descriptors
        self.most = descriptors - descriptors // 10 - RESERVED_DESCRIPTORS
        """The descriptor from which on new connections wait. Each connection gets the lowest free descriptor."""
        self._many = RESERVED_DESCRIPTORS
        """Free descriptors at which waiting connections are accepted again."""
        self.admission = admission or Admission(AdmissionTerms(), system_secret)
        self.limits = commit_loop.dispatcher.policy.limits
        self.admission.limits = self.limits
        self.clock = clock
        self.welcome_options = welcome_options
        self.first_byte = first_byte(WSMsgType.BINARY if welcome_options.binary else WSMsgType.TEXT)
        """The first byte of the frames that are sent."""
        self.second = 0
        """The number of calls of `tick`, which is the clock of keep-alive."""
        self.buckets: list[set[Socket]] = [set() for _ in range(PING_INTERVAL_SECONDS)]
        """All sockets, by the second of the ping interval in which they are pinged."""
        self.cleanup_seconds = CLEANUP_SECONDS
        self.draining = False
        self.admitted: set[Socket] = set()
        """Sockets that were admitted."""
        self.owing = 0
        self.reading = 0
        self.memory_holders = MemoryHolders()
        self.send_budget = SendBudget()
        self.read_budget = ReadBudget()
        commit_loop.before_long = self._reserve_turn
        self.newcomers: OrderedDict[Socket, int] = OrderedDict()
        """Sockets that may not have bound yet, and the second in which they connected. A plain dict whose first item
        is removed again and again becomes slow at finding the next one."""
        self.slowed: list[Socket] = []
        """Sockets that are not read until the next second."""
        self._warned: set[str] = set()
        """Warnings about proxies that were logged, each once."""
        self._listeners: list[asyncio.Server] = []
        self._listening_sockets: list[socket.socket] = []
        """Duplicates of the listening sockets. While one is open, the kernel goes on queueing connections."""

    def _reserve_turn(self) -> None:
        """Leave the next turn of the loop to the commit loop, which parses or handles a long message: up to 5 ms."""
        self.read_budget.reserve()
        self.send_budget.reserve()

    async def listen(self, host: str | None, port: int) -> list[tuple[str, int]]:
        """Listen and return the addresses. Raises Misuse if the address cannot be used."""
        try:
            listener = await self._accept(host=host, port=port)
        except OSError as error:
            raise unusable(host, port, "--listen", error) from error
        self._listeners = [listener]
        for each in listener.sockets:
            duplicate = socket.socket(fileno=os.dup(each.fileno()))
            duplicate.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_RECEIVE_BUFFER_BYTES
            )  # accepted sockets inherit it
            self._listening_sockets.append(duplicate)
        free = self._free_descriptors(2 * RESERVED_DESCRIPTORS)
        if free < RESERVED_DESCRIPTORS:
            raise too_few_descriptors(self.descriptors, needed_descriptors(open_descriptors()))
        self._many = free // 2
        return [each.getsockname()[:2] for each in self._listening_sockets]

    async def _accept(self, **where: Any) -> asyncio.Server:
        listener: asyncio.Server = await asyncio.get_running_loop().create_server(
            self._connected, backlog=ACCEPT_BACKLOG, **where
        )
        return listener

    def _connected(self) -> FirstBytes:
        websocket = websocket_protocol(
            self._answer,
            handshake_timeout=self.limits.handshake,
            max_frame_size=MAX_FRAME_PER_MESSAGE * self.limits.message_bytes,
            read_buffer_size=READ_BUFFER_BYTES,
        )
        return FirstBytes(websocket, self)

    def begin_request(self, peer: Sequence[Any]) -> PendingRequest:
        """Count a connection before its request, and in the log if it is refused."""
        pending = self.admission.begin_request(peer, self.clock.wall())
        if pending.refused:
            self.commit_loop.dispatcher.quotas.count_refusal(TOO_MANY_WITHOUT_REQUEST, pending.address_id)
        return pending

    def end_request(self, pending: PendingRequest) -> None:
        """Stop counting a connection without a complete request, because it has one or is closed."""
        self.admission.end_request(pending)

    def give_up_request(self, pending: PendingRequest) -> None:
        """Count a connection that was closed to make room before its request was complete."""
        self.commit_loop.dispatcher.quotas.count_refusal(NO_ROOM_FOR_REQUESTS, pending.address_id)

    def _stop_accepting(self) -> None:
        """Leave new connections in the kernel's queue for now. As we keep the sockets open, none is refused."""
        listeners, self._listeners = self._listeners, []
        if listeners and self._listening_sockets:
            log.warning(
                "file descriptors are short: new connections wait (ulimit -n)", connections=len(self.admitted)
            )
        for listener in listeners:
            listener.close()

    async def check_descriptors(self) -> None:
        """Stop accepting while descriptors are short, and start again. Call this once a second.

        `admit` does not suffice, because connections before their handshake take descriptors, too.
        """
        if not self._listening_sockets:
            return
        free = self._free_descriptors(self._many)
        if free < MIN_FREE_DESCRIPTORS:
            self._stop_accepting()
        elif not self._listeners and free == self._many:
            log.info("new connections are accepted again", connections=len(self.admitted))
            self._listeners = [await self._accept(sock=each.dup()) for each in self._listening_sockets]

    def _free_descriptors(self, at_most: int) -> int:
        return free_descriptors(self._listening_sockets[0].fileno(), self.most, at_most)

    def _answer(self, request: WSUpgradeRequest) -> Socket | WSUpgradeResponseWithListener | None:
        path = request.path.partition(b"?")[0]
        if "upgrade" in [each.strip() for each in request.headers.get("connection", "").lower().split(",")]:
            request.headers["connection"] = "Upgrade"  # Firefox sends "keep-alive, Upgrade"; picows reads one value
        if path == b"/":
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(GREETING), None)
        if path == b"/v1" or path.startswith(b"/v1/"):
            return Socket(self)
        return None  # picows answers with 404

    def answer_head(self, path: bytes) -> Answer:
        """Return the answer to HEAD: what `_answer` returns for a GET without an upgrade."""
        path = path.partition(b"?")[0]
        if path == b"/":
            return HTTPStatus.OK, len(GREETING)
        if path == b"/v1" or path.startswith(b"/v1/"):
            return HTTPStatus.BAD_REQUEST, None
        return HTTPStatus.NOT_FOUND, None

    def apply_settings(self, welcome_options: WelcomeOptions, terms: AdmissionTerms, limits: Limits) -> None:
        """Apply new settings. Open connections keep the terms of their welcome and their kind of frames."""
        self.welcome_options = replace(welcome_options, binary=self.welcome_options.binary)
        self.admission.terms, self.admission.limits, self.limits = terms, limits, limits
        dispatcher = self.commit_loop.dispatcher
        dispatcher.policy = replace(dispatcher.policy, limits=limits)
        for each in self.sockets():
            backlog = each.connection.backlog
            backlog.rate_limiter = (
                (backlog.rate_limiter or RateLimiter()) if limits.commands or limits.bytes else None
            )

    def admit(
        self, newcomer: Socket, peer: tuple[Any, ...], headers: Mapping[str, str], descriptor: int
    ) -> AdmissionResult:
        """Admit a connection, or decide that it will be closed, and return the result."""
        result = self.admission.admit(peer, headers, self.commit_loop.now(), len(self.admitted))
        if result.verdict is None:
            self.admitted.add(newcomer)
        if descriptor >= self.most and self._listeners:
            self._stop_accepting()
        self.buckets[newcomer.bucket % PING_INTERVAL_SECONDS].add(newcomer)
        self.newcomers[newcomer] = self.second
        if result.client.untrusted_proxy:
            self._warn_once(
                "ignoring the client addresses in headers of a proxy that is not trusted: name its network with"
                " --trust-proxy, like --trust-proxy 127.0.0.0/8"
            )
        if result.client.other is not None:
            self._warn_once(
                "X-Forwarded-For and X-Real-IP of a trusted proxy name different clients: both addresses are charged."
                " Configure the proxy to set both headers, or to remove the one that it does not set"
            )
        return result

    def _warn_once(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            log.warning(words)

    def connection_closed(self, leaver: Socket) -> None:
        """Forget a connection that has closed, and release its place in the quotas of its addresses."""
        self.admitted.discard(leaver)
        self.buckets[leaver.bucket % PING_INTERVAL_SECONDS].discard(leaver)
        self.newcomers.pop(leaver, None)
        self.admission.release(leaver.connection.address_quotas)

    def greeting(self, result: AdmissionResult) -> bytes:
        """Return the encoded welcome, with what this connection was offered."""
        return self.welcome_options.welcome(result.client, result.offer)

    def slow_down(self, hasty: Socket) -> None:
        """Leave a connection over its rate of frames unread until the next second."""
        self.slowed.append(hasty)

    def overflow(self, socket: Socket, words: str) -> None:
        """Count a connection that was closed because of a limit, with the reason that the log shows."""
        self.commit_loop.dispatcher.quotas.count_refusal(words, socket.connection.session.address_id)

    @property
    def held(self) -> int:
        """Return the bytes of all connections that are owed, being read, or waiting to be handled."""
        return self.owing + self.reading + self.commit_loop.queue.held

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""
        self.reading += change
        self.memory_holders.note(holder, self.second)

    def make_room(self) -> None:
        """Close connections if all together hold more memory than `held_bytes`."""
        most = self.limits.held_bytes
        if most and self.held > most:
            self.memory_holders.close(self.held - most + most // FREED_FRACTION, self.second)

    def too_big(self) -> PeerError:
        """Return the error for a message above `message_bytes`."""
        most = self.limits.message_bytes
        return PeerError(1009, TOO_BIG, hint=f"a message has at most {most} bytes")

    def sockets(self) -> list[Socket]:
        """Return all connections, also rejected ones that are still open."""
        return [each for bucket in self.buckets for each in bucket]

    def tick(self) -> None:
        """Ping the sockets whose turn it is this second, and drop those that have been silent for too long."""
        self.second += 1
        slowed, self.slowed = self.slowed, []
        for each in slowed:
            each.read_again(ReadPauses.FRAME_RATE)
        self._close_unbound()
        self.admission.addresses.forget(self.commit_loop.now().service, self.limits)
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
        self._ping(list(self.buckets[self.second % PING_INTERVAL_SECONDS]))

    def _ping(self, due: list[Socket]) -> None:
        for each in due[-MAX_PINGS_PER_TURN:]:
            if self.second - each.last_frame_second > SILENCE_TIMEOUT_SECONDS and not each.read_pauses.reasons:
                each.drop()
            else:
                each.ping()
        del due[-MAX_PINGS_PER_TURN:]
        if due:
            asyncio.get_running_loop().call_soon(self._ping, due)

    def _close_unbound(self) -> None:
        """Close sockets that did not bind in time."""
        for _ in range(MAX_UNBOUND_CLOSED_PER_SECOND):
            newcomer, came = next(iter(self.newcomers.items()), (None, 0))
            if newcomer is None or self.second - came <= self.limits.bind:
                return
            del self.newcomers[newcomer]
            backlog = newcomer.connection.backlog
            if newcomer.connection.session.app_id is None and not (backlog.queued or backlog.waiting):
                seconds = f"{self.limits.bind:g} s"
                self.commit_loop.refuse(
                    newcomer.connection, PeerError(1008, MUST_BIND, hint=f"within {seconds} of connecting")
                )

    async def drain(self, running: asyncio.Task[None]) -> None:
        """Stop accepting and reading, answer what was read, and close all connections."""
        self.draining = True
        listening_sockets, self._listening_sockets = self._listening_sockets, []
        self._stop_accepting()
        for listening in listening_sockets:
            listening.close()
        for each in self.sockets():
            each.ignores_input = True
            # Unread data resets a connection when its socket is closed.
            each.read_again(ReadPauses.BACKLOG | ReadPauses.FRAME_RATE)
        self.commit_loop.stop()
        await running
        for each in self.sockets():
            each.hang_up(WSCloseCode.GOING_AWAY.value, "server restarts")
        deadline = self.clock.monotonic() + DRAIN_TIMEOUT
        while any(each.unsent() for each in self.sockets()) and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the kernel has no event for it
        for each in self.sockets():
            each.drop()
