"""A third side is refused wherever it comes, and hurts nobody: also not who lost the connection and comes again."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from restante.mailbox.server.commit_loop import GRACE_SECONDS
from support.mailbox.siege import LiveSiege

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH: Final = {
    "b claimed",
    "b opened",
    "b spoke",
    "pair-a released",
    "pair-b released",
    "both spoke",
    "pair-a closed",
}
"""Steps after which both sides are members of the mailbox, and it is not over."""

OPENING: Final = ["crowded", "must open mailbox before adding", ""]
"""What a third side is told that opens, adds and closes."""

SPOKEN: Final = {"b spoke", "both spoke"}
"""Steps after which both sides have said something, and so keep their places while they are away."""


async def intrude(siege: LiveSiege, number: int, nameplate: str, mailbox: str) -> list[str]:
    """Try everything that a third side can, and leave; gives the errors."""
    third = await siege.bind(f"third-{number}")
    errors = []
    for command in (
        *({"type": kind, "nameplate": nameplate} for kind in ("claim", "release") if nameplate),
        {"type": "open", "mailbox": mailbox},
        {"type": "add", "phase": "pake", "body": "00"},
        {"type": "close", "mailbox": mailbox, "mood": "scary"},
    ):
        answer = await siege.call(third, **command)
        assert answer["type"] != "message", "it hears what was said to others"
        errors.append(answer.get("error", ""))
    third.cut()
    return errors


@pytest.mark.parametrize("again", ["", "a", "b", "ab"], ids=["staying", "a again", "b again", "both again"])
async def test_a_third_side_is_refused_at_every_point_and_affects_nobody(siege: LiveSiege, again: str) -> None:
    numbers = itertools.count()
    siege.live.clock.now += GRACE_SECONDS
    async with siege.beside_the_pair("a third side"):
        session = siege.pair.session()
        async for step in session.steps():
            if step.replace(session.a.name, "pair-a").replace(session.b.name, "pair-b") not in BOTH:
                continue
            held = not step.startswith(("both", session.b.name + " released")) and "closed" not in step
            nameplate = session.nameplate if held else ""  # it may be others' by now
            errors = await intrude(siege, next(numbers), nameplate, session.mailbox)
            assert errors == ["crowded", ""] * held + OPENING
            for side in again:
                async with session.away(getattr(session, side)):
                    if step in SPOKEN:
                        errors = await intrude(siege, next(numbers), nameplate, session.mailbox)
                        assert errors[-3:] == OPENING
                errors = await intrude(siege, next(numbers), nameplate, session.mailbox)
                assert errors[-3:] == OPENING
