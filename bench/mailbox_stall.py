"""How long another client waits: the longest round trip of a ping a millisecond."""

from __future__ import annotations

import asyncio
import time

import msgspec

import words
from mailbox_connection import Connection
from wire import PING, BadWireError, frame

PING_EVERY = 0.001
LOOK_EVERY = 2.0
GIVE_UP_SECONDS = 90.0


class Pinger(Connection):
    """Sends pings by the clock, whether or not the last was answered."""

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
            self._ping(len(self._sent) - 1)
            await asyncio.sleep(PING_EVERY)
        await self._all_answered()
        return max(self._round_trips)

    def _ping(self, number: int) -> None:
        self.write(frame(words.command("ping", ping=number)))

    def received(self, payload: bytes, now: float) -> None:
        reply = msgspec.json.decode(payload)
        if reply["type"] == "pong":
            self._round_trips.append(now - self._sent[reply["pong"]])
        else:
            super().received(payload, now)

    async def _all_answered(self) -> None:
        end = time.perf_counter() + GIVE_UP_SECONDS
        while len(self._round_trips) < len(self._sent):
            if self.over or time.perf_counter() > end:
                missing = len(self._sent) - len(self._round_trips)
                raise BadWireError(f"{missing} pings not answered: {self.broken}")
            await asyncio.sleep(PING_EVERY)


class LoopPinger(Pinger):
    """Sends ping frames, which are answered by the WebSocket: they wait for the loop alone, for no commit."""

    def _ping(self, number: int) -> None:
        self.write(frame(str(number).encode(), PING))

    def ponged(self, payload: bytes) -> None:
        now = time.perf_counter()
        # A server may answer the last of several alone (RFC 6455 section 5.5.3).
        self._round_trips += (now - sent for sent in self._sent[len(self._round_trips) : int(payload) + 1])


async def prune_stall(port: int, after: int, every: int) -> tuple[float, float]:
    """Return the longest round trip while nothing is due, then while everything stored is pruned.

    The list that shows the end of it is asked for between the windows, because it is long itself.
    """
    pinger = Pinger(port)
    await pinger.greet()
    start = time.perf_counter()
    await pinger.longest(0.5)  # the first ones find cold code
    floor = await pinger.longest(after - 2)
    stall = 0.0
    while time.perf_counter() < start + after + GIVE_UP_SECONDS:
        stall = max(stall, await pinger.longest(max(LOOK_EVERY, start + after + every - time.perf_counter())))
        if await _is_empty(port):
            pinger.end()
            return floor, stall
    raise BadWireError(f"nameplates are left {GIVE_UP_SECONDS:.0f} s after they were due")


async def _is_empty(port: int) -> bool:
    connection = Connection(port)
    await connection.greet()
    await connection.bind()
    nameplates = await connection.call(words.Nameplates, "list")
    connection.end()
    return bytes(nameplates.nameplates) == b"[]"
