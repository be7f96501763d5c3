"""The fair queue: what was received and is not handled yet, and what is next (docs/decisions/fair-queue.md).

Commands are handled in the order of their arrival while fewer than MAX_UNSHARED_COMMANDS are in the queue. When there
are more, each connection has at most its share in the queue, and the rest of its commands waits. The commands of a
connection over its rate wait until the rate allows them. A long message is a batch of its own; between two of them
there is a batch of short ones. No command overtakes an earlier one of the same connection.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from typing import Final

from restante.mailbox.core.connection_state import Backlog, ConnectionLost, ConnectionState, QueueEntry
from restante.mailbox.core.limits import Limits

MAX_BATCH_COMMANDS: Final = 500
"""Maximum number of commands in a batch. At some 15 µs each, the loop is back at its sockets within 10 ms."""

MAX_BATCH_WEIGHT: Final = 1024 * 1024
"""Weight of a batch, about: its bytes, the bytes that are sent for it, and what `Dispatcher` adds for other work.
That much is parsed, encoded and written in some 5 ms."""

MAX_UNSHARED_COMMANDS: Final = 100
"""Commands in the queue up to which all are handled in the order of their arrival, whichever connection sent them."""

MAX_QUEUED_PER_CONNECTION: Final = 4
"""Commands of one connection in a queue that is longer. Clients send up to five at once. A flooding connection delays
the others by this many commands, each of which may be delivered to 32 subscribers."""

LARGE_BACKLOG_BYTES: Final = 8 * 1024
"""Bytes of memory for one connection's commands from which on they are counted as held by it (memory_holders.py).
Nearly all messages have less than a tenth of that."""

MAX_CONNECTIONS_CHECKED: Final = 1000
"""Connections with waiting commands that are examined for one batch: 1.5 ms."""

MAX_BACKLOG_COMMANDS: Final = 64
MAX_BACKLOG_BYTES: Final = 256 * 1024
"""Commands of one connection, and bytes of memory for them, that wait before its socket is not read any more."""


def _backlog(connection: ConnectionState) -> Backlog:
    return connection.backlog


class FairQueue:
    """The queue, and the connections whose commands wait to enter it."""

    def __init__(self) -> None:
        self.hurry = False
        """Whether rates are ignored, because the server is stopping."""
        self._queue: list[QueueEntry] = []
        self._long: deque[ConnectionState] = deque()
        """Connections whose long message is next. Some may have been dropped."""
        self._long_is_next = False
        self._waiting: OrderedDict[ConnectionState, None] = OrderedDict()
        """Connections with more commands than their share, in the order of their turns."""
        self._over_rate: list[tuple[float, int, ConnectionState]] = []
        """Connections over their rate: a heap, by the service time at which they may go on."""
        self._parked = 0
        """How many connections are parked. The heap may also have connections that were let in early."""
        self.held_bytes = 0
        """Bytes of memory for all that was received and is not handled."""
        self._tickets = itertools.count()
        """Tie-breakers for the heap."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._long)

    @property
    def empty(self) -> bool:
        """Return whether all that was received is handled."""
        return not (self._queue or self._long or self._waiting or self._parked)

    def entries(self) -> list[QueueEntry]:
        """Return all entries. Those of one connection are in their order, and short ones before long ones."""
        parked = (connection for *_, connection in self._over_rate if connection.backlog.parked)
        backlogs = [connection.backlog for connection in dict.fromkeys((*self._waiting, *parked))]
        return [
            *(entry for backlog in backlogs for entry in backlog.waiting[: backlog.returned]),
            *self._queue,
            *(backlog.long for backlog in map(_backlog, dict.fromkeys(self._long)) if backlog.long is not None),
            *(entry for backlog in backlogs for entry in backlog.waiting[backlog.returned :]),
        ]

    def put(self, entry: QueueEntry) -> None:
        """Add an entry after all earlier ones of its connection."""
        backlog, held_bytes = entry.connection.backlog, entry.held_bytes
        self.held_bytes += held_bytes
        backlog.held_bytes = held_bytes = backlog.held_bytes + held_bytes
        few = backlog.queued < MAX_QUEUED_PER_CONNECTION and held_bytes < LARGE_BACKLOG_BYTES  # so it is not long
        if few and not (backlog.waiting or backlog.long):
            backlog.queued += 1
            self._queue.append(entry)
        else:
            self._put_in_backlog(entry, backlog)

    def _put_in_backlog(self, entry: QueueEntry, backlog: Backlog) -> None:
        """Add an entry of a connection that has many, or large ones."""
        if backlog.held_bytes >= LARGE_BACKLOG_BYTES:
            backlog.large = True
        must_wait = backlog.waiting or backlog.long or (backlog.queued and entry.long)
        full = backlog.queued >= MAX_QUEUED_PER_CONNECTION and len(self._queue) >= MAX_UNSHARED_COMMANDS
        if must_wait or full:
            backlog.waiting.append(entry)
            if not backlog.parked:
                self._waiting[entry.connection] = None
        else:
            self._enqueue(entry.connection, [entry])
        too_much = (
            backlog.held_bytes >= MAX_BACKLOG_BYTES or backlog.queued + len(backlog.waiting) >= MAX_BACKLOG_COMMANDS
        )
        if too_much and not backlog.paused:
            backlog.paused = True
            entry.connection.socket.pause()

    def drop(self, connection: ConnectionState) -> None:
        """Discard a connection's waiting commands and its long message. Short ones in the queue are handled soon.

        The loss of the connection is kept.
        """
        backlog = connection.backlog
        dropped = [*backlog.waiting, *([backlog.long] if backlog.long else [])]
        dropped_bytes = sum(entry.held_bytes for entry in dropped)
        self.held_bytes -= dropped_bytes
        backlog.held_bytes -= dropped_bytes
        backlog.queued -= backlog.long is not None
        backlog.waiting, backlog.long, backlog.returned = (
            [entry for entry in backlog.waiting if isinstance(entry, ConnectionLost)],
            None,
            0,
        )
        self._unpark(connection)
        if not backlog.waiting:
            self._waiting.pop(connection, None)

    def lift_rate(self, connection: ConnectionState) -> None:
        """Let a lost connection go on without delay, whatever its debt."""
        connection.backlog.rate_limiter = None
        self._unpark(connection)

    def gather(self, now: float, limits: Limits) -> list[QueueEntry]:
        """Let waiting commands enter, and take the next batch out of the queue."""
        if self._waiting or self._over_rate:
            self._admit(now, limits)
        while self._long and (self._long_is_next or not self._queue):
            backlog = self._long.popleft().backlog
            if backlog.long is not None:
                self._long_is_next = False
                entry, backlog.long = backlog.long, None
                return [entry]
        self._long_is_next = True
        count = MAX_BATCH_COMMANDS
        if self.held_bytes >= MAX_BATCH_WEIGHT:
            sizes = itertools.accumulate(entry.size for entry in self._queue[:count])
            count = next((number for number, size in enumerate(sizes, 1) if size >= MAX_BATCH_WEIGHT), count)
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    def put_back(self, entries: list[QueueEntry]) -> None:
        """Put the end of a batch, none of which was started, at the front of the queue."""
        self._queue[:0] = entries

    def may_start(self, connection: ConnectionState) -> bool:
        """Return whether the next entry of a connection may be handled now."""
        backlog = connection.backlog
        over_rate = backlog.rate_limiter is not None and backlog.rate_limiter.must_wait and not self.hurry
        return not (backlog.returned or over_rate)

    def start(self, entry: QueueEntry) -> bool:
        """Return whether to handle an entry now. Otherwise put it back, before all later ones of its connection."""
        connection = entry.connection
        backlog = connection.backlog
        backlog.queued -= 1
        rate_limiter = backlog.rate_limiter
        if backlog.returned or (rate_limiter is not None and rate_limiter.must_wait and not self.hurry):
            backlog.waiting.insert(backlog.returned, entry)
            backlog.returned += 1
            if not backlog.parked:
                self._waiting[connection] = None
            return False
        held_bytes = entry.held_bytes
        if held_bytes:
            self.held_bytes -= held_bytes
            backlog.held_bytes -= held_bytes
            if backlog.large and not backlog.held_bytes:
                backlog.large = False
                connection.socket.large_messages_done()
        if backlog.paused and not backlog.queued and not backlog.waiting:
            backlog.paused = False
            connection.socket.resume()
        return True

    def seconds_to_next(self, now: float) -> float | None:
        """Return the seconds until the next connection over its rate may go on. None: there is none."""
        return max(0.0, self._over_rate[0][0] - now) if self._over_rate else None

    def _admit(self, now: float, limits: Limits) -> None:
        rates = limits.rates
        while self._over_rate and (self.hurry or self._over_rate[0][0] <= now):
            self._unpark(heapq.heappop(self._over_rate)[2])
        checked, waiting = 0, len(self._waiting)
        while checked < waiting and (checked < MAX_CONNECTIONS_CHECKED or not len(self)):
            checked += 1
            connection = next(iter(self._waiting))
            self._waiting.move_to_end(connection)
            backlog = connection.backlog
            if (backlog.returned and backlog.queued) or backlog.long:
                continue  # the queue still has later entries, which will be put behind; a long message is alone
            wait = 0.0 if backlog.rate_limiter is None or self.hurry else backlog.rate_limiter.refresh(now, rates)
            if wait:
                self._park(connection, now + wait)
                continue
            backlog.returned = 0
            room = (
                MAX_BATCH_COMMANDS
                if backlog.rate_limiter is None or self.hurry
                else backlog.rate_limiter.room(now, rates)
            )
            if backlog.waiting[0].long:
                entering = [] if backlog.queued else backlog.waiting[:1]
            else:
                limit = min(
                    room, max(MAX_QUEUED_PER_CONNECTION - backlog.queued, MAX_UNSHARED_COMMANDS - len(self._queue), 0)
                )
                entering = [*itertools.takewhile(lambda entry: not entry.long, backlog.waiting[:limit])]
            del backlog.waiting[: len(entering)]
            self._enqueue(connection, entering)
            if not backlog.waiting:
                del self._waiting[connection]

    def _enqueue(self, connection: ConnectionState, entries: list[QueueEntry]) -> None:
        """Put short messages, or one long one, at the end of their queue."""
        backlog = connection.backlog
        backlog.queued += len(entries)
        if entries and entries[0].long:
            backlog.long = entries[0]
            self._long.append(connection)
        else:
            self._queue += entries

    def _park(self, connection: ConnectionState, until: float) -> None:
        del self._waiting[connection]
        connection.backlog.parked = True
        self._parked += 1
        heapq.heappush(self._over_rate, (until, next(self._tickets), connection))

    def _unpark(self, connection: ConnectionState) -> None:
        if connection.backlog.parked:
            connection.backlog.parked = False
            self._parked -= 1
            self._waiting[connection] = None
