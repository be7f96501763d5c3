"""Rules by themselves: which nameplate is allocated, and where the texts of usage records end."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from machine.model import shortest_free
from restante.mailbox.core import session, usage
from restante.mailbox.core.model import Decision, Mailbox, Nameplate, Now, Policy
from restante.mailbox.core.rules import decide, new_mailbox_id
from restante.mailbox.core.state import State
from support.dice import FakeDice

NOW = Now(1_700_000_000.0, 10.0)
DIGITS = "123456789"


def show(first: int, later: int | None = None) -> Callable[[int, int], int]:
    """Dice that show one number, and another one from the second time on."""
    return lambda draw, _bound: later if draw and later is not None else first


def decided(state: State, command: session.Command, dice: FakeDice | None = None) -> Decision:
    return decide(state, command, NOW, dice or FakeDice(show(0)), Policy())


def taken(names: Iterable[str]) -> State:
    """Return a state in which these were claimed by hand."""
    state, dice = State(), FakeDice(show(0))
    for name in names:
        for change in decided(state, session.ClaimCommand("x", "by hand", name), dice).changes:
            state.fold(change)
    return state


def allocated(state: State, dice: Callable[[int, int], int]) -> str:
    """Ask for a nameplate with these dice; nothing is altered."""
    return decided(state, session.AllocateCommand("x", "me"), FakeDice(dice)).name


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
    """All shorter names are taken, and what people make up."""
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
    state = State()
    state._make_app("x").taken = {1: 9, 2: 90, 3: 900, 4: 9000, 5: 88_199}
    assert len(allocated(state, show(0))) == 5
    state.app("x").taken[5] = 88_200
    assert len(allocated(state, show(0))) == 6


def test_a_mailbox_id_is_64_random_bits_as_13_letters_and_digits() -> None:
    assert new_mailbox_id(FakeDice(draw=lambda size: b"\xff" * size)) == "7777777777776"


@pytest.mark.parametrize(
    "text", ["x" * 500, "\u00e9" * 100, "\U0001f4ee" * 40, "x" + "\U0001f4ee" * 40, "x" * 128, ""]
)
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
