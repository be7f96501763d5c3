"""What outlives the live rows: usage records, what they say about the last week, and how long the service has run."""

from __future__ import annotations

import asyncio
import random

import pytest

from restante.common.usage_records import RESULTS, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core import model
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.store import recent
from stores.engine import LIVE, USAGE, Engine
from support.bounds import BOUND
from support.dice import FakeDice
from support.mailbox.givens import FakeClock
from support.mailbox.ledger import Ledger
from support.mailbox.picture import assert_shown

# ── usage records ────────────────────────────────────────────────────────────────────────────────


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
    highest = dict.fromkeys(USAGE, 0)
    for turn in range(4):
        ledger = Ledger(await engine.store.view(), 1000.0 * turn)
        ledger.bind("a")
        ledger.open("a", "m")
        ledger.close("a", "m")
        ledger.claim("a", "4")
        ledger.release("a", "4")
        await ledger.commit(engine.store)
        for table in USAGE:
            ids = [number for (number,) in engine.rows(f"SELECT id FROM {table}")]
            assert min(ids) > highest[table]
            highest[table] = max(ids)
        assert await engine.store.forget_usage(1e12, 100) == 3
        assert engine.count(*USAGE) == {}
        await (engine.restart() if turn % 2 else engine.crash())


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


# ── the last week, compared with a count in Python ───────────────────────────────────────────────

NOW = 1_000_000_000.0
SPANS = {"hour": 3600, "day": 86400, "week": 7 * 86400}


async def test_results_are_counted_by_span_and_waits_are_of_the_last_day(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = recent.read(engine.data, NOW)["waiting_seconds"]
    assert empty == {"mailboxes": 0, "latest": 0, "p50": None, "p90": None, "p99": None}
    dice = random.Random(7)
    records = [
        (NOW - dice.uniform(-100, 8 * 86400), dice.choice([None, dice.uniform(0, 90)]), dice.choice(RESULTS))
        for _ in range(2000)
    ]
    changes = [MailboxUsage("app", True, started, waiting, 99.0, result) for started, waiting, result in records]
    await engine.store.apply(changes, model.Now(NOW, 0.0))
    shown = recent.read(engine.data, NOW)
    for span, seconds in SPANS.items():
        within = [result for started, _, result in records if NOW - seconds <= started <= NOW]
        assert shown["results"][span] == {result: within.count(result) for result in RESULTS}
    waits = sorted(wait for started, wait, _ in records if NOW - 86400 <= started <= NOW and wait is not None)
    waiting = shown["waiting_seconds"]
    assert (waiting["mailboxes"], waiting["latest"]) == (len(waits), len(waits))
    for share in (50, 90, 99):
        assert sum(wait <= waiting[f"p{share}"] for wait in waits) >= len(waits) * share / 100
        assert sum(wait < waiting[f"p{share}"] for wait in waits) < len(waits) * share / 100
    # Of many mailboxes the latest count.
    monkeypatch.setattr(recent, "MAX_WAITS", 10)
    later = NOW + 8 * 86400
    changes = [MailboxUsage("app", True, later - age, float(age), 99.0, "happy") for age in range(1, 101)]
    await engine.store.apply(changes, model.Now(later, 1.0))
    waiting = recent.read(engine.data, later)["waiting_seconds"]
    assert waiting == {"mailboxes": 100, "latest": 10, "p50": 5.0, "p90": 9.0, "p99": 10.0}


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
