"""The office: settling after a start, service time, what is kept and for how long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from restante.mailbox.core.dispatcher import Connection
from restante.mailbox.core.fair_queue import BATCH
from restante.mailbox.core.model import Policy
from restante.mailbox.core.pruning import sweep
from restante.mailbox.server.commit_loop import REFUSED, SETTLING, CommitLoop, Lifetime
from restante.mailbox.server.server import SystemClock
from restante.mailbox.store.sqlite import SqliteStore
from support.mailbox.givens import FakeClock, FakeDice, Inbox
from support.mailbox.tables import sql_rows, sql_usage


class Desk:
    """An office that is open, and what one can do there."""

    def __init__(self, office: CommitLoop, store: SqliteStore, clock: Any) -> None:
        self.office = office
        self.store = store
        self.clock = clock

    async def say(self, connection: Connection, *texts: str) -> None:
        for text in texts:
            self.office.receive(connection, text)
        await self.office.idle.wait()

    async def enter(self, side: str, *texts: str) -> tuple[Connection, Inbox]:
        inbox = Inbox()
        connection = inbox.connection
        self.office.desk.meet(connection)
        await self.say(connection, json.dumps({"type": "bind", "appid": "x", "side": side}), *texts)
        return connection, inbox

    async def lose(self, connection: Connection) -> None:
        self.office.lose(connection)
        await self.office.idle.wait()

    async def write_down(self) -> None:
        self.office.write_down()
        await self.office.idle.wait()

    async def sweep(self) -> None:
        self.office.sweep()
        await self.office.idle.wait()


@asynccontextmanager
async def opened(
    data: Path, clock: Any, lifetime: Lifetime | None = None, *, crash: bool = False
) -> AsyncIterator[Desk]:
    store = SqliteStore.open(data)
    office = await CommitLoop.open(store, clock, FakeDice(), Policy(), lifetime or Lifetime())
    running = asyncio.create_task(office.run())
    yield Desk(office, store, clock)
    if crash:
        running.cancel()
    else:
        office.stop()
        await running
    await store.close()


OPEN = '{"type": "open", "mailbox": "m"}'
ADD = '{"type": "add", "phase": "p", "body": "00"}'


async def test_right_after_a_start_nothing_is_pruned_and_nobody_is_gone(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as desk:
        await desk.enter("a", OPEN, ADD)
        await desk.enter("b", OPEN)
        clock.now += 700
    clock.now += 5000  # downtime does not exist in service time
    async with opened(tmp_path, clock) as desk:
        await desk.sweep()
        assert sql_rows(tmp_path)["mailboxes"] == "1"
        # b may be on its way back: nobody takes its place
        third, inbox = await desk.enter("c", OPEN)
        assert inbox.frames[-1]["error"] == "crowded"
        await desk.lose(third)
        # d was here, said nothing and left, in this run: that is gone
        clock.now += SETTLING
        _, inbox = await desk.enter("d", OPEN)
        assert [frame["type"] for frame in inbox.frames] == ["ack", "ack", "message"]


async def test_who_left_in_this_run_is_gone_even_right_after_a_start(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as desk:
        await desk.enter("a", OPEN, ADD)
        second, _ = await desk.enter("b", OPEN)
        await desk.lose(second)
        _, inbox = await desk.enter("c", OPEN)
        assert inbox.frames[-1]["type"] == "message"


async def test_crash_loops_still_age(tmp_path: Path) -> None:
    """Each run is a minute long, and too short to prune in; service time adds up all the same."""
    clock = FakeClock()
    async with opened(tmp_path, clock) as desk:
        await desk.enter("a", OPEN, ADD)
    for _ in range(20):
        async with opened(tmp_path, clock, crash=True) as desk:
            clock.now += 60
            await desk.sweep()
    assert sql_rows(tmp_path)["mailboxes"] == "1"
    async with opened(tmp_path, clock) as desk:
        clock.now += SETTLING
        await desk.enter("b")  # any command: it is noticed that everybody had time to come back
        await desk.sweep()
    assert sql_rows(tmp_path)["mailboxes"] == "0"
    assert [record["result"] for record in sql_usage(tmp_path)["mailbox"]] == ["pruney"]


async def test_a_clock_set_back_and_forward_prunes_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as desk:
        clock.now += SETTLING
        first, inbox = await desk.enter("a", OPEN)
        for phase, skew in (("1", 0.0), ("2", -86400.0), ("3", 86400.0)):
            clock.skew = skew
            await desk.say(first, json.dumps({"type": "add", "phase": phase, "body": ""}))
        await desk.lose(first)
        await desk.sweep()
        _, inbox = await desk.enter("b", OPEN)
        assert [frame["phase"] for frame in inbox.frames if frame["type"] == "message"] == ["1", "2", "3"]
        clock.skew = -86400.0
        await desk.enter("a", '{"type": "close", "mailbox": "m"}')
        await desk.enter("b", '{"type": "close", "mailbox": "m", "mood": "happy"}')
        assert [record["total"] for record in sql_usage(tmp_path)["mailbox"]] == ["0"]


async def test_a_touch_outlives_a_crash_once_it_was_saved(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock, crash=True) as desk:
        first, _ = await desk.enter("a", OPEN)
        clock.now += 600
        await desk.lose(first)
        desk.office.save()
        await desk.office.idle.wait()
    async with opened(tmp_path, clock) as desk:
        clock.now += 600
        await desk.enter("b")
        await desk.sweep()
        assert sql_rows(tmp_path)["mailboxes"] == "1"
        clock.now += 61
        await desk.sweep()
        assert sql_rows(tmp_path)["mailboxes"] == "0"


async def test_a_slice_of_a_sweep_drops_one_large_mailbox_or_many_small_ones(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as desk:
        for name, body in (("a", "00"), ("b", "00"), ("c", "0" * 2_000_000), ("d", "0" * 2_000_000)):
            adding = json.dumps({"type": "add", "phase": "1", "body": body})
            connection, _ = await desk.enter(name, json.dumps({"type": "open", "mailbox": name}), adding, adding)
            await desk.lose(connection)
        desk.office.desk.state.settled()
        clock.now += 661
        slices = sweep(desk.office.desk, desk.office.now, prune_after=660.0, rebooted=0.0)
        left = [len(list(desk.office.desk.state.mailboxes())) for _ in slices]
        assert left[:2] == [3, 2]
        assert not list(desk.office.desk.state.mailboxes())


def binds(data: Path) -> int:
    return len(sql_usage(data)["client"])


async def test_the_record_of_a_bind_is_committed_with_whatever_is_stored_next(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock(), crash=True) as desk:
        first, inbox = await desk.enter("a")
        assert [frame["type"] for frame in inbox.frames] == ["ack"]
        assert binds(tmp_path) == 0
        await desk.say(first, '{"type": "ping", "ping": 1}')
        assert binds(tmp_path) == 0
        await desk.enter("b", OPEN)
        assert binds(tmp_path) == 2


async def test_the_record_of_a_bind_is_committed_within_a_second_or_when_the_server_stops(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock()) as desk:
        await desk.enter("a")
        await desk.write_down()
        assert binds(tmp_path) == 1
        await desk.write_down()
        await desk.enter("b")
        assert binds(tmp_path) == 1
    assert binds(tmp_path) == 2


async def test_records_of_binds_do_not_pile_up(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock(), crash=True) as desk:
        for _ in range(BATCH):
            await desk.enter("a")
        assert binds(tmp_path) == BATCH


async def test_records_of_binds_that_are_refused_wait_for_the_next_second(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock(), crash=True) as desk:
        _, inbox = await desk.enter("a")
        desk.store.database.execute("PRAGMA query_only = 1")
        await desk.write_down()
        _, told = await desk.enter("b", OPEN)  # both in one batch, and so both refused
        assert [frame.get("error") for frame in told.frames if frame["type"] == "error"] == [REFUSED, REFUSED]
        desk.store.database.execute("PRAGMA query_only = 0")
        assert binds(tmp_path) == 0
        await desk.write_down()
        assert [record["side"] for record in sql_usage(tmp_path)["client"]] == ["a"]
        assert [frame["type"] for frame in inbox.frames] == ["ack"]


@pytest.mark.parametrize("count", [10, 600])
async def test_usage_records_are_kept_as_long_as_the_operator_wants(tmp_path: Path, count: int) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock, Lifetime(keep_usage=3600.0)) as desk:
        for number in range(count):
            connection, _ = await desk.enter(
                "a", json.dumps({"type": "open", "mailbox": f"m{number}"}), '{"type": "close"}'
            )
            await desk.lose(connection)
        clock.now += 3000
        await desk.enter("b", '{"type": "open", "mailbox": "late"}', '{"type": "close"}')
        await desk.sweep()
        assert len(sql_usage(tmp_path)["mailbox"]) == count + 1
        clock.now += 601
        await desk.sweep()
        usage = sql_usage(tmp_path)
        assert [len(usage["mailbox"]), len(usage["client"])] == [1, 1]


async def test_time_in_which_the_process_stands_still_makes_nothing_older(tmp_path: Path) -> None:
    """SIGSTOP, a virtual machine that is paused: CLOCK_MONOTONIC goes on, and nobody could come back."""
    machine = FakeClock()

    async def runs(desk: Desk, seconds: int) -> None:
        for _ in range(seconds):
            machine.now += 1
            desk.office.now()  # as each tick does
        await desk.sweep()

    async with opened(tmp_path, SystemClock(machine.monotonic)) as desk:
        await runs(desk, 121)
        [(connection, _), _] = [await desk.enter(side, OPEN) for side in "ab"]
        await desk.lose(connection)
        [(other, _)] = [await desk.enter("c", OPEN.replace('"m"', '"idle"'))]
        await desk.lose(other)
        machine.now += 3600
        await runs(desk, 600)
        assert {mailbox.mailbox_id for mailbox in desk.office.desk.state.mailboxes()} == {"m", "idle"}
        await runs(desk, 61)
        assert {mailbox.mailbox_id for mailbox in desk.office.desk.state.mailboxes()} == {"m"}


async def test_a_process_that_stands_still_after_its_start_waits_for_its_clients_all_the_same(tmp_path: Path) -> None:
    machine = FakeClock()
    async with opened(tmp_path, SystemClock(machine.monotonic)) as desk:
        machine.now += 3600
        connection, _ = await desk.enter("a")
        assert desk.office.desk.state.settling
        for _ in range(int(SETTLING)):
            machine.now += 1
            desk.office.now()
        await desk.say(connection, '{"type": "ping", "ping": 1}')
        assert not desk.office.desk.state.settling
