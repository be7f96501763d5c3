"""The fair queue: what was said and is not done yet, and who is next (docs/decisions/fair-queue.md).

Commands are done in the order in which they came, as long as no more than a batch of them is there. Beyond that no
connection has more than its share in the queue; the rest of what it said waits. Who has said more than its rate
allows waits for its time. A long message is a batch of its own; between two of them short ones have a batch. Of one
connection nothing ever overtakes what it said before.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from typing import Final, TypeGuard

from restante.mailbox.core.connection_state import Backlog, ConnectionLost, ConnectionState, QueueEntry, ReceivedText
from restante.mailbox.core.limits import Limits
from restante.mailbox.core.model import size_of
from restante.mailbox.protocol.messages import MAX_SHORT_MESSAGE_CHARACTERS

MAX_BATCH_COMMANDS: Final = 500
"""Commands in a batch at most: at some 15 µs each, the loop is back at its sockets within 10 ms."""

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Characters in a batch, and bytes that are sent for it, about: what is parsed, encoded and written in some 5 ms."""

MAX_QUEUED_PER_CONNECTION: Final = 8
"""Commands of one connection in the queue, when that is longer than a batch. So that a few who flood make nobody wait
for much more than a batch. Clients say up to four things at once."""

LARGE_BACKLOG_BYTES: Final = 8 * 1024
"""Bytes of memory for what one connection said, from which on they are counted as its own (memory_holders.py). Nearly
all messages have less than a tenth of that."""

MAX_CONNECTIONS_CHECKED: Final = 1000
"""Connections that are looked at for a batch, of those that wait for room in the queue: 1.5 ms."""

MAX_BACKLOG_COMMANDS: Final = 64
MAX_BACKLOG_BYTES: Final = 256 * 1024
"""Commands of one connection, and bytes of memory for them, that wait before its socket is left unread."""


def is_long(entry: QueueEntry) -> TypeGuard[ReceivedText]:
    """Return whether this is a long message, which is a batch of its own."""
    return isinstance(entry, ReceivedText) and len(entry.text) > MAX_SHORT_MESSAGE_CHARACTERS


