"""The measurements, one function each. Every one starts its own servers and leaves none behind."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

import words
from certificate import Certificate
from figures import OPERATIONS, Results
from mailbox_connection import Connection
from mailbox_costly import longest_hold, senders
from mailbox_flood import delivery_times, flooder
from mailbox_load import Load, Window, percentile
from mailbox_prefill import fill_reference, filled_restante
from mailbox_stall import prune_stall
from wire import BadWireError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from servers import Bench, Kind, Server

AT_A_TIME = 50
SLOW_FSYNC_US = 2_000
# On a slow disk the reference is serial: more at a time only puts off the first session's end.
SLOW_FSYNC_AT_A_TIME: dict[Kind, int] = {"restante": AT_A_TIME, "reference": 5}
LIGHT_LOAD: dict[Kind, float] = {"restante": 50, "reference": 4}  # sessions a second
RESTART_SECONDS = 60.0
PROBE_SECONDS = 60.0
PRUNE_ROUNDS = 3
COSTLY_ROUNDS = 3


@dataclass
class Run:
    """How much to measure, against what, and where the results go."""

    bench: Bench
    results: Results
    kinds: tuple[Kind, ...]
    rounds: int
    warm_up: float
    seconds: float
    idle: int
    probes: int
    prune_every: int
    prune_after: int
    _filled: Path | None = field(default=None, init=False)

    def order(self, nth: int) -> tuple[Kind, ...]:
        """Return who goes first by turns, so that drift of the host hits both."""
        return self.kinds if nth % 2 == 0 else self.kinds[::-1]

    def tell(self, words_: str) -> None:
        print(words_, file=sys.stderr, flush=True)

    async def filled(self, kind: Kind) -> Path:
        """Return a data folder with `results.filled` nameplates in it, for one use."""
        if kind == "reference":
            data = self.bench.folder()
            fill_reference(data, self.results.filled)
            return data
        if self._filled is None:
            self.tell(f"  filling restante with {self.results.filled:,} nameplates")
            self._filled = await filled_restante(self.bench, self.results.filled)
        return self.bench.folder(like=self._filled)

    async def under_load(
        self,
        kind: Kind,
        drive: Callable[[Load], Awaitable[Window]],
        *,
        fsync_us: int | None = None,
        certificate: Certificate | None = None,
    ) -> Window:
        """Drive a fresh, empty server; unexpected replies are kept as failures of the run."""
        flags = certificate.flags if certificate else ()
        server = await self.bench.start(kind, self.bench.folder(), *flags, fsync_us=fsync_us)
        load = Load(server, certificate.client if certificate else None)
        window = await drive(load)
        self.results.failures.extend(f"{kind}: {failure}" for failure in load.failures)
        await server.stop()
        self.tell(f"  {kind}: {window.sessions / window.seconds:.1f} sessions/s")
        return window


async def sessions(run: Run) -> None:
    """Closed loop, as fast as it goes."""
    add = run.results.add
    drive = partial(Load.closed_loop, at_a_time=AT_A_TIME, warm_up=run.warm_up, seconds=run.seconds)
    for nth in range(run.rounds):
        for kind in run.order(nth):
            window = await run.under_load(kind, drive)
            add("sessions_per_cpu_second", kind, window.sessions / window.server_cpu)
            add("sessions_per_second", kind, window.sessions / window.seconds)
            add("flushes_saturated", kind, window.flushes / window.sessions)
            add("cpu_per_session", kind, window.server_cpu / window.sessions * 1e3)
            add("saturated_delivery_p50", kind, window.delivery(0.5) * 1e3)
            add("generator_busy", kind, window.own_cpu / window.seconds)


async def fsync(run: Run) -> None:
    """Closed loop on a disk whose flush takes 2 ms, neither more nor less."""
    drive = partial(Load.closed_loop, warm_up=run.warm_up, seconds=run.seconds)
    for nth in range(run.rounds):
        for kind in run.order(nth):
            at_a_time = SLOW_FSYNC_AT_A_TIME[kind]
            window = await run.under_load(kind, partial(drive, at_a_time=at_a_time), fsync_us=SLOW_FSYNC_US)
            run.results.add("fsync_sessions_per_second", kind, window.sessions / window.seconds)


async def latency(run: Run) -> None:
    """Open loop, at what each server carries with ease."""
    add = run.results.add
    drive = partial(Load.open_loop, warm_up=run.warm_up, seconds=run.seconds)
    for nth in range(run.rounds):
        for kind in run.order(nth):
            dice = random.Random(nth)
            window = await run.under_load(kind, partial(drive, rate=LIGHT_LOAD[kind], dice=dice))
            add("delivery_p50", kind, window.delivery(0.5) * 1e3)
            add("delivery_p99", kind, window.delivery(0.99) * 1e3)
            add("flushes_light", kind, window.flushes / window.sessions)
            add("light_cpu_per_session", kind, window.server_cpu / window.sessions * 1e3)


async def memory(run: Run) -> None:
    """Growth of the resident set over many connections, each subscribed to a mailbox of its own."""
    for kind in run.kinds:
        server = await run.bench.start(kind, run.bench.folder())
        kib, seconds = await _idle(server, run.idle)
        run.results.add("connects_per_second", kind, run.idle / seconds)
        run.results.add("idle_kib", kind, kib)
        await server.stop()


async def _idle(server: Server, count: int, tls: ssl.SSLContext | None = None) -> tuple[float, float]:
    """Return the KiB that each of many subscribed connections takes, and the seconds in which all were subscribed."""
    connections = await _subscribe(server, max(100, count // 10), tls)  # pools and arenas of the first few
    before, start = server.rss(), time.perf_counter()
    connections += await _subscribe(server, count, tls)
    seconds = time.perf_counter() - start
    await asyncio.sleep(1)
    kib = (server.rss() - before) / count / 1024
    for connection in connections:
        connection.end()
    return kib, seconds


async def tls(run: Run) -> None:
    """Ours alone: the memory of connections over TLS; sessions with and without it in turns."""
    if "restante" not in run.kinds:
        return
    certificate = Certificate(run.bench.scratch)
    server = await run.bench.start("restante", run.bench.folder(), *certificate.flags)
    kib, _ = await _idle(server, run.idle, certificate.client)
    run.results.add("idle_tls_kib", "restante", kib)
    await server.stop()
    drive = partial(Load.closed_loop, at_a_time=AT_A_TIME, warm_up=run.warm_up, seconds=run.seconds)
    for nth in range(run.rounds):
        costs: dict[bool, float] = {}
        for over_tls in (nth % 2 == 0, nth % 2 == 1):
            window = await run.under_load("restante", drive, certificate=certificate if over_tls else None)
            costs[over_tls] = window.server_cpu / window.sessions
        run.results.add("tls_cpu_per_session", "restante", costs[True] * 1e3)
        run.results.add("tls_cpu_times", "restante", costs[True] / costs[False])


async def _subscribe(
    server: Server, count: int, tls: ssl.SSLContext | None = None, at_a_time: int = 64
) -> list[Connection]:
    connections = [Connection(server.port, tls) for _ in range(count)]
    waiting = iter(connections)

    async def some() -> None:
        for connection in waiting:
            await connection.greet()
            await connection.bind()
            await connection.call(words.Ack, "open", mailbox=f"idle-{connection.side}")

    async with asyncio.TaskGroup() as group:
        for _ in range(at_a_time):
            group.create_task(some())
    return connections


async def growth(run: Run) -> None:
    """Probe an empty and a full server by turns: what an operation costs must not depend on the others."""
    for kind in run.kinds:
        empty = await run.bench.start(kind, run.bench.folder())
        full = await run.bench.start(kind, await run.filled(kind))
        of_empty, of_full = _no_times(), _no_times()
        end = time.perf_counter() + PROBE_SECONDS
        for _ in range(run.probes):
            await _probe(empty, of_empty)
            await _probe(full, of_full)
            if time.perf_counter() > end:
                break
        await empty.stop()
        await full.stop()
        worst = 0.0
        for operation in OPERATIONS:
            full_p50 = statistics.median(of_full[operation])
            grown = full_p50 / statistics.median(of_empty[operation])
            worst = max(worst, grown)
            run.results.add(f"growth_{operation}", kind, grown)
            run.results.add(f"full_{operation}", kind, full_p50 * 1e3)
        run.results.add("growth_worst", kind, worst)


def _no_times() -> dict[str, list[float]]:
    return {operation: [] for operation in OPERATIONS}


async def _probe(server: Server, times: dict[str, list[float]]) -> None:
    connection = Connection(server.port)
    await connection.greet()
    await connection.bind()
    nameplate = (await connection.call(words.Allocated, "allocate")).nameplate
    times["allocate"].append(connection.seconds)
    mailbox = (await connection.call(words.Claimed, "claim", nameplate=nameplate)).mailbox
    times["claim"].append(connection.seconds)
    await connection.call(words.Ack, "open", mailbox=mailbox)
    times["open"].append(connection.seconds)
    await connection.call(words.Message, "add", phase="pake", body="00" * 300)
    times["add"].append(connection.seconds)
    await connection.call(words.Released, "release", nameplate=nameplate)
    times["release"].append(connection.seconds)
    await connection.call(words.Closed, "close", mailbox=mailbox, mood="happy")
    times["close"].append(connection.seconds)
    connection.end()


def _without_pace(kind: Kind) -> tuple[str, ...]:
    """Return the flags with which one client may ask as much as it likes."""
    return ("--limit", "commands=0", "--limit", "bytes=0") if kind == "restante" else ()


async def list_(run: Run) -> None:
    """Ask again and again for a long list nobody changes."""
    for kind in run.kinds:
        server = await run.bench.start(kind, await run.filled(kind), *_without_pace(kind))
        connection = Connection(server.port)
        await connection.greet()
        await connection.bind()
        first = bytes((await connection.call(words.Nameplates, "list")).nameplates)
        listed = len(msgspec.json.decode(first))
        if listed != run.results.filled:
            run.results.failures.append(f"{kind}: list of {listed} where {run.results.filled} are live")
        cpu, seconds, end = server.cpu(), list[float](), time.perf_counter() + run.seconds
        while time.perf_counter() < end:
            again = await connection.call(words.Nameplates, "list")
            seconds.append(connection.seconds)
            if bytes(again.nameplates) != first:
                run.results.failures.append(f"{kind}: the list changed")
        run.results.add("list_cpu", kind, (server.cpu() - cpu) / len(seconds) * 1e3)
        run.results.add("list_wall", kind, percentile(seconds, 0.5) * 1e3)
        connection.end()
        await server.stop()


async def restart(run: Run) -> None:
    """From exec to the first welcome: the interpreter's start and all imports are in it."""
    for kind in run.kinds:
        await _first_welcome(run, kind, run.bench.folder())  # compiles what is not compiled yet
    for nth in range(run.rounds):
        for kind in run.order(nth):
            run.results.add("restart", kind, await _first_welcome(run, kind, await run.filled(kind)))
            run.results.add("restart_empty", kind, await _first_welcome(run, kind, run.bench.folder()))


