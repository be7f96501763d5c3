"""What a store promises: a view shows what was applied, and a refused batch leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import StoreBusy, StoreError
from restante.common.usage_records import CurrentUsage
from restante.mailbox.core import model
from restante.mailbox.store import sqlite
from stores.engine import LIVE, USAGE, Engine
from support.effort import examples
from support.mailbox.ledger import APP, Ledger
from support.mailbox.picture import assert_shown, picture

# ── all of it, in any order ──────────────────────────────────────────────────────────────────────

sides = st.sampled_from(("a", "b", "A", "é"))
nameplates = st.sampled_from(("1", "2", "007"))
boxes = st.sampled_from(("box1", "box2", "m", "", "a\x00", "a\x00b", "é", "e\u0301", "'; DROP TABLE mailboxes; --"))
bodies = st.sampled_from((b'"00"', b"12.50", b'{"a": [1,\n 2]}', b'"\\u00e9 \\n"', '"é😀\x7f"'.encode()))
apps = st.sampled_from(("x", "x", "X", ""))
steps = st.one_of(
    st.tuples(st.just("bind"), sides, apps),
    st.tuples(st.just("leave"), sides, apps),
    st.tuples(st.just("allocate"), sides, apps),
    *(st.tuples(st.just(kind), sides, nameplates, apps) for kind in ("claim", "claim", "release")),
    *(st.tuples(st.just(kind), sides, boxes, apps) for kind in ("open", "open", "close", "claim_box")),
    st.tuples(st.just("add"), sides, boxes, bodies, bodies, bodies, apps),
    st.tuples(st.sampled_from(("prune", "save")), boxes, apps),
    st.tuples(st.just("pass_"), st.sampled_from((0.25, 30.0))),
    st.tuples(st.just("clock goes back")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("restart")),
)


async def play(engine: Engine, script: list[tuple[Any, ...]]) -> None:
    ledger = await Ledger.begin(engine.store)
    here: set[tuple[str, str]] = set()
    for kind, *arguments in script:
        app = ledger.state.app(arguments[-1]) if arguments else None
        if kind == "commit":
            await ledger.commit(engine.store)
            await assert_shown(engine.store, ledger)
        elif kind == "restart":
            await ledger.commit(engine.store)
            await engine.restart()
            ledger.state = await assert_shown(engine.store, ledger)
            here.clear()
        elif kind == "clock goes back":
            ledger.wall -= 100.0
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
    await assert_shown(engine.store, ledger)


@examples(20)
@given(st.lists(steps, max_size=60))
def test_a_view_shows_all_that_was_applied(script: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        async with Engine() as engine:
            await play(engine, script)

    asyncio.run(run())


# ── one batch ────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_gone_at_the_end_of_a_batch_is_not_written_and_the_rest_once(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
    ledger.bind("a")
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    engine.watch()
    mailbox = ledger.claim("a", "4")
    ledger.add("a", mailbox, b'"00"')
    ledger.release("a", "4")
    ledger.close("a", mailbox)
    ledger.open("a", "another")
    ledger.close("a", "another")
    await ledger.commit(engine.store)
    assert engine.count(*LIVE) == {"mailboxes": 1}
    assert engine.written() == {"usage_nameplates": 1, "usage_mailboxes": 2}
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
    await ledger.commit(engine.store)
    assert engine.written() == {"mailboxes": 1, "messages": 2}
    box = (await assert_shown(engine.store, ledger)).app(APP).mailboxes["m"]
    assert [(row.side, row.opened, row.mood) for row in box.sides] == [("a", True, None), ("b", False, "scary")]
    assert (box.crowded, box.touched) == (True, 1.0)


async def test_a_touch_is_not_written_and_a_saved_one_is(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
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
    assert (await assert_shown(engine.store, ledger)).app(APP).mailboxes["m"].touched == 50.0


async def test_the_row_of_usage_current_is_rewritten(engine: Engine) -> None:
    for updated, blur in ((10.0, None), (20.0, 60.0)):
        await engine.store.apply([CurrentUsage(5.0, updated, blur, 3), model.Pruned(updated)], model.Now(1.0, 1.0))
    current = engine.rows("SELECT rebooted, updated, blur_time, connections_websocket FROM usage_current")
    assert current == [(5.0, 20.0, 60.0, 3)]
    assert engine.rows("SELECT pruned FROM service") == [(20.0,)]


# ── what is written, and where ───────────────────────────────────────────────────────────────────


async def test_what_takes_long_is_written_and_dropped_off_the_loop_and_the_rest_on_it(engine: Engine) -> None:
    """SQLite takes 25 ms to drop 16 MiB, and 17 ms for 400 long names; a thread and back costs more than a row."""
    ledger = await Ledger.begin(engine.store)
    loop, on_the_loop = threading.get_ident(), dict[str, bool]()

    def note(statement: str) -> None:
        on_the_loop[" ".join(statement.split()[:3])] = threading.get_ident() == loop

    engine.store.database.set_trace_callback(note)
    small, large = b'"00"', b'"' + b"0" * 2_000_000 + b'"'
    for names, body, wanted in (
        (["m"], small, (True, True, True, True)),
        (["m"], large, (True, False, False, False)),
        ([str(number).ljust(500, "x") for number in range(400)], small, (False, True, False, False)),
    ):
        on_the_loop.clear()
        for name in names:
            ledger.open(name, name, name)
        ledger.add(names[0], names[0], body, app=names[0])
        await ledger.commit(engine.store)
        for name in names:
            ledger.close(name, name, app=name)
        await ledger.commit(engine.store)
        kinds = ("INSERT OR REPLACE", "INSERT INTO messages", "DELETE FROM messages", "DELETE FROM mailboxes")
        assert tuple(map(on_the_loop.get, kinds)) == wanted
    engine.store.database.set_trace_callback(None)


def bytes_read() -> int:
    """Return how much this process has read from files (man 5 proc, /proc/pid/io)."""
    return int(Path("/proc/self/io").read_text().split()[1])


async def test_small_messages_are_written_without_reading_large_ones(engine: Engine) -> None:
    """With the messages in an index (schema 4) each insert read several of them."""
    ledger = await Ledger.begin(engine.store)
    names = [f"m{number}" for number in range(8)]
    for name in names:
        ledger.open("a", name)
        ledger.add("a", name, b'"' + b"0" * 1_000_000 + b'"')
        await ledger.commit(engine.store)
    before = bytes_read()
    for _ in range(5):
        for name in names:
            ledger.add("a", name, b'"00"')
        await ledger.commit(engine.store)
    assert bytes_read() - before < 1_000_000


# ── a store that refuses ─────────────────────────────────────────────────────────────────────────

Refusal = Callable[[Engine], AbstractContextManager[None]]

REFUSALS: dict[str, tuple[Refusal, type[StoreError], str]] = {
    "another writer": (Engine.refusing, StoreBusy, r"\A\S[^\n]+\Z"),
    "no room": (Engine.full, StoreBusy, "full"),
    "for good, halfway": (Engine.failing, StoreError, "not this"),  # it is of no use to try again
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_a_batch_that_is_refused_leaves_nothing_behind(
    engine: Engine, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)  # the other writer does not end
    ledger = await Ledger.begin(engine.store)
    ledger.bind("a")
    ledger.claim("a", "4")
    ledger.open("b", "m")
    await ledger.commit(engine.store)
    before, rows = picture(await engine.store.view()), engine.count(*LIVE, *USAGE)

    ledger.pass_(5.0)
    ledger.bind("b")
    ledger.add("b", "m", b'"' + b"0" * 200_000 + b'"')
    ledger.claim("b", "4")
    ledger.allocate("c")
    refusing, error, text = REFUSALS[why]
    with refusing(engine), pytest.raises(error, match=text) as refusal:
        await ledger.commit(engine.store)
    assert isinstance(refusal.value, StoreBusy) is (error is StoreBusy)
    assert picture(await engine.store.view()) == before
    assert engine.count(*LIVE, *USAGE) == rows
    assert engine.rows("SELECT seconds FROM service") == [(0.0,)]
    if error is StoreError:
        await engine.crash()
    again = Ledger(await engine.store.view(), service=10.0)
    assert picture(again.state) == before
    again.bind("b")
    again.claim("b", "4")
    await again.commit(engine.store)
    await assert_shown(engine.store, again)
    await engine.restart()
    await assert_shown(engine.store, again)
    assert engine.store.service == 10.0
    with engine.refusing(), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z"):
        await engine.store.forget_usage(1e12, 100)
    assert await engine.store.forget_usage(1e12, 100) == 2


async def test_a_batch_waits_for_another_writer_that_ends_soon(engine: Engine) -> None:
    """A backup, say; and the loop turns meanwhile."""
    ledger = await Ledger.begin(engine.store)
    ledger.open("a", "m")
    with engine.refusing():
        commit = asyncio.create_task(ledger.commit(engine.store))
        for _ in range(3):  # it has found the lock by now, and we are here
            await asyncio.sleep(0)
        assert not commit.done()
    await commit
    await assert_shown(engine.store, ledger)
