"""Restante's mailbox server beside the reference server, in one run. See bench/README.md."""  # noqa: A005 - no mail

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import gc
import hashlib
import importlib.resources
import itertools
import math
import os
import random
import re
import sqlite3
import ssl
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import uvloop

import harness
from harness import CHANNEL_DB, HOST, Bench, BenchError, Figure, Kind, Results, Server, own, percentile, times

LIBRARIES = (*harness.LIBRARIES, "magic-wormhole-mailbox-server", "twisted", "autobahn")
OPERATIONS = ("allocate", "claim", "open", "add", "release", "close")
FIGURES: dict[str, Figure] = {
    "sessions_per_cpu_second": times("sessions per CPU-second", 12, 18, higher_is_better=True),
    "sessions_per_second": times("sessions/s, 50 at a time", 20, 40, higher_is_better=True),
    "fsync_sessions_per_second": times("the same, fsync fixed at 2 ms", 100, 200, higher_is_better=True),
    "flushes_saturated": own("device flushes a session, saturated", 1.5, 0.7),
    "flushes_light": own("device flushes a session, light load", 10, 9),
    "delivery_p50": Figure("add to delivery, light load, p50, ms"),
    "light_flush": Figure("  a flush of that run, ms"),
    "delivery_over_flush": own("  p50 over that flush, ms", 0.3, 0.15),
    "delivery_p99": own("add to delivery, light load, p99, ms", 3, 1),
    "idle_kib": own("idle subscribed connection, KiB", 14, 11),
    "idle_tls_kib": own("  the same over TLS, KiB", 40, 35),
    "growth_worst": own("slowest growth of these six, {n} over empty, times", 2, 1.2),
    **{f"growth_{operation}": Figure(f"  {operation}, {{n}} over empty, times") for operation in OPERATIONS},
    "list_cpu": own("list of {n}, CPU ms a repeat", 1, 0.3),
    "restart": Figure("start with {n} mailboxes, s"),
    "restart_beyond_empty": own("  beyond a start with none, s", 0.3, 0.15),
    "replace_pause": own("pause of a client by a planned restart with {n} mailboxes, s", 1.5, 0.5),
    "replace_cpu": Figure("  processor time of the server until it is ready again, s"),
    "postgres_sessions": own(
        "sessions per CPU-second with PostgreSQL, its CPU included, over SQLite's, times",
        0.5,
        0.75,
        higher_is_better=True,
    ),
    "postgres_cpu": Figure("  CPU a session, PostgreSQL's included, ms"),
    "take_over": own("take-over after a kill, {n} mailboxes, s", 4.5, 3.7),
    "prune_stall": own("longest stall, {n} pruned, ms", 10, 5),
    "prune_floor": Figure("  longest stall, nothing to prune, ms"),
    "flood_p99": own("add to delivery while another floods, p99, ms", 100, 10),
    "cpu_per_session": Figure("  server CPU a session, ms"),
    "kernel_per_session": Figure("    the part of it in the kernel, ms"),
    "saturated_delivery_p50": Figure("  add to delivery, saturated, p50, ms"),
    "light_cpu_per_session": Figure("  server CPU a session, light load, ms"),
    "generator_busy": Figure("  generator's share of its CPU, saturated"),
    "instructions": own("instructions of a session, millions", 3, 2.4),
    "instructions_tls": Figure("  the same over TLS, millions"),
    "instructions_loop": Figure("  commit loop and its clients alone, millions"),
    "system_calls": Figure("system calls of a session", at_least=90),
}

AT_A_TIME = 50
SLOW_FSYNC_US = 2_000
SLOW_FSYNC_AT_A_TIME: dict[Kind, int] = {"restante": AT_A_TIME, "reference": 5}
"""The reference flushes one after the other: with more sessions at a time none would end within the window."""
LIGHT_LOAD: dict[Kind, float] = {"restante": 50, "reference": 4}
CONNECT_AT_A_TIME = 64
CALL_SECONDS = 60.0
FILL_SECONDS = 300.0
COUNTING_SECONDS = 3600.0
RESTART_SECONDS = 60.0
PROBE_SECONDS = 60.0
DRAIN_SECONDS = 30.0
DELIVERY_SECONDS = 30.0
PRUNE_SECONDS = 90.0
MAX_PRUNE_ROUNDS = 3
MAX_RUNNING = 5_000
MAX_FAILURES = 50
PING_INTERVAL = 0.001
ADD_INTERVAL = 0.005
FLOOD_ADDS = 200
MAX_BUFFERED = 1 << 20
NO_RATES = {"restante": ("--limit", "commands=0", "--limit", "bytes=0"), "reference": ()}

# ── The WebSocket of a client ──
# It is written by hand because a load generator is the ceiling of what it measures. It takes two thirds of the CPU of
# picows' own client, and shares no code with the server.

_KEY = base64.b64encode(b"restante's bench")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
_ACCEPT = base64.b64encode(hashlib.sha1(_KEY + _GUID).digest())
_MASK = b"\x5a\xc3\x17\x8e"  # not zero, which a server could skip
_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, 0x89, 0x8A


