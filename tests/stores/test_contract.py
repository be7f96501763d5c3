"""What every engine promises (restante.mailbox.store), tried on each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restante.errors import StoreBusy
from restante.mailbox import model
from restante.mailbox.office import Lifetime, Office
from restante.mailbox.state import State
from restante.mailbox.store import sqlite
from restante.records import CurrentUsage, MailboxUsage, NameplateUsage
from stores.engines import ENGINES, LIVE, USAGE, Engine, SqliteInAFile
from stores.ledger import APP, Dice, Ledger
from stores.picture import picture


async def begin(engine: Engine) -> Ledger:
    return Ledger(await engine.store.view(), service=engine.store.service)


def count(engine: Engine, *tables: str) -> dict[str, int]:
    """How many rows there are, of each table that has any."""
    counts = {table: engine.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
    return {table: number for table, number in counts.items() if number}


async def assert_shown(engine: Engine, ledger: Ledger) -> State:
    """A view shows what was applied, and nothing else; gives it."""
    found, state = await engine.store.view(), ledger.state
    assert picture(found, touches=False) == picture(state, touches=False)
    for mailbox in found.mailboxes():
        assert mailbox.touched <= ledger.mailbox(mailbox.mailbox_id, mailbox.app_id).touched
    keys = [mailbox.key for mailbox in found.mailboxes()]
    keys += [nameplate.key for app in found.apps.values() for nameplate in app.nameplates.values()]
    assert len(keys) == len(set(keys))
    assert max(keys, default=0) < found.next_key <= state.next_key
    sequences = [message.sequence for mailbox in found.mailboxes() for message in mailbox.messages]
    assert max(sequences, default=0) < found.next_sequence <= state.next_sequence
    assert not found.unsaved
    return found


# ── all of it, in any order ──────────────────────────────────────────────────────────────────────

sides = st.sampled_from("abc")
nameplates = st.sampled_from(("1", "2", "007"))
boxes = st.sampled_from(("box1", "box2", "m", ""))
bodies = st.sampled_from((b'"00"', b"12.50", b'{"a": [1,\n 2]}', b'"\\u00e9 \\n"', '"é😀\x7f"'.encode()))
apps = st.sampled_from(("x", "x", "y"))
steps = st.one_of(
    st.tuples(st.just("bind"), sides, apps),
    st.tuples(st.just("leave"), sides, apps),
    st.tuples(st.just("allocate"), sides, apps),
    *(st.tuples(st.just(kind), sides, nameplates, apps) for kind in ("claim", "claim", "release")),
    *(st.tuples(st.just(kind), sides, boxes, apps) for kind in ("open", "open", "close", "claim_box")),
    st.tuples(st.just("add"), sides, boxes, bodies, bodies, bodies, apps),
    st.tuples(st.sampled_from(("prune", "save")), boxes, apps),
    st.tuples(st.just("pass_"), st.sampled_from((0.25, 30.0))),
    st.tuples(st.just("commit")),
    st.tuples(st.just("restart")),
)


async def play(engine: Engine, script: list[tuple[Any, ...]]) -> None:
    ledger = await begin(engine)
    here: set[tuple[str, str]] = set()
    for kind, *arguments in script:
        app = ledger.state.app(arguments[-1]) if arguments else None
        if kind == "commit":
            await ledger.commit(engine.store)
            await assert_shown(engine, ledger)
        elif kind == "restart":
            await ledger.commit(engine.store)
            await engine.restart()
            ledger.state = await assert_shown(engine, ledger)
            here.clear()
        elif kind in ("bind", "leave"):
            who = arguments[0], arguments[1]
            if (kind == "bind") != (who in here):
                getattr(ledger, kind)(*arguments)
                here ^= {who}
        elif kind == "add":
            side, box, body, phase, msg_id, app_id = arguments
            if app is not None and box in app.mailboxes:
                ledger.add(side, box, body, phase, msg_id, app_id)
        elif kind == "prune":
            if app is not None and arguments[0] in app.mailboxes:
                ledger.prune(*arguments)
        elif kind == "save":
            if app is not None and arguments[0] in app.mailboxes:
                ledger.note(model.MailboxSaved(app.mailboxes[arguments[0]]))
        elif kind == "claim_box":  # whoever knows the mailbox of a nameplate need not claim it
            ledger.open(*arguments)
        else:
            getattr(ledger, kind)(*arguments)
    await ledger.commit(engine.store)
    await assert_shown(engine, ledger)


@pytest.mark.parametrize(("kind", "examples"), [(ENGINES[0], 150), (ENGINES[1], 15)])
def test_a_view_shows_all_that_was_applied(kind: type[Engine], examples: int) -> None:
    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(st.lists(steps, max_size=60))
    def whatever_the_order(script: list[tuple[Any, ...]]) -> None:
        async def run() -> None:
            async with kind() as engine:
                await play(engine, script)

        asyncio.run(run())

    whatever_the_order()


# ── one batch ────────────────────────────────────────────────────────────────────────────────────


async def test_an_empty_store_shows_nothing(engine: Engine) -> None:
    state = await engine.store.view()
    assert (state.apps, state.next_key, state.next_sequence, engine.store.service) == ({}, 1, 1, 0.0)


async def test_what_was_applied_is_there_for_others_and_after_a_crash(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.bind("a")
    mailbox = ledger.claim("a", "4")
    ledger.add("a", mailbox, b'"00"')
    await ledger.commit(engine.store)
    assert count(engine, *LIVE) == dict.fromkeys(LIVE, 1)
    await engine.crash()
    await assert_shown(engine, ledger)


async def test_what_comes_and_goes_in_one_batch_leaves_nothing(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.bind("a")
    await ledger.commit(engine.store)
    engine.watch()
    mailbox = ledger.claim("a", "4")
    ledger.add("a", mailbox, b'"00"')
    ledger.release("a", "4")
    ledger.close("a", mailbox)
    ledger.open("a", "m")
    ledger.close("a", "m")
    await ledger.commit(engine.store)
    assert count(engine, *LIVE) == {}
    assert engine.written() == {"usage_nameplates": 1, "usage_mailboxes": 2}
    await assert_shown(engine, ledger)


async def test_a_row_that_changes_five_times_is_written_once_as_it_ends(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    engine.watch()
    ledger.pass_(1.0)
    ledger.open("b", "m")  # joins
    ledger.close("b", "m", "errory")
    ledger.open("b", "m")  # is back
    ledger.add("a", "m", b'"00"')
    ledger.add("b", "m", b'"01"')
    ledger.open("c", "m")  # is turned away
    ledger.pass_(1.0)
    ledger.close("b", "m", "scary")
    assert len([change for change in ledger.changes if not isinstance(change, model.MessageAdded)]) == 5
    await ledger.commit(engine.store)
    assert engine.written() == {"mailboxes": 1, "messages": 2}
    found = (await assert_shown(engine, ledger)).app(APP).mailboxes["m"]
    assert [(row.side, row.opened, row.mood) for row in found.sides] == [("a", True, None), ("b", False, "scary")]
    assert (found.crowded, found.touched) == (True, 1.0)


async def test_a_nameplate_that_changes_often_is_written_once_as_it_ends(engine: Engine) -> None:
    ledger = await begin(engine)
    name = ledger.allocate("a")
    await ledger.commit(engine.store)
    engine.watch()
    mailbox = ledger.claim("a", name)
    ledger.claim("b", name)
    ledger.add("a", mailbox, b'"00"')
    ledger.add("b", mailbox, b'"01"')
    ledger.claim("c", name)
    ledger.release("a", name)
    await ledger.commit(engine.store)
    assert engine.written() == {"nameplates": 1, "mailboxes": 1, "messages": 2}
    found = (await assert_shown(engine, ledger)).app(APP).nameplates[name]
    assert [(row.side, row.claimed, row.allocated) for row in found.sides] == [
        ("a", False, False),
        ("b", True, False),
    ]
    assert found.crowded


async def test_a_nameplate_that_ends_and_is_claimed_anew_in_one_batch_is_the_new_one(engine: Engine) -> None:
    ledger = await begin(engine)
    old = ledger.claim("a", "4")
    await ledger.commit(engine.store)
    ledger.release("a", "4")
    new = ledger.claim("b", "4")
    await ledger.commit(engine.store)
    assert count(engine, *LIVE) == {"mailboxes": 2, "nameplates": 1}
    found = (await assert_shown(engine, ledger)).app(APP)
    assert [row.side for row in found.nameplates["4"].sides] == ["b"]
    assert (found.nameplates["4"].mailbox_id, found.mailboxes[new].nameplate) == (new, "4")
    assert found.mailboxes[old].nameplate is None
    # And once more, with one that the store has not seen.
    ledger.release("b", "4")
    ledger.claim("c", "4")
    ledger.release("c", "4")
    ledger.claim("d", "4")
    await ledger.commit(engine.store)
    found = (await assert_shown(engine, ledger)).app(APP)
    assert [row.side for row in found.nameplates["4"].sides] == ["d"]


async def test_a_mailbox_that_ends_and_is_opened_anew_in_one_batch_is_empty(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.open("a", "m")
    ledger.add("a", "m", b'"old"')
    await ledger.commit(engine.store)
    ledger.add("a", "m", b'"late"')
    ledger.close("a", "m")
    ledger.open("b", "m")
    ledger.add("b", "m", b'"new"')
    await ledger.commit(engine.store)
    found = (await assert_shown(engine, ledger)).app(APP).mailboxes["m"]
    assert [row.side for row in found.sides] == ["b"]
    assert engine.rows("SELECT body FROM messages") == [('"new"',)]


async def test_who_leaves_and_who_comes_in_one_batch(engine: Engine) -> None:
    """The receiver that was stopped gives its place to the next one, in the nameplate and in the mailbox."""
    ledger = await begin(engine)
    for side in ("a", "b"):
        ledger.bind(side)
        mailbox = ledger.claim(side, "4")
    await ledger.commit(engine.store)
    ledger.leave("b")
    ledger.bind("c")
    assert ledger.claim("c", "4") == mailbox
    assert any(isinstance(change, model.MailboxSideGone) for change in ledger.changes)
    assert any(isinstance(change, model.NameplateSideGone) for change in ledger.changes)
    await ledger.commit(engine.store)
    found = (await assert_shown(engine, ledger)).app(APP)
    assert [row.side for row in found.nameplates["4"].sides] == ["a", "c"]
    assert [row.side for row in found.mailboxes[mailbox].sides] == ["a", "c"]


async def test_the_rows_of_a_batch_are_of_its_end_although_it_is_applied_later(engine: Engine) -> None:
    """Changes carry the live mailbox: whoever wrote rows one change at a time might write a future."""
    ledger = await begin(engine)
    ledger.open("a", "m")
    for number in range(3):
        ledger.add("a", "m", b"%d" % number)
        await ledger.commit(engine.store)
        await assert_shown(engine, ledger)
    assert engine.rows("SELECT body FROM messages ORDER BY sequence") == [("0",), ("1",), ("2",)]


async def test_messages_are_replayed_in_the_order_of_their_coming_although_the_clock_goes_back(
    engine: Engine,
) -> None:
    ledger = await begin(engine)
    ledger.open("a", "m")
    ledger.open("a", "n")
    for number in range(12):
        ledger.wall -= 1.0
        ledger.add("a", "mn"[number % 2], b"%d" % number)
        if number % 5 == 0:
            await ledger.commit(engine.store)
    await ledger.commit(engine.store)
    await engine.restart()
    found = (await assert_shown(engine, ledger)).app(APP)
    for name, first in (("m", 0), ("n", 1)):
        stored = found.mailboxes[name].messages
        assert [message.wire for message in stored] == [message.wire for message in ledger.mailbox(name).messages]
        assert [
            b'"body":%d,' % number in message.wire
            for message, number in zip(stored, range(first, 12, 2), strict=True)
        ]


async def test_a_touch_is_not_written_and_a_saved_one_is(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    ledger.pass_(50.0)
    ledger.open("a", "m")  # a touch, and nothing else
    assert ledger.changes == []
    await engine.store.apply([model.MailboxTouched(ledger.mailbox("m"), 50.0)], ledger.now)
    assert engine.rows("SELECT touched FROM mailboxes") == [(0.0,)]
    ledger.note(model.MailboxSaved(ledger.mailbox("m")))
    await ledger.commit(engine.store)
    assert engine.rows("SELECT touched FROM mailboxes") == [(50.0,)]
    assert (await assert_shown(engine, ledger)).app(APP).mailboxes["m"].touched == 50.0


async def test_what_can_wait_changes_nothing(engine: Engine) -> None:
    """There may be a lot of it: the log is moved into the database."""
    ledger = await begin(engine)
    ledger.open("a", "m")
    for number in range(1500):
        ledger.add("a", "m", b"%d" % number)
    await ledger.commit(engine.store)
    await engine.store.tend()
    await assert_shown(engine, ledger)
    ledger.close("a", "m")
    await ledger.commit(engine.store)
    await engine.store.tend()
    await engine.crash()
    await assert_shown(engine, ledger)


async def test_names_may_be_any_text(engine: Engine) -> None:
    """Two that differ in whatever way stay two."""
    ledger = await begin(engine)
    names = ["", " ", "a", "A", "a\x00", "a\x00b", "é", "e\u0301", "😀", "'; DROP TABLE mailboxes; --", "a" * 5000]
    for name in names:
        ledger.open(name, name, name)
        ledger.claim(name, "4", name)
    await ledger.commit(engine.store)
    await engine.restart()
    found = await assert_shown(engine, ledger)
    assert set(found.apps) == set(names)


async def test_the_row_of_how_the_server_is_is_rewritten(engine: Engine) -> None:
    for updated, blur in ((10.0, None), (20.0, 60.0)):
        await engine.store.apply([CurrentUsage(5.0, updated, blur, 3), model.Pruned(updated)], model.Now(1.0, 1.0))
    assert engine.rows("SELECT rebooted, updated, blur_time, connections_websocket FROM usage_current") == [
        (5.0, 20.0, 60.0, 3)
    ]
    assert engine.rows("SELECT pruned FROM service") == [(20.0,)]


# ── usage records ────────────────────────────────────────────────────────────────────────────────


def ids(engine: Engine, table: str) -> list[int]:
    return [row[0] for row in engine.rows(f"SELECT id FROM {table} ORDER BY id")]


async def test_usage_rows_hold_the_records_and_are_ours(engine: Engine) -> None:
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


async def test_an_id_of_a_usage_row_is_never_given_again(engine: Engine) -> None:
    """Not after it was forgotten, not after all were, not after a restart in between."""

    async def use(wall: float) -> None:
        ledger = Ledger(await engine.store.view(), wall)
        ledger.bind("a")
        ledger.open("a", "m")
        ledger.claim("a", "4")
        ledger.release("a", "4")
        ledger.close("a", "m")
        ledger.close("a", "box1")
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
        assert count(engine, *USAGE) == {}
        if turn % 2:
            await engine.restart()
        else:
            await engine.crash()


async def test_forgetting_takes_what_is_old_and_no_more_than_it_may(engine: Engine) -> None:
    records = [
        record
        for started in (10.0, 50.0, 20.0, 40.0, 30.0)
        for record in (
            NameplateUsage("x", started, None, 1000.0, "lonely"),
            MailboxUsage("x", False, started, None, 1000.0, "lonely"),
        )
    ]
    await engine.store.apply([*records, CurrentUsage(0.0, 0.0, None, 0)], model.Now(60.0, 1.0))
    ledger = await begin(engine)
    ledger.wall = 25.0
    ledger.bind("a")
    ledger.open("a", "m")
    await ledger.commit(engine.store)

    assert await engine.store.forget_usage(10.0, 10) == 0  # as old as that is not older
    assert await engine.store.forget_usage(40.0, 2) == 2 + 2 + 1
    assert count(engine, *USAGE) == {"usage_nameplates": 3, "usage_mailboxes": 3}
    assert await engine.store.forget_usage(40.0, 2) == 1 + 1
    assert await engine.store.forget_usage(40.0, 2) == 0
    for table in ("usage_nameplates", "usage_mailboxes"):
        assert engine.rows(f"SELECT started FROM {table} ORDER BY started") == [(40.0,), (50.0,)]
    assert count(engine, "usage_current", *LIVE) == {"usage_current": 1, "mailboxes": 1}
    await assert_shown(engine, ledger)


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


class Clock:
    def __init__(self, wall: float, uptime: float) -> None:
        self.wall_time = wall
        self.uptime = uptime

    def wall(self) -> float:
        return self.wall_time

    def monotonic(self) -> float:
        return self.uptime


async def test_service_time_goes_up_over_restarts_whatever_the_clocks_do(engine: Engine) -> None:
    """The machine boots and counts from 0, somebody sets the wall clock back, the server crashes or ends in order."""
    served = [0.0]
    for wall, uptime in ((1e9, 5000.0), (2e9, 0.0), (5e8, 10.0), (1e9, 0.0)):
        clock = Clock(wall, uptime)
        office = await Office.open(engine.store, clock, Dice(), model.Policy(), Lifetime())
        assert office.now() == model.Now(wall, served[-1])
        running = asyncio.create_task(office.run())
        clock.uptime += 100.0
        clock.wall_time -= 50.0
        office.sweep()
        await asyncio.wait_for(office.idle.wait(), 30)
        office.stop()
        await running
        served.append(engine.rows("SELECT seconds FROM service")[0][0])
        await (engine.crash() if len(served) % 2 else engine.restart())
        assert engine.store.service == served[-1]
    assert served == [0.0, 100.0, 200.0, 300.0, 400.0]


# ── a store that refuses ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here waits for the other writer to end: it does not."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.01)


async def test_a_batch_that_was_refused_leaves_nothing_behind(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.bind("a")
    ledger.claim("a", "4")
    ledger.open("b", "m")
    await ledger.commit(engine.store)
    before, rows = picture(await engine.store.view()), count(engine, *LIVE, *USAGE)

    ledger.pass_(5.0)
    ledger.bind("b")
    ledger.add("b", "m", b'"00"')
    ledger.close("b", "m")
    ledger.claim("b", "4")
    ledger.allocate("c")
    with engine.refusing(), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z"):
        await ledger.commit(engine.store)
    assert picture(await engine.store.view()) == before
    assert count(engine, *LIVE, *USAGE) == rows
    assert engine.rows("SELECT seconds FROM service") == [(0.0,)]

    again = Ledger(await engine.store.view(), service=10.0)
    again.bind("b")
    again.claim("b", "4")
    await again.commit(engine.store)
    await assert_shown(engine, again)
    await engine.restart()
    await assert_shown(engine, again)
    assert engine.store.service == 10.0


async def test_a_batch_that_finds_the_disk_full_leaves_nothing_behind(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    before = picture(await engine.store.view())
    ledger.open("a", "another")
    ledger.add("a", "m", b'"' + b"0" * 200_000 + b'"')
    with engine.full(), pytest.raises(StoreBusy, match="full"):
        await ledger.commit(engine.store)
    assert picture(await engine.store.view()) == before
    again = await begin(engine)
    again.add("a", "m", b'"00"')
    await again.commit(engine.store)
    await assert_shown(engine, again)


async def test_forgetting_that_was_refused_forgets_nothing(engine: Engine) -> None:
    ledger = await begin(engine)
    ledger.bind("a")
    await ledger.commit(engine.store)
    with engine.refusing(), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z"):
        await engine.store.forget_usage(1e12, 100)
    assert count(engine, *USAGE) == {"usage_client_versions": 1}
    assert await engine.store.forget_usage(1e12, 100) == 1


async def test_a_batch_waits_for_another_writer_that_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup, say; and the loop turns meanwhile."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 30.0)
    async with SqliteInAFile() as engine:
        ledger = await begin(engine)
        ledger.open("a", "m")
        with engine.refusing():
            commit = asyncio.create_task(ledger.commit(engine.store))
            for _ in range(3):  # it has found the lock by now, and we are here
                await asyncio.sleep(0)
            assert not commit.done()
        await commit
        await assert_shown(engine, ledger)
