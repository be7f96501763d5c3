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

from client.live import APP_ID, CODE, Heard, Program, State
from restante.client import ConnectionOptions, Journal, Misuse, Wormhole
from restante.client.connection import driver
from restante.client.errors import ClosedError, CodeExpiredError, ServerGoneError, WrongPasswordError
from restante.client.events import Event, Reconnecting, Welcomed
from support.bounds import bounded
from support.mailbox.live import DAY, LiveServer
from support.ports import nobodys_port


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


@pytest.mark.parametrize("ending", ["it raises", "it is cancelled", "it is cancelled while it is saved"])
async def test_a_step_that_is_interrupted_is_saved_as_a_whole_or_changes_and_sends_nothing(
    friends: None, alice: Program, bob: Program, ending: str
) -> None:
    await alice.run("again, please")
    saved = ["again, please"] if ending.endswith("saved") else []
    async with bob.running() as (journal, wormhole):
        [message] = [message async for message in wormhole.waiting()]
        reached = asyncio.Event()

        async def process() -> None:
            async with journal.step(message) as state:
                state["received"].append("again, please")
                await wormhole.send(b"an answer")
                reached.set()
                if ending == "it raises":
                    raise RuntimeError
                if not saved:
                    await asyncio.Event().wait()

        task = asyncio.create_task(process())
        await reached.wait()
        if ending != "it raises":
            task.cancel()
        with pytest.raises(RuntimeError if ending == "it raises" else asyncio.CancelledError):
            await task
        async with bounded("the next step"), journal.step() as state:
            assert state == {"received": saved}
        assert len(wormhole.unacknowledged) == len(saved)
    assert bob.received == saved
    assert await bob.run() == ["again, please"]
    assert await alice.run() == (["an answer"] if saved else [])
    assert await bob.run() == ["again, please"]


async def test_messages_are_processed_in_order_and_each_once(friends: None, alice: Program, bob: Program) -> None:
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
    friends: None, alice: Program, bob: Program
) -> None:
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
    ("kind", "change", "error", "reason"),
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
    tmp_path: Path, kind: type[Any], change: Callable[[Any], None], error: type[Exception], reason: str
) -> None:
    file, initial = tmp_path / "journal", kind()
    async with Journal(file, initial) as journal:
        async with journal.step():
            pass
        before = file.read_bytes()
        with pytest.raises(error, match=reason):
            async with journal.step() as state:
                change(state)
        assert journal.state == initial
        assert file.read_bytes() == before


async def test_an_initial_state_is_one_that_json_can_express_like_a_null(tmp_path: Path) -> None:
    for _ in range(2):  # the first one leaves no lock
        with pytest.raises(Misuse, match=NUMBER):
            Journal(tmp_path / "journal", Mountain(math.nan))
    async with Journal[dict[str, Any]](tmp_path / "journal", {"nobody": None}) as journal:
        async with journal.step() as state:
            state["number"] = 1.5
        assert journal.state == {"nobody": None, "number": 1.5}


SOON = ConnectionOptions(close_seconds=0.1)

AGAIN = "get it from the journal again"


async def test_what_is_sent_in_a_step_goes_out_after_it_and_is_delivered_by_the_peer_s(
    friends: None, alice: Program, bob: Program
) -> None:
    async with bob.running() as (other, theirs), alice.running() as (journal, ours), bounded("messages of a step"):
        async with journal.step() as state:
            state["received"].append("asked")
            first = await ours.send(b"in the step 0")
            last = await ours.send(b"in the step 1")
            for wait in (first.stored(), first.delivered(), ours.send(b"not sent", until="stored")):
                with pytest.raises(Misuse, match="step"):
                    await wait
            assert ours.unacknowledged == []
        messages = [await anext(aiter(theirs)) for _ in range(2)]
        assert [message.data for message in messages] == [b"in the step 0", b"in the step 1"]
        await first.stored()
        assert ours.unacknowledged == [0, 1]
        async with other.step(*messages):
            pass
        await last.delivered()
        assert ours.unacknowledged == []
    assert alice.received == ["asked"]


async def test_a_task_that_sends_during_a_step_is_not_part_of_it(friends: None, alice: Program, bob: Program) -> None:
    async with bob.running() as (_, theirs), alice.running() as (journal, ours), bounded("both messages"):
        with pytest.raises(RuntimeError):  # noqa: PT012 - the step raises it
            async with journal.step():
                await ours.send(b"in the step")
                outside = await asyncio.create_task(ours.send(b"beside the step"))
                raise RuntimeError
        async with journal.step():
            inside = await ours.send(b"in the step")
            last = await asyncio.create_task(ours.send(b"beside it"))
        received = [(await anext(aiter(theirs))).data for _ in range(3)]
    assert received == [b"beside the step", b"beside it", b"in the step"]
    assert (outside.number, last.number, inside.number) == (0, 1, 2)


