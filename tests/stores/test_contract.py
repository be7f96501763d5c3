"""What a store promises (restante.mailbox.store): a view shows what was applied."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from restante.common.usage_records import CurrentUsage
from restante.mailbox.core import model
from restante.mailbox.core.state import State
from restante.mailbox.store.rows import Rows
from stores.engine import LIVE, Engine
from support.effort import examples
from support.mailbox.ledger import APP, Ledger
from support.mailbox.picture import assert_shown

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


async def test_rows_created_and_removed_in_one_batch_leave_nothing(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
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
    assert engine.count(*LIVE) == {}
    assert engine.written() == {"usage_nameplates": 1, "usage_mailboxes": 2}
    await assert_shown(engine.store, ledger)


async def test_a_mailbox_that_changes_five_times_is_written_once_in_its_final_form(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
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
    found = (await assert_shown(engine.store, ledger)).app(APP).mailboxes["m"]
    assert [(row.side, row.opened, row.mood) for row in found.sides] == [("a", True, None), ("b", False, "scary")]
    assert (found.crowded, found.touched) == (True, 1.0)


async def test_messages_are_replayed_in_order_although_the_clock_goes_back(
    engine: Engine,
) -> None:
    ledger = await Ledger.begin(engine.store)
    ledger.open("a", "m")
    ledger.open("a", "n")
    for number in range(12):
        ledger.wall -= 1.0
        ledger.add("a", "mn"[number % 2], b"%d" % number)
        if number % 5 == 0:
            await ledger.commit(engine.store)
    await ledger.commit(engine.store)
    await engine.restart()
    found = (await assert_shown(engine.store, ledger)).app(APP)
    for name, first in (("m", 0), ("n", 1)):
        stored = found.mailboxes[name].messages
        assert [message.wire for message in stored] == [message.wire for message in ledger.mailbox(name).messages]
        assert [
            b'"body":%d,' % number in message.wire
            for message, number in zip(stored, range(first, 12, 2), strict=True)
        ]


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


async def test_names_may_be_any_text(engine: Engine) -> None:
    """Two that differ in whatever way stay two."""
    ledger = await Ledger.begin(engine.store)
    names = ["", " ", "a", "A", "a\x00", "a\x00b", "é", "e\u0301", "😀", "'; DROP TABLE mailboxes; --", "a" * 5000]
    for name in names:
        ledger.open(name, name, name)
        ledger.claim(name, "4", name)
    await ledger.commit(engine.store)
    await engine.restart()
    found = await assert_shown(engine.store, ledger)
    assert set(found.apps) == set(names)


async def test_the_row_of_usage_current_is_rewritten(engine: Engine) -> None:
    for updated, blur in ((10.0, None), (20.0, 60.0)):
        await engine.store.apply([CurrentUsage(5.0, updated, blur, 3), model.Pruned(updated)], model.Now(1.0, 1.0))
    assert engine.rows("SELECT rebooted, updated, blur_time, connections_websocket FROM usage_current") == [
        (5.0, 20.0, 60.0, 3)
    ]
    assert engine.rows("SELECT pruned FROM service") == [(20.0,)]


def test_many_rows_with_long_names_are_written_and_deleted_in_the_thread() -> None:
    """To write or delete four hundred of them takes 17 ms, and the names are not messages."""
    for characters, heavy in ((10, False), (500, True)):
        state = State()
        for key in range(400 if heavy else 100):
            name = str(key).ljust(characters, "x")
            state.put_mailbox(
                model.Mailbox(key, name, name, for_nameplate=False, touched=0.0, sides=[model.MailboxSide(name, 0.0)])
            )
        boxes = [*state.mailboxes()]
        [written] = Rows([model.MailboxSaved(box) for box in boxes]).statements()
        deleted = [*Rows([model.MailboxGone(box) for box in boxes]).statements()]
        assert [each.heavy for each in (written, *deleted)] == [heavy] * 3
