"""The state takes in many rows at once as it takes them in one by one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from restante.mailbox.core.model import (
    Mailbox,
    MailboxGone,
    MailboxSide,
    MailboxSideGone,
    MailboxSideSet,
    Nameplate,
    NameplateGone,
    NameplateSide,
)
from restante.mailbox.core.state import App, State
from support.effort import examples

sides = st.lists(st.sampled_from("abc"), unique=True, max_size=2)
names = st.sampled_from([*"0123456789", "007", "12", "13", "100"])


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[Mailbox], list[Nameplate]]:
    """Mailboxes of several apps, and nameplates that point to some of them."""
    mailboxes, nameplates = [], []
    keys = iter(draw(st.permutations(range(1, 40))))
    for app in ("app", "other", "third"):
        for mailbox_id in draw(st.lists(st.sampled_from("uvwxyz"), unique=True)):
            members = [MailboxSide(side, 1.5) for side in draw(sides)]
            mailboxes.append(Mailbox(next(keys), app, mailbox_id, True, 2.5, members, crowded=draw(st.booleans())))
        if not any(each.app_id == app for each in mailboxes):
            continue
        for name in draw(st.lists(names, unique=True, max_size=5)):
            pointed = draw(st.sampled_from([each for each in mailboxes if each.app_id == app]))
            held = [NameplateSide(side, 1.5, allocated=draw(st.booleans())) for side in draw(sides)]
            nameplates.append(Nameplate(next(keys), app, name, pointed.mailbox_id, held))
    return mailboxes, nameplates


def picture(state: State) -> Any:
    def of(app: App) -> Any:
        boxes = {key: (box.nameplate, box.key, id(box)) for key, box in app.mailboxes.items()}
        plates = {key: id(plate) for key, plate in app.nameplates.items()}
        return boxes, plates, app.taken, app.allocated, app.listing()

    return {key: of(app) for key, app in state.apps.items()}, state.next_key, state.stored


@given(
    st.lists(st.text(min_size=1) | st.sampled_from(['1","2', '","', '"', "\\", ","]), unique=True)
    | st.lists(names, unique=True),
    st.data(),
)
@examples(60)
def test_a_listing_has_all_live_names_sorted(names: list[str], data: st.DataObject) -> None:
    state = State()
    state.put_mailbox(Mailbox(1, "app", "m", True, 2.5, [], crowded=False))
    plates = [Nameplate(key, "app", name, "m", []) for key, name in enumerate(names, 2)]
    for plate in plates:
        state.put_nameplate(plate)
    gone = data.draw(st.lists(st.sampled_from(plates), unique_by=id) if plates else st.just([]))
    for plate in gone:
        state.fold(NameplateGone(plate))
    left = sorted(plate.name for plate in plates if plate not in gone)
    assert json.loads(state.apps["app"].listing()) == [{"id": name} for name in left]


@given(rows())
@examples(40)
def test_adding_many_rows_equals_adding_them_one_by_one(given_rows: tuple[list[Mailbox], list[Nameplate]]) -> None:
    mailboxes, nameplates = given_rows
    singly, together = State(), State()
    for mailbox in mailboxes:
        singly.put_mailbox(mailbox)
    for nameplate in nameplates:
        singly.put_nameplate(nameplate)
    expected = picture(singly)
    for mailbox in mailboxes:
        mailbox.nameplate = None
    together.put_all(mailboxes, nameplates)
    assert picture(together) == expected


def test_what_sides_and_moods_take_is_counted_until_they_are_gone() -> None:
    """A mailbox of short names held 6 KB of sides and moods and was counted with 2 KB."""
    state = State()
    mailbox = Mailbox(1, "app", "m", True, 2.5, [MailboxSide("a", 1.5)], crowded=False)
    state.put_mailbox(mailbox)
    before = state.stored
    state.fold(MailboxSideSet(mailbox, MailboxSide("\N{PILE OF POO}" * 500, 1.5, mood="\N{PILE OF POO}" * 400)))
    assert state.stored == before + 4 * 900 - 1  # a second side of one letter was assumed
    state.fold(MailboxSideGone(mailbox, "\N{PILE OF POO}" * 500))
    assert state.stored == before
    state.fold(MailboxGone(mailbox))
    assert state.stored == 0
