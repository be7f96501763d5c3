"""A third side is refused wherever it comes, and hurts nobody: also not who lost the connection and comes again."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from support.bounds import bounded
from support.effort import rounds
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRUNE_AFTER: Final = 2
OPTIONS: Final = ("--prune-after", str(PRUNE_AFTER), "--prune-every", "1")
"""Short, so that what is kept alive can be told from what is not."""

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


async def intrude(siege: Siege, number: int, nameplate: str, mailbox: str) -> list[str]:
    """Try everything that a third side can, and leave; gives the errors."""
    third = await siege.bind(f"third-{number}")
    errors = []
    for command in (
        *({"type": each, "nameplate": nameplate} for each in ("claim", "release") if nameplate),
        {"type": "open", "mailbox": mailbox},
        {"type": "add", "phase": "pake", "body": "00"},
        {"type": "close", "mailbox": mailbox, "mood": "scary"},
    ):
        told = await siege.call(third, **command)
        assert told["type"] != "message", "it hears what was said to others"
        errors.append(told.get("error", ""))
    third.cut()
    return errors


@pytest.mark.parametrize("again", ["", "a", "b", "ab"], ids=["staying", "a again", "b again", "both again"])
async def test_a_third_side_is_refused_at_every_point_and_affects_nobody(siege: Siege, again: str) -> None:
    numbers = itertools.count()
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


async def listed(siege: Siege, app: str) -> int:
    looker = await siege.bind("looker", app)
    told = await siege.call(looker, type="list")
    looker.cut()
    return len(told["nameplates"])


async def late(siege: Siege, number: int) -> dict[str, Any]:
    """Come when the others were there before; gives the answer to the claim."""
    third = await siege.bind(f"late-{number}")
    told = await siege.call(third, type="claim", nameplate="777")
    third.cut()
    return told


async def test_refused_claims_keep_nothing_alive(siege: Siege) -> None:
    async with siege.beside_the_pair("claims that are refused, again and again"):
        for side in ("first", "second"):
            client = await siege.bind(side)
            mailbox = (await siege.call(client, type="claim", nameplate="777"))["mailbox"]
            client.say(type="open", mailbox=mailbox)
            client.say(type="add", phase="0", body="00")
            while (await client.hear()).get("side") != side:
                pass
            await client.leave()
        refused = 0
        async with bounded("a mailbox that is pruned although others ask for it"):
            while (told := await late(siege, refused))["type"] != "claimed":
                assert told["error"] == "crowded"
                refused += 1
        assert refused > 10
        assert told["mailbox"] != mailbox


async def test_a_lost_answer_to_allocate_leaks_nothing(siege: Siege) -> None:
    async with siege.beside_the_pair("answers to allocate that nobody hears") as pair:
        app = "lost answers"
        for _ in range(rounds(15, 50)):
            client = await siege.bind("forgetful", app)
            client.say(type="allocate")
            await siege.fence()
            client.cut()
            await siege.fence()
        assert await listed(siege, app) == 1
        for number in range(rounds(15, 50)):
            client = await siege.bind(f"forgetful-{number}", app)
            client.say(type="allocate")
            await siege.fence()
            client.cut()
        async with bounded("nameplates that are pruned although nobody was told of them"):
            while await listed(siege, app):
                await pair.plays(1)
