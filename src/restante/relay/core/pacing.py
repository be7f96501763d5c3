"""Pure: how fast pairs pass on bytes (bytes/s of a pair, of an address, of all), shared fairly.

A pair asks before it reads, and is granted the bytes that are there when every rate that counts it allows some. Until
then it waits in the queue of the first rate that does not: its own, those of its addresses, that of all, in this
order. A pair that has had a quantum goes to the end of the queue, as a new pair does, and one that has had less goes
to its beginning: a round robin by bytes. So a share that one does not use goes to the others, and pairs that send a
little wait once in a quantum for those that send much.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from restante.common.token_bucket import Bucket

QUANTUM_SECONDS: Final = 0.05
"""Seconds that a quantum takes at a pair's share of the rates. So a pair that is paced goes on 20 times a second."""

MIN_QUANTUM_BYTES: Final = 16 * 1024
"""Lowest quantum. To wake a pair takes as long as to pass on some 30 KiB."""

SHARED_QUANTUM_BYTES: Final = 64 * 1024
"""Lowest quantum because others share a rate: what streams bring at once (server/streams.py)."""

MAX_QUANTUM_BYTES: Final = 1024 * 1024
"""Highest quantum, which is also what a pair passes on at once without rates (server/pair.py). More takes hardly less
processor time a byte."""

BURST_SECONDS: Final = 0.05
"""Seconds of a rate that may be passed on at once after a pause. Timers are some milliseconds late: without a burst,
the bytes of this time would be lost."""

SHORTEST_WAIT_SECONDS: Final = 1e-4
"""Shortest wait, in seconds. A pair does not wait for fewer: to add them to a time may not change it."""


class Rates(msgspec.Struct, frozen=True):
    """Maximum bytes a second, in both directions together. 0: no limit."""

    pair: float = 0
    address: float = 0
    """Of all pairs of which a side has this address."""
    total: float = 0


class Reader(Protocol):
    """One direction of a pair, to which the pacer grants bytes."""

    __slots__ = ()

    def available(self) -> int:
        """Return the bytes that could be read now. At least 1, because an end is read, too."""

    def granted(self, size: int) -> None:
        """Read up to `size` bytes, in some steps, and give back those that do not come (`Pacer.give_back`)."""


class Limit:
    """A rate, and the pairs that wait for it."""

    __slots__ = ("_bucket", "address", "flows", "look_at", "rate", "waiting")

    def __init__(self, rate: float, address: Hashable = None) -> None:
        self._bucket = Bucket()
        self.rate = rate
        """Bytes a second. 0: no limit."""
        self.address = address
        """Whose rate it is. None: that of a pair or of all."""
        self.flows = 0
        """Pairs that share it, if it is not that of one pair."""
        self.waiting: OrderedDict[Flow, None] = OrderedDict()
        self.look_at: float | None = None
        """When the pacer looks at it next. None: nobody waits."""

    def seconds(self, now: float) -> float:
        """Return the seconds until bytes may be taken."""
        if not self.rate:
            return 0.0
        seconds = self._bucket.wait(now, self.rate, self.rate * BURST_SECONDS)
        return seconds if seconds > SHORTEST_WAIT_SECONDS else 0.0

    def take(self, now: float, size: int) -> None:
        """Count bytes. A negative number gives back what was counted too much."""
        if self.rate:
            self._bucket.take(now, self.rate, size)

    def change(self, rate: float, now: float) -> None:
        """Apply another rate. The bytes that a higher one has allowed count for no more seconds than before."""
        if rate < self.rate:
            self._bucket.take(now, self.rate, self._bucket.spent(now, self.rate) * (rate / self.rate - 1))
        self.rate = rate

    def remembered_for(self, now: float) -> float:
        """Return the seconds until it allows as much as a new limit."""
        seconds = self._bucket.spent(now, self.rate) / self.rate if self.rate else 0.0
        return seconds if seconds > SHORTEST_WAIT_SECONDS else 0.0