@functools.cache
def _pad(size: int) -> int:
    return int.from_bytes((_MASK * (size // 4 + 1))[:size], "little")


def frame(payload: bytes, opcode: int = _TEXT) -> bytes:
    """Return a masked frame."""
    size = len(payload)
    masked = (int.from_bytes(payload, "little") ^ _pad(size)).to_bytes(size, "little")
    if size < 126:
        return bytes((opcode, 0x80 | size)) + _MASK + masked
    if size < 1 << 16:
        return bytes((opcode, 0x80 | 126)) + size.to_bytes(2, "big") + _MASK + masked
    return bytes((opcode, 0x80 | 127)) + size.to_bytes(8, "big") + _MASK + masked


class WebSocketClient(asyncio.Protocol):
    """A connection. `received` is called for every text frame, `failed` once if anything else comes or it is cut."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.tls = tls
        self.over = False
        self.transport: asyncio.Transport | None = None
        self._upgraded = False
        self._unread = b""

    def received(self, payload: bytes, now: float) -> None:
        """Handle a text frame that was read at `now`."""
        raise NotImplementedError

    def failed(self, why: str) -> None:
        """Handle the end of the connection's use."""
        raise NotImplementedError

    async def connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, HOST, self.port, ssl=self.tls)
        except OSError as error:
            self.fail(f"connect: {error}")

    def write(self, frames: bytes) -> None:
        if self.transport is not None and not self.over:
            self.transport.write(frames)

    def end(self) -> None:
        """Leave as the Python client does: TCP is closed, without a close frame."""
        self.over = True
        if self.transport is not None:
            self.transport.close()

    def fail(self, why: str) -> None:
        if not self.over:
            self.end()
            self.failed(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        request = (
            b"GET /v1 HTTP/1.1\r\nHost: %b:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %b\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self.transport.write(request % (HOST.encode(), self.port, _KEY))

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc or 'end of file'}")

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()  # the loop's clock ticks in milliseconds
        self._unread += data
        try:
            if not self._upgraded and not self._read_handshake():
                return
            for payload in self._frames():
                self.received(payload, now)
                if self.over:
                    return
        except BenchError as error:
            self.fail(str(error))

    def _read_handshake(self) -> bool:
        head, end, rest = self._unread.partition(b"\r\n\r\n")
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 101 ") or _ACCEPT not in head:
            raise BenchError(f"handshake: {head[:200]!r}")
        self._upgraded = True
        self._unread = rest
        return True

    def _frames(self) -> Iterator[bytes]:
        """Yield the complete text frames that were read. Answer pings."""
        data, at, end = self._unread, 0, len(self._unread)
        while end - at >= 2:
            size, body = data[at + 1], at + 2
            if size == 126:
                body += 2
                size = int.from_bytes(data[at + 2 : body], "big")
            elif size == 127:
                body += 8
                size = int.from_bytes(data[at + 2 : body], "big")
            if end < body + size:
                break
            opcode, payload, at = data[at], data[body : body + size], body + size
            if opcode == _TEXT:
                yield payload
            else:
                self._handle_control(opcode, payload)
        self._unread = data[at:]

    def _handle_control(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self.write(frame(payload, _PONG))
        elif opcode == _CLOSE:
            code = int.from_bytes(payload[:2], "big")
            raise BenchError(f"closed by the server: {code} {payload[2:].decode(errors='replace')}")
        else:
            raise BenchError(f"frame with opcode byte {opcode:#x}")


# ── Commands and replies ──

APPID = "restante.invalid/bench"


class Reply(msgspec.Struct, tag_field="type", tag=str.lower, gc=False):
    """What a server sends. Responses of the reference have no id."""

    id: str | None = None


class Ack(Reply, gc=False):
    pass


class Welcome(Reply, gc=False):
    pass


class Nameplates(Reply, gc=False):
    nameplates: msgspec.Raw = msgspec.Raw(b"[]")  # lists are long, and parsed only where it matters


class Allocated(Reply, gc=False, kw_only=True):
    nameplate: str


class Claimed(Reply, gc=False, kw_only=True):
    mailbox: str


class Released(Reply, gc=False):
    pass


class Closed(Reply, gc=False):
    pass


class Pong(Reply, gc=False, kw_only=True):
    pong: int


class Message(Reply, gc=False, kw_only=True):
    side: str
    phase: str
    body: str


class Error(Reply, kw_only=True):
    error: str
    orig: Any = None


_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(
    Ack | Welcome | Nameplates | Allocated | Claimed | Released | Closed | Pong | Message | Error
)
_encoder = msgspec.json.Encoder()


def parse_reply(payload: bytes) -> Reply:
    """Raise BenchError for what no mailbox server sends."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise BenchError(f"{error}: {payload[:200]!r}") from error


def encode_command(type_: str, **keys: Any) -> bytes:
    return _encoder.encode({"type": type_, **keys})


# ── Single calls ──

A = TypeVar("A", bound=Reply)
Item = TypeVar("Item")
_connections = itertools.count()


class Connection(WebSocketClient):
    """A connection with one call at a time, which knows how long the answer took."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port, tls)
        self.side = f"side-{next(_connections)}"
        self.seconds = 0.0
        self.failure = ""
        self._expected: type[Reply] = Welcome
        self._answer: asyncio.Future[Reply] | None = None
        self._called = 0.0

    async def greet(self) -> None:
        """Connect and wait for the welcome."""
        self._expect(Welcome)
        await self.connect()
        await self._wait()

    async def enter(self, mailbox: str = "") -> None:
        """Connect and bind. Open a mailbox if one is named."""
        await self.greet()
        await self.call(Ack, "bind", appid=APPID, side=self.side)
        if mailbox:
            await self.call(Ack, "open", mailbox=mailbox)

    async def call(self, expected: type[A], type_: str, **keys: object) -> A:
        """Send a command and return the first reply of a type. Raise BenchError if there is none."""
        self._expect(expected)
        self.write(frame(encode_command(type_, id="0", **keys)))
        return cast("A", await self._wait())

    def received(self, payload: bytes, now: float) -> None:
        reply = parse_reply(payload)
        if isinstance(reply, Error):
            self.fail(f"error: {reply.error} {reply.orig}")
        elif type(reply) is self._expected and self.is_waiting():
            self.seconds = now - self._called
            cast("asyncio.Future[Reply]", self._answer).set_result(reply)

    def failed(self, why: str) -> None:
        self.failure = why
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchError(why))

    def is_waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _expect(self, expected: type[Reply]) -> None:
        self._expected = expected
        self._answer = asyncio.get_running_loop().create_future()
        self._called = time.perf_counter()
        if self.over:
            self._answer.set_exception(BenchError(self.failure))

    async def _wait(self) -> Reply:
        assert self._answer is not None
        async with asyncio.timeout(CALL_SECONDS):
            return await self._answer


# ── The session: two clients, 20 commands with `list`, 8 messages stored, 16 delivered ──
# The commands of both sides are, in order:
#   0 bind   1 allocate or list   2 claim   3 open   4 add pake   5 release   6 add version
#   7 add 0   8 add 1   9 close
# The id of a command is its position. Every reply is checked; anything else is a failure of the session.

SIDE_COMMANDS = 10
COMMANDS = 2 * SIDE_COMMANDS
"""Acks of a session."""
IDS = tuple(f"{position:04x}" for position in range(SIDE_COMMANDS))
RESPONSES_TO = (1, 2, 5, 9)
"""Positions of the commands with a response."""
PHASES = ("pake", "version", "0", "1")
ADDS = (4, 6, 7, 8)
_DICE = random.Random("the bodies of the bench")


class Role(NamedTuple):
    """What is the same in every session."""

    name: str
    second_command: bytes
    replies: tuple[type[Reply], ...]
    bodies: tuple[str, ...]
    adds: tuple[bytes, ...]


def _command_frame(position: int, type_: str, **keys: object) -> bytes:
    return frame(encode_command(type_, id=IDS[position], **keys))


def _role(name: str, second_command: str, reply: type[Reply]) -> Role:
    sizes = (81, 120, 300, 300)  # a pake as the real client sends it, its versions, two messages of the application
    bodies = tuple(_DICE.randbytes(size).hex() for size in sizes)
    adds = zip(ADDS, PHASES, bodies, strict=True)
    return Role(
        name=name,
        second_command=_command_frame(1, second_command),
        replies=(reply, Claimed, Released, Closed),
        bodies=bodies,
        adds=tuple(_command_frame(position, "add", phase=phase, body=body) for position, phase, body in adds),
    )


ALLOCATOR = _role("A", "allocate", Allocated)
LISTER = _role("B", "list", Nameplates)
_sides = itertools.count(random.SystemRandom().randrange(1 << 39))


class Session:
    """Two clients that share a nameplate and a mailbox."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.nameplate = ""
        self.mailbox = ""
        self.a = SessionClient(self, ALLOCATOR)
        self.b = SessionClient(self, LISTER)
        self.a.peer, self.b.peer = self.b, self.a
        self._closed = 0

    def start(self) -> None:
        self.load.spawn(self.a.connect())

    def allocated(self, nameplate: str) -> None:
        self.nameplate = nameplate
        self.load.spawn(self.b.connect())

    def closed(self) -> None:
        self._closed += 1
        if self._closed == 2:
            self.load.finished(self, None)

    def failed(self, why: str) -> None:
        self.a.end()
        self.b.end()
        self.load.finished(self, why)


class SessionClient(WebSocketClient):
    """One side of a session. It sends the next command as soon as the real client would."""

    peer: SessionClient

    def __init__(self, session: Session, role: Role) -> None:
        super().__init__(session.load.port, session.load.tls)
        self.session = session
        self.side = f"{next(_sides):010x}"
        self.sent_at = [0.0] * len(PHASES)
        self.role = role
        self._welcome = False
        self._sent = self._acked = self._replied = 0
        self._own_messages = self._peer_messages = 0

    def failed(self, why: str) -> None:
        self.session.failed(f"{self.role.name} after {self._sent} commands, {self._acked} acks: {why}")

    def received(self, payload: bytes, now: float) -> None:
        reply = parse_reply(payload)
        kind = type(reply)
        if kind is Ack:
            self._handle_ack(reply)
        elif isinstance(reply, Message):
            self._handle_message(reply, now)
        elif kind is Welcome and not self._welcome:
            self._welcome = True
            bind = _command_frame(0, "bind", appid=APPID, side=self.side, client_version=["python", "0.24.0"])
            self._send(2, bind + self.role.second_command)
        else:
            self._handle_response(reply)

    def _send(self, commands: int, frames: bytes) -> None:
        self._sent += commands
        self.write(frames)

    def _handle_ack(self, ack: Reply) -> None:
        if self._acked >= self._sent or ack.id != IDS[self._acked]:
            raise BenchError(f"ack {ack.id!r} out of turn")
        self._acked += 1
        self.session.load.acks += 1

    def _handle_response(self, reply: Reply) -> None:
        position = RESPONSES_TO[self._replied] if self._replied < len(RESPONSES_TO) else SIDE_COMMANDS
        if (
            position >= self._acked
            or type(reply) is not self.role.replies[self._replied]
            or reply.id not in (None, IDS[position])
        ):
            raise BenchError(f"out of turn: {reply}")
        self._replied += 1
        session = self.session
        if isinstance(reply, Allocated):
            session.allocated(reply.nameplate)
            self._send(1, _command_frame(2, "claim", nameplate=reply.nameplate))
        elif isinstance(reply, Nameplates):
            if f'"{session.nameplate}"'.encode() not in bytes(reply.nameplates):
                raise BenchError(f"nameplate {session.nameplate} is not in the list")
            self._send(1, _command_frame(2, "claim", nameplate=session.nameplate))
        elif isinstance(reply, Claimed):
            if session.mailbox not in ("", reply.mailbox):
                raise BenchError(f"two mailboxes on nameplate {session.nameplate}")
            session.mailbox = reply.mailbox
            self._add(2, 0, 1, _command_frame(3, "open", mailbox=reply.mailbox))
        elif isinstance(reply, Closed):
            self._leave()

    def _add(self, commands: int, start: int, stop: int, before: bytes = b"") -> None:
        """Add the phases from `start` to `stop`, in one write with the command before them."""
        self._send(commands, before + b"".join(self.role.adds[start:stop]))
        self.sent_at[start:stop] = [time.perf_counter()] * (stop - start)

    def _handle_message(self, message: Message, now: float) -> None:
        is_own = message.side == self.side
        author = self if is_own else self.peer
        number = self._own_messages if is_own else self._peer_messages
        if not (
            number < len(PHASES)
            and message.side == author.side
            and message.phase == PHASES[number]
            and message.body == author.role.bodies[number]
            and message.id == IDS[ADDS[number]]
            and self._acked > (ADDS[number] if is_own else 3)
        ):
            raise BenchError(f"message not expected: {message.side} {message.phase} {message.id}")
        if is_own:
            self._own_messages += 1
            return
        self._peer_messages += 1
        if number:  # the pake may have waited for this side; the others are delivered at once
            self.session.load.delivered(now - self.peer.sent_at[number])
        if number == 0:
            self._add(2, 1, 2, _command_frame(5, "release", nameplate=self.session.nameplate))
        elif number == 1:
            self._add(2, 2, 4)
        elif number == 3:
            self._send(1, _command_frame(9, "close", mailbox=self.session.mailbox, mood="happy"))

    def _leave(self) -> None:
        if self._own_messages != len(PHASES) or self._peer_messages != len(PHASES) or self._acked != SIDE_COMMANDS:
            raise BenchError("closed before everything was delivered")
        self.end()
        self.session.closed()


# ── Load: many sessions, and what they cost over a window ──


@dataclass(frozen=True)
class Window:
    """What happened during a window. A session is its 20 acks, so that those that are cut off count in part."""

    deliveries: list[float]
    """Seconds from the write of an add to the peer's read."""
    seconds: float
    sessions: float
    server_cpu: float
    server_kernel: float
    flushes: float
    flush_seconds: float
    own_cpu: float


class Load:
    """Runs sessions and counts what they do. `failures` must stay empty."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None = None) -> None:
        self.port = server.port
        self.tls = tls
        self.acks = 0
        self.failures: list[str] = []
        self.others_cpu: Callable[[], float] = lambda: 0.0
        """CPU seconds of what the server needs beside itself."""
        self._server = server
        self._running: set[Session] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._left = 0.0
        """Sessions that begin when others end."""
        self._deliveries: list[float] | None = None

    def spawn(self, connecting: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def delivered(self, seconds: float) -> None:
        if self._deliveries is not None:
            self._deliveries.append(seconds)

    def finished(self, session: Session, failure: str | None) -> None:
        self._running.discard(session)
        if failure is not None:
            self.failures.append(failure)
        if self._left > 0 and len(self.failures) < MAX_FAILURES:
            self._left -= 1
            self.begin()
        elif not self._running:
            self._idle.set()

    def begin(self) -> None:
        session = Session(self)
        self._idle.clear()
        self._running.add(session)
        session.start()

    async def exactly(self, sessions: int) -> None:
        """Run a number of sessions, AT_A_TIME at once."""
        self._left = sessions - AT_A_TIME
        for _ in range(AT_A_TIME):
            self.begin()
        async with asyncio.timeout(COUNTING_SECONDS):
            await self._idle.wait()
        if self.failures:
            raise BenchError(f"sessions failed: {self.failures}")

    async def closed_loop(self, at_a_time: int, warm_up: float, seconds: float) -> Window:
        """Run `at_a_time` sessions, and another when one ends. They do not start at the same moment."""
        self._left = math.inf
        for _ in range(at_a_time):
            self.begin()
            await asyncio.sleep(warm_up / 2 / at_a_time)
        await asyncio.sleep(warm_up / 2)
        return await self._window(asyncio.sleep(seconds))

    async def open_loop(self, rate: float, dice: random.Random, warm_up: float, seconds: float) -> Window:
        """Start `rate` sessions a second as a Poisson process, whether or not others have ended."""
        await self._arrivals(rate, dice, warm_up)
        return await self._window(self._arrivals(rate, dice, seconds))

    async def _arrivals(self, rate: float, dice: random.Random, seconds: float) -> None:
        start = time.perf_counter()
        arrival = dice.expovariate(rate)
        while arrival < seconds and len(self._running) < MAX_RUNNING:
            await asyncio.sleep(start + arrival - time.perf_counter())
            self.begin()
            arrival += dice.expovariate(rate)
        await asyncio.sleep(start + seconds - time.perf_counter())

    async def _window(self, body: Coroutine[None, None, None]) -> Window:
        gc.collect()
        gc.disable()  # its pauses would be measured as the server's
        deliveries: list[float] = []
        self._deliveries = deliveries
        before = self._counters()
        await body
        after = self._counters()
        self._deliveries = None
        gc.enable()
        await self._drain()
        return Window(deliveries, *(b - a for a, b in zip(before, after, strict=True)))

    def _counters(self) -> tuple[float, ...]:
        used, server = os.times(), self._server
        server_figures = server.cpu() + self.others_cpu(), server.kernel(), server.flushes(), server.flush_seconds()
        return time.perf_counter(), self.acks / COMMANDS, *server_figures, used.user + used.system

    async def _drain(self) -> None:
        """Let running sessions end. One that does not is a failure like any other."""
        self._left = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._idle.wait()
        for session in list(self._running):
            session.failed(f"not finished {DRAIN_SECONDS:.0f} s after the load ended")


# ── The run ──


@dataclass
class Run(harness.Run):
    """How much to measure."""

    filled: int
    """Nameplates of a full server."""
    is_quick: bool
    warm_up: float
    seconds: float
    idle: int
    probes: int
    prune_every: int
    prune_after: int
    _filled: Path | None = field(default=None, init=False)

    async def filled_folder(self, kind: Kind) -> Path:
        """Return a data folder with many nameplates, for one use."""
        if kind == "reference":
            data = self.bench.folder()
            _fill_reference(data, self.filled)
            return data
        if self._filled is None:
            self._filled = self.bench.folder()
            server = await self.bench.start("restante", self._filled)
            await _claim_all(server, self.filled)
            await server.stop()
        return self.bench.folder(like=self._filled)

    async def under_load(
        self,
        kind: Kind,
        drive: Callable[[Load], Awaitable[Window]],
        *,
        fsync_us: int | None = None,
    ) -> Window:
        """Drive a new, empty server. Unexpected replies are kept as failures of the run."""
        server = await self.bench.start(kind, self.bench.folder(), fsync_us=fsync_us)
        load = Load(server)
        window = await drive(load)
        self.results.failures.extend(f"{kind}: {failure}" for failure in load.failures)
        await server.stop()
        return window

    @property
    def closed_loop(self) -> Callable[..., Awaitable[Window]]:
        return partial(Load.closed_loop, at_a_time=AT_A_TIME, warm_up=self.warm_up, seconds=self.seconds)


async def _claim_all(server: Server, count: int) -> None:
    """Claim nameplates 1 to `count`, over a connection for each nameplate."""

    async def claim(number: int) -> None:
        connection = Connection(server.port)
        await connection.enter()
        await connection.call(Claimed, "claim", nameplate=str(number))
        connection.end()

    async with asyncio.timeout(FILL_SECONDS):
        await _for_all(range(1, count + 1), claim)


async def _for_all(items: Iterable[Item], do: Callable[[Item], Awaitable[None]]) -> None:
    """Do something for all items, some at a time."""
    waiting = iter(items)

    async def do_some() -> None:
        for item in waiting:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECT_AT_A_TIME):
            group.create_task(do_some())


def _fill_reference(data: Path, count: int) -> None:
    """Write what `count` claims would have left, by the reference's own schema: to claim them would take it hours."""
    schema = importlib.resources.files("wormhole_mailbox_server").joinpath("db-schemas/channel-v1.sql")
    numbers = range(1, count + 1)
    now = int(time.time())
    with contextlib.closing(sqlite3.connect(data / CHANNEL_DB)) as db, db:
        db.executescript(schema.read_text(encoding="utf-8"))
        db.execute("INSERT INTO version VALUES (1)")
        for statement, rows in (
            ("mailboxes VALUES (?, ?, ?, 1)", ((APPID, f"mailbox{n:06d}", now) for n in numbers)),
            ("mailbox_sides VALUES (?, 1, ?, ?, NULL)", ((f"mailbox{n:06d}", f"filler-{n}", now) for n in numbers)),
            (
                "nameplates (id, app_id, name, mailbox_id) VALUES (?, ?, ?, ?)",
                ((n, APPID, str(n), f"mailbox{n:06d}") for n in numbers),
            ),
            ("nameplate_sides VALUES (?, 1, ?, ?)", ((n, f"filler-{n}", now) for n in numbers)),
        ):
            db.executemany(f"INSERT INTO {statement}", rows)


class Certificate:
    """A certificate with a P-256 key for the loopback address, signed by itself."""

    def __init__(self, folder: Path) -> None:
        path, key = folder / "certificate.pem", folder / "key.pem"
        request = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        name = ("-days", "1", "-subj", "/CN=restante bench", "-addext", f"subjectAltName=IP:{HOST}")
        subprocess.run([*request, *name, "-keyout", key, "-out", path], check=True, capture_output=True)
        self.flags = ("--tls-cert", str(path), "--tls-key", str(key))
        """Flags with which the server uses it."""
        self.context = ssl.create_default_context(cafile=str(path))


# ── Measurements ──


async def sessions(run: Run) -> None:
    """Closed loop, as fast as it goes."""
    for kind in run.turns():
        window = await run.under_load(kind, run.closed_loop)
        run.add("sessions_per_cpu_second", window.sessions / window.server_cpu, kind)
        run.add("sessions_per_second", window.sessions / window.seconds, kind)
        run.add("flushes_saturated", window.flushes / window.sessions, kind)
        run.add("cpu_per_session", window.server_cpu / window.sessions * 1e3, kind)
        run.add("kernel_per_session", window.server_kernel / window.sessions * 1e3, kind)
        run.add("saturated_delivery_p50", percentile(window.deliveries, 0.5) * 1e3, kind)
        if kind == "restante":
            run.add("generator_busy", window.own_cpu / window.seconds)


async def fsync(run: Run) -> None:
    """Closed loop on a disk whose flush takes 2 ms, neither more nor less."""
    for kind in run.turns():
        drive = partial(run.closed_loop, at_a_time=SLOW_FSYNC_AT_A_TIME[kind])
        window = await run.under_load(kind, drive, fsync_us=SLOW_FSYNC_US)
        run.add("fsync_sessions_per_second", window.sessions / window.seconds, kind)


async def latency(run: Run) -> None:
    """Open loop, with a load that is easy for each server."""
    drive = partial(Load.open_loop, warm_up=run.warm_up, seconds=run.seconds)
    for number, kind in enumerate(run.turns()):
        dice = random.Random(number // len(run.kinds))
        window = await run.under_load(kind, partial(drive, rate=LIGHT_LOAD[kind], dice=dice))
        delivery, flush = percentile(window.deliveries, 0.5), window.flush_seconds / window.flushes
        run.add("delivery_p50", delivery * 1e3, kind)
        run.add("light_flush", flush * 1e3, kind)
        run.add("delivery_over_flush", (delivery - flush) * 1e3, kind)
        run.add("delivery_p99", percentile(window.deliveries, 0.99) * 1e3, kind)
        run.add("flushes_light", window.flushes / window.sessions, kind)
        run.add("light_cpu_per_session", window.server_cpu / window.sessions * 1e3, kind)


async def memory(run: Run) -> None:
    """Growth of the resident memory over many connections, each of which has a mailbox open."""
    for kind in run.kinds:
        run.add("idle_kib", await _idle_kib(run, kind), kind)


async def _idle_kib(run: Run, kind: Kind, certificate: Certificate | None = None) -> float:
    """Return the KiB that each of many subscribed connections takes."""
    flags, context = (certificate.flags, certificate.context) if certificate else ((), None)
    server = await run.bench.start(kind, run.bench.folder(), *flags)
    # The pools and arenas of the first connections are not counted.
    connections = await _subscribe(server, max(100, run.idle // 10), context)
    before = server.rss()
    connections += await _subscribe(server, run.idle, context)
    await asyncio.sleep(1)
    kib = (server.rss() - before) / run.idle / 1024
    for connection in connections:
        connection.end()
    await server.stop()
    return kib


async def _subscribe(server: Server, count: int, context: ssl.SSLContext | None) -> list[Connection]:
    connections = [Connection(server.port, context) for _ in range(count)]
    await _for_all(connections, lambda connection: connection.enter(mailbox=f"idle-{connection.side}"))
    return connections


async def tls(run: Run) -> None:
    """Ours alone: the memory of connections over TLS."""
    certificate = Certificate(run.bench.scratch)
    run.add("idle_tls_kib", await _idle_kib(run, "restante", certificate))


async def growth(run: Run) -> None:
    """Probe an empty and a full server in turns: what an operation costs must not depend on the others."""
    for kind in run.kinds:
        empty = await run.bench.start(kind, run.bench.folder())
        full = await run.bench.start(kind, await run.filled_folder(kind))
        of_empty: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
        of_full: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
        end = time.perf_counter() + PROBE_SECONDS
        for _ in range(run.probes):
            await _probe(empty, of_empty)
            await _probe(full, of_full)
            if time.perf_counter() > end:
                break
        await empty.stop()
        await full.stop()
        growths = {name: statistics.median(of_full[name]) / statistics.median(of_empty[name]) for name in OPERATIONS}
        for name in OPERATIONS:
            run.add(f"growth_{name}", growths[name], kind)
        run.add("growth_worst", max(growths.values()), kind)


async def _probe(server: Server, seconds: dict[str, list[float]]) -> None:
    connection = Connection(server.port)
    await connection.enter()
    nameplate = (await connection.call(Allocated, "allocate")).nameplate
    seconds["allocate"].append(connection.seconds)
    mailbox = (await connection.call(Claimed, "claim", nameplate=nameplate)).mailbox
    seconds["claim"].append(connection.seconds)
    await connection.call(Ack, "open", mailbox=mailbox)
    seconds["open"].append(connection.seconds)
    await connection.call(Message, "add", phase="pake", body="00" * 300)
    seconds["add"].append(connection.seconds)
    await connection.call(Released, "release", nameplate=nameplate)
    seconds["release"].append(connection.seconds)
    await connection.call(Closed, "close", mailbox=mailbox, mood="happy")
    seconds["close"].append(connection.seconds)
    connection.end()


async def list_nameplates(run: Run) -> None:
    """Ask again and again for a long list that nobody changes."""
    for kind in run.kinds:
        server = await run.bench.start(kind, await run.filled_folder(kind), *NO_RATES[kind])
        connection = Connection(server.port)
        await connection.enter()
        expected = bytes((await connection.call(Nameplates, "list")).nameplates)
        assert len(msgspec.json.decode(expected)) == run.filled, "nameplates are missing in the list"
        cpu, seconds, end = server.cpu(), list[float](), time.perf_counter() + run.seconds
        while time.perf_counter() < end:
            reply = await connection.call(Nameplates, "list")
            seconds.append(connection.seconds)
            assert bytes(reply.nameplates) == expected, "the list changed"
        run.add("list_cpu", (server.cpu() - cpu) / len(seconds) * 1e3, kind)
        connection.end()
        await server.stop()


async def restart(run: Run) -> None:
    """From exec to the first welcome: the interpreter's start and all imports are part of it."""
    for kind in run.kinds:
        await _seconds_to_welcome(run, kind, run.bench.folder())  # compiles what is not compiled yet
    for kind in run.turns():
        empty = await _seconds_to_welcome(run, kind, run.bench.folder())
        filled = await _seconds_to_welcome(run, kind, await run.filled_folder(kind))
        run.add("restart", filled, kind)
        run.add("restart_beyond_empty", filled - empty, kind)


async def _seconds_to_welcome(run: Run, kind: Kind, data: Path) -> float:
    server = run.bench.spawn(kind, data)
    end = time.perf_counter() + RESTART_SECONDS
    while True:
        connection = Connection(server.port)
        try:
            await connection.greet()
            break
        except BenchError:  # it does not listen yet
            server.check()
            if time.perf_counter() > end:
                raise
            await asyncio.sleep(0.002)
    seconds = time.perf_counter() - server.started
    connection.end()
    await server.stop()
    return seconds


async def replace(run: Run) -> None:
    """Ours alone: a client pings all the time, and is as connected after the restart as before."""
    for _ in range(run.rounds):
        server = await run.bench.start("restante", await run.filled_folder("restante"), *NO_RATES["restante"])
        pinger = Pinger(server.port)
        await pinger.greet()
        await pinger.longest(0.5)  # the first pings run code that is not in the caches
        pause, cpu = 0.0, server.cpu()
        server.replace()
        while '"restarted"' not in server.output():
            pause = max(pause, await pinger.longest(0.2))
            server.check()
        run.add("replace_cpu", server.cpu() - cpu)
        run.add("replace_pause", max(pause, await pinger.longest(0.5)))
        pinger.end()
        await server.stop()


class Pinger(Connection):
    """Sends pings by the clock, whether or not the one before was answered."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._sent: list[float] = []
        self._round_trips: list[float] = []

    async def longest(self, seconds: float) -> float:
        """Ping for a while and return the longest round trip."""
        self._sent, self._round_trips = [], []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not self.over:
            self._sent.append(time.perf_counter())
            self.write(frame(encode_command("ping", ping=len(self._sent) - 1)))
            await asyncio.sleep(PING_INTERVAL)
        async with asyncio.timeout(PRUNE_SECONDS):
            while len(self._round_trips) < len(self._sent):  # noqa: ASYNC110 - no event
                await asyncio.sleep(PING_INTERVAL)
        return max(self._round_trips)

    def received(self, payload: bytes, now: float) -> None:
        reply = parse_reply(payload)
        if isinstance(reply, Pong):
            self._round_trips.append(now - self._sent[reply.pong])
        else:
            super().received(payload, now)


async def standby(run: Run) -> None:
    """Ours alone: servers on a PostgreSQL of the test environment, on the same CPU, and one on SQLite in turns."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    postgres = importlib.import_module("support.postgres")
    with contextlib.ExitStack() as stack:
        with harness.on_cpu(harness.CPUS[0]):
            database = stack.enter_context(postgres.cluster(run.bench.scratch.parent, ("-c", "listen_addresses=")))
        flags = "--database", database.url
        for _ in range(run.rounds):
            sqlite = await run.under_load("restante", run.closed_loop)
            database.empty()
            server = await run.bench.start("restante", run.bench.folder(), *flags)
            load = Load(server)
            load.others_cpu = partial(harness.cpu_of_family, database.pid)
            window = await run.closed_loop(load)
            run.results.failures.extend(f"PostgreSQL: {failure}" for failure in load.failures)
            await server.stop()
            run.add("postgres_sessions", window.sessions / window.server_cpu * sqlite.server_cpu / sqlite.sessions)
            run.add("postgres_cpu", window.server_cpu / window.sessions * 1e3)
        database.empty()
        engine = await run.bench.start("restante", run.bench.folder(), *flags)
        await _claim_all(engine, run.filled)
        for _ in range(run.rounds):
            other = run.bench.spawn("restante", run.bench.folder(), *flags)
            while "standing by" not in other.output():
                other.check()
                await asyncio.sleep(0.02)
            killed = time.perf_counter()
            engine.kill()
            await other.wait_for_port(other.port)
            run.add("take_over", time.perf_counter() - killed)
            engine = other
        await engine.stop()


async def prune(run: Run) -> None:
    """Ours alone: the reference's expiry cannot be set, and its pruning is one call that takes O(n²)."""
    flags = ("--prune-every", str(run.prune_every), "--prune-after", str(run.prune_after), *NO_RATES["restante"])
    for _ in range(min(run.rounds, MAX_PRUNE_ROUNDS)):
        server = await run.bench.start("restante", await run.filled_folder("restante"), *flags)
        pinger = Pinger(server.port)
        await pinger.greet()
        start = time.perf_counter()
        await pinger.longest(0.5)  # the first pings run code that is not in the caches
        run.add("prune_floor", await pinger.longest(run.prune_after - 2) * 1e3)
        run.add("prune_stall", await _longest_until_empty(run, server, pinger, start + run.prune_after) * 1e3)
        pinger.end()
        await server.stop()


async def _longest_until_empty(run: Run, server: Server, pinger: Pinger, expiry: float) -> float:
    """Return the longest round trip until everything is pruned. The list is asked for between the pings."""
    stall = 0.0
    while time.perf_counter() < expiry + PRUNE_SECONDS:
        stall = max(stall, await pinger.longest(max(2.0, expiry + run.prune_every - time.perf_counter())))
        connection = Connection(server.port)
        await connection.enter()
        reply = await connection.call(Nameplates, "list")
        connection.end()
        if bytes(reply.nameplates) == b"[]":
            return stall
    raise BenchError(f"nameplates are left {PRUNE_SECONDS:.0f} s after they expired")


class Listener(Connection):
    """Records when each message of the other side arrives."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.arrivals: dict[str, float] = {}

    def received(self, payload: bytes, now: float) -> None:
        super().received(payload, now)
        reply = parse_reply(payload)
        if isinstance(reply, Message):
            self.arrivals[reply.phase] = now


async def _delivery_times(port: int, seconds: float) -> list[float]:
    """Return the seconds from add to delivery of a pair."""
    speaker, listener = Connection(port), Listener(port)
    for connection in (speaker, listener):
        await connection.enter(mailbox="the pair's")
    sent: dict[str, float] = {}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        phase = str(len(sent))
        sent[phase] = time.perf_counter()
        speaker.write(frame(encode_command("add", id="0", phase=phase, body="00" * 300)))
        await asyncio.sleep(ADD_INTERVAL)
    async with asyncio.timeout(DELIVERY_SECONDS):
        while len(listener.arrivals) < len(sent):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    for connection in (speaker, listener):
        connection.end()
    return [listener.arrivals[phase] - at for phase, at in sent.items()]


class Flooder(Connection):
    """Adds as fast as the server reads. It does not parse what is sent to it."""

    def data_received(self, data: bytes) -> None:
        if self.is_waiting():
            super().data_received(data)

    async def flood(self) -> None:
        adds = frame(encode_command("add", id="0", phase="0", body="00" * 300)) * FLOOD_ADDS
        while not self.over and self.transport is not None:
            while self.transport.get_write_buffer_size() < MAX_BUFFERED:
                self.write(adds)
            await asyncio.sleep(PING_INTERVAL)


async def flood(run: Run) -> None:
    """One client adds to a mailbox of its own as fast as it can. Another pair must not notice."""
    for kind in run.turns():
        server = await run.bench.start(kind, run.bench.folder())
        flooder = Flooder(server.port)
        await flooder.enter(mailbox="flooded")
        flooding = asyncio.create_task(flooder.flood())
        await asyncio.sleep(1)
        seconds = await _delivery_times(server.port, run.seconds)
        run.add("flood_p99", percentile(seconds, 0.99) * 1e3, kind)
        flooder.end()
        await flooding
        await server.stop()


# ── Instructions and system calls of a session ──
# The tools are slow, so batches of ours that reach the limit of 4 ms are smaller than in service.

STRACE = ("strace", "--daemonize", "--follow-forks", "--summary-only")
FEW, MANY = 2 * AT_A_TIME, 8 * AT_A_TIME


async def instructions(run: Run) -> None:
    """Count what a session takes: of both servers with sockets; of ours over TLS, and in the commit loop alone."""
    few, many = (AT_A_TIME, 2 * AT_A_TIME) if run.is_quick else (FEW, MANY)
    calls: dict[Kind, Counter[str]] = {}

    async def outputs(kind: Kind, tool: Sequence[str], certificate: Certificate | None = None) -> list[str]:
        outputs = []
        flags, context = (certificate.flags, certificate.context) if certificate else ((), None)
        for number in (few, many):
            server = await run.bench.start(kind, run.bench.folder(), *flags, under=tool)
            await Load(server, context).exactly(number)
            await server.stop()
            outputs.append(server.log.read_text(errors="replace"))
        return outputs

    async def millions(certificate: Certificate | None = None, kind: Kind = "restante") -> float:
        fewer, more = map(harness.counted, await outputs(kind, harness.CACHEGRIND, certificate))
        return (more - fewer) / (many - few) / 1e6

    for kind in run.kinds:
        await (await run.bench.start(kind, run.bench.folder())).stop()  # it compiles the modules
        run.add("instructions", await millions(kind=kind), kind)
        fewer, more = map(_system_calls, await outputs(kind, STRACE))
        calls[kind] = more - fewer
        run.add("system_calls", calls[kind].total() / (many - few), kind)
    ours, theirs = (calls.get(kind, Counter[str]()) for kind in harness.KINDS)
    for name in sorted(ours | theirs, key=lambda name: -abs(ours[name] - theirs[name]))[:10]:
        FIGURES[name] = Figure(f"  {name}")
        for kind in run.kinds:
            run.add(name, calls[kind][name] / (many - few), kind)
    if "restante" in run.kinds:
        run.add("instructions_tls", await millions(Certificate(run.bench.scratch)))
        program = Path(__file__).with_name("mailbox_commit_loop.py")
        command = [sys.executable, str(program), str(run.bench.folder()), str(few), str(many)]
        run.add("instructions_loop", float(await asyncio.to_thread(subprocess.check_output, command)))


def _system_calls(output: str) -> Counter[str]:
    """Return how many system calls of each kind strace has counted."""
    rows = re.findall(r"^ *[0-9.]+ +[0-9.]+ +[0-9]+ +([0-9]+) +(?:[0-9]+ +)?(\w+)$", output, re.MULTILINE)
    if not rows:
        raise BenchError(f"strace has counted nothing: {output[-2000:]}")
    return Counter({name: int(count) for count, name in rows if name != "total"})


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "sessions": sessions,
    "fsync": fsync,
    "latency": latency,
    "memory": memory,
    "tls": tls,
    "growth": growth,
    "list": list_nameplates,
    "restart": restart,
    "replace": replace,
    "standby": standby,
    "prune": prune,
    "flood": flood,
    "instructions": instructions,
}
OURS_ALONE = ("tls", "replace", "standby", "prune", "instructions")


def main() -> int:
    parser = harness.parser(__doc__, SCENARIOS, rounds=5, has_peer=True)
    # Valgrind is slow, and not on every machine; PostgreSQL is for few.
    parser.set_defaults(only=[name for name in SCENARIOS if name not in ("instructions", "standby")])
    parser.add_argument("--seconds", type=float, default=5, help="length of a measured window")
    options = parser.parse_args()
    quick = options.quick
    filled = 2_000 if quick else 50_000
    results = Results(FIGURES, {"n": f"{filled:,}"})

    def measure(scratch: Path) -> None:
        harness.pin_generator()
        run = Run(
            bench=Bench(scratch),
            results=results,
            rounds=1 if quick else options.rounds,
            kinds=harness.kinds(options),
            filled=filled,
            warm_up=1 if quick else 2,
            seconds=1.5 if quick else options.seconds,
            is_quick=quick,
            idle=300 if quick else 3_000,
            probes=20 if quick else 200,
            prune_every=1 if quick else 5,
            prune_after=4 if quick else 10,
        )
        names = [name for name in options.only if name not in OURS_ALONE or "restante" in run.kinds]
        uvloop.run(_measure(run, names))

    return harness.main(options, results, measure, LIBRARIES)


async def _measure(run: Run, names: Sequence[str]) -> None:
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: run.results.failures.append(f"{context['message']}: {context.get('exception')!r}")
    )
    await harness.run_scenarios(run, SCENARIOS, names)


if __name__ == "__main__":
    sys.exit(main())
