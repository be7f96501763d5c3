"""The fair queue and the commit loop: turns, batches and rates, the grace period, service time, what is kept."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from restante.common.errors import StoreBusy
from restante.common.system import Clock, SystemClock
from restante.mailbox.core import fair_queue
from restante.mailbox.core.connection_state import ENTRY_BYTES, ConnectionLost, ConnectionState, ReceivedText
from restante.mailbox.core.dispatcher import NOT_STORED, SERVICE_RESTART
from restante.mailbox.core.fair_queue import MAX_BACKLOG_COMMANDS, MAX_BATCH_COMMANDS, MAX_BATCH_WEIGHT, FairQueue
from restante.mailbox.core.limits import UNLIMITED, Limits, RateLimiter
from restante.mailbox.core.model import OK, REFUSED, UNDONE, Change, Now, Policy, size_of
from restante.mailbox.core.pruning import prune_idle
from restante.mailbox.protocol.messages import Add
from restante.mailbox.protocol.parsing import MAX_LONG_MESSAGE_SIGNS, MAX_SHORT_MESSAGE_CHARACTERS
from restante.mailbox.protocol.refusals import MAILBOX_FULL, TOO_EXPENSIVE
from restante.mailbox.server import commit_loop
from restante.mailbox.server.commit_loop import GRACE_SECONDS, CommitLoop
from restante.mailbox.server.trace import Trace
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import SqliteStore
from support.dice import FakeDice
from support.loops import until
from support.mailbox.givens import EPOCH, FakeClock, Inbox
from support.sqlite import select

SLOW = replace(UNLIMITED, commands=100.0, commands_at_once=10)
LONG = "l" * (MAX_SHORT_MESSAGE_CHARACTERS + 1)


class LoopPeer(Inbox):
    log: ClassVar[list[tuple[LoopPeer, int]]] = []
    """All that was sent: to whom, and how many bytes."""
    store: ClassVar[SqliteStore]
    """That of the commit loop that was opened last."""

    def __init__(self, loop: CommitLoop, side: str = "", *, limited: bool = True) -> None:
        super().__init__()
        self.loop = loop
        self.connection.backlog.rate_limiter = RateLimiter() if limited else None
        self.pinged = 0
        loop.dispatcher.add_connection(self.connection)
        if side:
            self.say(type="bind", appid="x", side=side)

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        super().send(bodies, stamp)
        LoopPeer.log += [(self, len(body)) for body in bodies]

    def say(self, **message: object) -> None:
        self.loop.receive(self.connection, json.dumps(message), self.loop.now())

    def ping(self, times: int = 1, **more: str) -> None:
        for _ in range(times):
            self.say(type="ping", ping=self.pinged, **more)
            self.pinged += 1

    def open(self, mailbox: str = "m") -> None:
        self.say(type="open", mailbox=mailbox)

    def add(self, body: str = "00") -> None:
        self.say(type="add", phase="p", body=body)

    @property
    def pongs(self) -> list[int]:
        return [frame["pong"] for frame in self.frames if frame["type"] == "pong"]

    @property
    def errors(self) -> list[str]:
        return [frame["error"] for frame in self.frames if frame["type"] == "error"]


@asynccontextmanager
async def opened(
    data: Path,
    limits: Limits = UNLIMITED,
    clock: Clock | None = None,
    *,
    keep_usage: float | None = None,
    crash: bool = False,
) -> AsyncIterator[CommitLoop]:
    LoopPeer.log = []
    store = LoopPeer.store = SqliteStore.open(data)
    retention = commit_loop.Retention(prune_after=660.0, keep_usage=keep_usage)
    loop = await CommitLoop.open(store, clock or FakeClock(), FakeDice(), Policy(limits=limits), retention)
    running = asyncio.create_task(loop.run())
    try:
        yield loop
        if not crash:
            loop.stop()
            await running
    finally:
        running.cancel()
        await store.close()


async def turns(loop: CommitLoop) -> list[list[tuple[LoopPeer, int]]]:
    """Wait until all is done. Return what was sent in each turn of the event loop."""
    turns = []
    while not loop.idle.is_set():
        before = len(LoopPeer.log)
        await asyncio.sleep(0)
        turns.append(LoopPeer.log[before:])
    return turns


async def until_it_waits(loop: CommitLoop) -> None:
    """Let the commit loop do all that it will do without the clock: only its event shows that it waits for that."""
    await until("the commit loop waits", lambda: loop._sleep is not None and not loop._sleep.done())


async def time_goes_by(loop: CommitLoop, clock: FakeClock) -> None:
    await until_it_waits(loop)
    another = LoopPeer(loop)
    while not loop.idle.is_set():
        clock.now += 1.0
        another.ping()  # wakes the commit loop
        await until_it_waits(loop)


async def prune(loop: CommitLoop) -> None:
    loop.start_pruning()
    await loop.idle.wait()


async def a_second(loop: CommitLoop) -> None:
    loop.commit_deferred()
    await loop.idle.wait()


def read_only(refuses: bool) -> None:
    LoopPeer.store.database.execute(f"PRAGMA query_only = {int(refuses)}")


def received(connection: ConnectionState, text: str) -> ReceivedText:
    size, long = size_of(text), len(text) > MAX_SHORT_MESSAGE_CHARACTERS
    return ReceivedText(connection, Now(0.0, 0.0), text, size, size + ENTRY_BYTES, long)


def test_dropped_commands_do_not_run_and_those_under_way_do() -> None:
    queue = FairQueue()
    connection, other, third = [ConnectionState(Inbox()) for _ in range(3)]
    queue.put(received(third, LONG))
    queue.drop(third)
    assert (queue.held_bytes, third.backlog.held_bytes, third.backlog.queued) == (0, 0, 0)
    for text in (LONG, "s", LONG):
        queue.put(received(connection, text))
    queue.put(ConnectionLost(connection, Now(0.0, 0.0)))
    queue.put(received(other, "s"))
    batches = [queue.gather(0.0, UNLIMITED) for _ in range(2)]
    under_way = next(batch for batch in batches if batch[0].connection is connection)
    queue.drop(connection)
    assert queue.held_bytes == connection.backlog.held_bytes + other.backlog.held_bytes
    assert queue.held_bytes == len(LONG) + len("s") + 2 * ENTRY_BYTES
    assert all(queue.start(entry) for batch in batches for entry in batch)
    assert under_way == [received(connection, LONG)]
    rest = queue.gather(0.0, UNLIMITED)
    assert rest == [ConnectionLost(connection, Now(0.0, 0.0))], "who is lost is not forgotten"
    assert queue.start(rest[0])
    assert queue.empty
    assert (queue.held_bytes, connection.backlog.held_bytes, connection.backlog.queued) == (0, 0, 0)


def test_large_messages_fill_a_batch_sooner_than_many_small_ones() -> None:
    queue, connections = FairQueue(), [ConnectionState(Inbox()) for _ in range(20)]
    for _ in range(8):
        for connection in connections:
            queue.put(received(connection, "0" * (MAX_BATCH_WEIGHT // 20 + 1)))
    assert len(queue.gather(0.0, UNLIMITED)) == 20


async def test_a_client_that_sends_much_delays_others_by_two_batches_at_most(tmp_path: Path) -> None:
    """The event loop runs after each batch, even if nothing changed."""
    async with opened(tmp_path) as loop:
        floods, quiet = [LoopPeer(loop) for _ in range(20)], LoopPeer(loop)
        for flood in floods:
            flood.ping(1000)
        quiet.ping()
        most = max(len(turn) for turn in await turns(loop))
        assert most <= 2 * MAX_BATCH_COMMANDS, "each ping is answered by an ack and a pong"
        before = [peer for peer, _ in LoopPeer.log].index(quiet)
        assert before <= 2 * (2 * MAX_BATCH_COMMANDS + fair_queue.MAX_QUEUED_PER_CONNECTION * len(floods))
        assert [flood.pongs for flood in floods] == [list(range(1000))] * len(floods)


async def test_short_messages_wait_for_one_long_one_at_most(tmp_path: Path) -> None:
    async with opened(tmp_path) as loop:
        senders, quiet = [LoopPeer(loop) for _ in range(20)], LoopPeer(loop)
        for sender in senders:
            for _ in range(3):
                sender.say(type="ping", ping="0" * 2 * MAX_SHORT_MESSAGE_CHARACTERS)
        for number in range(5):
            quiet.ping()
            before = len(LoopPeer.log)
            while len(quiet.pongs) <= number:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            answers = Counter(peer is quiet for peer, _ in LoopPeer.log[before:])
            assert answers[False] <= 2 * 2, "an ack and a pong of what was under way, and of the next"
        await loop.idle.wait()
        assert [len(sender.pongs) for sender in senders] == [3] * 20


async def test_replies_and_deliveries_count_in_the_weight_of_a_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as loop:
        sender, readers = LoopPeer(loop, "a"), [LoopPeer(loop, "b") for _ in range(10)]
        sender.open()
        for _ in range(2):
            sender.add("0" * (MAX_BATCH_WEIGHT // 2))
        await loop.idle.wait()
        for reader in readers:
            reader.open()
        readers[0].ping()
        sizes = [sum(size for _, size in turn) for turn in await turns(loop)]
        assert readers[0].pongs == [0]
        assert all(frame["type"] == "message" for reader in readers[1:] for frame in reader.frames[-2:])
        assert sum(size > 0 for size in sizes) >= len(readers)
        assert max(sizes) < 2 * MAX_BATCH_WEIGHT


class TickingClock(FakeClock):
    def monotonic(self) -> float:
        self.now += 0.0005
        return super().monotonic()


async def test_a_batch_that_takes_long_ends_whatever_its_weight(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=TickingClock()) as loop:
        peer = LoopPeer(loop)
        peer.ping(100)
        most = max(len(turn) for turn in await turns(loop))
        assert most <= 2 * commit_loop.MAX_BATCH_SECONDS / 0.0005 * commit_loop.COMMANDS_PER_CLOCK_CHECK
        assert peer.pongs == list(range(100))


async def test_a_connection_is_not_read_while_many_of_its_commands_wait(tmp_path: Path) -> None:
    async with opened(tmp_path) as loop:
        flood = LoopPeer(loop)
        flood.ping(MAX_BACKLOG_COMMANDS - 1)
        assert not flood.paused
        flood.ping(1)
        assert flood.paused
        flood.ping(1000)  # what was read before that
        await loop.idle.wait()
        assert not flood.paused
        assert flood.pongs == list(range(MAX_BACKLOG_COMMANDS + 1000))


async def test_commands_beyond_the_limit_wait_and_are_answered_in_time(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, SLOW, clock) as loop:
        hasty, calm = LoopPeer(loop), LoopPeer(loop)
        hasty.ping(100)
        await until_it_waits(loop)
        assert hasty.pongs == list(range(11))
        assert hasty.paused
        calm.ping()
        await until_it_waits(loop)
        assert calm.pongs == [0]
        clock.now += 0.1
        calm.ping()
        await until_it_waits(loop)
        assert hasty.pongs == list(range(21))
        await time_goes_by(loop, clock)
        assert hasty.pongs == list(range(100))
        assert not hasty.paused


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 5))])
async def test_commands_put_back_keep_their_order(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are long, some connections have no limits, some are lost. Batches are taken at any time."""
    dice, clock = random.Random(seed), FakeClock()
    async with opened(tmp_path, SLOW, clock) as loop:
        peers = [LoopPeer(loop, limited=dice.random() < 0.7) for _ in range(30)]
        gone = [LoopPeer(loop) for _ in range(10)]
        for _ in range(60):
            monkeypatch.setattr(fair_queue, "MAX_CONNECTIONS_CHECKED", dice.choice((0, 1, 1000)))
            for peer in dice.sample(peers + gone, 12):
                peer.ping(dice.randrange(80))
                if dice.random() < 0.2:
                    peer.ping(more=LONG)
                if peer in gone and dice.random() < 0.3:
                    loop.lose(peer.connection)
                    gone.remove(peer)
            for _ in range(dice.randrange(6)):
                await asyncio.sleep(0)
            clock.now += dice.random()
        await time_goes_by(loop, clock)
        for peer in peers:
            assert peer.pongs == list(range(peer.pinged))
        for peer in peers + gone:
            backlog = peer.connection.backlog
            assert (backlog.queued, backlog.held_bytes, backlog.paused, peer.paused) == (0, 0, False, False)
        assert (len(loop.queue), loop.queue.held_bytes) == (0, 0)


