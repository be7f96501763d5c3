"""The transit relay and the reference relay in one interleaved run. See bench/README.md."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import random
import secrets
import socket
import statistics
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from mailbox import frame
from pathlib import Path
from typing import NamedTuple, cast

import uvloop

import harness
from harness import HOST, Bench, BenchError, Figure, Kind, Program, Results, Server, own, percentile, times

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIBRARIES = ("restante", "uvloop", "picows", "magic-wormhole-transit-relay", "twisted", "autobahn")
PROGRAMS: dict[Kind, Program] = {"restante": "relay", "reference": "reference relay"}
OFF = ("address_waiting", "waiting", "address_pairs", "pairs", "address_records")
UNLIMITED = tuple(flag for name in OFF for flag in ("--limit", f"{name}=0"))
PATIENCE_SECONDS = 30
MAX_BYTES = 8 * GIB
"""Of a transfer."""
CHECKED_BYTES = 8 * MIB
"""The first bytes of a transfer are compared with what was sent. The others are counted, and not copied."""
FRAME_BYTES = 16 * KIB
"""Payload of a WebSocket's message, as magic-wormhole.rs sends it."""
GIGABIT = 1e9 / 8
BATCH, ADDRESSES = 40, 8
"""The relay has seen a batch of waiting connections before the next one begins: Twisted's backlog is 50."""
PAIRS_PER_SECOND = 100
HEAD_START_SECONDS = 0.05
"""The first side of a pair connects this much earlier, so that it waits when the second one comes."""
SLOW_PAIRS, SLOW_RATE, SLOW_BYTES = 10, 1_000_000, 10_000
"""Each sends so many bytes a second, in writes of so many."""

FIGURES = {
    "tcp_cpu": times("TCP to TCP, CPU s a GiB", 8, 12),
    "tcp_kernel": Figure("  of which in the kernel"),
    "tcp_rate": times("  rate of one pair, MiB/s", 1.5, 3, higher_is_better=True),
    "tcp_busy": Figure("  generator's share of its CPU"),
    "ws_tcp_cpu": times("WebSocket to TCP, CPU s a GiB", 2, 4),
    "ws_tcp_kernel": Figure("  of which in the kernel"),
    "ws_tcp_rate": Figure("  rate of one pair, MiB/s", higher_is_better=True),
    "ws_tcp_busy": Figure("  generator's share of its CPU"),
    "tcp_ws_cpu": Figure("TCP to WebSocket, CPU s a GiB"),
    "tcp_ws_kernel": Figure("  of which in the kernel"),
    "tcp_ws_rate": Figure("  rate of one pair, MiB/s", higher_is_better=True),
    "tcp_ws_busy": Figure("  generator's share of its CPU"),
    "gigabit_cpu": Figure("TCP to TCP at 1 Gbit/s, in writes of 16 KiB, CPU s a GiB"),
    "waiting": own("{n} waiting connections, beyond none, MiB", 40, 25),
    "ok_p99": own("connect to ok, 100 new pairs/s, p99, ms", 5, 2),
    "ok_p50": Figure("  p50, ms"),
    "ok_cpu": Figure("  CPU ms a pair"),
    "ok_late": Figure("  generator's delay of a new pair, p99, ms"),
    "slow_share": Figure("ten pairs of 1 MB/s beside a fast one, slowest's share", higher_is_better=True),
    "slow_p50": Figure("  delay of their bytes, p50, ms"),
    "slow_p99": Figure("  p99, ms"),
    "fast_rate": Figure("  rate of the fast pair, MiB/s", higher_is_better=True),
    "tcp_instructions": Figure("TCP to TCP, million user instructions a GiB"),
    "ws_tcp_instructions": Figure("WebSocket to TCP, million user instructions a GiB"),
    "tcp_ws_instructions": Figure("TCP to WebSocket, million user instructions a GiB"),
}
WAYS = {"tcp": (False, False), "ws_tcp": (True, False), "tcp_ws": (False, True)}
"""Whether the sender and the receiver have a WebSocket."""

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
"""BBR paces connections of the loopback device, too."""


