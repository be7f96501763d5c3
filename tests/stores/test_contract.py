"""What each store promises: a view shows what was applied; and records, which stay."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from restante.common.usage_records import RESULTS, ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core import model
from restante.mailbox.reference_import.exporting import export_usage
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.store import postgres, status
from stores.conftest import LIVE, USAGE, StoreData, assert_shown
from support.bounds import BOUND
from support.dice import FakeDice
from support.mailbox.givens import FakeClock, Inbox
from support.mailbox.ledger import APP, Ledger
from support.sqlite import select

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


async def test_the_nameplates_of_a_side_stay_in_the_order_in_which_it_has_allocated_them(data: StoreData) -> None:
    """A side that has lost the answers is told of the first one again."""
    ledger = await Ledger.begin(data.store)
    names = [ledger.allocate("a")]
    ledger.state.app(APP).answered[names[0]] = Inbox().connection
    names.append(ledger.allocate("a"))
    await ledger.commit(data.store)
    ledger.claim("b", names[0])  # its row is written again
    await ledger.commit(data.store)
    await data.restart()
    assert (await assert_shown(data.store, ledger)).app(APP).allocated == {"a": names}


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


NOW = 1_000_000_000.0


async def test_an_export_has_all_usage_records(data: StoreData, tmp_path: Path) -> None:
    records: list[model.Change] = [
        *(NameplateUsage("x", 1.5 + number, None, 9.0, "lonely", 0.0) for number in range(3)),
        MailboxUsage("é", True, 2.5, 0.25, 9.0, "happy"),
        ClientVersion("x", "a", 3.5, "python", None),
        CurrentUsage(1.0, 2.0, None, 3),
    ]
    await data.store.apply(records, model.Now(60.0, 1.0))
    file = tmp_path / "usage.sqlite"
    assert await asyncio.to_thread(export_usage, data.where, file) == {
        "nameplates": 3,
        "mailboxes": 1,
        "client_versions": 1,
    }
    assert [select(file, f"SELECT * FROM {table}") for table in ("nameplates", "mailboxes", "current")] == [
        [("x", 1.5 + number, None, 9, "lonely") for number in range(3)],
        [("é", 1, 2.5, 9, 0.25, "happy")],
        [(1, 2, None, 3)],
    ]
    assert select(file, "SELECT * FROM client_versions") == [("x", "a", 3.5, "python", None)]


async def recent_usage(data: StoreData, now: float) -> dict[str, Any]:
    return await asyncio.to_thread(status.recent_usage, data.where, now)


async def test_status_counts_what_is_live(data: StoreData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a server works is for the tests of each store."""
    ledger = await Ledger.begin(data.store)
    for app, box in (("x", "m"), ("x", "n"), ("y", "m")):
        ledger.open("a", box, app)
        ledger.open("b", box, app)
    ledger.claim("a", "4", "x")
    ledger.add("a", "m", b'"00"', app="x")
    await ledger.commit(data.store)
    monkeypatch.setattr(postgres, "TTL_SECONDS", 0.0)  # how long it looks whether a server works
    live = await asyncio.to_thread(status.read_status, data.where)
    counts = (live.applications, live.nameplates, live.mailboxes, live.messages, live.sides)
    assert counts == (2, 1, 4, 1, 7)
    assert (live.saved, live.service_seconds) == (ledger.now.wall, ledger.now.service)
    assert live.oldest == ledger.mailbox("m", "x").sides[0].added


async def test_results_are_counted_for_an_hour_a_day_and_a_week_and_the_waits_of_a_day_have_percentiles(
    data: StoreData, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = await recent_usage(data, NOW)
    assert (empty["as_of"], empty["clients"]) == (NOW, [])
    assert empty["waiting_seconds"] == {"mailboxes": 0, "latest": 0, "p50": None, "p90": None, "p99": None}
    dice = random.Random(7)
    records = [
        (NOW - dice.uniform(-100, 8 * 86400), dice.choice([None, dice.uniform(0, 90)]), dice.choice(RESULTS))
        for _ in range(2000)
    ]
    changes = [MailboxUsage("app", True, started, waiting, 99.0, result) for started, waiting, result in records]
    await data.store.apply(changes, model.Now(NOW, 0.0))
    usage = await recent_usage(data, NOW)
    for span, seconds in (("hour", 3600), ("day", 86400), ("week", 7 * 86400)):
        within = [result for started, _, result in records if NOW - seconds <= started <= NOW]
        assert usage["results"][span] == {result: within.count(result) for result in RESULTS}
    today = [result for started, _, result in records if NOW - NOW % 86400 <= started <= NOW]
    assert usage["transfers"] == {"hour": usage["results"]["hour"]["happy"], "today": today.count("happy")}
    waits = sorted(wait for started, wait, _ in records if NOW - 86400 <= started <= NOW and wait is not None)
    waiting = usage["waiting_seconds"]
    assert (waiting["mailboxes"], waiting["latest"]) == (len(waits), len(waits))
    for share in (50, 90, 99):
        assert sum(wait <= waiting[f"p{share}"] for wait in waits) >= len(waits) * share / 100
        assert sum(wait < waiting[f"p{share}"] for wait in waits) < len(waits) * share / 100
    monkeypatch.setattr(status, "MAX_WAITS", 10)
    later = NOW + 8 * 86400
    changes = [MailboxUsage("app", True, later - age, float(age), 99.0, "happy") for age in range(1, 101)]
    await data.store.apply(changes, model.Now(later, 1.0))
    waiting = (await recent_usage(data, later))["waiting_seconds"]
    assert waiting == {"mailboxes": 100, "latest": 10, "p50": 5.0, "p90": 9.0, "p99": 10.0}


async def test_clients_are_counted_by_version_and_the_rest_together(data: StoreData) -> None:
    binds = [("python", str(version)) for version in range(12) for _ in range(version + 1)] + [(None, None)] * 20
    changes = [ClientVersion("app", "a", NOW - 1, name, version) for name, version in binds]
    await data.store.apply([*changes, ClientVersion("app", "a", NOW - 90_000, "old", "1")], model.Now(NOW, 0.0))
    clients = (await recent_usage(data, NOW))["clients"]
    assert [tuple(row.values()) for row in clients] == [
        ("not named", "", 20),
        *(("python", str(version), version + 1) for version in range(11, 2, -1)),
        ("others", "", 1 + 2 + 3),
    ]