async def test_commands_of_a_lost_connection_and_of_all_in_a_drain_run_without_delay(tmp_path: Path) -> None:
    async with opened(tmp_path, SLOW) as loop:
        gone = LoopPeer(loop, "a")
        gone.open()
        for _ in range(50):
            gone.add()
        await until_it_waits(loop)
        loop.lose(gone.connection)
        await loop.idle.wait()
        (mailbox,) = loop.dispatcher.state.mailboxes()
        assert len(mailbox.messages) == 50
        assert loop.dispatcher.connections == set()
        hasty = LoopPeer(loop)
        hasty.ping(1000)
        await until_it_waits(loop)
        assert len(hasty.pongs) < 1000
    assert hasty.pongs == list(range(1000))


CLOSED = SERVICE_RESTART, NOT_STORED


async def test_a_batch_that_was_not_stored_closes_the_connections_of_its_senders_only(tmp_path: Path) -> None:
    """Nothing is sent before the close: after an error shipped clients go on with what follows, or wait for ever."""
    clock = FakeClock()
    async with opened(tmp_path, SLOW, clock) as loop:
        listener, reader = LoopPeer(loop, "b"), LoopPeer(loop, "c")
        listener.open()
        await loop.idle.wait()
        listener.frames.clear()
        reader.frames.clear()
        read_only(True)
        hasty = LoopPeer(loop, "a")
        for _ in range(30):
            hasty.open()
            hasty.add()
        gone = LoopPeer(loop, "d")
        gone.open()
        loop.lose(gone.connection)
        await until_it_waits(loop)
        reader.ping()
        await until_it_waits(loop)
        read_only(False)
        await time_goes_by(loop, clock)
        assert (hasty.frames, hasty.verdict) == ([], CLOSED)
        assert (gone.frames, gone.verdict) == ([], None)
        assert (listener.frames, listener.verdict) == ([], None)
        assert (reader.pongs, reader.verdict) == ([0], None)
        (mailbox,) = loop.dispatcher.state.mailboxes()
        assert ([row.side for row in mailbox.sides], mailbox.messages) == (["b"], [])
        again = LoopPeer(loop, "a")
        again.open()
        again.add()
        await loop.idle.wait()
        assert [frame["type"] for frame in again.frames] == ["ack", "ack", "ack", "message"]
        assert [frame["type"] for frame in listener.frames] == ["message"]