class Relay(NamedTuple):
    """A running relay, and its ports for TCP and for WebSockets."""

    server: Server
    ports: tuple[int, int]


@dataclass
class Run(harness.Run):
    """How much to measure."""

    seconds: float
    waiting: int

    async def start(self, kind: Kind, *, under: Sequence[str] = ()) -> Relay:
        websockets = harness.free_port()
        flags = UNLIMITED if kind == "restante" else ("--websocket", harness.endpoint(websockets))
        server = await self.bench.start(PROGRAMS[kind], self.bench.folder(), *flags, under=under)
        if kind == "restante":
            return Relay(server, (server.port, server.port))
        await server.wait_for_port(websockets)
        return Relay(server, (server.port, websockets))


# ── The sides of a pair ──

OK = b"ok\n"
_BINARY, _CONTROL, _PING = 0x82, 0x08, 0x89
_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: %b:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: cmVzdGFudGUncyBiZW5jaA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_PAYLOAD = memoryview(random.Random("the bytes of the bench").randbytes(MIB))
_FRAMES = memoryview(
    b"".join(frame(bytes(_PAYLOAD[at : at + FRAME_BYTES]), _BINARY) for at in range(0, MIB, FRAME_BYTES))
)
FRAME_ON_WIRE = len(_FRAMES) * FRAME_BYTES // MIB


def new_requests() -> list[bytes]:
    """Return what the two sides of a new pair send first."""
    token = secrets.token_hex(32)
    return [f"please relay {token} for side {secrets.token_hex(8)}\n".encode() for _ in range(2)]


class Side:
    """A connection over a blocking socket, that has sent its request."""

    def __init__(
        self, ports: tuple[int, int], request: bytes, *, has_websocket: bool = False, host: str = HOST
    ) -> None:
        self._socket = socket.create_connection((HOST, ports[has_websocket]), source_address=(host, 0))
        bound = struct.pack("ll", PATIENCE_SECONDS, 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, bound)
        self._has_websocket = has_websocket
        self._left = 0
        """Bytes of the frame that is being read."""
        if has_websocket:
            self._socket.sendall(_UPGRADE % (HOST.encode(), ports[has_websocket]))
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self._exactly(1)
            if not head.startswith(b"HTTP/1.1 101 "):
                raise BenchError(f"handshake: {head!r}")
        self._socket.sendall(frame(request, _BINARY) if has_websocket else request)

    def expect_ok(self) -> None:
        if self._has_websocket:
            self._next_frame()
        if (answer := self._exactly(len(OK))) != OK:
            raise BenchError(f"answer: {answer!r}")
        self._left = 0

    def is_waiting(self) -> bool:
        """Return whether nothing has come and the connection is open."""
        try:
            self._socket.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        return False

    def send(self, start: int, size: int) -> None:
        """Send a part of `_PAYLOAD`, of a multiple of `FRAME_BYTES`."""
        data, frame_bytes = (_FRAMES, FRAME_ON_WIRE) if self._has_websocket else (_PAYLOAD, FRAME_BYTES)
        first, count = start // FRAME_BYTES, size // FRAME_BYTES
        self._socket.sendall(data[first * frame_bytes : (first + count) * frame_bytes])

    def receive(self, buffer: memoryview, flags: int = 0) -> int:
        """Receive bytes of the other side and return their number."""
        size = len(buffer)
        if self._has_websocket:
            while not self._left:
                self._next_frame()
            size = min(size, self._left)
        count = self._socket.recv_into(buffer, size, flags)
        if not count:
            raise BenchError("the relay has closed the connection")
        if self._has_websocket:
            self._left -= count
        return count

    def close(self) -> None:
        """Close the connection, also if a thread reads from it or writes to it."""
        with contextlib.suppress(OSError):  # the relay was the first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _next_frame(self) -> None:
        opcode, size = self._exactly(2)
        if size >= 126:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        if opcode == _PING:
            self._exactly(size)
        elif opcode & _CONTROL:
            raise BenchError(f"frame with opcode byte {opcode:#x}")
        else:
            self._left = size

    def _exactly(self, count: int) -> bytes:
        data = self._socket.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise BenchError(f"closed by the relay after {data!r}")
        return data


