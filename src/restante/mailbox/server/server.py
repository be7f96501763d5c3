"""The WebSocket shell: listens, greets, keeps alive, drains. What goes over one WebSocket is in connection.py."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import secrets
import socket
import sys
import time
from base64 import b32encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from picows import (
    WSCloseCode,
    WSMsgType,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

from restante.common.errors import Misuse, PeerError
from restante.common.logs import log, where
from restante.common.settings import unusable
from restante.mailbox.core.addresses import Client
from restante.mailbox.core.admission import Admission, AdmissionResult, AdmissionTerms
from restante.mailbox.core.limits import Limits, RateLimiter
from restante.mailbox.core.memory_holders import FREED_FRACTION, MemoryHolders
from restante.mailbox.protocol import messages
from restante.mailbox.server.commit_loop import MAX_LOGGED_ADDRESSES, Clock, CommitLoop
from restante.mailbox.server.connection import PAUSED_FOR_BACKLOG, PAUSED_FOR_FRAME_RATE, Socket
from restante.mailbox.server.first_request import Answer, FirstBytes, websocket_protocol
from restante.mailbox.server.send_budget import SendBudget

MAX_FRAME_PER_MESSAGE: Final = 2
"""A frame is read up to so many times the size that a message may have: then its sender is told what is wrong. Beyond
that it is only closed, with 1009, before its payload is read."""

KERNEL_RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that the kernel holds for a connection that is left unread (it doubles this), and that one read can bring."""

PING_INTERVAL_SECONDS: Final = 25
"""Seconds. nginx and others cut what is silent for 60 (proxy_read_timeout): the reference's pings, every 60, come too
late (server_websocket.py:392, 0.8.0). Some NATs and load balancers cut after 30."""

SILENCE_TIMEOUT_SECONDS: Final = 600
"""Seconds in which a connection says nothing and answers no ping, before it is taken for dead: as the reference."""

DRAIN_TIMEOUT: Final = 5.0
"""Seconds to wait for what was said to reach the clients."""

CLEANUP_SECONDS: Final = 1.0
"""Two round trips to anywhere, and a client's thought."""

MAX_CLOCK_STEP_SECONDS: Final = 2.0
"""Seconds between two looks at the clock that count, at most. `tick` looks once a second: when more have gone by, the
process was stopped, or its machine paused, and CLOCK_MONOTONIC went on (man 2 clock_gettime)."""

RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that are kept free, and a tenth of all: for the database, the admin port, and for connections that are
taken before anybody can count them: the loop empties the kernel's queue before it looks at any of it."""

OWN_DESCRIPTORS: Final = 32
"""Descriptors that a server holds without connections, at most: its streams, loop, database and ports."""

MIN_FREE_DESCRIPTORS: Final = 8
"""With fewer free descriptors nobody is accepted. It is not 1: closed listeners leave theirs, one per address."""

READ_BUFFER_BYTES: Final = 2048
"""Bytes a connection reads into at first; grows with its frames. Most of a connection's memory (bench/README.md)."""

ASKS_FOR_NOTHING: Final = "too many connections that ask for nothing"
"""What the log says of who has as many connections without a request as it may have with one."""

MAX_UNBOUND_CLOSED_PER_SECOND: Final = 500
"""Connections that are closed in a second because they did not bind: 7 ms."""

GREETING: Final = b"Wormhole Relay\n"
"""What `GET /` answers: the reference's words, which monitors look for (web.py:10, 0.8.0)."""


def needed_descriptors(own: int) -> int:
    """Return the lowest limit of descriptors that leaves RESERVED_DESCRIPTORS for connections; `own` are open."""
    return math.ceil((own + 2 * RESERVED_DESCRIPTORS) * 10 / 9)


def too_few(descriptors: int, needed: int) -> Misuse:
    return Misuse(f"the limit of descriptors is {descriptors}, and {needed} are needed: raise it (ulimit -Hn)")