async def test_a_refusal_counts_unless_its_batch_was_undone(tmp_path: Path) -> None:
    """The sender of an undone command sends it again, and may be refused then."""
    async with opened(tmp_path, replace(UNLIMITED, mailbox_messages=1)) as loop:
        quotas = loop.dispatcher.quotas
        for refuses, errors, verdict, refusals in (
            (True, [], CLOSED, {}),
            (False, [MAILBOX_FULL.message], None, {MAILBOX_FULL.reason: 1}),
        ):
            peer = LoopPeer(loop, "a")
            peer.open()
            await loop.idle.wait()
            read_only(refuses)
            peer.add()
            peer.add()
            await loop.idle.wait()
            assert (peer.errors, peer.verdict) == (errors, verdict)
            assert quotas.refusal_counts.since_start == refusals
        assert [loop.measurements.commands(Add, outcome) for outcome in (OK, REFUSED, UNDONE)] == [1, 1, 2]
        # A text that is too expensive to decode is a refusal, too.
        loop.receive(peer.connection, "," * (MAX_SHORT_MESSAGE_CHARACTERS + MAX_LONG_MESSAGE_SIGNS), loop.now())
        await loop.idle.wait()
        assert peer.verdict == (1009, TOO_EXPENSIVE.message)
        assert quotas.refusal_counts.since_start == {MAILBOX_FULL.reason: 1, TOO_EXPENSIVE.reason: 1}
        assert loop.measurements.commands(type(None), REFUSED) == 1


