"""Who floods is slowed, and nobody else notices; nothing is lost, and all is done in order."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.mailbox.core import fair_queue
from restante.mailbox.core.connection_state import ConnectionLost, ConnectionState, QueueEntry, ReceivedText
from restante.mailbox.core.fair_queue import (
    MAX_BACKLOG_COMMANDS,
    MAX_BATCH_COMMANDS,
    MAX_BATCH_WEIGHT,
    MAX_QUEUED_PER_CONNECTION,
    FairQueue,
    is_long,
)
from restante.mailbox.core.limits import UNLIMITED, Limits, RateLimiter
from restante.mailbox.core.model import Now, Policy, size_of
from restante.mailbox.protocol.parsing import MAX_SHORT_MESSAGE_CHARACTERS
from restante.mailbox.server.commit_loop import NOT_STORED, CommitLoop, Retention
from restante.mailbox.store.sqlite import Store
from support.bounds import bounded
from support.dice import FakeDice
from support.effort import examples
from support.mailbox.givens import FakeClock, Inbox

SLOW = replace(UNLIMITED, commands=100.0, commands_at_once=10)


class Peer(Inbox):
    """A client, and its connection."""

    order: ClassVar[list[Peer]] = []

    def __init__(self, commit_loop: CommitLoop, *, hurried: bool = True) -> None:
        super().__init__()
        self.commit_loop = commit_loop
        self.connection = ConnectionState(self)
        self.connection.backlog.rate_limiter = RateLimiter() if hurried else None
        self.said = 0
        commit_loop.dispatcher.add_connection(self.connection)

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        super().send(bodies, stamp)
        Peer.order += [self] * len(bodies)

    def ping(self, times: int = 1) -> None:
        for _ in range(times):
            self.say(type="ping", ping=self.said)
            self.said += 1

    def say(self, **message: object) -> None:
        self.commit_loop.receive(self.connection, json.dumps(message))

    @property
    def pongs(self) -> list[int]:
        return [frame["pong"] for frame in self.frames if frame["type"] == "pong"]


def received(connection: ConnectionState, text: str, now: Now) -> ReceivedText:
    return ReceivedText(connection, text, size_of(text), now)


@asynccontextmanager
async def opened(data: Path, limits: Limits = UNLIMITED) -> AsyncIterator[tuple[CommitLoop, FakeClock]]:
    Peer.order = []
    clock, store = FakeClock(), Store.open(data)
    commit_loop = await CommitLoop.open(store, clock, FakeDice(), Policy(limits=limits), Retention())
    running = asyncio.create_task(commit_loop.run())
    try:
        yield commit_loop, clock
        commit_loop.stop()
        await running
    finally:
        running.cancel()
        await store.close()


async def time_goes_by(commit_loop: CommitLoop, clock: FakeClock) -> None:
    """Let the clock go on until everything is done."""
    await some_turns(commit_loop)
    while not commit_loop.idle.is_set():
        clock.now += 1.0
        commit_loop._wake_up()
        await some_turns(commit_loop)


async def some_turns(commit_loop: CommitLoop) -> None:
    """Let the commit loop do all that it will do without the clock: until it waits to be woken."""
    async with bounded("the commit loop waits"):
        # It has nothing to tell who waits for it to wait.
        while commit_loop._wake.is_set() or not commit_loop._wake._waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_client_that_sends_much_delays_others_by_two_batches_at_most(tmp_path: Path) -> None:
    async with opened(tmp_path) as (commit_loop, _):
        floods, quiet = [Peer(commit_loop) for _ in range(20)], Peer(commit_loop)
        for flood in floods:
            flood.ping(1000)
        quiet.ping()
        await commit_loop.idle.wait()
        before = Peer.order.index(quiet)
        assert before <= 2 * (2 * MAX_BATCH_COMMANDS + MAX_QUEUED_PER_CONNECTION * len(floods)), (
            "each ping is answered by an ack and a pong"
        )
        assert [flood.pongs for flood in floods] == [list(range(1000))] * len(floods)


async def test_large_messages_fill_a_batch_sooner_than_many_small_ones(tmp_path: Path) -> None:
    async with opened(tmp_path) as (commit_loop, _):
        floods, quiet = [Peer(commit_loop) for _ in range(20)], Peer(commit_loop)
        for flood in floods:
            for _ in range(8):
                flood.say(type="ping", ping="0" * (MAX_BATCH_WEIGHT // 20))
        quiet.ping()
        assert len(commit_loop.queue.gather(0.0, UNLIMITED)) == 20


async def test_short_messages_wait_for_one_long_one_at_most(tmp_path: Path) -> None:
    async with opened(tmp_path) as (commit_loop, _):
        senders, quiet = [Peer(commit_loop) for _ in range(20)], Peer(commit_loop)
        for sender in senders:
            for _ in range(3):
                sender.say(type="ping", ping="0" * 2 * MAX_SHORT_MESSAGE_CHARACTERS)
        for number in range(5):
            quiet.ping()
            before = len(Peer.order)
            while len(quiet.pongs) <= number:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            answers = Counter(each is quiet for each in Peer.order[before:])
            assert answers[False] <= 2 * 2, "an ack and a pong of what was under way, and of the next"
        await commit_loop.idle.wait()
        assert [len(sender.pongs) for sender in senders] == [3] * 20


@given(
    said=st.lists(st.tuples(st.integers(0, 2), st.booleans() | st.none()), max_size=60),
    gathers=st.lists(st.integers(1, 10)),
    looks=st.sampled_from((0, 1, 1000)),
)
@examples(200)
def test_commands_of_one_connection_run_in_order_whatever_their_length(
    said: list[tuple[int, bool | None]], gathers: list[int], looks: int
) -> None:
    """None: its connection is lost. Between the messages, batches are taken at any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_queue, "MAX_CONNECTIONS_CHECKED", looks)
        check_the_order(said, gathers)


