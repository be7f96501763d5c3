"""The commit loop: handle a batch of commands, commit it, then send the replies.

While one batch is being committed, the next one gathers. Each batch is one transaction, and no reply that rests on it
is sent before it is durable. There is no timer: under light load a batch is one command, under heavy load it is
whatever arrived during one disk flush.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, get_args

import msgspec

from restante.common.dice import Dice
from restante.common.errors import PeerError, StoreBusy
from restante.common.histogram import Histogram
from restante.common.logs import log, log_refusals, trace_text
from restante.common.system import Clock
from restante.common.usage_records import ClientVersion, MailboxUsage, NameplateUsage, Result
from restante.mailbox.core.connection_state import (
    ENTRY_BYTES,
    ConnectionLost,
    ConnectionState,
    QueueEntry,
    ReceivedError,
    ReceivedText,
)
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.fair_queue import MAX_BATCH_COMMANDS, MAX_BATCH_WEIGHT, FairQueue
from restante.mailbox.core.model import OK, OUTCOMES, BatchCounts, Change, Now, Policy, size_of
from restante.mailbox.core.pruning import prune_idle, save_touches
from restante.mailbox.protocol import messages
from restante.mailbox.protocol.frame_text import FrameText
from restante.mailbox.protocol.messages import KINDS
from restante.mailbox.protocol.parsing import MAX_SHORT_MESSAGE_CHARACTERS, Malformed
from restante.mailbox.protocol.refusals import KINDS as REFUSAL_KINDS
from restante.mailbox.protocol.refusals import TOO_MANY_RECORDS
from restante.mailbox.server.trace import Trace
from restante.mailbox.store.interface import Store

# ── measurements: counts and durations since the start, for the metrics ─────────────────────────────


SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of durations. A commit on a fast disk takes 0.1 ms, on a disk of a cheap machine 20 ms; a client
gives up after some seconds."""

COMMAND_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Upper bounds of commands in a batch (commit_loop.MAX_BATCH_COMMANDS)."""

SLOW_COMMIT_SECONDS: Final = 0.25
"""Seconds from which on a commit is slow: people notice it."""

STORE_PROBLEM_SECONDS: Final = 10.0
"""Seconds for which a batch that was not stored makes the server unready. Then only a new batch shows whether the
store works again, and none comes while a load balancer waits for the server to be ready."""

MAX_SLOW_COMMITS: Final = 20
"""Slow commits that are remembered one by one, the latest ones."""

COMMAND_TYPES: Final = {
    **{kind: name for name, kind in KINDS.items()},
    Malformed: "malformed",
    type(None): "unreadable",
}
"""Types of commands by their class. `malformed` is a JSON object that is no valid message. `unreadable` is a text
that is no JSON object, or is too expensive to decode."""


class SlowCommit(NamedTuple):
    """A slow commit."""

    at: float
    """Wall time at which it began, in seconds since 1970."""
    seconds: float
    changes: int


RECORDS: Final[Mapping[type, str]] = {NameplateUsage: "nameplate", MailboxUsage: "mailbox"}
"""The names of what ends, by the classes of the usage records."""


class MeasurementsRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process leaves of its `Measurements` to the next. Commands and usage records are names."""

    carried_out: dict[str, int]
    not_carried_out: list[tuple[str, str, int]]
    results: list[tuple[str, str, int]]
    histograms: list[tuple[list[int], float]]
    latest_slow_commits: list[SlowCommit]
    numbers: dict[str, int]
    """All other counts."""
    prune_seconds: float