class Flow:
    """What the pacer knows of a pair."""

    __slots__ = ("is_paced", "level", "limits", "quantum", "queue", "readers", "size", "slow_rate")

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits = limits
        """Its own, those of its addresses, that of all."""
        self.is_paced = any(limit.rate for limit in limits)
        """Whether it has to ask before it reads."""
        self.slow_rate = 0.0
        """A rate for this pair alone. 0: none."""
        self.readers: deque[Reader] = deque()
        """Its directions that have asked."""
        self.quantum = 0
        """What is left of its quantum. 0: its next one begins when it is granted some."""
        self.size = 0
        """Bytes that the first of them asks for."""
        self.level = 0
        """How many of its limits have allowed that."""
        self.queue: Limit | None = None
        """The limit in whose queue it waits. None: it waits for no bytes."""


class Pacer:
    """Grants quanta to pairs. `now`: seconds of any clock that does not go back."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self._total = Limit(rates.total)
        self._addresses: dict[Hashable, Limit] = {}
        self._flows: set[Flow] = set()
        self._schedule: list[tuple[float, int, Limit]] = []
        """A heap of limits by the time to look at them. An entry counts if its time is the limit's `look_at`."""
        self._numbers = itertools.count()

    def add(self, addresses: Iterable[Hashable]) -> Flow:
        """Return the flow of a new pair, of which the sides have these addresses."""
        limits = []
        for address in dict.fromkeys(addresses):
            limit = self._addresses.get(address)
            if limit is None:
                limit = self._addresses[address] = Limit(self.rates.address, address)
            limit.flows += 1
            limits.append(limit)
        flow = Flow((Limit(self.rates.pair), *limits, self._total))
        self._flows.add(flow)
        self._total.flows += 1
        return flow

    def remove(self, flow: Flow, now: float) -> None:
        """Forget a pair that has ended, and give back what it has not been granted yet."""
        self._flows.discard(flow)
        self._total.flows -= 1
        if flow.queue is not None:
            del flow.queue.waiting[flow]
            flow.queue = None
            self._take(flow.limits[: flow.level], -flow.size, now)
        flow.readers.clear()
        for limit in flow.limits[1:-1]:
            limit.flows -= 1
            self._forget(limit, now)

    def _forget(self, limit: Limit, now: float) -> None:
        """Forget the limit of an address without pairs, but not before its last bytes no longer count."""
        if limit.flows:
            return
        seconds = limit.remembered_for(now)
        if seconds:
            self._look_at(limit, now + seconds)
        else:
            self._addresses.pop(limit.address, None)

    def set_rates(self, rates: Rates, now: float) -> None:
        """Apply other rates. Those that wait are looked at in the next turn."""
        self.rates = rates
        self._total.change(rates.total, now)
        for limit in self._addresses.values():
            limit.change(rates.address, now)
        for flow in self._flows:
            self._apply(flow, now)
        for limit in (self._total, *self._addresses.values(), *(flow.limits[0] for flow in self._flows)):
            if limit.look_at is not None:
                self._look_at(limit, now)

    def slow_down(self, flow: Flow, rate: float, now: float) -> None:
        """Apply a rate to one pair in addition to those of all. 0: none."""
        own = flow.limits[0]
        flow.slow_rate = rate
        self._apply(flow, now)
        if own.waiting:
            self._look_at(own, now)

    def _apply(self, flow: Flow, now: float) -> None:
        """Set what follows for a pair from the rates."""
        flow.limits[0].change(min((rate for rate in (self.rates.pair, flow.slow_rate) if rate), default=0.0), now)
        flow.is_paced = any(limit.rate for limit in flow.limits)

    # ── a pair asks, reads, and asks again ────────────────────────────────────────────────────────

    def ask(self, flow: Flow, reader: Reader, now: float) -> int:
        """Return how many bytes a direction may read now. 0: a later turn grants it some.

        A direction does not ask again before it has read.
        """
        flow.readers.append(reader)
        if len(flow.readers) > 1 or not self._begin(flow, now):  # one pair is one pair, also if both sides send
            return 0
        return self._grant(flow)[1]

    def give_back(self, flow: Flow, size: int, now: float) -> None:
        """Count bytes that a direction was granted and has not read as if they were not granted."""
        flow.quantum += size
        self._take(flow.limits, -size, now)

    def _take(self, limits: Iterable[Limit], size: int, now: float) -> None:
        """Count bytes, or give them back. Those that wait for the limits go on earlier then."""
        for limit in limits:
            limit.take(now, size)
            if limit.waiting:
                self._look_at(limit, now + limit.seconds(now))

    def _begin(self, flow: Flow, now: float) -> bool:
        flow.level = 0
        self._resize(flow, now)
        return self._advance(flow, now)

    def _resize(self, flow: Flow, now: float) -> None:
        """Let a pair ask for the bytes that are there now, also of the limits that have allowed some."""
        quantum = quantum_of(flow)
        flow.quantum = min(flow.quantum, quantum)
        size = min(flow.quantum or quantum, flow.readers[0].available())
        self._take(flow.limits[: flow.level], size - flow.size, now)
        flow.size = size

    def _grant(self, flow: Flow) -> tuple[Reader, int]:
        flow.quantum = (flow.quantum or quantum_of(flow)) - flow.size
        return flow.readers.popleft(), flow.size

    def _advance(self, flow: Flow, now: float) -> bool:
        """Take the bytes of each limit. Return False if one allows none: then the pair waits in its queue."""
        for limit in flow.limits[flow.level :]:
            seconds = limit.seconds(now)
            if limit.waiting or seconds:
                limit.waiting[flow] = None
                if flow.quantum:
                    limit.waiting.move_to_end(flow, last=False)
                flow.queue = limit
                self._look_at(limit, now + seconds)
                return False
            limit.take(now, flow.size)
            flow.level += 1
        return True

    def _look_at(self, limit: Limit, time: float) -> None:
        if limit.look_at is None or time < limit.look_at:
            limit.look_at = time
            heapq.heappush(self._schedule, (time, next(self._numbers), limit))

    @property
    def next_turn(self) -> float | None:
        """The time of the next turn. None: no pair waits."""
        return self._schedule[0][0] if self._schedule else None

    def turn(self, now: float) -> list[tuple[Reader, int]]:
        """Return the directions that may read now, and how many bytes each."""
        grants: list[tuple[Reader, int]] = []
        while self._schedule and self._schedule[0][0] <= now:
            time, _, limit = heapq.heappop(self._schedule)
            if time != limit.look_at:
                continue
            limit.look_at = None
            while limit.waiting and not limit.seconds(now):
                flow, _ = limit.waiting.popitem(last=False)
                flow.queue = None
                self._resize(flow, now)
                limit.take(now, flow.size)
                flow.level += 1
                passes = self._advance(flow, now)
                while passes:
                    grants.append(self._grant(flow))
                    passes = bool(flow.readers) and self._begin(flow, now)
            if limit.waiting:
                self._look_at(limit, now + limit.seconds(now))
            elif limit.address is not None:
                self._forget(limit, now)
        return grants


def quantum_of(flow: Flow) -> int:
    """Return the quantum of a pair: what its share of each rate allows in QUANTUM_SECONDS.

    Its share of a rate that many pairs share does not make it smaller than SHARED_QUANTUM_BYTES.
    """
    shares = [
        max(limit.rate / max(1, limit.flows), min(limit.rate, SHARED_QUANTUM_BYTES / QUANTUM_SECONDS))
        for limit in flow.limits
        if limit.rate
    ]
    return bounded_quantum(min(shares, default=math.inf))


def bounded_quantum(rate: float) -> int:
    """Return the quantum for a rate."""
    return int(min(MAX_QUANTUM_BYTES, max(MIN_QUANTUM_BYTES, rate * QUANTUM_SECONDS)))
