"""What each store promises: a view shows what was applied; and records, which stay."""

from __future__ import annotations

import asyncio

import pytest

from restante.common.usage_records import CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core import model
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from stores.conftest import LIVE, USAGE, StoreData, assert_shown
from support.bounds import BOUND
from support.dice import FakeDice
from support.mailbox.givens import FakeClock
from support.mailbox.ledger import APP, Ledger

pytestmark = pytest.mark.xdist_group("postgres")


async def test_odd_names_and_values_are_kept_apart_and_as_they_were(data: StoreData) -> None:
    """Any batches of usual ones are for the machine (tests/machine), which looks into a store after each step."""
    boxes = ("m", "", "a\x01", "a\x01b", "é", "e\u0301", "'; DROP TABLE mailboxes; --")
    bodies = (b'"00"', b"12.50", b'{"a": [1,\n 2]}', b'"\\u00e9 \\n"', '"é😀\x7f"'.encode())
    ledger = await Ledger.begin(data.store)
    for app in ("x", "X", ""):
        for side in ("a", "A", "é"):
            ledger.bind(side, app)
        for number, box in enumerate(boxes):
            for side in ("a", "A"):
                ledger.open(side, box, app)
            body, phase, msg_id = (bodies[(number + shift) % len(bodies)] for shift in range(3))
            ledger.add("a", box, body, phase, msg_id, app)
        for side, nameplate in (("a", "1"), ("é", "007")):
            ledger.claim(side, nameplate, app)
            ledger.allocate(side, app)
    await ledger.commit(data.store)
    await data.restart()
    ledger.state = await assert_shown(data.store, ledger)
    assert len(list(ledger.state.mailboxes())) == 3 * (len(boxes) + 4)
    for app in ("x", ""):
        for box in boxes:
            ledger.prune(box, app)
    await ledger.commit(data.store)
    await assert_shown(data.store, ledger)


async def test_a_touch_is_not_written_and_a_saved_one_is(data: StoreData) -> None:
    ledger = await Ledger.begin(data.store)
    ledger.open("a", "m")
    await ledger.commit(data.store)
    ledger.pass_(50.0)
    ledger.open("a", "m")  # a touch, and nothing else
    assert ledger.changes == []
    await data.store.apply([model.MailboxTouched(ledger.mailbox("m"), 50.0)], ledger.now)
    assert data.rows("SELECT touched FROM mailboxes") == [(0.0,)]
    ledger.note(model.MailboxSaved(ledger.mailbox("m")))
    await ledger.commit(data.store)
    assert data.rows("SELECT touched FROM mailboxes") == [(50.0,)]
    assert (await assert_shown(data.store, ledger)).app(APP).mailboxes["m"].touched == 50.0


async def test_an_id_of_a_usage_row_is_never_used_again(data: StoreData) -> None:
    """Not after it was forgotten, not after all were, not after a restart in between."""
    highest = dict.fromkeys(USAGE, 0)
    for turn in range(4):
        ledger = Ledger(await data.store.view(), 1000.0 * turn)
        ledger.bind("a")
        ledger.open("a", "m")
        ledger.close("a", "m")
        ledger.claim("a", "4")
        ledger.release("a", "4")
        await ledger.commit(data.store)
        for table in USAGE:
            ids = [number for (number,) in data.rows(f"SELECT id FROM {table}")]
            assert min(ids) > highest[table]
            highest[table] = max(ids)
        assert await data.store.forget_usage(1e12, 100) == 3
        assert data.count(*USAGE) == {}
        await (data.restart() if turn % 2 else data.crash())


async def test_forgetting_deletes_old_records_up_to_the_maximum(data: StoreData) -> None:
    records = [
        record
        for started in (10.0, 50.0, 20.0, 40.0, 30.0)
        for record in (
            NameplateUsage("x", started, None, 1000.0, "lonely"),
            MailboxUsage("x", False, started, None, 1000.0, "lonely"),
        )
    ]
    await data.store.apply([*records, CurrentUsage(0.0, 0.0, None, 0)], model.Now(60.0, 1.0))
    ledger = await Ledger.begin(data.store)
    ledger.wall = 25.0
    ledger.bind("a")
    ledger.open("a", "m")
    await ledger.commit(data.store)

    assert await data.store.forget_usage(10.0, 10) == 0  # as old as that is not older
    assert await data.store.forget_usage(40.0, 2) == 2 + 2 + 1
    assert data.count(*USAGE) == {"usage_nameplates": 3, "usage_mailboxes": 3}
    assert await data.store.forget_usage(40.0, 2) == 1 + 1
    assert await data.store.forget_usage(40.0, 2) == 0
    for table in ("usage_nameplates", "usage_mailboxes"):
        assert data.rows(f"SELECT started FROM {table} ORDER BY started") == [(40.0,), (50.0,)]
    assert data.count("usage_current", *LIVE) == {"usage_current": 1, "mailboxes": 1}
    await assert_shown(data.store, ledger)


async def test_service_time_is_saved_with_a_commit(data: StoreData) -> None:
    """A second of it may be lost, never more, and none is invented."""
    service = 0.0
    for step in (1.5, 0.25, 0.5, 0.0, 100.0, 0.75, 0.5, 0.75, 10.0):
        service += step
        await data.store.apply([model.Pruned(0.0)], model.Now(5.0 + service, service))
        [(seconds, saved)] = data.rows("SELECT seconds, saved FROM service")
        assert service - 1.0 < seconds <= service
        assert saved == 5.0 + seconds
        if step >= 10.0:
            await data.restart()
            assert data.store.service == service


async def test_service_time_never_decreases_across_restarts_and_clock_changes(data: StoreData) -> None:
    """The machine boots and counts from 0, somebody sets the wall clock back, the server crashes or ends in order."""
    served = [0.0]
    for wall, uptime in ((1e9, 5000.0), (2e9, 0.0), (5e8, 10.0), (1e9, 0.0)):
        clock = FakeClock(wall, uptime)
        commit_loop = await CommitLoop.open(data.store, clock, FakeDice(), model.Policy(), Retention(660.0))
        assert commit_loop.now() == model.Now(wall, served[-1])
        running = asyncio.create_task(commit_loop.run())
        clock.now += 100.0
        clock.skew -= 150.0
        commit_loop.start_pruning()
        async with asyncio.timeout(BOUND):
            await commit_loop.idle.wait()
        commit_loop.stop()
        await running
        served.append(data.rows("SELECT seconds FROM service")[0][0])
        await (data.crash() if len(served) % 2 else data.restart())
        assert data.store.service == served[-1]
    assert served == [0.0, 100.0, 200.0, 300.0, 400.0]