class FairQueue:
    """The queue, and those who wait to get into it."""

    def __init__(self) -> None:
        self.hurry = False
        """Nobody's rate limit counts any more: the server stops."""
        self._queue: list[QueueEntry] = []
        self._long: deque[ConnectionState] = deque()
        """Whose long message is next; some may have been dropped."""
        self._long_is_next = False
        self._waiting: OrderedDict[ConnectionState, None] = OrderedDict()
        """Who has said more than its share, in the order of their turns."""
        self._debtors: list[tuple[float, int, ConnectionState]] = []
        """Who has said more than its rate: a heap, by the service time at which they may go on."""
        self._parked = 0
        """How many of those there are; some in the heap may have been let in before their time."""
        self.held = 0
        """Bytes of memory for all that was said and is not done."""
        self._tickets = itertools.count()
        """So that no two in the heap are alike."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._long)

    @property
    def empty(self) -> bool:
        """Return whether all that was said is done."""
        return not (self._queue or self._long or self._waiting or self._parked)

    def put(self, entry: QueueEntry) -> None:
        """Take in what was said, as the last of what this connection said."""
        connection = entry.connection
        backlog = connection.backlog
        if isinstance(entry, ReceivedText):
            self._hold(backlog, size_of(entry.text))
            backlog.large = backlog.large or backlog.held >= LARGE_BACKLOG_BYTES
        queued, long = backlog.queued, is_long(entry)
        full = queued >= MAX_QUEUED_PER_CONNECTION and len(self._queue) >= MAX_BATCH_COMMANDS
        if backlog.waiting or backlog.long or full or (long and queued):
            backlog.waiting.append(entry)
            if not backlog.parked:
                self._waiting[connection] = None
        else:
            self._enqueue(connection, [entry])
        much = backlog.held >= MAX_BACKLOG_BYTES or backlog.queued + len(backlog.waiting) >= MAX_BACKLOG_COMMANDS
        if much and not backlog.paused:
            backlog.paused = True
            connection.socket.pause()

    def _hold(self, backlog: Backlog, size: int) -> None:
        backlog.held += size
        self.held += size

    def drop(self, connection: ConnectionState) -> None:
        """Forget what it said that waits, and its long message; short ones that are in the queue are soon done.

        That it is lost is not forgotten.
        """
        backlog = connection.backlog
        dropped = [*backlog.waiting, *([backlog.long] if backlog.long else [])]
        self._hold(backlog, -sum(size_of(entry.text) for entry in dropped if isinstance(entry, ReceivedText)))
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
        """Let a connection go on without delay, whatever it owes: it is lost."""
        connection.backlog.rate_limiter = None
        self._unpark(connection)

    def gather(self, now: float, limits: Limits) -> list[QueueEntry]:
        """Let in who may, and take the next batch out of the queue."""
        self._admit(now, limits)
        while self._long and (self._long_is_next or not self._queue):
            backlog = self._long.popleft().backlog
            if backlog.long is not None:
                self._long_is_next = False
                entry, backlog.long = backlog.long, None
                return [entry]
        self._long_is_next = True
        count, weight = 0, 0
        for each in itertools.islice(self._queue, MAX_BATCH_COMMANDS):
            count += 1
            if isinstance(each, ReceivedText):
                weight += len(each.text)
                if weight >= MAX_BATCH_BYTES:
                    break
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    def put_back(self, entries: list[QueueEntry]) -> None:
        """Have the end of a batch, none of which has begun, done first in the next one."""
        self._queue[:0] = entries

    def start(self, entry: QueueEntry) -> bool:
        """Return whether this one is to be done now; if not, put it back, before all that was said later."""
        connection = entry.connection
        backlog = connection.backlog
        backlog.queued -= 1
        if backlog.returned or (backlog.rate_limiter is not None and backlog.rate_limiter.owing and not self.hurry):
            backlog.waiting.insert(backlog.returned, entry)
            backlog.returned += 1
            if not backlog.parked:
                self._waiting[connection] = None
            return False
        if isinstance(entry, ReceivedText):
            self._hold(backlog, -size_of(entry.text))
            if backlog.large and not backlog.held:
                backlog.large = False
                connection.socket.large_messages_done()
        if backlog.paused and not backlog.queued and not backlog.waiting:
            backlog.paused = False
            connection.socket.resume()
        return True

    def seconds_to_next(self, now: float) -> float | None:
        """Return the seconds until somebody who is in debt may go on; None: nobody is."""
        return max(0.0, self._debtors[0][0] - now) if self._debtors else None

    def _admit(self, now: float, limits: Limits) -> None:
        while self._debtors and (self.hurry or self._debtors[0][0] <= now):
            self._unpark(heapq.heappop(self._debtors)[2])
        looked, waiting = 0, len(self._waiting)
        while looked < waiting and (looked < MAX_CONNECTIONS_CHECKED or not len(self)):
            looked += 1
            connection = next(iter(self._waiting))
            self._waiting.move_to_end(connection)
            backlog = connection.backlog
            if (backlog.returned and backlog.queued) or backlog.long:
                continue  # what is in the queue yet was said later, and will be put behind; a long one is alone
            wait = 0.0 if backlog.rate_limiter is None or self.hurry else backlog.rate_limiter.refresh(now, limits)
            if wait:
                self._park(connection, now + wait)
                continue
            backlog.returned = 0
            room = (
                MAX_BATCH_COMMANDS
                if backlog.rate_limiter is None or self.hurry
                else backlog.rate_limiter.room(now, limits)
            )
            if is_long(backlog.waiting[0]):
                some = [] if backlog.queued else backlog.waiting[:1]
            else:
                most = min(
                    room, max(MAX_QUEUED_PER_CONNECTION - backlog.queued, MAX_BATCH_COMMANDS - len(self._queue), 0)
                )
                some = [*itertools.takewhile(lambda entry: not is_long(entry), backlog.waiting[:most])]
            del backlog.waiting[: len(some)]
            self._enqueue(connection, some)
            if not backlog.waiting:
                del self._waiting[connection]

    def _enqueue(self, connection: ConnectionState, entries: list[QueueEntry]) -> None:
        """Put short messages, or one long one, at the end of their queue."""
        backlog = connection.backlog
        backlog.queued += len(entries)
        if entries and is_long(entries[0]):
            backlog.long = entries[0]
            self._long.append(connection)
        else:
            self._queue += entries

    def _park(self, connection: ConnectionState, until: float) -> None:
        del self._waiting[connection]
        connection.backlog.parked = True
        self._parked += 1
        heapq.heappush(self._debtors, (until, next(self._tickets), connection))

    def _unpark(self, connection: ConnectionState) -> None:
        if connection.backlog.parked:
            connection.backlog.parked = False
            self._parked -= 1
            self._waiting[connection] = None