MAILBOXES = "SELECT mailbox_id FROM mailboxes"
RESULTS = "SELECT result FROM usage_mailboxes"


def column(data: Path, query: str) -> list[str]:
    return [row[0] for row in select(data / FILE, query)]


def binds(data: Path) -> list[str]:
    return column(data, "SELECT side FROM usage_client_versions ORDER BY id")


async def test_the_record_of_a_bind_waits_for_the_next_commit_for_a_second_at_most(tmp_path: Path) -> None:
    async with opened(tmp_path) as loop:
        first = LoopPeer(loop, "a")
        first.ping()
        await loop.idle.wait()
        assert [frame["type"] for frame in first.frames] == ["ack", "ack", "pong"]
        assert binds(tmp_path) == []
        LoopPeer(loop, "b").open()
        await loop.idle.wait()
        assert binds(tmp_path) == ["a", "b"]
        LoopPeer(loop, "c")
        await loop.idle.wait()
        await a_second(loop)
        assert binds(tmp_path) == ["a", "b", "c"]
        LoopPeer(loop, "d")
        await loop.idle.wait()
        read_only(True)
        await a_second(loop)
        refused = LoopPeer(loop, "e")
        refused.open()
        await loop.idle.wait()
        assert (refused.frames, refused.verdict) == ([], CLOSED)
        read_only(False)
        assert binds(tmp_path) == ["a", "b", "c"]
        await a_second(loop)
        assert binds(tmp_path) == ["a", "b", "c", "d"]
        for _ in range(MAX_BATCH_COMMANDS):
            LoopPeer(loop, "many")
            await loop.idle.wait()
        assert binds(tmp_path)[4:] == ["many"] * MAX_BATCH_COMMANDS, "they do not pile up"
        LoopPeer(loop, "last")
        await loop.idle.wait()
        assert binds(tmp_path)[-1] == "many"
    assert binds(tmp_path)[-1] == "last"