class Measurements:
    """Counts since the start of the server. Other threads may read them, since no key is ever added or removed."""

    def __init__(self) -> None:
        # No Counter: its `update` asks for the type of its argument, which takes as long as counting 20 commands.
        self.carried_out: dict[type, int] = dict.fromkeys(COMMAND_TYPES, 0)
        self.not_carried_out: dict[tuple[type, str], int] = {
            (kind, outcome): 0 for kind in COMMAND_TYPES for outcome in OUTCOMES
        }
        self.results: dict[tuple[type, Result], int] = {
            (kind, result): 0 for kind in (NameplateUsage, MailboxUsage) for result in get_args(Result)
        }
        """Nameplates and mailboxes that ended, by result, also those whose usage record was left out."""
        self.batch_commands = Histogram(COMMAND_BOUNDS)
        """Commands of each batch that had any."""
        self.commit_seconds = Histogram(SECONDS_BOUNDS)
        """Seconds from the first statement of a batch until it was on disk."""
        self.delivery_seconds = Histogram(SECONDS_BOUNDS)
        """Seconds from the receipt of each `add` that was stored until it was on disk. Then its message goes to those
        who have the mailbox open."""
        self.slow_commits = 0
        self.latest_slow_commits: deque[SlowCommit] = deque(maxlen=MAX_SLOW_COMMITS)
        self.disk_free = math.nan
        """Bytes that the server can still write on its disk. NaN: not known."""
        self.wal_bytes = math.nan
        """Bytes of the database's write-ahead log. NaN: not known."""
        self.batches_not_stored = 0
        self._store_problem = ""
        """Why the last batch could not be stored; "" if it was."""
        self._problem_until = 0.0
        """Service time until which that counts."""
        self.solved = 0
        """Connections that have shown the work that was demanded of them."""
        self.pruned = 0
        """Mailboxes that were pruned."""
        self.prunes = 0
        self.prune_seconds = 0.0
        """Seconds that the last prune took, with the commands that were handled meanwhile."""
        self._prune_began: float | None = None

    def record(self) -> MeasurementsRecord:
        """Return what the next process needs to go on counting."""
        return MeasurementsRecord(
            {COMMAND_TYPES[kind]: number for kind, number in self.carried_out.items()},
            [(COMMAND_TYPES[kind], outcome, number) for (kind, outcome), number in self.not_carried_out.items()],
            [(RECORDS[kind], result, number) for (kind, result), number in self.results.items()],
            [histogram.state for histogram in self._histograms],
            list(self.latest_slow_commits),
            {name: getattr(self, name) for name in self._NUMBERS},
            self.prune_seconds,
        )

    def restore(self, record: MeasurementsRecord) -> None:
        """Go on counting where the process before has ended. Names that this version does not know are ignored."""
        for kind, name in COMMAND_TYPES.items():
            self.carried_out[kind] = record.carried_out.get(name, 0)
        outcomes = {(name, outcome): number for name, outcome, number in record.not_carried_out}
        for kind, outcome in self.not_carried_out:
            self.not_carried_out[kind, outcome] = outcomes.get((COMMAND_TYPES[kind], outcome), 0)
        results = {(name, result): number for name, result, number in record.results}
        for record_kind, result in self.results:
            self.results[record_kind, result] = results.get((RECORDS[record_kind], result), 0)
        for histogram, state in zip(self._histograms, record.histograms, strict=False):
            histogram.state = state
        self.latest_slow_commits.extend(record.latest_slow_commits)
        for name in self._NUMBERS:
            setattr(self, name, record.numbers.get(name, 0))
        self.prune_seconds = record.prune_seconds

    _NUMBERS: Final = ("slow_commits", "batches_not_stored", "solved", "pruned", "prunes")

    @property
    def _histograms(self) -> tuple[Histogram, ...]:
        return self.batch_commands, self.commit_seconds, self.delivery_seconds

    def committed(self, began: Now, now: float, changes: int, added: list[float]) -> None:
        """Record a commit that ended at a service time. `added` says when its messages were received."""
        seconds = now - began.service
        self.commit_seconds.add(seconds)
        self._store_problem = ""
        if seconds >= SLOW_COMMIT_SECONDS:
            self.slow_commits += 1
            self.latest_slow_commits.append(SlowCommit(began.wall, seconds, changes))
        if added:
            self.delivery_seconds.add_since(added, now)

    def not_stored(self, reason: str, now: float) -> None:
        """Record a batch that the disk did not take at a service time."""
        self.batches_not_stored += 1
        self._store_problem, self._problem_until = reason, now + STORE_PROBLEM_SECONDS

    def store_problem(self, now: float) -> str:
        """Return why the last batch could not be stored, or "" if it was or that is long ago. Any thread may ask."""
        return self._store_problem if now < self._problem_until else ""

    def answered(self, batch: BatchCounts) -> None:
        """Record the commands of a batch that is on disk, and what ended in it."""
        if number := len(batch.carried_out) + len(batch.not_carried_out):
            self.batch_commands.add(number)
        for kind in batch.carried_out:
            self.carried_out[kind] += 1
        for kind_and_outcome in batch.not_carried_out:
            self.not_carried_out[kind_and_outcome] += 1
        self.pruned += batch.pruned
        self.solved += batch.solved
        for record in batch.usage:
            self.results[type(record), record.result] += 1

    def commands(self, kind: type, outcome: str) -> int:
        """Return the number of commands of a type (COMMAND_TYPES) with an outcome."""
        return self.carried_out[kind] if outcome is OK else self.not_carried_out[kind, outcome]

    def prune_given_up(self) -> None:
        """Record that maintenance was given up, because a batch was undone or the server stops."""
        self._prune_began = None

    def prune_began(self, now: float) -> None:
        """Record that a prune began."""
        self._prune_began = now

    def prune_ended(self, now: float) -> None:
        """Record that maintenance ended. It was a prune if one began."""
        if self._prune_began is not None:
            self.prunes += 1
            self.prune_seconds, self._prune_began = now - self._prune_began, None


