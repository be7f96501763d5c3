"""What outlives the live rows in every engine: usage records, and how long the service has run."""

from __future__ import annotations

import asyncio

from restante.common.usage_records import CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core import model
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from stores.engine import LIVE, USAGE, Engine
from support.bounds import BOUND
from support.dice import FakeDice
from support.mailbox.givens import FakeClock, mailbox_id
from support.mailbox.ledger import Ledger
from support.mailbox.picture import assert_shown

# ── usage records ────────────────────────────────────────────────────────────────────────────────


def ids(engine: Engine, table: str) -> list[int]:
    return [row[0] for row in engine.rows(f"SELECT id FROM {table} ORDER BY id")]


async def test_usage_rows_hold_the_records_and_have_no_origin(engine: Engine) -> None:
    nameplate = NameplateUsage("é", 1.5, None, 2.5, "lonely")
    mailbox = MailboxUsage("x", True, 1.5, 0.25, 2.5, "happy")
    await engine.store.apply([nameplate, mailbox, nameplate], model.Now(1.0, 1.0))
    times = "started, waiting_time, total_time, result"
    assert engine.rows(f"SELECT id, origin, app_id, {times} FROM usage_nameplates ORDER BY id") == [
        (1, "", "é", 1.5, None, 2.5, "lonely"),
        (2, "", "é", 1.5, None, 2.5, "lonely"),
    ]
    assert engine.rows(f"SELECT id, origin, app_id, for_nameplate, {times} FROM usage_mailboxes") == [
        (1, "", "x", 1, 1.5, 0.25, 2.5, "happy")
    ]


async def test_an_id_of_a_usage_row_is_never_used_again(engine: Engine) -> None:
    """Not after it was forgotten, not after all were, not after a restart in between."""

    async def use(wall: float) -> None:
        ledger = Ledger(await engine.store.view(), wall)
        ledger.bind("a")
        ledger.open("a", "m")
        ledger.claim("a", "4")
        ledger.release("a", "4")
        ledger.close("a", "m")
        ledger.close("a", mailbox_id(1))
        await ledger.commit(engine.store)

    given: dict[str, set[int]] = {table: set() for table in USAGE}
    for turn in range(4):
        await use(1000.0 * turn)
        for table in USAGE:
            new = set(ids(engine, table))
            assert new
            assert min(new) > max(given[table], default=0)
            given[table] |= new
        assert await engine.store.forget_usage(1e12, 100) == 4
        assert engine.count(*USAGE) == {}
        if turn % 2:
            await engine.restart()
        else:
            await engine.crash()


async def test_forgetting_deletes_old_records_up_to_the_maximum(engine: Engine) -> None:
    records = [
        record
        for started in (10.0, 50.0, 20.0, 40.0, 30.0)
        for record in (
            NameplateUsage("x", started, None, 1000.0, "lonely"),
            MailboxUsage("x", False, started, None, 1000.0, "lonely"),
        )
    ]
    await engine.store.apply([*records, CurrentUsage(0.0, 0.0, None, 0)], model.Now(60.0, 1.0))
    ledger = await Ledger.begin(engine.store)
    ledger.wall = 25.0
    ledger.bind("a")
    ledger.open("a", "m")
    await ledger.commit(engine.store)

    assert await engine.store.forget_usage(10.0, 10) == 0  # as old as that is not older
    assert await engine.store.forget_usage(40.0, 2) == 2 + 2 + 1
    assert engine.count(*USAGE) == {"usage_nameplates": 3, "usage_mailboxes": 3}
    assert await engine.store.forget_usage(40.0, 2) == 1 + 1
    assert await engine.store.forget_usage(40.0, 2) == 0
    for table in ("usage_nameplates", "usage_mailboxes"):
        assert engine.rows(f"SELECT started FROM {table} ORDER BY started") == [(40.0,), (50.0,)]
    assert engine.count("usage_current", *LIVE) == {"usage_current": 1, "mailboxes": 1}
    await assert_shown(engine.store, ledger)


# ── service time ─────────────────────────────────────────────────────────────────────────────────


async def test_service_time_is_saved_with_a_commit(engine: Engine) -> None:
    """A second of it may be lost, never more, and none is invented."""
    service = 0.0
    for step in (1.5, 0.25, 0.5, 0.0, 100.0, 0.75, 0.5, 0.75, 10.0):
        service += step
        await engine.store.apply([model.Pruned(0.0)], model.Now(5.0 + service, service))
        [(seconds, saved)] = engine.rows("SELECT seconds, saved FROM service")
        assert service - 1.0 < seconds <= service
        assert saved == 5.0 + seconds
        if step >= 10.0:
            await engine.restart()
            assert engine.store.service == service


async def test_service_time_never_decreases_across_restarts_and_clock_changes(engine: Engine) -> None:
    """The machine boots and counts from 0, somebody sets the wall clock back, the server crashes or ends in order."""
    served = [0.0]
    for wall, uptime in ((1e9, 5000.0), (2e9, 0.0), (5e8, 10.0), (1e9, 0.0)):
        clock = FakeClock(wall, uptime)
        commit_loop = await CommitLoop.open(engine.store, clock, FakeDice(), model.Policy(), Retention())
        assert commit_loop.now() == model.Now(wall, served[-1])
        running = asyncio.create_task(commit_loop.run())
        clock.now += 100.0
        clock.skew -= 150.0
        commit_loop.start_pruning()
        async with asyncio.timeout(BOUND):
            await commit_loop.idle.wait()
        commit_loop.stop()
        await running
        served.append(engine.rows("SELECT seconds FROM service")[0][0])
        await (engine.crash() if len(served) % 2 else engine.restart())
        assert engine.store.service == served[-1]
    assert served == [0.0, 100.0, 200.0, 300.0, 400.0]