async def _first_welcome(run: Run, kind: Kind, data: Path) -> float:
    server = run.bench.spawn(kind, data)
    end = time.perf_counter() + RESTART_SECONDS
    while True:
        connection = Connection(server.port)
        try:
            await connection.greet()
            break
        except BadWireError:  # not listening yet
            server.check()
            if time.perf_counter() > end:
                raise
            await asyncio.sleep(0.002)
    seconds = time.perf_counter() - server.started
    connection.end()
    await server.stop()
    return seconds


async def prune(run: Run) -> None:
    """Ours alone: the reference's expiry is not an option of it, and its prune is O(n²) in one call."""
    if "restante" not in run.kinds:
        return
    flags = (
        *("--prune-every", str(run.prune_every), "--prune-after", str(run.prune_after)),
        *_without_pace("restante"),
    )
    for _ in range(min(run.rounds, PRUNE_ROUNDS)):
        server = await run.bench.start("restante", await run.filled("restante"), *flags)
        floor, stall = await prune_stall(server.port, run.prune_after, run.prune_every)
        await server.stop()
        run.results.add("prune_floor", "restante", floor * 1e3)
        run.results.add("prune_stall", "restante", stall * 1e3)


async def flood(run: Run) -> None:
    """One client adds as fast as it can; another pair must not notice."""
    for nth in range(run.rounds):
        for kind in run.order(nth):
            server = await run.bench.start(kind, run.bench.folder())
            try:
                seconds = await delivery_times(server.port, run.seconds, flooder(server.port))
            except TimeoutError:
                run.results.failures.append(f"{kind}: under a flood, messages did not come within 30 s")
            else:
                run.results.add("flood_p50", kind, percentile(seconds, 0.5) * 1e3)
                run.results.add("flood_p99", kind, percentile(seconds, 0.99) * 1e3)
            await server.stop()


