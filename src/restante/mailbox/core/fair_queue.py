"""Turns: what was said and is not done yet, and who is next (docs/decisions/turns.md).

Commands are done in the order in which they came, as long as no more than a batch of them is there. Beyond that no
connection has more than its share in the queue; the rest of what it said waits. Who has said more than its pace
allows waits for its time. A long message is a batch of its own; between two of them short ones have a batch. Of one
connection nothing ever overtakes what it said before.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from typing import Final

from restante.common.errors import PeerError
from restante.mailbox.core.dispatcher import ConnectionState, Turn
from restante.mailbox.core.limits import Limits
from restante.mailbox.core.model import Now, size_of
from restante.mailbox.protocol.messages import SHORT

BATCH: Final = 500
"""Commands in a batch at most: at some 15 µs each, the loop is back at its sockets within 10 ms."""

WEIGHT: Final = 1024 * 1024
"""Characters in a batch, and bytes that are sent for it, about: what is parsed, encoded and written in some 5 ms."""

SHARE: Final = 8
"""Commands of one connection in the queue, when that is longer than a batch. So that a few who flood make nobody wait
for much more than a batch. Clients say up to four things at once."""

LARGE: Final = 8 * 1024
"""Bytes of memory for what one connection said, from which on they are counted as its own (memory_holders.py). Nearly
all messages have less than a tenth of that."""

LOOKS: Final = 1000
"""Connections that are looked at for a batch, of those that wait for room in the queue: 1.5 ms."""

BACKLOG: Final = 64
HELD: Final = 256 * 1024
"""Commands of one connection, and bytes of memory for them, that wait before its socket is left unread."""

Entry = tuple[ConnectionState, str | PeerError | None, Now]
"""Who said what, and when; None: the connection is lost."""


def is_long(entry: Entry) -> bool:
    """Return whether this is a long message, which is a batch of its own."""
    return isinstance(entry[1], str) and len(entry[1]) > SHORT


class Turns:
    """The queue, and those who wait to get into it."""

    def __init__(self) -> None:
        self.hurry = False
        """Nobody's pace counts any more: the server stops."""
        self._queue: list[Entry] = []
        self._long: deque[ConnectionState] = deque()
        """Whose long message is next; some may have been dropped."""
        self._long_is_next = False
        self._waiting: OrderedDict[ConnectionState, None] = OrderedDict()
        """Who has said more than its share, in the order of their turns."""
        self._debtors: list[tuple[float, int, ConnectionState]] = []
        """Who has said more than its pace: a heap, by the service time at which they may go on."""
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
        """Tell whether all that was said is done."""
        return not (self._queue or self._long or self._waiting or self._parked)

    def put(self, entry: Entry) -> None:
        """Take in what was said, as the last of what this connection said."""
        connection, said, _ = entry
        turn = connection.turn
        if isinstance(said, str):
            self._hold(turn, size_of(said))
            turn.large = turn.large or turn.held >= LARGE
        queued, long = turn.queued, is_long(entry)
        full = queued >= SHARE and len(self._queue) >= BATCH
        if turn.waiting or turn.long or full or (long and queued):
            turn.waiting.append(entry)
            if not turn.parked:
                self._waiting[connection] = None
        else:
            self._let_in(connection, [entry])
        much = turn.held >= HELD or turn.queued + len(turn.waiting) >= BACKLOG
        if much and not turn.paused:
            turn.paused = True
            connection.line.pause()

    def _hold(self, turn: Turn, size: int) -> None:
        turn.held += size
        self.held += size

    def drop(self, connection: ConnectionState) -> None:
        """Forget what it said that waits, and its long message; short ones that are in the queue are soon done.

        That it is lost is not forgotten.
        """
        turn = connection.turn
        dropped = [*turn.waiting, *([turn.long] if turn.long else [])]
        self._hold(turn, -sum(size_of(said) for _, said, _ in dropped if isinstance(said, str)))
        turn.queued -= turn.long is not None
        turn.waiting, turn.long, turn.returned = [each for each in turn.waiting if each[1] is None], None, 0
        self._unpark(connection)
        if not turn.waiting:
            self._waiting.pop(connection, None)

    def free(self, connection: ConnectionState) -> None:
        """Let a connection go on without delay, whatever it owes: it is lost."""
        connection.turn.pace = None
        self._unpark(connection)

    def gather(self, now: float, limits: Limits) -> list[Entry]:
        """Let in who may, and take the next batch out of the queue."""
        self._admit(now, limits)
        while self._long and (self._long_is_next or not self._queue):
            turn = self._long.popleft().turn
            if turn.long is not None:
                self._long_is_next = False
                entry, turn.long = turn.long, None
                return [entry]
        self._long_is_next = True
        count, weight = 0, 0
        for _, said, _ in itertools.islice(self._queue, BATCH):
            count += 1
            if isinstance(said, str):
                weight += len(said)
                if weight >= WEIGHT:
                    break
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    def put_back(self, entries: list[Entry]) -> None:
        """Have the end of a batch, none of which has begun, done first in the next one."""
        self._queue[:0] = entries

    def begins(self, entry: Entry) -> bool:
        """Tell whether this one is to be done now; if not, it waits again, before all that was said later."""
        connection, said, _ = entry
        turn = connection.turn
        turn.queued -= 1
        if turn.returned or (turn.pace is not None and turn.pace.owing and not self.hurry):
            turn.waiting.insert(turn.returned, entry)
            turn.returned += 1
            if not turn.parked:
                self._waiting[connection] = None
            return False
        if isinstance(said, str):
            self._hold(turn, -size_of(said))
            if turn.large and not turn.held:
                turn.large = False
                connection.line.relieve()
        if turn.paused and not turn.queued and not turn.waiting:
            turn.paused = False
            connection.line.resume()
        return True

    def wait(self, now: float) -> float | None:
        """Give the seconds until somebody who is in debt may go on; None: nobody is."""
        return max(0.0, self._debtors[0][0] - now) if self._debtors else None

    def _admit(self, now: float, limits: Limits) -> None:
        while self._debtors and (self.hurry or self._debtors[0][0] <= now):
            self._unpark(heapq.heappop(self._debtors)[2])
        looked, waiting = 0, len(self._waiting)
        while looked < waiting and (looked < LOOKS or not len(self)):
            looked += 1
            connection = next(iter(self._waiting))
            self._waiting.move_to_end(connection)
            turn = connection.turn
            if (turn.returned and turn.queued) or turn.long:
                continue  # what is in the queue yet was said later, and will be put behind; a long one is alone
            wait = 0.0 if turn.pace is None or self.hurry else turn.pace.wait(now, limits)
            if wait:
                self._park(connection, now + wait)
                continue
            turn.returned = 0
            room = BATCH if turn.pace is None or self.hurry else turn.pace.room(now, limits)
            if is_long(turn.waiting[0]):
                some = [] if turn.queued else turn.waiting[:1]
            else:
                most = min(room, max(SHARE - turn.queued, BATCH - len(self._queue), 0))
                some = [*itertools.takewhile(lambda entry: not is_long(entry), turn.waiting[:most])]
            del turn.waiting[: len(some)]
            self._let_in(connection, some)
            if not turn.waiting:
                del self._waiting[connection]

    def _let_in(self, connection: ConnectionState, entries: list[Entry]) -> None:
        """Put short messages, or one long one, at the end of their queue."""
        turn = connection.turn
        turn.queued += len(entries)
        if entries and is_long(entries[0]):
            [turn.long] = entries
            self._long.append(connection)
        else:
            self._queue += entries

    def _park(self, connection: ConnectionState, until: float) -> None:
        del self._waiting[connection]
        connection.turn.parked = True
        self._parked += 1
        heapq.heappush(self._debtors, (until, next(self._tickets), connection))

    def _unpark(self, connection: ConnectionState) -> None:
        if connection.turn.parked:
            connection.turn.parked = False
            self._parked -= 1
            self._waiting[connection] = None
