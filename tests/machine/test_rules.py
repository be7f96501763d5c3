"""Rules by themselves: the nameplate that is allocated, usage records, and pruning in slices of one mailbox."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machine.model import shortest_free
from restante.mailbox.core import pruning, session, usage
from restante.mailbox.core.model import Mailbox, Nameplate, Now, Policy
from restante.mailbox.core.rules import decide, new_mailbox_id
from restante.mailbox.core.state import State
from support.dice import FakeDice
from support.effort import examples
from support.mailbox.givens import Inbox, Options
from support.mailbox.worlds import StoreWorld

NOW = Now(1_700_000_000.0, 10.0)
DIGITS = "123456789"


def show(first: int, later: int | None = None) -> Callable[[int, int], int]:
    return lambda draw, _bound: later if draw and later is not None else first


def taken(names: Iterable[str]) -> State:
    state, dice = State(), FakeDice(show(0))
    for name in names:
        for change in decide(state, session.ClaimCommand("x", "by hand", name), NOW, dice, Policy()).changes:
            state.fold(change)
    return state


def allocated(state: State, dice: Callable[[int, int], int]) -> str:
    return decide(state, session.AllocateCommand("x", "me"), NOW, FakeDice(dice), Policy()).name


def test_each_free_digit_comes_up_for_one_number_of_the_dice() -> None:
    """So each is as likely as any other. All 512 ways to have digits taken."""
    for size in range(10):
        for names in itertools.combinations(DIGITS, size):
            free = shortest_free(names)
            state = taken(names)
            if size == 9:
                assert {allocated(state, show(number)) for number in range(90)} == set(free)
                continue
            # Whatever is taken is drawn for once more, and then the first free one comes up.
            fallback = DIGITS.index(free[0])
            chosen = Counter(allocated(state, show(number, fallback)) for number in range(9))
            assert chosen == Counter(free) + Counter({free[0]: size})


ODD_NAMES = ("0", "00", "007", "07", "010", "9" * 40, "0" * 40, "99999")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_at_every_fill_level_the_allocated_nameplate_is_free_and_shortest(length: int) -> None:
    shorter = [str(number) for number in range(1, 10 ** (length - 1))]
    names = [str(number) for number in range(10 ** (length - 1), 10**length)]
    random.Random(length).shuffle(names)
    for level in (0, 1, len(names) // 2, len(names) * 9 // 10, len(names) - 1, len(names)):
        used = [*shorter, *names[:level], *ODD_NAMES]
        state, free = taken(used), set(shortest_free(set(used)))
        dice = random.Random(level)
        for _ in range(20):
            assert allocated(state, lambda _draw, bound: dice.randrange(bound)) in free  # noqa: B023 - called at once
        for number in (0, 8):
            assert allocated(state, lambda _draw, bound: number % bound) in free  # noqa: B023 - called at once


def test_some_nameplates_of_five_digits_stay_free_so_that_draws_find_one() -> None:
    """To list 90,000 names takes 24 ms."""
    state = taken(["99999"])
    state.app("x").counts_by_length = {1: 9, 2: 90, 3: 900, 4: 9000, 5: 88_199}
    assert len(allocated(state, show(0))) == 5
    state.app("x").counts_by_length[5] = 88_200
    assert len(allocated(state, show(0))) == 6


def test_a_mailbox_id_is_64_random_bits_as_13_letters_and_digits() -> None:
    assert new_mailbox_id(FakeDice(draw=lambda size: b"\xff" * size)) == "7777777777776"


@pytest.mark.parametrize("text", ["x" * 500, "é" * 100, "\U0001f4ee" * 40, "x" + "\U0001f4ee" * 40, "x" * 128, ""])
def test_a_clients_text_is_cut_between_two_characters(text: str) -> None:
    kept = usage.cut(text)
    assert text.startswith(kept)
    assert len(kept.encode()) <= 128
    assert len(kept.encode()) > 124 or kept == text
    record = usage.client_version(text, text, 1.0, [text, text], blur=0)
    assert {record.app_id, record.side, record.implementation, record.version} == {kept}
    mailbox = Mailbox(1, text, "m", for_nameplate=True, touched=0.0, sides=[])
    assert usage.mailbox_usage(mailbox, [], 1.0, blur=0).app_id == kept
    assert usage.nameplate_usage(Nameplate(1, text, "4", "m", []), 1.0, blur=0).app_id == kept


PRUNE_AFTER = 600.0
BOXES = 6

Deed = tuple[int, str]


class PruningWorld(StoreWorld):
    def __init__(self) -> None:
        super().__init__(Options(in_grace_period=False))
        self.clients: dict[int, Inbox] = {}
        self.used: set[int] = set()
        self.gone: set[int] = set()

    def touches(self) -> dict[int, float]:
        return {mailbox.key: mailbox.touched for mailbox in self.dispatcher.state.mailboxes()}

    def do(self, deeds: list[Deed]) -> None:
        for box, kind in deeds:
            self.advance(0.125)  # so that a touch can be told from the one before
            before = self.touches()
            if kind != "lose":
                if box not in self.clients:
                    self.clients[box] = self.connect()
                    self._send(box, "bind")
                self._send(box, kind)
            elif box in self.clients:
                self.lose(self.clients.pop(box))
            self.commit()
            after = self.touches()
            self.used |= {key for key in after if after[key] != before.get(key)}
            self.gone |= set(before) - set(after)

    def _send(self, box: int, kind: str) -> None:
        keys = {"appid": "x", "side": f"side{box}", "mailbox": f"m{box}", "nameplate": str(box)}
        self.say(self.clients[box], json.dumps({"type": kind, "phase": "p", "body": "00", **keys}))

    def commit(self) -> None:
        self.flush()
        self.check()
        state = self.dispatcher.state
        for mailbox in self.run(self.database.store.view()).mailboxes():
            live = state.app(mailbox.app_id).mailboxes[mailbox.mailbox_id]
            assert mailbox.touched == live.touched or mailbox.key in state.unsaved


deeds = st.tuples(
    st.integers(0, BOXES - 1), st.sampled_from(("open", "open", "add", "close", "close", "claim", "release", "lose"))
)


@pytest.fixture(autouse=True)
def slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SLICE_WEIGHT", 1)


@given(
    st.lists(deeds, max_size=20),
    st.lists(deeds, max_size=6),
    st.lists(st.lists(deeds, max_size=3), max_size=12) | st.just([]),
)
@examples(60)
def test_pruning_ends_idle_mailboxes_only(before: list[Deed], late: list[Deed], meanwhile: list[list[Deed]]) -> None:
    with closing(PruningWorld()) as world:
        dispatcher = world.dispatcher
        world.do(before)
        world.advance(PRUNE_AFTER + 1.0)
        world.do(late)
        touches, now = world.touches(), world.now().service
        deserted = {key for key in touches if now - touches[key] > PRUNE_AFTER} - set(dispatcher.subscribers)
        world.used.clear()
        world.gone.clear()

        pruned: set[int] = set()
        known = set(touches)
        slices = iter(meanwhile)
        for _ in pruning.prune_idle(dispatcher, world.now, PRUNE_AFTER, 0.0):
            world.commit()
            pruned |= known - set(world.touches())
            world.do(next(slices, []))
            known = set(world.touches())
            world.advance(0.25)
        world.commit()
        pruned |= known - set(world.touches())

        assert pruned <= deserted, "somebody was there, or had been lately"
        assert deserted - pruned <= world.used | world.gone, "nobody used it, and it is still there"
        assert not set(world.touches()) & pruned
        usage = world.usage()
        assert [record["result"] for record in usage.mailboxes].count("pruney") == len(pruned)
        assert usage.current is not None
        assert usage.current["connections_websocket"] == sum(map(len, dispatcher.subscribers.values()))
        assert set(dispatcher.state.unsaved) <= world.used
        for key in dispatcher.subscribers:
            assert world.touches()[key] >= PRUNE_AFTER