async def test_usage_records_are_kept_as_long_as_configured(tmp_path: Path) -> None:
    """If another program writes to the database when they are due, they are kept until the next time."""
    clock, count = FakeClock(), commit_loop.MAX_RECORDS_DROPPED_AT_ONCE + 100

    async def visit(loop: CommitLoop, mailbox: str) -> None:
        peer = LoopPeer(loop, "a")
        peer.open(mailbox)
        peer.say(type="close")
        loop.lose(peer.connection)
        await loop.idle.wait()

    async with opened(tmp_path, clock=clock, keep_usage=3600.0) as loop:
        for number in range(count):
            await visit(loop, f"m{number}")
        clock.now += 3000
        await visit(loop, "late")
        await prune(loop)
        assert len(column(tmp_path, RESULTS)) == count + 1
        clock.now += 601
        with patch.object(LoopPeer.store, "forget_usage", side_effect=StoreBusy("it is locked")):
            await prune(loop)
        assert len(column(tmp_path, RESULTS)) == count + 1
        await prune(loop)
        assert [len(column(tmp_path, RESULTS)), len(binds(tmp_path))] == [1, 1]


async def test_a_slice_of_the_pruning_drops_one_large_mailbox_or_many_small_ones(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock=clock) as loop:
        for name, body in (("a", "0" * 2_000_000), ("b", "0" * 2_000_000), ("c", "00"), ("d", "00")):
            peer = LoopPeer(loop, name)
            peer.open(name)
            peer.add(body)
            peer.add(body)
            loop.lose(peer.connection)
        await loop.idle.wait()
        state = loop.dispatcher.state
        state.end_grace_period()
        clock.now += 661
        left = [len(list(state.mailboxes())) for _ in prune_idle(loop.dispatcher, loop.now, 660.0, 0.0)]
        assert left[:2] == [3, 2]
        assert not list(state.mailboxes())