# ── Bytes from one side to the other, as fast as they go ──


class Window(NamedTuple):
    """What a transfer took, without the bytes that are compared."""

    bytes: int
    seconds: float
    cpu: float
    kernel: float
    own_cpu: float

    @property
    def mib_per_second(self) -> float:
        return self.bytes / MIB / self.seconds


class Transfer:
    """A pair, of which one side sends."""

    def __init__(self, relay: Relay, way: str) -> None:
        self._server = relay.server
        self._sender, self._receiver = (
            Side(relay.ports, request, has_websocket=has_websocket)
            for request, has_websocket in zip(new_requests(), WAYS[way], strict=True)
        )
        self._sender.expect_ok()
        self._receiver.expect_ok()
        self._total = math.inf

    async def run(
        self, seconds: float, *, rate: float = math.inf, max_bytes: int = MAX_BYTES, niceness: int = 0
    ) -> Window:
        """Send for a while, at most so many bytes a second, in threads of the given niceness."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2, initializer=lambda: os.setpriority(os.PRIO_PROCESS, 0, niceness)) as threads:
            sending = loop.run_in_executor(threads, self._send, seconds, rate, max_bytes)
            try:
                _, window = await asyncio.gather(sending, loop.run_in_executor(threads, self._receive))
            finally:
                self._sender.close()
                self._receiver.close()
        return window

    def _send(self, seconds: float, rate: float, max_bytes: int) -> None:
        for _ in range(0, CHECKED_BYTES, MIB):
            self._sender.send(0, MIB)
        size, sent, start = MIB if rate == math.inf else FRAME_BYTES, CHECKED_BYTES, time.perf_counter()
        while sent < max_bytes and (now := time.perf_counter()) < start + seconds:
            time.sleep(max(0.0, start + (sent - CHECKED_BYTES) / rate - now))
            self._sender.send(sent % MIB, size)
            sent += size
        self._total = sent + MIB
        self._sender.send(0, MIB)

    def _receive(self) -> Window:
        buffer, expected, received = memoryview(bytearray(MIB)), memoryview(bytes(_PAYLOAD) * 2), 0
        while received < CHECKED_BYTES:
            count = self._receiver.receive(buffer)
            at = received % MIB
            assert buffer[:count] == expected[at : at + count], f"other bytes arrived after {received}"
            received += count
        before = self._counters(received)
        while received < self._total:
            received += self._receiver.receive(buffer, socket.MSG_TRUNC)
        assert received == self._total, "more arrived than was sent"
        number, *others = (b - a for a, b in zip(before, self._counters(received), strict=True))
        return Window(int(number), *others)

    def _counters(self, received: int) -> tuple[float, ...]:
        return received, time.perf_counter(), self._server.cpu(), self._server.kernel(), time.process_time()


async def transfers(run: Run) -> None:
    """One pair after the other, each as fast as it goes, and one at a line's rate."""
    for kind in run.turns():
        relay = await run.start(kind)
        for way in WAYS:
            window = await Transfer(relay, way).run(run.seconds)
            gib = window.bytes / GIB
            run.add(f"{way}_cpu", window.cpu / gib, kind)
            run.add(f"{way}_kernel", window.kernel / gib, kind)
            run.add(f"{way}_rate", window.mib_per_second, kind)
            if kind == "restante":
                run.add(f"{way}_busy", window.own_cpu / window.seconds)
        window = await Transfer(relay, "tcp").run(run.seconds, rate=GIGABIT)
        run.add("gigabit_cpu", window.cpu / window.bytes * GIB, kind)
        await relay.server.stop()


