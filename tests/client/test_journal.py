"""Journal Mode: programs that stop between messages, and lose nothing and process nothing twice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.programs import APP_ID, Program, acquainted
from restante.client import CodeExpiredError, Journal, Message, Misuse
from restante.client.unread import MAX_UNREAD_MESSAGES
from support.bounds import bounded
from support.mailbox.live import DAY, LiveServer

# ── two programs that never run at the same time ────────────────────────────────────────────────


@pytest.mark.parametrize("gap", [6 * DAY, 8 * DAY], ids=["shorter than the expiry", "longer than the expiry"])
async def test_messages_outlive_gaps_of_runs(server: LiveServer, alice: Program, bob: Program, gap: float) -> None:
    await acquainted(alice, bob)
    await alice.run("before the gap")
    await server.wait(gap)
    await server.restart()
    pruned = gap > 7 * DAY
    assert server.mailboxes == (not pruned)
    assert await bob.run() == ([] if pruned else ["before the gap"])
    assert await alice.unacknowledged() == [0]
    await alice.run()
    assert await bob.run() == ["before the gap"]
    await alice.run()
    assert await alice.unacknowledged() == []
    assert await bob.run() == ["before the gap"]


async def test_a_code_that_expired_before_the_key_was_agreed_is_an_error_of_its_own(
    server: LiveServer, alice: Program, bob: Program
) -> None:
    await alice.run("too early")
    await server.wait(8 * DAY)
    await bob.run("too late")
    with pytest.raises(CodeExpiredError):
        await alice.run()
    async with bob.running() as (_, wormhole):
        await wormhole.close()
    assert server.mailboxes == 0  # alice's program has left the one that it claimed


# ── steps ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_whose_block_raises_changes_nothing_and_sends_nothing(alice: Program, bob: Program) -> None:
    await acquainted(alice, bob)
    await alice.run("again, please")
    async with bob.running() as (journal, wormhole):
        async for message in wormhole.waiting():
            with pytest.raises(RuntimeError):  # noqa: PT012 - the step raises it
                async with journal.step(message) as state:
                    state["received"].append("half")
                    await wormhole.send(b"half")
                    raise RuntimeError
        assert journal.state == {"received": []}
        assert wormhole.unacknowledged == []
    assert bob.received == []
    assert await bob.run() == ["again, please"]
    assert await alice.run() == []
    assert await bob.run() == ["again, please"]


async def test_messages_are_processed_in_order_and_each_once(alice: Program, bob: Program) -> None:
    await acquainted(alice, bob)
    await alice.run("0", "1", "2")
    async with bob.running() as (journal, wormhole):
        messages = [message async for message in wormhole.waiting()]
        for wrong in (messages[1:], messages[::-1], [messages[0], messages[0]], [messages[0], messages[2]]):
            with pytest.raises(Misuse, match="comes first"):
                async with journal.step(*wrong) as state:
                    state["received"].append("wrong")
        async with journal.step(*messages[:2]) as state:
            state["received"] += ["0", "1"]
        with pytest.raises(Misuse, match="comes first"):
            async with journal.step(messages[1]):
                pass
    assert await bob.run() == ["0", "1", "2"]


async def test_a_message_of_another_journal_or_of_an_earlier_context_is_not_processed(
    alice: Program, bob: Program
) -> None:
    await acquainted(alice, bob)
    await alice.run("0")
    async with bob.journal() as journal, alice.journal() as other:
        async with journal.wormhole("peer", APP_ID) as wormhole:
            [old] = [message async for message in wormhole.waiting()]
        async with journal.wormhole("peer", APP_ID) as wormhole:
            [new] = [message async for message in wormhole.waiting()]
            for wrong, message in ((journal, old), (other, new)):
                with pytest.raises(Misuse, match="no wormhole that is open in this journal"):
                    async with wrong.step(message):
                        pass
            async with journal.step(new):
                pass
    assert await bob.run() == []


async def test_steps_run_one_after_the_other_and_not_in_one_another(alice: Program) -> None:
    async with alice.journal() as journal:

        async def add(text: str) -> None:
            async with journal.step() as state:
                await asyncio.sleep(0)
                state["received"].append(text)

        await asyncio.gather(*(add(str(number)) for number in range(10)))
        assert sorted(journal.state["received"]) == list("0123456789")
        async with bounded("a step in a step"), journal.step() as state:
            with pytest.raises(Misuse, match="in another"):
                async with journal.step():
                    pass
            state["received"] = ["kept"]
        journal.state["received"].append("nowhere")  # it is a copy
        assert journal.state == {"received": ["kept"]}


@dataclass
class Mountain:
    height: float | None = None


class Weight(msgspec.Struct):
    kilograms: float | None = None
    others: list[Any] = []


NUMBER = "NaN or infinity"


@pytest.mark.parametrize(
    ("kind", "change", "error", "words"),
    [
        (Mountain, lambda state: setattr(state, "height", math.nan), Misuse, NUMBER),
        (Weight, lambda state: setattr(state, "kilograms", -math.inf), Misuse, NUMBER),
        (Weight, lambda state: state.others.append({"here": [math.nan]}), Misuse, NUMBER),
        (Weight, lambda state: setattr(state, "kilograms", "heavy"), Misuse, r"the type of its field: .*kilograms"),
        (dict, lambda state: state.update(here=[math.inf]), Misuse, NUMBER),
        (dict, lambda state: state.update(here=object()), TypeError, "."),
    ],
)
async def test_a_state_that_could_not_be_read_again_ends_the_step_and_changes_nothing(
    tmp_path: Path, kind: type[Any], change: Callable[[Any], None], error: type[Exception], words: str
) -> None:
    file, initial = tmp_path / "journal", kind()
    async with Journal(file, initial) as journal:
        async with journal.step():
            pass
        before = file.read_bytes()
        with pytest.raises(error, match=words):
            async with journal.step() as state:
                change(state)
        assert journal.state == initial
        assert file.read_bytes() == before


async def test_an_initial_state_is_not_written_and_is_one_that_json_can_express(tmp_path: Path) -> None:
    for _ in range(2):  # the first one leaves no lock
        with pytest.raises(Misuse, match=NUMBER):
            Journal(tmp_path / "journal", Mountain(math.nan))
    for initial in (1.0, None):
        async with Journal(tmp_path / "journal", Mountain(initial)) as journal:
            assert journal.state == Mountain(initial)
    async with Journal[dict[str, Any]](tmp_path / "journal", {"nobody": None}) as journal:
        async with journal.step() as state:
            state["number"] = 1.5
        assert journal.state == {"nobody": None, "number": 1.5}


async def test_a_receipt_is_waited_for_like_a_message(alice: Program, bob: Program) -> None:
    await acquainted(alice, bob)
    await alice.run("0")
    async with bounded("the server's echo of the receipt"), bob.running() as (journal, wormhole):
        async for message in wormhole.waiting():
            async with journal.step(message):
                pass
            await wormhole.flush()
    async with bounded("the receipt"), alice.running() as (_, ours):
        assert [message async for message in ours.waiting()] == []
        assert ours.unacknowledged == []


@pytest.mark.parametrize("saving", [True, False], ids=["while it is saved", "in its block"])
async def test_a_step_that_is_cancelled_is_saved_or_changes_nothing(
    alice: Program, bob: Program, saving: bool
) -> None:
    await acquainted(alice, bob)
    await alice.run("0")
    async with bob.running() as (journal, wormhole):
        [message] = [message async for message in wormhole.waiting()]
        reached = asyncio.Event()

        async def process() -> None:
            async with journal.step(message) as state:
                state["received"].append("0")
                reached.set()
                if not saving:
                    await asyncio.Event().wait()

        task = asyncio.create_task(process())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with bounded("the next step"), journal.step() as state:
            assert state == {"received": ["0"] if saving else []}
    assert bob.received == (["0"] if saving else [])
    assert await bob.run() == ["0"]


async def test_more_messages_than_are_read_at_once_wait_for_several_runs(alice: Program, bob: Program) -> None:
    await acquainted(alice, bob)
    texts = [str(each) for each in range(MAX_UNREAD_MESSAGES + 200)]
    async with alice.running() as (journal, wormhole), journal.step():
        for text in texts:
            await wormhole.send(text.encode())
    for most in (50, len(texts)):
        await alice.run()
        assert await alice.unacknowledged() == list(range(len(bob.received), len(texts)))
        async with bounded("a run"), bob.running() as (journal, wormhole):
            messages: list[Message] = []
            async for message in wormhole.waiting():
                messages.append(message)
                if len(messages) == most:
                    break
            async with journal.step(*messages) as state:
                state["received"] += [each.data.decode() for each in messages]
    assert bob.received == texts
    await alice.run()
    assert await alice.unacknowledged() == []