def check_the_order(said: list[tuple[int, bool | None]], gathers: list[int]) -> None:
    queue, connections = FairQueue(), [ConnectionState(Inbox()) for _ in range(3)]
    put: dict[ConnectionState, list[QueueEntry]] = {each: [] for each in connections}
    done: dict[ConnectionState, list[QueueEntry]] = {each: [] for each in connections}

    def take_a_batch() -> None:
        batch = queue.gather(0.0, UNLIMITED)
        assert len(batch) == 1 or not any(is_long(entry) for entry in batch)
        for number, entry in enumerate(batch):
            if number == 5:
                queue.put_back(batch[number:])
                break
            assert queue.start(entry)
            done[entry.connection].append(entry)

    pauses = set(itertools.accumulate(gathers))
    for number, (who, long) in enumerate(said):
        now = Now(0.0, number)
        entry: QueueEntry = ConnectionLost(connections[who], now)
        if long is not None:
            entry = received(
                connections[who], str(number).ljust(MAX_SHORT_MESSAGE_CHARACTERS + 1 if long else 1), now
            )
        put[connections[who]].append(entry)
        queue.put(entry)
        if number in pauses:
            take_a_batch()
    while not queue.empty:
        take_a_batch()
    assert done == put
    assert (len(queue), queue.held) == (0, 0)
    assert all((each.backlog.queued, each.backlog.held, each.backlog.paused) == (0, 0, False) for each in connections)


def test_dropped_commands_do_not_run_and_those_under_way_do() -> None:
    queue, connection, other = FairQueue(), ConnectionState(Inbox()), ConnectionState(Inbox())
    long, short, now = "l" * (MAX_SHORT_MESSAGE_CHARACTERS + 1), "s", Now(0.0, 0.0)
    for said in (long, short, long):
        queue.put(received(connection, said, now))
    queue.put(ConnectionLost(connection, now))
    queue.put(received(other, short, now))
    batches = [queue.gather(0.0, UNLIMITED) for _ in range(2)]
    under_way = next(batch for batch in batches if batch[0].connection is connection)
    queue.drop(connection)
    assert queue.held == connection.backlog.held + other.backlog.held
    assert queue.held == len(long) + len(short) + 2 * fair_queue.ENTRY_BYTES
    assert all(queue.start(entry) for batch in batches for entry in batch)
    assert under_way == [received(connection, long, now)]
    rest = queue.gather(0.0, UNLIMITED)
    assert rest == [ConnectionLost(connection, now)], "who is lost is not forgotten"
    assert queue.start(rest[0])
    assert queue.empty
    assert (queue.held, connection.backlog.held, connection.backlog.queued) == (0, 0, 0)


