"""Many sessions against one server: some at a time, or so many a second; what they cost over a window."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mailbox_session import COMMANDS, Session

if TYPE_CHECKING:
    import random
    import ssl
    from collections.abc import Coroutine

    from servers import Server

DRAIN_SECONDS = 30.0
MOST_RUNNING = 5_000  # of an open loop whose server does not keep up
MOST_FAILURES = 50


@dataclass(frozen=True)
class Sample:
    """Counters at one moment."""

    at: float
    acks: int
    server_cpu: float
    flushes: int
    own_cpu: float


@dataclass(frozen=True)
class Window:
    """What happened between two samples. A session is its 20 acks: exact also where few end in time."""

    seconds: float
    sessions: float
    server_cpu: float
    flushes: int
    own_cpu: float
    deliveries: list[float]

    def delivery(self, part: float) -> float:
        """Seconds from an add's write to the peer's read that `part` of the deliveries did not exceed."""
        return percentile(self.deliveries, part)


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


class Load:
    """Keeps sessions going and counts what they do; `failures` must stay empty."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None = None) -> None:
        self.port = server.port
        self.tls = tls
        self.acks = 0
        self.failures: list[str] = []
        self._server = server
        self._running: set[Session] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._refill = False
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
        if self._refill and len(self.failures) < MOST_FAILURES:
            self.begin()
        elif not self._running:
            self._idle.set()

    def begin(self) -> None:
        session = Session(self)
        self._idle.clear()
        self._running.add(session)
        session.start()

    async def closed_loop(self, at_a_time: int, warm_up: float, seconds: float) -> Window:
        """Run `at_a_time` sessions, the next when one ends; the first are started well apart."""
        self._refill = True
        for _ in range(at_a_time):
            self.begin()
            await asyncio.sleep(warm_up / 2 / at_a_time)
        await asyncio.sleep(warm_up / 2)
        return await self._window(asyncio.sleep(seconds))

    async def open_loop(self, rate: float, dice: random.Random, warm_up: float, seconds: float) -> Window:
        """Start `rate` sessions a second as a Poisson process, whatever becomes of them."""
        await self._arrivals(rate, dice, warm_up)
        return await self._window(self._arrivals(rate, dice, seconds))

    async def _arrivals(self, rate: float, dice: random.Random, seconds: float) -> None:
        start = time.perf_counter()
        due = dice.expovariate(rate)
        while due < seconds and len(self._running) < MOST_RUNNING:
            await asyncio.sleep(start + due - time.perf_counter())
            self.begin()
            due += dice.expovariate(rate)
        await asyncio.sleep(start + seconds - time.perf_counter())

    async def _window(self, body: Coroutine[None, None, None]) -> Window:
        gc.collect()
        gc.disable()  # its pauses would be measured as the server's
        deliveries: list[float] = []
        self._deliveries = deliveries
        before = self._sample()
        await body
        after = self._sample()
        self._deliveries = None
        gc.enable()
        await self._drain()
        return Window(
            seconds=after.at - before.at,
            sessions=(after.acks - before.acks) / COMMANDS,
            server_cpu=after.server_cpu - before.server_cpu,
            flushes=after.flushes - before.flushes,
            own_cpu=after.own_cpu - before.own_cpu,
            deliveries=deliveries,
        )

    def _sample(self) -> Sample:
        own = os.times()
        return Sample(
            at=time.perf_counter(),
            acks=self.acks,
            server_cpu=self._server.cpu(),
            flushes=self._server.flushes(),
            own_cpu=own.user + own.system,
        )

    async def _drain(self) -> None:
        """Let the sessions under way come to their end: one that does not is a failure like any other."""
        self._refill = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._idle.wait()
        for session in list(self._running):
            session.failed(f"not finished {DRAIN_SECONDS:.0f} s after the load ended")
