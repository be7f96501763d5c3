"""The state takes in many rows at once as it takes them in one by one."""

from __future__ import annotations

import json

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
)
from restante.mailbox.core.state import State
from support.effort import examples

names = st.sampled_from([*"0123456789", "007", "12", "13", "100"])


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