def test_a_long_message_that_is_dropped_before_its_turn_does_not_run() -> None:
    queue, connection, other = FairQueue(), ConnectionState(Inbox()), ConnectionState(Inbox())
    for each in (connection, other):
        queue.put(received(each, "l" * (MAX_SHORT_MESSAGE_CHARACTERS + 1), Now(0.0, 0.0)))
    queue.drop(connection)
    assert [entry.connection for entry in queue.gather(0.0, UNLIMITED)] == [other]
    assert (connection.backlog.held, connection.backlog.queued) == (0, 0)
    assert queue.held == MAX_SHORT_MESSAGE_CHARACTERS + 1 + fair_queue.ENTRY_BYTES


async def test_replies_and_deliveries_count_in_the_weight_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as (commit_loop, _):
        sender, readers = Peer(commit_loop), [Peer(commit_loop) for _ in range(10)]
        sender.say(type="bind", appid="x", side="a")
        sender.say(type="open", mailbox="m")
        for number in range(2):
            sender.say(type="add", phase=str(number), body="0" * (MAX_BATCH_WEIGHT // 2))
        for reader in readers:
            reader.say(type="bind", appid="x", side="b")
        await commit_loop.idle.wait()
        batches: list[int] = []
        speak = commit_loop._send_replies

        def weigh_and_speak() -> None:
            batches.append(sum(len(body) for each in commit_loop.dispatcher.with_output for body in each.outbox))
            speak()

        monkeypatch.setattr(commit_loop, "_send_replies", weigh_and_speak)
        for reader in readers:
            reader.say(type="open", mailbox="m")
        readers[0].ping()
        await commit_loop.idle.wait()
        assert all([frame["phase"] for frame in reader.frames[-2:]] == ["0", "1"] for reader in readers[1:])
        assert readers[0].pongs == [0]
        assert len([size for size in batches if size]) >= len(readers)
        assert max(batches) < 2 * MAX_BATCH_WEIGHT


async def test_the_event_loop_runs_after_each_batch_even_if_nothing_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (commit_loop, _):
        said: list[int] = []

        async def one_turn() -> None:
            while not commit_loop.idle.is_set():
                said.append(len(Peer.order))
                await asyncio.sleep(0)

        for flood in [Peer(commit_loop) for _ in range(20)]:
            flood.ping(200)
        await one_turn()
        said.append(len(Peer.order))
        assert said[-1] == 20 * 200 * 2
        assert max(after - before for before, after in itertools.pairwise(said)) <= 2 * MAX_BATCH_COMMANDS


async def test_a_connection_is_not_read_while_many_of_its_commands_wait(tmp_path: Path) -> None:
    async with opened(tmp_path) as (commit_loop, _):
        flood = Peer(commit_loop)
        flood.ping(MAX_BACKLOG_COMMANDS - 1)
        assert not flood.paused
        flood.ping(1)
        assert flood.paused
        flood.ping(1000)  # what was read before that
        await commit_loop.idle.wait()
        assert not flood.paused
        assert flood.pongs == list(range(MAX_BACKLOG_COMMANDS + 1000))


async def test_commands_beyond_the_limit_wait_and_are_answered_in_time(tmp_path: Path) -> None:
    async with opened(tmp_path, SLOW) as (commit_loop, clock):
        hasty, calm = Peer(commit_loop), Peer(commit_loop)
        hasty.ping(100)
        await some_turns(commit_loop)
        assert hasty.pongs == list(range(11))
        assert hasty.paused
        calm.ping()
        await some_turns(commit_loop)
        assert calm.pongs == [0]
        clock.now += 0.1
        calm.ping()
        await some_turns(commit_loop)
        assert hasty.pongs == list(range(21))
        await time_goes_by(commit_loop, clock)
        assert hasty.pongs == list(range(100))
        assert not hasty.paused


async def test_deliveries_to_others_are_charged_to_the_sender(tmp_path: Path) -> None:
    limits = replace(UNLIMITED, bytes=1000.0, bytes_at_once=20_000)
    async with opened(tmp_path, limits) as (commit_loop, _):
        peers = [Peer(commit_loop) for _ in range(10)]
        for peer in peers:
            peer.say(type="bind", appid="x", side="a")
            peer.say(type="open", mailbox="m")
        await commit_loop.idle.wait()
        peers[0].say(type="add", phase="p", body="0" * 2000)  # 20 kB to ten connections
        peers[0].ping()
        peers[1].ping()
        await some_turns(commit_loop)
        assert (peers[0].pongs, peers[1].pongs) == ([], [0])


async def test_a_list_and_a_replay_are_charged_for_their_size(tmp_path: Path) -> None:
    limits = replace(UNLIMITED, bytes=1000.0, bytes_at_once=2000)
    async with opened(tmp_path, limits) as (commit_loop, _):
        maker = Peer(commit_loop, hurried=False)
        maker.say(type="bind", appid="x", side="a")
        maker.say(type="open", mailbox="m")
        maker.say(type="add", phase="p", body="0" * 3000)
        for number in range(200):
            owner = Peer(commit_loop, hurried=False)
            owner.say(type="bind", appid="x", side=f"s{number}")
            owner.say(type="claim", nameplate=str(number))
        await commit_loop.idle.wait()
        for costly in ({"type": "list"}, {"type": "open", "mailbox": "m"}):
            asking = Peer(commit_loop)
            asking.say(type="bind", appid="x", side="a")
            asking.say(**costly)
            asking.ping()
            await some_turns(commit_loop)
            assert len(asking.frames) >= 3
            assert asking.pongs == [], costly


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 5))])
async def test_commands_that_are_put_back_run_in_order(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    async with opened(tmp_path, SLOW) as (commit_loop, clock):
        peers = [Peer(commit_loop, hurried=dice.random() < 0.7) for _ in range(30)]
        for _ in range(60):
            for peer in dice.sample(peers, 10):
                peer.ping(dice.randrange(80))
            for _ in range(dice.randrange(6)):
                await asyncio.sleep(0)
            clock.now += dice.random()
        await time_goes_by(commit_loop, clock)
        for peer in peers:
            assert peer.pongs == list(range(peer.said))
            assert not peer.paused


async def test_commands_of_a_lost_connection_run_without_delay(tmp_path: Path) -> None:
    async with opened(tmp_path, SLOW) as (commit_loop, _):
        hasty = Peer(commit_loop)
        hasty.say(type="bind", appid="x", side="a")
        hasty.say(type="open", mailbox="m")
        for _ in range(50):
            hasty.say(type="add", phase="p", body="")
        await some_turns(commit_loop)
        commit_loop.lose(hasty.connection)
        await commit_loop.idle.wait()
        (mailbox,) = commit_loop.dispatcher.state.mailboxes()
        assert len(mailbox.messages) == 50
        assert commit_loop.dispatcher.connections == set()


async def test_a_drain_ignores_rate_limits(tmp_path: Path) -> None:
    async with opened(tmp_path, SLOW) as (commit_loop, _):
        hasty = Peer(commit_loop)
        hasty.ping(1000)
        await some_turns(commit_loop)
        assert len(hasty.pongs) < 1000
    assert hasty.pongs == list(range(1000))


async def test_a_refused_batch_refuses_only_its_own_commands(tmp_path: Path) -> None:
    async with opened(tmp_path, SLOW) as (commit_loop, clock):
        hasty = Peer(commit_loop)
        store = commit_loop._store
        store.database.execute("PRAGMA query_only = 1")
        hasty.say(type="bind", appid="x", side="a")
        for _ in range(30):
            hasty.say(type="open", mailbox="m")
        await some_turns(commit_loop)
        refused = [frame["error"] for frame in hasty.frames if frame["type"] == "error"]
        assert set(refused) == {NOT_STORED}
        assert len(refused) == 11
        store.database.execute("PRAGMA query_only = 0")
        await time_goes_by(commit_loop, clock)
        errors = [frame["error"] for frame in hasty.frames if frame["type"] == "error"]
        assert errors[11:] == ["must bind first"] * 20