async def test_messages_of_two_wormholes_are_processed_in_one_step(server: LiveServer, alice: Program) -> None:
    async with (
        bounded("both peers"),
        alice.journal() as journal,
        Wormhole.create(APP_ID, server=server.url) as first,
        Wormhole.create(APP_ID, server=server.url) as second,
        journal.wormhole("first", APP_ID, server=server.url) as to_first,
        journal.wormhole("second", APP_ID, server=server.url) as to_second,
    ):
        messages = []
        for ours, theirs in ((to_first, first), (to_second, second)):
            await ours.set_code(await theirs.allocate_code())
            await theirs.send(b"from a friend")
            messages.append(await anext(aiter(ours)))
        async with journal.step(*messages) as state:
            state["received"] += [message.data.decode() for message in messages]
            await to_first.send(b"to the first")
            await to_second.send(b"to the second")
        assert [await theirs.receive() for theirs in (first, second)] == [b"to the first", b"to the second"]
    assert alice.received == ["from a friend"] * 2


async def test_a_wormhole_has_one_code_or_seed_whatever_interrupts_it(server: LiveServer, tmp_path: Path) -> None:
    file, nobody = tmp_path / "journal", f"ws://127.0.0.1:{nobodys_port()}/v1"
    async with Journal[State](file, {}) as journal:
        wormhole = journal.wormhole("peer", APP_ID, server=server.url)
        with pytest.raises(Misuse, match="in its context"):  # it is not connected: nobody answers
            await wormhole.allocate_code()
        await journal.save()
    async with (
        bounded("the code"),
        Journal[State](file, {}) as journal,
        journal.wormhole("peer", APP_ID, server=nobody) as wormhole,
    ):
        with pytest.raises(Misuse, match="code"):
            await anext(wormhole.waiting())
        code = await wormhole.allocate_code()
        assert await wormhole.allocate_code() == code == wormhole.code
        await wormhole.set_code(code)
        with pytest.raises(Misuse, match="one code"):
            await wormhole.set_code(CODE)
        with_seed = journal.wormhole("other", APP_ID, server=server.url)
        with pytest.raises(ValueError, match="a seed has 32 bytes, not 5"):
            await with_seed.set_seed(b"short")
        await with_seed.set_seed(bytes(32))
        await with_seed.set_seed(bytes(32))
        for other, seed in ((with_seed, bytes([1]) * 32), (wormhole, bytes(32))):
            with pytest.raises(Misuse, match="one code"):
                await other.set_seed(seed)


async def test_a_wormhole_stays_at_its_server_and_keeps_its_application(alice: Program) -> None:
    await alice.run()
    async with alice.journal() as journal:
        assert journal.names == ["peer"]
        with pytest.raises(Misuse, match="belongs to the application"):
            journal.wormhole("peer", "example.com/another")
        async with journal.wormhole("peer", APP_ID, server="ws://127.0.0.1:1/v1") as wormhole:
            assert [message async for message in wormhole.waiting()] == []
            with pytest.raises(Misuse, match="in use"):
                journal.wormhole("peer", APP_ID)
            with pytest.raises(Misuse, match="in use: leave its context"):
                await journal.remove("peer")
        with pytest.raises(Misuse, match="has no wormhole 'stranger'"):
            await journal.remove("stranger")


async def test_a_wormhole_that_was_removed_or_got_before_another_use_of_it_is_refused(alice: Program) -> None:
    async with alice.journal() as journal:
        first = journal.wormhole("peer", APP_ID, server=alice.server.url)
        async with journal.wormhole("peer", APP_ID) as left:
            pass
        for call in (first.__aenter__(), left.close()):
            with pytest.raises(Misuse, match=AGAIN):
                await call
        removed, other = (journal.wormhole(name, APP_ID, server=alice.server.url) for name in ("peer", "other"))
        with pytest.raises(Misuse, match=AGAIN):  # noqa: PT012 - the step raises it
            async with journal.step() as state:
                state["received"].append("lost")
                await other.send(b"lost")
                await journal.remove("other")
        assert journal.state == {"received": []}
        await journal.remove("peer")
        for use in (removed.send(b"lost"), removed.set_code(CODE), removed.__aenter__(), removed.close()):
            with pytest.raises(Misuse, match=AGAIN):
                await use
        with pytest.raises(Misuse, match=AGAIN):
            async with journal.step():
                await removed.send(b"lost")