# ── Many connections ──


async def waiting(run: Run) -> None:
    """Growth of the resident memory, from a relay that has done nothing."""
    for kind in run.kinds:
        relay = await run.start(kind)
        await asyncio.sleep(1)
        before, sides = relay.server.rss(), list[Side]()
        for number in range(run.waiting):
            sides.append(Side(relay.ports, new_requests()[0], host=f"127.0.0.{1 + number % ADDRESSES}"))
            if number % BATCH == 0:
                pair = [Side(relay.ports, request) for request in new_requests()]
                for side in pair:
                    side.expect_ok()
                    side.close()
        await asyncio.sleep(2)
        run.add("waiting", (relay.server.rss() - before) / MIB, kind)
        assert all(side.is_waiting() for side in sides), "a waiting connection was closed"
        if kind == "reference":
            relay.server.kill()  # it would write the records of all these connections one by one
        else:
            await relay.server.stop()
        for side in sides:
            side.close()


class Client(asyncio.Protocol):
    """A side of a pair. It knows when `ok` came, and when each `SLOW_BYTES` after it."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._unread = b""
        self._received = 0
        self.ok: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.arrivals: list[float] = []
        self.transport: asyncio.Transport | None = None

    async def connect(self, port: int) -> Client:
        await asyncio.get_running_loop().create_connection(lambda: self, HOST, port)
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has no common base class
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.ok.done():
            self._received += len(data)
            self.arrivals += [now] * (self._received // SLOW_BYTES - len(self.arrivals))
            return
        self._unread += data
        if self._unread == OK:
            self.ok.set_result(now)
        elif not OK.startswith(self._unread):
            self.ok.set_exception(BenchError(f"answer: {self._unread!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ok.done():
            self.ok.set_exception(BenchError(f"lost before ok: {exc or 'end of file'}"))

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def leave(self) -> None:
        assert self.transport is not None
        self.transport.close()


async def connects(run: Run) -> None:
    """New pairs as a Poisson process. The second side of each measures."""
    for number, kind in enumerate(run.turns()):
        relay, dice = await run.start(kind), random.Random(number // len(run.kinds))
        await asyncio.gather(*(_connect_pair(relay) for _ in range(10)))  # what the first ones load does not count
        gc.collect()
        gc.disable()  # its pauses would be measured as the relay's
        cpu, start, arrival = relay.server.cpu(), time.perf_counter(), 0.0
        async with asyncio.timeout(run.seconds + PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            pairs, late = list[asyncio.Task[float]](), list[float]()
            while (arrival := arrival + dice.expovariate(PAIRS_PER_SECOND)) < run.seconds:
                await asyncio.sleep(start + arrival - time.perf_counter())
                late.append(time.perf_counter() - start - arrival)
                pairs.append(group.create_task(_connect_pair(relay)))
        gc.enable()
        delays = [pair.result() * 1e3 for pair in pairs]
        run.add("ok_p50", statistics.median(delays), kind)
        run.add("ok_p99", percentile(delays, 0.99), kind)
        if kind == "restante":
            run.add("ok_late", percentile(late, 0.99) * 1e3)
        run.add("ok_cpu", (relay.server.cpu() - cpu) / len(delays) * 1e3, kind)
        await relay.server.stop()


async def _connect_pair(relay: Relay) -> float:
    """Return the seconds from the second side's connecting to its `ok`."""
    first, second = map(Client, new_requests())
    await first.connect(relay.ports[0])
    await asyncio.sleep(HEAD_START_SECONDS)
    started = time.perf_counter()
    await second.connect(relay.ports[0])
    seconds = await second.ok - started
    await first.ok
    first.leave()
    second.leave()
    return seconds