async def costly(run: Run) -> None:
    """Texts that are dear to decode: one alone, and twenty connections that send nothing else beside a pair."""
    for nth in range(min(run.rounds, COSTLY_ROUNDS)):
        for kind in run.order(nth):
            # Who pings each millisecond says more than a client's pace; bytes are limited as by default.
            flags = ("--limit", "commands=0") if kind == "restante" else ()
            server = await run.bench.start(kind, run.bench.folder(), *flags)
            try:
                form, hold = await longest_hold(server.port)
                seconds = await delivery_times(server.port, run.seconds, senders(server.port))
            except (TimeoutError, BadWireError) as error:
                run.results.failures.append(f"{kind}: beside costly texts, messages did not come: {error!r}")
            else:
                run.tell(f"  {kind}: longest wait behind {form}: {hold * 1e3:.1f} ms")
                run.results.add("costly_hold", kind, hold * 1e3)
                run.results.add("costly_p50", kind, percentile(seconds, 0.5) * 1e3)
                run.results.add("costly_p99", kind, percentile(seconds, 0.99) * 1e3)
            await server.stop()


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "sessions": sessions,
    "fsync": fsync,
    "latency": latency,
    "memory": memory,
    "tls": tls,
    "growth": growth,
    "list": list_,
    "restart": restart,
    "prune": prune,
    "flood": flood,
    "costly": costly,
}