async def test_an_error_of_the_function_for_events_is_for_this_run_only(
    friends: None, alice: Program, bob: Program
) -> None:
    def stumble(event: Event) -> None:
        if isinstance(event, Welcomed):
            raise ZeroDivisionError

    await bob.run("hello")
    async with alice.journal() as journal:
        with pytest.raises(ZeroDivisionError):
            async with journal.wormhole("peer", APP_ID, on_event=stumble) as wormhole, bounded("the error"):
                await anext(aiter(wormhole))
    assert await alice.run() == ["hello"]


async def test_a_wormhole_that_is_closed_leaves_nothing_and_stays_closed(
    server: LiveServer, friends: None, alice: Program, bob: Program
) -> None:
    for program in (alice, bob):
        async with program.running() as (journal, wormhole):
            assert wormhole.mood is None
            await wormhole.close()
            assert wormhole.mood == "happy"
            with pytest.raises(ClosedError):  # noqa: PT012 - the step raises it
                async with journal.step() as state:
                    state["received"].append("lost")
                    await wormhole.send(b"lost")
            assert journal.state == {"received": []}
    assert server.mailboxes == 0
    async with alice.running() as (_, wormhole):
        await wormhole.close()
    async with alice.journal() as journal:
        wormhole = journal.wormhole("peer", APP_ID)
        assert wormhole.mood == "happy"
        with pytest.raises(ClosedError):
            await wormhole.send(b"too late")
        with pytest.raises(Misuse, match="in its context"):
            await wormhole.close()
        await journal.remove("peer")
        assert journal.names == []
    async with alice.journal() as journal:
        assert journal.names == []


async def test_a_wormhole_ended_by_another_code_says_so_in_the_next_run(server: LiveServer, alice: Program) -> None:
    async with Wormhole.create(APP_ID, server=server.url) as mallory:
        await mallory.set_code("4-another-code")
        async with alice.running() as (_, wormhole), bounded("the other code"):
            for side in (wormhole, mallory):
                with pytest.raises(WrongPasswordError, match="used another code"):
                    await side.verifier()
    async with alice.running() as (_, wormhole):
        assert (wormhole.mood, wormhole.met) == ("scary", False)
        with pytest.raises(ClosedError, match=r"has ended before \(scary\): use a new one"):
            await wormhole.send(b"too late")


async def test_a_program_that_starts_before_its_server_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, server: LiveServer, friends: None, alice: Program, bob: Program
) -> None:
    monkeypatch.setattr(driver, "delay_before", lambda *_: 0.02)
    await bob.run("hello")
    await server.stop()
    heard = Heard()
    async with alice.journal() as journal, journal.wormhole("peer", APP_ID, on_event=heard) as wormhole:
        await heard.until(Reconnecting, 3)
        await server.start()
        async with bounded("the message"):
            assert [message.data async for message in wormhole.waiting()] == [b"hello"]
    assert all("cannot connect to" in reconnecting.reason for reconnecting in heard.of(Reconnecting))


async def test_a_program_that_ends_before_its_server_comes_is_told_and_the_next_one_sends(
    server: LiveServer, friends: None, alice: Program, bob: Program
) -> None:
    await server.stop()
    async with alice.journal() as journal:
        with pytest.raises(ServerGoneError, match="cannot connect to"):
            async with bounded("the end"), journal.wormhole("peer", APP_ID, options=SOON) as wormhole:
                await wormhole.send(b"later")
    await server.start()
    await alice.run()
    assert await bob.run() == ["later"]


async def test_a_wormhole_that_was_closed_without_a_server_is_closed_there_in_the_next_run(
    server: LiveServer, friends: None, alice: Program, bob: Program
) -> None:
    async with bob.running() as (_, wormhole):
        await wormhole.close()
    await server.stop()
    async with alice.journal() as journal, journal.wormhole("peer", APP_ID, options=SOON) as wormhole:
        with pytest.raises(ServerGoneError):
            await wormhole.close("errory")
    await server.start()
    assert server.mailboxes == 1
    async with bounded("the close"), alice.journal() as journal, journal.wormhole("peer", APP_ID) as wormhole:
        assert wormhole.mood == "errory"
    assert server.mailboxes == 0