async def test_a_slice_of_the_pruning_ends_after_two_milliseconds(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=FakeClock()) as loop:
        for name in ("a", "b", "c", "d"):
            LoopPeer(loop, name).open(name)
        await loop.idle.wait()
        milliseconds = itertools.count()
        slow = lambda: Now(0.0, next(milliseconds) / 1000)  # noqa: E731
        assert len(list(prune_idle(loop.dispatcher, slow, 660.0, 0.0))) == 1


async def test_mailboxes_age_by_service_time_although_the_server_crashes_repeatedly(tmp_path: Path) -> None:
    """A run of a minute is too short to prune in, but service time adds up. Downtime does not exist in it."""
    clock = FakeClock()
    async with opened(tmp_path, clock=clock) as loop:
        LoopPeer(loop, "a").open()
        await loop.idle.wait()
    for mailboxes in (["m"], []):
        for _ in range(6):
            async with opened(tmp_path, clock=clock, crash=True) as loop:
                clock.now += 60
                await prune(loop)
            clock.now += 5000
        assert column(tmp_path, MAILBOXES) == ["m"]
        async with opened(tmp_path, clock=clock) as loop:
            clock.now += GRACE_SECONDS
            LoopPeer(loop, "b")  # any command: it is noticed that everybody had time to come back
            await prune(loop)
        assert column(tmp_path, MAILBOXES) == mailboxes
    assert column(tmp_path, RESULTS) == ["pruney"]


async def test_mailboxes_do_not_age_while_the_process_is_stopped(tmp_path: Path) -> None:
    """SIGSTOP, a virtual machine that is paused: CLOCK_MONOTONIC goes on, and nobody could come back."""
    machine = FakeClock()

    async def runs(loop: CommitLoop, seconds: int) -> None:
        for _ in range(seconds):
            machine.now += 1
            loop.now()  # as each tick does
        await prune(loop)

    async with opened(tmp_path, clock=SystemClock(machine.monotonic)) as loop:
        machine.now += 3600
        first = LoopPeer(loop, "a")
        await loop.idle.wait()
        assert loop.dispatcher.state.in_grace_period, "it still waits for its clients"
        await runs(loop, int(GRACE_SECONDS) + 1)
        first.open()
        other = LoopPeer(loop, "c")
        other.open("idle")
        loop.lose(other.connection)
        await loop.idle.wait()
        assert not loop.dispatcher.state.in_grace_period
        for seconds, left in ((600, {"m", "idle"}), (61, {"m"})):
            machine.now += 3600
            await runs(loop, seconds)
            assert {mailbox.mailbox_id for mailbox in loop.dispatcher.state.mailboxes()} == left


def traced(path: Path) -> list[tuple[float | None, ...]]:
    keys = ("server_rx", "commit_began", "commit", "server_tx")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [tuple(None if line[key] is None else line[key] - EPOCH for key in keys) for line in lines]


async def test_a_trace_tells_waiting_from_the_own_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changed nothing, or was not stored, has no commit."""
    clock, path = FakeClock(), tmp_path / "trace"
    async with opened(tmp_path, clock=clock) as loop:
        peer, unstored = LoopPeer(loop, "a"), LoopPeer(loop, "b")
        peer.open()
        unstored.open()
        await loop.idle.wait()
        with path.open("ab", buffering=0) as file:
            loop.trace = Trace(file.write)
            peer.ping()
            await loop.idle.wait()
            read_only(True)
            unstored.add()
            await loop.idle.wait()
            read_only(False)
            apply, coming = LoopPeer.store.apply, ["later"]

            async def slow(changes: Sequence[Change], now: Now) -> None:
                clock.now += 1  # the statements
                while coming:
                    peer.add(coming.pop())
                await apply(changes, now)
                clock.now += 2  # the flush

            monkeypatch.setattr(LoopPeer.store, "apply", slow)
            peer.add()
            await loop.idle.wait()
        assert traced(path) == [(0, None, None, 0), (0, None, None, 0), (0, 0, 3, 3), (1, 3, 6, 6)]
        monkeypatch.undo()