async def fairness(run: Run) -> None:
    """Slow pairs, beside one that sends as fast as it goes."""
    for kind in run.turns():
        relay = await run.start(kind)
        pairs = list[tuple[Client, Client]]()
        for requests in (new_requests() for _ in range(SLOW_PAIRS)):
            sender, receiver = [await Client(request).connect(relay.ports[0]) for request in requests]
            await asyncio.gather(sender.ok, receiver.ok)
            pairs.append((sender, receiver))
        # The slow pairs come first at the generator's CPU: what the fast one takes of it is no fault of the relay's.
        fast = asyncio.create_task(Transfer(relay, "tcp").run(run.seconds + 1, niceness=10))
        await asyncio.sleep(0.5)
        results = await asyncio.gather(*(_send_slowly(*pair, run.seconds) for pair in pairs))
        delays = [delay * 1e3 for _, pair_delays in results for delay in pair_delays]
        run.add("slow_share", min(share for share, _ in results), kind)
        run.add("slow_p50", statistics.median(delays), kind)
        run.add("slow_p99", percentile(delays, 0.99), kind)
        run.add("fast_rate", (await fast).mib_per_second, kind)
        for client in (client for pair in pairs for client in pair):
            client.leave()
        await relay.server.stop()


async def _send_slowly(sender: Client, receiver: Client, seconds: float) -> tuple[float, list[float]]:
    """Return the share of the bytes that arrived in time, and the delay of each write in seconds."""
    sent, start, data = list[float](), time.perf_counter(), bytes(SLOW_BYTES)
    for number in range(int(seconds * SLOW_RATE / SLOW_BYTES)):
        await asyncio.sleep(start + number * SLOW_BYTES / SLOW_RATE - time.perf_counter())
        sent.append(time.perf_counter())
        sender.write(data)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(receiver.arrivals) < len(sent):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    in_time = sum(arrival < start + seconds for arrival in receiver.arrivals)
    return in_time / len(sent), [b - a for a, b in zip(sent, receiver.arrivals, strict=True)]


# ── Instructions in user mode: what two transfers differ by took the bytes; the rest took the start ──

FEW, MANY = 32 * MIB, 160 * MIB


async def instructions(run: Run) -> None:
    """Count what a GiB takes. Under valgrind a relay is slow, so it finds more bytes whenever it reads."""

    async def counted(kind: Kind, way: str, number: int) -> int:
        relay = await run.start(kind, under=harness.CACHEGRIND)
        await Transfer(relay, way).run(math.inf, max_bytes=number)
        await relay.server.stop()
        return harness.counted(relay.server.output())

    for kind in run.kinds:
        await (await run.start(kind)).server.stop()  # it compiles the modules
        for way in WAYS:
            difference = await counted(kind, way, MANY) - await counted(kind, way, FEW)
            run.add(f"{way}_instructions", difference / (MANY - FEW) * GIB / 1e6, kind)


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "transfers": transfers,
    "waiting": waiting,
    "connects": connects,
    "fairness": fairness,
    "instructions": instructions,
}


def main() -> int:
    parser = harness.parser(__doc__, SCENARIOS, rounds=3, has_peer=True)
    # Valgrind is slow, and not on every machine.
    parser.set_defaults(only=[name for name in SCENARIOS if name != "instructions"])
    parser.add_argument("--seconds", type=float, default=3, help="length of a measured window")
    options = parser.parse_args()
    quick = options.quick
    connections = 1_000 if quick else 10_000
    results = Results(FIGURES, {"n": f"{connections:,}"})

    def measure(scratch: Path) -> None:
        harness.pin_generator()
        run = Run(
            bench=Bench(scratch, counts_flushes=False),
            results=results,
            rounds=1 if quick else options.rounds,
            kinds=harness.kinds(options),
            seconds=0.5 if quick else options.seconds,
            waiting=connections,
        )
        uvloop.run(harness.run_scenarios(run, SCENARIOS, options.only))

    return harness.main(options, results, measure, LIBRARIES, {"tcp": CONGESTION_CONTROL.read_text().strip()})


if __name__ == "__main__":
    sys.exit(main())