# ── commit loop ───────────────────────────────────────────────────────────────────────────────────


GRACE_SECONDS: Final = 120.0
"""Seconds after a start in which no mailbox is pruned and no client loses its place. The Python client's delay
between attempts grows to 61 s (mailbox reference client: min(1.5^n, 60) + U(0, 1))."""

MAX_BATCH_SECONDS: Final = 0.004
"""Seconds after which a batch ends, whatever its weight: some commands take longer than their weight says."""

COMMANDS_PER_CLOCK_CHECK: Final = 4
"""Commands of a batch between two checks of that. Most take some 20 µs."""

MAX_RECORDS_DROPPED_AT_ONCE: Final = 500
"""Usage records of each kind dropped in one transaction."""


class Retention(msgspec.Struct, frozen=True):
    """How long mailboxes and usage records are kept."""

    prune_after: float
    """Seconds of service after which an idle mailbox is pruned."""
    keep_usage: float | None = None
    """Seconds for which usage records are kept. None: for ever."""


class CommitLoopRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process leaves of its commit loop to the next."""

    rebooted: float
    left_out: int
    service: float
    """The service time at which the process was left."""
    grace_began: float | None
    """The service time at which the grace period began. None: it is over."""
    next_pruning: float
    """The service time at which a pruning is due. One that is under way begins again at once."""
    deferred: list[ClientVersion]
    measurements: MeasurementsRecord


class CommitLoop:
    """The queue, the current batch, and the replies that are sent after it."""

    def __init__(self, store: Store, dispatcher: Dispatcher, clock: Clock, retention: Retention) -> None:
        self.dispatcher = dispatcher
        self._store = store
        self._clock = clock
        self._retention = retention
        self._service_at_start = store.service
        self._service_offset = store.service - clock.monotonic()
        """What is added to the monotonic clock for the service time."""
        self._rebooted = clock.wall()
        self.queue = FairQueue()
        self.before_long: Callable[[], None] = lambda: None
        """Called before each turn of the event loop in which a long message is parsed or handled."""
        self._rate_timer: asyncio.TimerHandle | None = None
        self._maintenance: Iterator[None] | None = None
        self.next_pruning = math.inf
        """The service time at which `start_pruning` is to be called."""
        self._forgetting = False
        self._deferred_records: list[Change] = []
        """Records of binds that wait for the next commit. No reply depends on them, and losing one loses only the
        fact that a client came. They wait for at most a second (`commit_deferred`)."""
        self._left_out = 0
        """Usage records that were not stored and are logged already."""
        self._deferred_due = False
        """Whether the deferred records have waited for long enough."""
        self._stopping = False
        self._weight = 0
        """The weight of the current batch."""
        self._commit_began: float | None = None
        """Wall time at which the store began to write the current batch. None: it changed nothing."""
        self._committed: float | None = None
        """Wall time at which the current batch was durable. None: it changed nothing."""
        self.trace: Trace | None = None
        self.measurements = Measurements()
        self._loop = asyncio.get_running_loop()
        self._sleep: asyncio.Future[None] | None = None
        """Done when there is work. None: the loop does not wait for work, or was woken up."""
        self.idle = asyncio.Event()
        """Set while everything that was received is handled and answered."""
        self._hold: asyncio.Event | None = None
        """Set when the current batch is answered, after which no other begins. None: batches go on."""
        self._released = asyncio.Event()

    @classmethod
    async def open(cls, store: Store, clock: Clock, dice: Dice, policy: Policy, retention: Retention) -> CommitLoop:
        """Read the state from the store and return a commit loop for it."""
        state = await store.view()
        state.in_grace_period = True
        return cls(store, Dispatcher(state, dice, policy), clock, retention)

    def now(self) -> Now:
        """Return the time of the wall clock, and the seconds during which the server ran."""
        return Now(self._clock.wall(), self._clock.monotonic() + self._service_offset)

    def _service(self) -> float:
        """Return the service time (`Now.service`)."""
        return self._clock.monotonic() + self._service_offset

    # ── input ────────────────────────────────────────────────────────────────────────────────────

    def receive(self, connection: ConnectionState, text: FrameText, now: Now) -> None:
        """Queue the text of a frame that arrived at `now`. It is answered when its batch is durable."""
        size, long = size_of(text), len(text) > MAX_SHORT_MESSAGE_CHARACTERS
        self.queue.put(ReceivedText(connection, now, text, size, size + ENTRY_BYTES, long))
        if self._sleep is not None:
            self._wake_up()

    def refuse(self, connection: ConnectionState, error: PeerError) -> None:
        """Queue an error about a frame. It is answered like a text, and then the connection is closed."""
        self._put(ReceivedError(connection, self.now(), error))

    def _put(self, entry: QueueEntry) -> None:
        self.queue.put(entry)
        self._wake_up()

    def lose(self, connection: ConnectionState) -> None:
        """Queue the loss of a connection. What it sent before is handled without delay."""
        connection.gone = True
        self.queue.lift_rate(connection)
        self._put(ConnectionLost(connection, self.now()))

    def drop(self, connection: ConnectionState) -> None:
        """Discard what a connection has sent and is still waiting."""
        self.queue.drop(connection)

    def start_pruning(self) -> None:
        """Start pruning, unless it is under way."""
        if self._maintenance is None:
            self.measurements.prune_began(self._clock.monotonic())
            self._maintenance = prune_idle(self.dispatcher, self.now, self._retention.prune_after, self._rebooted)
            self._forgetting = self._retention.keep_usage is not None
            self._wake_up()

    def start_saving(self) -> None:
        """Start saving touches, unless maintenance is under way."""
        if self._maintenance is None and self.dispatcher.state.unsaved:
            self._maintenance = save_touches(self.dispatcher)
            self._wake_up()

    def log_refusals(self) -> None:
        """Log the refusals since the last call, the most frequent first, and the visitors.

        Call this once a minute and at the end.
        """
        quotas = self.dispatcher.quotas
        log_refusals(quotas.refusal_counts, REFUSAL_KINDS)
        left_out = quotas.refusal_counts.since_start[TOO_MANY_RECORDS.reason]
        if left_out > self._left_out:
            log.warning("usage records were left out", records=left_out - self._left_out, since_start=left_out)
            self._left_out = left_out
        if quotas.visitors:
            log.info("ended mailboxes had visitors", mailboxes=quotas.visited, visitors=quotas.visitors)
            quotas.visited = quotas.visitors = 0

    def commit_deferred(self) -> None:
        """Make deferred records due for a commit. Call this once a second."""
        self._deferred_due = bool(self._deferred_records)
        if self._deferred_due:
            self._wake_up()

    def stop(self) -> None:
        """Let `run` return once everything that was received is handled and answered."""
        self._stopping = self.queue.hurry = True
        self._forgetting = False
        self._maintenance = save_touches(self.dispatcher)
        self.measurements.prune_given_up()
        self._deferred_due = True
        self._wake_up()

    def record(self) -> CommitLoopRecord:
        """Return what the next process needs to go on. The loop is held."""
        return CommitLoopRecord(
            self._rebooted,
            self._left_out,
            self._service(),
            self._service_at_start if self.dispatcher.state.in_grace_period else None,
            self.next_pruning if self._maintenance is None else self._service(),
            [record for record in self._deferred_records if isinstance(record, ClientVersion)],
            self.measurements.record(),
        )

    def restore(self, record: CommitLoopRecord, *, closed: int) -> None:
        """Go on with what the process before has left, without `closed` connections, which may come again."""
        self._rebooted, self._left_out = record.rebooted, record.left_out
        self.dispatcher.state.in_grace_period = closed > 0 or record.grace_began is not None
        if record.grace_began is not None and not closed:
            self._service_at_start = record.grace_began
        self.next_pruning = record.next_pruning
        self._deferred_records = list(record.deferred)
        self.measurements.restore(record.measurements)

    async def hold(self) -> None:
        """Return when the current batch is answered. No other begins until `release`. Deferred records are due."""
        self._deferred_due = True
        self._released.clear()
        self._hold = asyncio.Event()
        self._wake_up()
        await self._hold.wait()

    def release(self) -> None:
        """Go on after `hold`."""
        self._hold = None
        self._released.set()

    def _wake_up(self) -> None:
        sleep, self._sleep = self._sleep, None
        if sleep is not None and not sleep.done():  # it is done if the loop was cancelled
            self.idle.clear()
            sleep.set_result(None)

    # ── batch, commit, replies ───────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Serve until `stop`. Raises StoreError if a commit failed, after which no reply may be sent."""
        while (gathered := await self._next_batch()) is not None:
            if gathered and gathered[0].long:
                await self._parse_ahead(gathered[0])
            batch = self._take(gathered)
            for error in self.dispatcher.internal_errors:
                log.error("a command failed; its connection is closed", fault=trace_text(error))
            if self._weight >= MAX_BATCH_WEIGHT // 2:
                await asyncio.sleep(0)  # to make the statements takes more milliseconds: other sockets come first
            await self._commit_or_undo(batch)
            if self._weight >= MAX_BATCH_WEIGHT // 2:
                await asyncio.sleep(0)  # the batch took the loop some milliseconds, and sending takes some more
            self._send_replies()
            if self._forgetting and self._maintenance is None:
                await self._forget_usage()
            await self._store.tend()
            if not self.queue.empty:
                await asyncio.sleep(0)  # a batch without changes has waited for no commit: sockets are read here

    async def _next_batch(self) -> list[QueueEntry] | None:
        """Wait for work, and return the next batch, which is empty if there is only other work.

        Return None if everything is done and the loop is to stop.
        """
        if self._hold is not None:
            self._hold.set()
            await self._released.wait()
        gathered = self._gather()
        if gathered or self._maintenance or self._forgetting or (self._deferred_due and self._deferred_records):
            return gathered
        if self._stopping:
            return None
        if self.queue.empty:
            self.idle.set()
        self._sleep = self._loop.create_future()
        try:
            await self._sleep
        finally:
            self._sleep = None
        return self._gather()

    async def _parse_ahead(self, entry: QueueEntry) -> None:
        """Wait for the turn of the event loop in which a long message is handled, and parse it in the turn before.

        To parse 2 MiB takes up to 4 ms, to handle and encode them as long again.
        """
        self.before_long()
        await asyncio.sleep(0)
        # If it may not start, it goes back to the queue.
        if type(entry) is ReceivedText and self.queue.may_start(entry.connection):
            self.dispatcher.parse_ahead(entry.connection, entry.text)
            self.before_long()
            await asyncio.sleep(0)

    def _gather(self) -> list[QueueEntry]:
        """Remove the next batch from the queue, and set a timer for the next connection that waits for its rate."""
        if self.queue.empty and self._rate_timer is None:
            return []
        now = self._service()
        gathered = self.queue.gather(now, self.dispatcher.policy.limits)
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None
        wait = self.queue.seconds_to_next(now)
        if wait is not None:
            self._rate_timer = self._loop.call_later(wait, self._wake_up)
        return gathered

    def _take(self, gathered: list[QueueEntry]) -> list[QueueEntry]:
        """Handle the gathered entries and a slice of maintenance. Return the handled ones.

        Entries of connections over their rate, and entries beyond the maximum weight or time of a batch, go back to
        the queue.
        """
        dispatcher, start, trace, batch, weight = self.dispatcher, self.queue.start, self.trace, [], 0
        now, rates = self._service(), dispatcher.policy.limits.rates
        deadline = now + MAX_BATCH_SECONDS
        since_start = now - self._service_at_start
        if dispatcher.state.in_grace_period and since_start >= min(GRACE_SECONDS, self._retention.prune_after):
            dispatcher.state.end_grace_period()
        for number, entry in enumerate(gathered, 1):
            if weight >= MAX_BATCH_WEIGHT or (not number % COMMANDS_PER_CLOCK_CHECK and self._service() >= deadline):
                self.queue.put_back(gathered[number - 1 :])
                break
            if not start(entry):
                continue
            batch.append(entry)
            if type(entry) is not ReceivedText:  # `match` on msgspec's classes takes several times as long
                self._end(entry)
                continue
            connection = entry.connection
            weight += dispatcher.handle(connection, entry.text, entry.size, entry.now)
            rate_limiter = connection.backlog.rate_limiter
            if rate_limiter is not None:
                rate_limiter.charge(now, rates, dispatcher.cost)
            if trace is not None:
                trace.add(connection.number, dispatcher.last_message, entry.now.wall)
        self._weight = weight
        if self._maintenance is not None and next(self._maintenance, self) is self:
            self._maintenance = None
            self.measurements.prune_ended(self._clock.monotonic())
        return batch

    def _end(self, entry: ReceivedError | ConnectionLost) -> None:
        """Handle the end of a connection."""
        if type(entry) is ReceivedError:
            self.dispatcher.refuse_frame(entry.connection, entry.error)
        else:
            self.dispatcher.lose(entry.connection, entry.now)

    async def _commit_or_undo(self, batch: list[QueueEntry]) -> None:
        """Make the batch durable. If the store refuses it before the commit, undo it and close its connections."""
        new_changes = self.dispatcher.changes
        changes = self._deferred_records + new_changes
        if (
            not (self._deferred_due and changes)
            and len(changes) < MAX_BATCH_COMMANDS
            and all(type(change) is ClientVersion for change in new_changes)
        ):
            self._deferred_records = changes
            if self._maintenance is not None:
                await asyncio.sleep(0)  # a slice of it without changes must not keep the loop from its sockets
            await self._store.confirm()
            return
        began = self.now()
        try:
            await self._store.apply(changes, began)
        except StoreBusy as busy:
            self.measurements.not_stored(str(busy), self._service())
            self._deferred_due = False  # tried again after the next `commit_deferred`
            if new_changes:
                log.warning("a batch was not stored; the connections of its senders are closed", error=str(busy))
                self._undo(batch)
            else:
                log.warning("usage records of binds were not stored; they wait for the next commit", error=str(busy))
                await self._store.confirm()
            return
        self._commit_began, self._committed = began.wall, self._clock.wall()
        self.measurements.committed(began, self._service(), len(changes), self.dispatcher.batch.added)
        self._deferred_records = []
        self._deferred_due = self._stopping

    async def _forget_usage(self) -> None:
        """Delete some usage records that are older than they may be."""
        before = self.now().wall - (self._retention.keep_usage or 0.0)
        try:
            self._forgetting = await self._store.forget_usage(before, MAX_RECORDS_DROPPED_AT_ONCE) > 0
        except StoreBusy as busy:  # tried again at the next pruning
            log.warning("old usage records were not deleted; the next pruning tries again", error=str(busy))
            self._forgetting = False

    def _undo(self, batch: list[QueueEntry]) -> None:
        self.dispatcher.undo_batch()
        self._maintenance, self._forgetting = None, False
        self.measurements.prune_given_up()
        for entry in batch:
            if type(entry) is ReceivedText:
                self.dispatcher.close_sender(entry.connection)
            elif type(entry) is ReceivedError:
                self.dispatcher.refuse_frame(entry.connection, entry.error)

    def _send_replies(self) -> None:
        wall = self._clock.wall()
        stamp = messages.stamp(wall)
        self.measurements.answered(self.dispatcher.batch)
        # In reverse order: subscribers come after the sender of a message, and wait longer for it.
        for connection in reversed(self.dispatcher.end_batch()):
            bodies, connection.outbox = connection.outbox, []
            if connection.lost:
                continue
            if bodies:
                connection.socket.send(bodies, stamp)
            if connection.verdict is not None:
                connection.socket.hang_up(connection.verdict.code, connection.verdict.text)
        if self.trace is not None:
            self.trace.write(self._commit_began, self._committed, wall)
        self._commit_began = self._committed = None
