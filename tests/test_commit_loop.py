"""The commit loop: the grace period after a start, service time, what is kept and for how long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.fair_queue import MAX_BATCH_COMMANDS
from restante.mailbox.core.limits import UNLIMITED
from restante.mailbox.core.model import Change, Now, Policy
from restante.mailbox.core.outcomes import OK, REFUSED, UNDONE
from restante.mailbox.core.pruning import prune_idle
from restante.mailbox.core.rules import MAILBOX_FULL
from restante.mailbox.protocol.messages import Add
from restante.mailbox.protocol.parsing import MAX_LONG_MESSAGE_SIGNS, MAX_SHORT_MESSAGE_CHARACTERS, TOO_EXPENSIVE
from restante.mailbox.server.commit_loop import (
    GRACE_SECONDS,
    MAX_BATCH_SECONDS,
    MAX_RECORDS_DROPPED_AT_ONCE,
    NOT_STORED,
    CommitLoop,
    Retention,
)
from restante.mailbox.server.system import SystemClock
from restante.mailbox.server.trace import TraceFile
from restante.mailbox.store.sqlite import Store
from support.dice import FakeDice
from support.mailbox.givens import EPOCH, FakeClock, Inbox
from support.mailbox.tables import sql_rows, sql_usage


class OpenLoop:
    """A running commit loop, and what a test does to it."""

    def __init__(self, commit_loop: CommitLoop, store: Store, clock: Any) -> None:
        self.commit_loop = commit_loop
        self.store = store
        self.clock = clock

    async def say(self, connection: ConnectionState, *texts: str) -> None:
        for text in texts:
            self.commit_loop.receive(connection, text)
        await self.commit_loop.idle.wait()

    async def enter(self, side: str, *texts: str) -> tuple[ConnectionState, Inbox]:
        inbox = Inbox()
        connection = inbox.connection
        self.commit_loop.dispatcher.add_connection(connection)
        await self.say(connection, json.dumps({"type": "bind", "appid": "x", "side": side}), *texts)
        return connection, inbox

    async def lose(self, connection: ConnectionState) -> None:
        self.commit_loop.lose(connection)
        await self.commit_loop.idle.wait()

    async def commit_deferred(self) -> None:
        self.commit_loop.commit_deferred()
        await self.commit_loop.idle.wait()

    async def prune(self) -> None:
        self.commit_loop.start_pruning()
        await self.commit_loop.idle.wait()


@asynccontextmanager
async def opened(
    data: Path, clock: Any, retention: Retention | None = None, *, crash: bool = False
) -> AsyncIterator[OpenLoop]:
    store = Store.open(data)
    commit_loop = await CommitLoop.open(store, clock, FakeDice(), Policy(), retention or Retention())
    running = asyncio.create_task(commit_loop.run())
    try:
        yield OpenLoop(commit_loop, store, clock)
        if not crash:
            commit_loop.stop()
            await running
    finally:
        running.cancel()
        await store.close()


LIST = '{"type": "list"}'
OPEN = '{"type": "open", "mailbox": "m"}'
ADD = '{"type": "add", "phase": "p", "body": "00"}'


async def test_after_a_start_nothing_is_pruned_and_no_side_counts_as_gone(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as loop:
        await loop.enter("a", OPEN, ADD)
        await loop.enter("b", OPEN)
        clock.now += 700
    clock.now += 5000  # downtime does not exist in service time
    async with opened(tmp_path, clock) as loop:
        await loop.prune()
        assert sql_rows(tmp_path)["mailboxes"] == "1"
        # b may be on its way back: nobody takes its place
        third, inbox = await loop.enter("c", OPEN)
        assert inbox.frames[-1]["error"] == "crowded"
        await loop.lose(third)
        # d was here, said nothing and left, in this run: that is gone
        clock.now += GRACE_SECONDS
        _, inbox = await loop.enter("d", OPEN)
        assert [frame["type"] for frame in inbox.frames] == ["ack", "ack", "message"]


async def test_mailboxes_age_although_the_server_crashes_repeatedly(tmp_path: Path) -> None:
    """Each run is a minute long, and too short to prune in, but service time adds up."""
    clock = FakeClock()
    async with opened(tmp_path, clock) as loop:
        await loop.enter("a", OPEN, ADD)
    for _ in range(20):
        async with opened(tmp_path, clock, crash=True) as loop:
            clock.now += 60
            await loop.prune()
    assert sql_rows(tmp_path)["mailboxes"] == "1"
    async with opened(tmp_path, clock) as loop:
        clock.now += GRACE_SECONDS
        await loop.enter("b")  # any command: it is noticed that everybody had time to come back
        await loop.prune()
    assert sql_rows(tmp_path)["mailboxes"] == "0"
    assert [record["result"] for record in sql_usage(tmp_path)["mailbox"]] == ["pruney"]


async def test_a_slice_of_the_pruning_drops_one_large_mailbox_or_many_small_ones(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as loop:
        for name, body in (("a", "00"), ("b", "00"), ("c", "0" * 2_000_000), ("d", "0" * 2_000_000)):
            adding = json.dumps({"type": "add", "phase": "1", "body": body})
            connection, _ = await loop.enter(name, json.dumps({"type": "open", "mailbox": name}), adding, adding)
            await loop.lose(connection)
        loop.commit_loop.dispatcher.state.end_grace_period()
        clock.now += 661
        slices = prune_idle(loop.commit_loop.dispatcher, loop.commit_loop.now, prune_after=660.0, rebooted=0.0)
        left = [len(list(loop.commit_loop.dispatcher.state.mailboxes())) for _ in slices]
        assert left[:2] == [3, 2]
        assert not list(loop.commit_loop.dispatcher.state.mailboxes())


def binds(data: Path) -> int:
    return len(sql_usage(data)["client"])


async def test_the_record_of_a_bind_is_committed_with_whatever_is_stored_next(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock(), crash=True) as loop:
        first, inbox = await loop.enter("a")
        assert [frame["type"] for frame in inbox.frames] == ["ack"]
        assert binds(tmp_path) == 0
        await loop.say(first, '{"type": "ping", "ping": 1}')
        assert binds(tmp_path) == 0
        await loop.enter("b", OPEN)
        assert binds(tmp_path) == 2


async def test_the_record_of_a_bind_is_committed_within_a_second_or_when_the_server_stops(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock()) as loop:
        await loop.enter("a")
        await loop.commit_deferred()
        assert binds(tmp_path) == 1
        await loop.commit_deferred()
        await loop.enter("b")
        assert binds(tmp_path) == 1
    assert binds(tmp_path) == 2


async def test_records_of_binds_do_not_pile_up(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock(), crash=True) as loop:
        for _ in range(MAX_BATCH_COMMANDS):
            await loop.enter("a")
        assert binds(tmp_path) == MAX_BATCH_COMMANDS


async def test_records_of_binds_that_are_refused_wait_for_the_next_second(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock(), crash=True) as loop:
        _, inbox = await loop.enter("a")
        loop.store.database.execute("PRAGMA query_only = 1")
        await loop.commit_deferred()
        _, told = await loop.enter("b", OPEN)  # both in one batch, and so both refused
        assert [frame.get("error") for frame in told.frames if frame["type"] == "error"] == [NOT_STORED, NOT_STORED]
        loop.store.database.execute("PRAGMA query_only = 0")
        assert binds(tmp_path) == 0
        await loop.commit_deferred()
        assert [record["side"] for record in sql_usage(tmp_path)["client"]] == ["a"]
        assert [frame["type"] for frame in inbox.frames] == ["ack"]


async def test_usage_records_are_kept_as_long_as_the_operator_wants(tmp_path: Path) -> None:
    clock, count = FakeClock(), MAX_RECORDS_DROPPED_AT_ONCE + 100
    async with opened(tmp_path, clock, Retention(keep_usage=3600.0)) as loop:
        for number in range(count):
            connection, _ = await loop.enter(
                "a", json.dumps({"type": "open", "mailbox": f"m{number}"}), '{"type": "close"}'
            )
            await loop.lose(connection)
        clock.now += 3000
        await loop.enter("b", '{"type": "open", "mailbox": "late"}', '{"type": "close"}')
        await loop.prune()
        assert len(sql_usage(tmp_path)["mailbox"]) == count + 1
        clock.now += 601
        await loop.prune()
        usage = sql_usage(tmp_path)
        assert [len(usage["mailbox"]), len(usage["client"])] == [1, 1]


async def test_mailboxes_do_not_age_while_the_process_is_stopped(tmp_path: Path) -> None:
    """SIGSTOP, a virtual machine that is paused: CLOCK_MONOTONIC goes on, and nobody could come back."""
    machine = FakeClock()

    async def runs(loop: OpenLoop, seconds: int) -> None:
        for _ in range(seconds):
            machine.now += 1
            loop.commit_loop.now()  # as each tick does
        await loop.prune()

    async with opened(tmp_path, SystemClock(machine.monotonic)) as loop:
        await runs(loop, 121)
        [(connection, _), _] = [await loop.enter(side, OPEN) for side in "ab"]
        await loop.lose(connection)
        [(other, _)] = [await loop.enter("c", OPEN.replace('"m"', '"idle"'))]
        await loop.lose(other)
        machine.now += 3600
        await runs(loop, 600)
        assert {mailbox.mailbox_id for mailbox in loop.commit_loop.dispatcher.state.mailboxes()} == {"m", "idle"}
        await runs(loop, 61)
        assert {mailbox.mailbox_id for mailbox in loop.commit_loop.dispatcher.state.mailboxes()} == {"m"}


async def test_a_process_that_was_stopped_after_its_start_still_waits_for_its_clients(tmp_path: Path) -> None:
    machine = FakeClock()
    async with opened(tmp_path, SystemClock(machine.monotonic)) as loop:
        machine.now += 3600
        connection, _ = await loop.enter("a")
        assert loop.commit_loop.dispatcher.state.in_grace_period
        for _ in range(int(GRACE_SECONDS)):
            machine.now += 1
            loop.commit_loop.now()
        await loop.say(connection, '{"type": "ping", "ping": 1}')
        assert not loop.commit_loop.dispatcher.state.in_grace_period


class TickingClock(FakeClock):
    """Goes on by half a millisecond each time it is looked at."""

    def monotonic(self) -> float:
        self.now += 0.0005
        return super().monotonic()


async def test_a_batch_that_takes_long_ends_whatever_its_weight(tmp_path: Path) -> None:
    async with opened(tmp_path, TickingClock()) as loop:
        connection, inbox = await loop.enter("a")
        batches: list[int] = []
        end_batch = loop.commit_loop.dispatcher.end_batch

        def counted() -> list[ConnectionState]:
            batches.append(len(inbox.connection.outbox))
            return end_batch()

        loop.commit_loop.dispatcher.end_batch = counted  # type: ignore[method-assign]
        for number in range(40):
            loop.commit_loop.receive(connection, json.dumps({"type": "ping", "ping": number}))
        await loop.commit_loop.idle.wait()
    assert [frame["pong"] for frame in inbox.frames if frame["type"] == "pong"] == list(range(40))
    assert sum(batches) == 80
    assert max(batches) <= 2 * MAX_BATCH_SECONDS / 0.0005


def traced(path: Path) -> list[tuple[float | None, ...]]:
    """Return the times of each line of a trace, since EPOCH."""
    keys = ("server_rx", "commit_began", "commit", "server_tx")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [tuple(None if line[key] is None else line[key] - EPOCH for key in keys) for line in lines]


async def test_a_trace_tells_waiting_for_the_batch_before_from_the_own_commit(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "trace"
    async with opened(tmp_path, clock) as loop:
        connection, _ = await loop.enter("a", OPEN)
        apply, coming = loop.store.apply, ['{"type": "add", "phase": "later", "body": "00"}']

        async def slow(changes: Sequence[Change], now: Now) -> None:
            clock.now += 1  # the statements
            while coming:
                loop.commit_loop.receive(connection, coming.pop())
            await apply(changes, now)
            clock.now += 2  # the flush

        loop.store.apply = slow  # type: ignore[method-assign]
        with closing(TraceFile(path)) as loop.commit_loop.trace:
            await loop.say(connection, ADD)
        assert traced(path) == [(0, 0, 3, 3), (1, 3, 6, 6)]


async def test_a_trace_has_no_commit_of_what_changed_nothing_or_was_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    async with opened(tmp_path, FakeClock()) as loop:
        connection, _ = await loop.enter("a", OPEN)
        with closing(TraceFile(path)) as loop.commit_loop.trace:
            await loop.say(connection, '{"type": "ping", "ping": 1}')
            loop.store.database.execute("PRAGMA query_only = 1")
            await loop.say(connection, ADD)
            loop.store.database.execute("PRAGMA query_only = 0")
            await loop.say(connection, ADD)
        assert traced(path) == [(0, None, None, 0), (0, None, None, 0), (0, 0, 0, 0)]


async def test_a_refusal_counts_unless_its_batch_was_undone(tmp_path: Path) -> None:
    """The sender of an undone command is told that it was not stored, not that it was refused."""
    async with opened(tmp_path, FakeClock()) as loop:
        dispatcher, measurements = loop.commit_loop.dispatcher, loop.commit_loop.measurements
        dispatcher.policy = Policy(limits=replace(UNLIMITED, mailbox_messages=1))
        connection, inbox = await loop.enter("a", OPEN)
        loop.store.database.execute("PRAGMA query_only = 1")
        await loop.say(connection, ADD, ADD)
        assert [frame["error"] for frame in inbox.frames if frame["type"] == "error"] == [NOT_STORED] * 2
        assert dispatcher.quotas.refusals == {}
        loop.store.database.execute("PRAGMA query_only = 0")
        await loop.say(connection, ADD, ADD)
        assert inbox.frames[-1]["error"] == MAILBOX_FULL
        assert dispatcher.quotas.refusals == {MAILBOX_FULL: 1}
        assert [measurements.commands(Add, each) for each in (OK, REFUSED, UNDONE)] == [1, 1, 2]


async def test_a_text_that_is_too_expensive_to_decode_is_a_refusal_and_a_refused_command(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock()) as loop:
        connection, inbox = await loop.enter("a")
        await loop.say(connection, "," * (MAX_SHORT_MESSAGE_CHARACTERS + MAX_LONG_MESSAGE_SIGNS))
        assert inbox.verdict == (1009, TOO_EXPENSIVE)
        assert loop.commit_loop.dispatcher.quotas.refusals == {TOO_EXPENSIVE: 1}
        assert loop.commit_loop.measurements.commands(type(None), REFUSED) == 1