def _held() -> int:
    """Count the descriptors that are open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


class SystemClock:
    """The real one; its monotonic time goes on only while the process runs."""

    wall = staticmethod(time.time)

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen = self._now = monotonic()

    def monotonic(self) -> float:
        """Return seconds since the start. Between two calls count `MAX_CLOCK_STEP_SECONDS` at most."""
        seen = self._monotonic()
        passed = seen - self._seen
        self._seen = seen
        self._now += passed if passed < MAX_CLOCK_STEP_SECONDS else MAX_CLOCK_STEP_SECONDS  # noqa: FURB136 - called for every command
        return self._now


def system_secret() -> bytes:
    """Give 32 random bytes."""
    return secrets.token_bytes(32)


class SystemDice:
    """Unguessable ones."""

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def mailbox_id(self) -> str:
        """Give 64 random bits as 13 letters and digits, as the reference does (server.py:4, 0.8.0)."""
        return b32encode(secrets.token_bytes(8)).decode().strip("=").lower()


class WelcomeOptions(msgspec.Struct, frozen=True):
    """How the server greets and speaks."""

    motd: str | None = None
    current_cli_version: str | None = None
    error: str | None = None
    binary: bool = False
    """Send binary frames, as the letter of spec 000 has it; every shipped client was built against text."""

    def welcome(self, client: Client, permission: dict[str, Any] | None = None) -> bytes:
        """Encode the welcome for a client."""
        said = {
            "motd": self.motd,
            "current_cli_version": self.current_cli_version,
            "error": self.error,
            "permission-required": permission,
        }
        welcome: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
        # How it looks from here: hole-punching needs it (server_websocket.py:145, 0.8.0).
        welcome["your-address"] = {f"ipv{client.address.version}": str(client.address), "port": client.port}
        return messages.encode(messages.Welcome(welcome))


class QuietLogger:
    """Stands in for picows' logger, which would write addresses and make one logger per connection.

    What it keeps is that a callback of ours raised: picows catches that, and closes the connection.
    """

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802 - logging's name
        return False

    def _drop(self, *_args: object, **_kwargs: object) -> None:
        pass

    def exception(self, *_args: object) -> None:
        log.error("a callback failed; its connection is closed", fault=where(sys.exception()))

    debug = info = warning = error = log = _drop


QUIET_LOGGER: Final = QuietLogger()


class Server:
    """Listens, keeps connections alive, and lets them go."""

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
        """The descriptor after which connections wait: each gets the lowest that is free."""
        self._many = RESERVED_DESCRIPTORS
        """Free descriptors at which waiting connections are accepted again."""
        self.admission = admission or Admission(AdmissionTerms(), system_secret)
        self.limits = commit_loop.dispatcher.policy.limits
        self.admission.limits = self.limits
        self.clock = clock
        self.welcome_options = welcome_options
        self.kind = WSMsgType.BINARY if welcome_options.binary else WSMsgType.TEXT
        self.second = 0
        """Counts `tick`s: all the time that keep-alive needs."""
        self.buckets: list[set[Socket]] = [set() for _ in range(PING_INTERVAL_SECONDS)]
        """All sockets, by the second of `PING_INTERVAL_SECONDS` in which they are pinged."""
        self.parting = CLEANUP_SECONDS
        self.admitted: set[Socket] = set()
        """Those that were let in."""
        self.owing = 0
        self.reading = 0
        self.memory_holders = MemoryHolders()
        self.send_budget = SendBudget()
        self.newcomers: OrderedDict[Socket, int] = OrderedDict()
        """Those that may not have bound yet, and the second in which they came. A dict that loses its first again and
        again is slow to find the next one."""
        self.slowed: list[Socket] = []
        """Those that are left unread until the next second."""
        self._warned: set[str] = set()
        """What is said once, about a proxy."""
        self._listeners: list[asyncio.Server] = []
        self._listening_sockets: list[socket.socket] = []
        """The listening sockets, once more: while one is open, the kernel goes on taking calls."""

    async def listen(self, host: str | None, port: int) -> list[tuple[str, int]]:
        """Listen; gives the addresses. Raises Misuse where that cannot be done."""
        try:
            listener = await self._accept(host=host, port=port)
        except OSError as error:
            raise unusable(host, port, "--listen", error) from error
        self._listeners = [listener]
        for each in listener.sockets:
            duplicate = socket.socket(fileno=os.dup(each.fileno()))
            duplicate.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_RECEIVE_BUFFER_BYTES
            )  # accepted ones inherit it
            self._listening_sockets.append(duplicate)
        free = self._free_descriptors(2 * RESERVED_DESCRIPTORS)
        if free < RESERVED_DESCRIPTORS:
            raise too_few(self.descriptors, needed_descriptors(_held()))
        self._many = free // 2
        return [each.getsockname()[:2] for each in self._listening_sockets]

    async def _accept(self, **where: Any) -> asyncio.Server:
        listener: asyncio.Server = await asyncio.get_running_loop().create_server(
            self._connected, backlog=1024, **where
        )
        return listener

    def _connected(self) -> FirstBytes:
        websocket = websocket_protocol(
            self._answer,
            QUIET_LOGGER,
            handshake_timeout=self.limits.handshake,
            max_frame_size=MAX_FRAME_PER_MESSAGE * self.limits.message_bytes,
            read_buffer_size=READ_BUFFER_BYTES,
        )
        return FirstBytes(websocket, self._answer_head, self._begin_request)

    def _begin_request(self, peer: Sequence[Any]) -> Callable[[], None] | None:
        """Take note of a connection before its request; gives what to call when that has come. None: close it."""
        pending = self.admission.begin_request(peer, self.clock.wall())
        if pending.refused:
            self.commit_loop.dispatcher.quotas.count_refusal(ASKS_FOR_NOTHING, pending.refused)
            return None
        return functools.partial(self.admission.end_request, pending)

    def _stop_accepting(self) -> None:
        """Leave who comes in the kernel's queue, for now: we hold the sockets open, so nobody is refused."""
        listeners, self._listeners = self._listeners, []
        if listeners and self._listening_sockets:
            log.warning(
                "no descriptors are left for more connections: they wait (ulimit -n)", connections=len(self.admitted)
            )
        for listener in listeners:
            listener.close()

    async def check_descriptors(self) -> None:
        """Accept nobody while descriptors are short; called once a second.

        `admit` does not suffice: connections whose handshake has not come take descriptors, too.
        """
        if not self._listening_sockets:
            return
        free = self._free_descriptors(self._many)
        if free < MIN_FREE_DESCRIPTORS:
            self._stop_accepting()
        elif not self._listeners and free == self._many:
            log.info("connections are taken again", connections=len(self.admitted))
            self._listeners = [await self._accept(sock=each.dup()) for each in self._listening_sockets]

    def _free_descriptors(self, at_most: int) -> int:
        """Count the descriptors below `most` that are free, up to `at_most`. A hundred take 0.05 ms."""
        taken: list[int] = []
        try:
            while len(taken) < at_most:
                taken.append(os.dup(self._listening_sockets[0].fileno()))  # the lowest that is free
        except OSError:
            pass  # there are no more
        finally:
            for each in taken:
                os.close(each)
        return sum(each < self.most for each in taken)

    def _answer(self, request: WSUpgradeRequest) -> Socket | WSUpgradeResponseWithListener | None:
        path = request.path.partition(b"?")[0]
        if "upgrade" in [each.strip() for each in request.headers.get("connection", "").lower().split(",")]:
            request.headers["connection"] = "Upgrade"  # picows takes no list, and Firefox says "keep-alive, Upgrade"
        if path == b"/":
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(GREETING), None)
        if path == b"/v1" or path.startswith(b"/v1/"):
            return Socket(self)
        return None  # 404

    def _answer_head(self, path: bytes) -> Answer:
        """Answer HEAD as `_answer` does GET, where no upgrade is asked for."""
        path = path.partition(b"?")[0]
        if path == b"/":
            return HTTPStatus.OK, len(GREETING)
        if path == b"/v1" or path.startswith(b"/v1/"):
            return HTTPStatus.BAD_REQUEST, None
        return HTTPStatus.NOT_FOUND, None

    def apply_settings(self, welcome_options: WelcomeOptions, terms: AdmissionTerms, limits: Limits) -> None:
        """Go on like this; who is here already keeps what the welcome said, and how frames come."""
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
        """Take a connection in; it may have to go at once."""
        result = self.admission.admit(peer, headers, self.commit_loop.now(), len(self.admitted))
        if result.verdict is None:
            self.admitted.add(newcomer)
        if descriptor >= self.most and self._listeners:
            self._stop_accepting()
        self.buckets[newcomer.bucket % PING_INTERVAL_SECONDS].add(newcomer)
        self.newcomers[newcomer] = self.second
        if result.client.unheeded:
            self._warn_once(
                "a proxy names its clients, and is not believed: they cannot be told apart. Name its network with"
                " --trust-proxy, like --trust-proxy 127.0.0.0/8"
            )
        if result.client.other is not None:
            self._warn_once(
                "X-Forwarded-For and X-Real-IP of a trusted proxy name different clients: both are charged. Have the"
                " proxy set both headers, or remove the one that it does not set"
            )
        return result

    def _warn_once(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            log.warning(words)

    def connection_closed(self, leaver: Socket) -> None:
        self.admitted.discard(leaver)
        self.buckets[leaver.bucket % PING_INTERVAL_SECONDS].discard(leaver)
        self.newcomers.pop(leaver, None)
        self.admission.release(leaver.connection.address_quotas)

    def greeting(self, result: AdmissionResult) -> bytes:
        return self.welcome_options.welcome(result.client, result.offer)

    def slow_down(self, hasty: Socket) -> None:
        self.slowed.append(hasty)

    def overflow(self, socket: Socket, words: str) -> None:
        self.commit_loop.dispatcher.quotas.count_refusal(words, socket.connection.session.address_id)

    @property
    def held(self) -> int:
        """Bytes that all connections together owe to read, are read in, and said and are not done."""
        return self.owing + self.reading + self.commit_loop.queue.held

    def make_room(self) -> None:
        most = self.limits.owed_bytes
        if most and self.held > most:
            self.memory_holders.close(self.held - most + most // FREED_FRACTION, self.second)

    def too_big(self) -> PeerError:
        most = self.limits.message_bytes
        return PeerError(1009, "the message is too big", hint=f"a message has at most {most} bytes")

    def sockets(self) -> list[Socket]:
        return [each for bucket in self.buckets for each in bucket]

    def tick(self) -> None:
        """Ping this second's sockets, and drop those that have been silent for too long."""
        self.second += 1
        slowed, self.slowed = self.slowed, []
        for each in slowed:
            each.read_again(PAUSED_FOR_FRAME_RATE)
        self._see_off_newcomers()
        self.admission.addresses.forget(self.commit_loop.now().service, self.limits)
        changed, self.admission.changed_bits = self.admission.changed_bits, {}
        for address_id, bits in list(changed.items())[:MAX_LOGGED_ADDRESSES]:
            log.info("the work demanded of an address has changed", address=address_id, bits=bits)
        if changed:
            log.info(
                "addresses of which other work is demanded now",
                addresses=len(changed),
                changes=self.admission.changes,
            )
        if self.admission.tick():
            load_level = self.admission.load_level
            log.warning(
                "the work demanded of everybody has changed",
                bits=load_level.bits(self.admission.terms.bits) or 0,
                connections_a_second=round(load_level.rate),
                changes=load_level.changes,
            )
        for each in list(self.buckets[self.second % PING_INTERVAL_SECONDS]):
            if self.second - each.heard > SILENCE_TIMEOUT_SECONDS and not each.unread:
                each.drop()
            else:
                each.ping()

    def _see_off_newcomers(self) -> None:
        """Close those that did not bind in time."""
        for _ in range(MAX_UNBOUND_CLOSED_PER_SECOND):
            newcomer, came = next(iter(self.newcomers.items()), (None, 0))
            if newcomer is None or self.second - came <= self.limits.bind:
                return
            del self.newcomers[newcomer]
            backlog = newcomer.connection.backlog
            if newcomer.connection.session.app_id is None and not (backlog.queued or backlog.waiting):
                seconds = f"{self.limits.bind:g} s"
                self.commit_loop.refuse(
                    newcomer.connection, PeerError(1008, "must bind first", hint=f"within {seconds} of connecting")
                )

    async def drain(self, running: asyncio.Task[None]) -> None:
        """Stop accepting and reading, answer what was read, and say goodbye."""
        listening_sockets, self._listening_sockets = self._listening_sockets, []
        self._stop_accepting()
        for listening in listening_sockets:
            listening.close()
        for each in self.sockets():
            each.deaf = True
            each.read_again(
                PAUSED_FOR_BACKLOG | PAUSED_FOR_FRAME_RATE
            )  # what lies unread when a socket is closed resets the connection
        self.commit_loop.stop()
        await running
        for each in self.sockets():
            each.hang_up(WSCloseCode.GOING_AWAY.value, "server restarts")
        deadline = self.clock.monotonic() + DRAIN_TIMEOUT
        while any(each.unsent() for each in self.sockets()) and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the kernel has no event for it
        for each in self.sockets():
            each.drop()
