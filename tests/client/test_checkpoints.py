"""The file of a journal: what is wrong with it is said, and nothing is sent that it does not have."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from client.live import APP_ID, CODE, Heard, Program, State
from client.transfer.hostile import sparse
from restante.client import CheckpointError, Journal, OldCheckpointError, RestanteError, StoreError
from restante.client.connection import driver
from restante.client.core.machine import Machine
from restante.client.core.state import WormholeState
from restante.client.events import Reconnecting, ReplayEnded
from restante.client.journal_mode.checkpoint import MAX_CHECKPOINT_BYTES, CheckpointFile
from support.bounds import BOUND
from support.disk import no_file_beyond
from support.mailbox.live import DAY, LiveServer


async def test_on_a_full_disk_a_step_fails_and_sends_nothing_and_nothing_is_known_any_more(
    server: LiveServer, friends: None, alice: Program, bob: Program
) -> None:
    await alice.run("0")
    before, messages = bob.file.read_bytes(), server.messages
    with pytest.raises(StoreError, match="cannot write the journal"):  # noqa: PT012 - each call raises it
        async with bob.running() as (journal, wormhole):
            message = await anext(aiter(wormhole))
            await journal.save()
            before = bob.file.read_bytes()
            assert (wormhole.code, wormhole.met, wormhole.mood, wormhole.unacknowledged) == (CODE, True, None, [])
            with no_file_beyond(len(before) // 2), pytest.raises(StoreError):  # noqa: PT012 - the step raises it
                async with journal.step(message) as state:
                    state["received"].append("0")
                    await wormhole.send(b"an answer")
            with pytest.raises(StoreError, match="cannot write the journal"):
                await wormhole.send(b"another")
            attributes = [(wormhole, name) for name in ("code", "met", "mood", "unacknowledged")]
            for known, name in (*attributes, (journal, "state"), (journal, "names")):
                with pytest.raises(StoreError, match="cannot write the journal"):
                    getattr(known, name)
            with pytest.raises(StoreError, match="cannot write the journal"):
                journal.wormhole("other", APP_ID)
    assert bob.file.read_bytes() == before
    assert server.messages == messages
    assert [file.name for file in bob.file.parent.glob("bob*")] == ["bob", "bob.lock"]
    assert await bob.run() == ["0"]


async def test_a_wait_ends_at_once_if_the_journal_cannot_be_saved_after_the_connection_was_lost(
    server: LiveServer, friends: None, alice: Program, bob: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "delay_before", lambda *_: 1e6)
    heard, lost = Heard(), threading.Event()

    def fail(*_: object) -> None:
        lost.wait()
        raise StoreError("cannot write the journal")

    with pytest.raises(StoreError):  # noqa: PT012 - its context raises it, too
        async with alice.journal() as journal, journal.wormhole("peer", APP_ID, on_event=heard) as wormhole:
            await heard.until(ReplayEnded)
            monkeypatch.setattr(CheckpointFile, "write", fail)
            waits = [asyncio.create_task(call) for call in (wormhole.send(b"0"), wormhole.flush())]
            try:
                await server.stop()
                await heard.until(Reconnecting)
            finally:
                lost.set()
            await asyncio.wait(waits, timeout=BOUND)
            errors = [type(wait.exception()) if wait.done() else None for wait in waits]
    assert errors == [StoreError, StoreError]
    await server.start()


async def test_a_state_is_shown_when_it_is_saved(alice: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, written = threading.Event(), threading.Event(), CheckpointFile.write

    def write(file: CheckpointFile, content: bytes) -> None:
        begun.set()
        go_on.wait(BOUND)
        written(file, content)

    async def add() -> None:
        async with journal.step() as state:
            state["received"].append("0")

    monkeypatch.setattr(CheckpointFile, "write", write)
    async with alice.journal() as journal:
        step = asyncio.create_task(add())
        await asyncio.to_thread(begun.wait, BOUND)
        assert journal.state == {"received": []}
        go_on.set()
        await step
        assert journal.state == {"received": ["0"]}


async def test_a_new_wormhole_that_cannot_be_saved_does_not_connect(server: LiveServer, alice: Program) -> None:
    with no_file_beyond(10), pytest.raises(StoreError, match="cannot write the journal"):
        await alice.run()
    assert not alice.file.exists()
    assert server.mailboxes == 0


async def test_a_journal_is_used_by_one_process_at_a_time(alice: Program) -> None:
    async with alice.journal() as journal:
        with pytest.raises(StoreError, match="is in use, by another process or a Journal that is not closed"):
            alice.journal()
        journal.close()
        async with alice.journal():
            journal.close()
            with pytest.raises(StoreError, match="is in use, by another process or a Journal that is not closed"):
                alice.journal()
    async with alice.journal() as journal:
        pass
    with pytest.raises(StoreError, match="is closed"):
        async with journal.step() as state:
            state["received"].append("lost")
    assert not alice.file.exists()


async def test_the_draft_of_a_process_that_was_killed_is_replaced(alice: Program) -> None:
    draft = alice.file.with_name(f".{alice.file.name}.restante-draft")
    draft.write_bytes(b"half a checkpoint")
    async with alice.journal() as journal, journal.step() as state:
        state["received"].append("saved")
    assert not draft.exists()
    assert alice.received == ["saved"]


async def test_a_journal_whose_folder_was_removed_is_not_written_over_that_of_another_process(alice: Program) -> None:
    alice.file = alice.file / "journal"
    alice.file.parent.mkdir()
    async with alice.journal() as journal:
        await journal.save()
        shutil.rmtree(alice.file.parent)
        alice.file.parent.mkdir()
        async with alice.journal() as another:
            async with another.step() as state:
                state["received"].append("kept")
            with pytest.raises(StoreError, match="was removed"):
                async with journal.step() as state:
                    state["received"].append("lost")
    assert alice.received == ["kept"]


@pytest.fixture
async def used(friends: None, alice: Program, bob: Program) -> Path:
    await alice.run("0", "1")
    async with bob.running() as (_, wormhole):
        await wormhole.send(b"an answer")
        assert len([message async for message in wormhole.waiting()]) == 2
    return bob.file


@pytest.mark.parametrize(
    ("then", "texts"),
    [
        ("", ["would be lost"]),
        ("it is received", ["would be lost"]),
        ("only its receipt is left", []),
        ("only its receipt is left", ["would be lost"]),
        ("nothing is left", ["would be lost", "and not the next one"]),
    ],
)
async def test_a_checkpoint_from_before_a_message_ends_the_wormhole_instead_of_losing_the_next_one(
    server: LiveServer, friends: None, alice: Program, bob: Program, then: str, texts: list[str]
) -> None:
    backup = alice.file.read_bytes()
    await alice.run("first")
    if then:
        await bob.run()
    if then == "only its receipt is left":
        await alice.run()
        await server.wait(8 * DAY)  # it forgets the message
        await bob.run()
        assert server.messages == 3  # his half of the key, his version, and his receipt
    alice.file.write_bytes(backup)
    if then == "nothing is left":
        await server.wait(8 * DAY)
        await alice.run(*texts)  # nobody can know it yet
        assert await bob.run() == ["first", *texts[1:]]
        texts = []
    with pytest.raises(OldCheckpointError, match="older copy: agree on a new code"):
        await alice.run(*texts)
    assert (await bob.run())[0] == "first"


async def test_a_checkpoint_from_before_a_message_of_the_peer_gets_it_again_or_ends(
    server: LiveServer, friends: None, alice: Program, bob: Program
) -> None:
    backup = alice.file.read_bytes()
    await bob.run("first")
    assert await alice.run() == ["first"]
    alice.file.write_bytes(backup)
    assert await alice.run() == ["first"]
    await bob.run("second")
    await server.wait(8 * DAY)  # it forgets the first message, which he does not keep
    alice.file.write_bytes(backup)
    await bob.run()
    with pytest.raises(OldCheckpointError, match="older copy: agree on a new code"):
        await alice.run()


def refused(file: Path, reason: str, initial: object = None) -> None:
    before = file.read_bytes()
    with pytest.raises(CheckpointError, match=reason) as caught:
        Journal[Any](file, initial or {"received": []})
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == before


def test_a_checkpoint_that_is_truncated_anywhere_or_written_twice_is_refused(used: Path, tmp_path: Path) -> None:
    content, cut = used.read_bytes(), tmp_path / "cut"
    for size in range(0, len(content), 11):
        cut.write_bytes(content[:size])
        refused(cut, "only a part of one")
    cut.write_bytes(content * 2)
    refused(cut, "only a part of one")


class Contacts(msgspec.Struct):
    names: list[str] = []


def test_a_checkpoint_of_another_version_or_application_or_without_a_mailbox_is_refused(used: Path) -> None:
    checkpoint, state = json.loads(used.read_bytes()), state_in(used)
    for change, reason in (
        ({"version": 9}, "has version 9, not 1"),
        ({"mailbox": None}, "has no mailbox"),  # it would wait for ever
        ({"mailbox_status": "unknown"}, "has no mailbox"),
    ):
        rewrite(used, {**state, **change})
        refused(used, reason)
    applications: list[Any] = [{"names": "x"}, {"names": [1]}, [], None]
    for application in applications:
        used.write_text(json.dumps({**checkpoint, "application": application}))
        refused(used, "has the state of another application", Contacts())
    used.write_text(json.dumps({**checkpoint, "version": 2, "wormholes": "of a later kind"}))
    refused(used, "version 2 of the format, and this program reads 1")
    used.write_text(json.dumps(checkpoint))
    rewrite(used, {**state, "new": 1})  # a later release of the same version may add what this one need not know
    with closing(Journal[State](used, {"received": []})) as journal:
        assert journal.wormhole("peer", APP_ID).unacknowledged == [0]


NO_JOURNALS: Final = (
    *(b"", b"\0" * 4096, b"\xff\xfe{}", b"null", b"[]", b"{}", b"[" * 100_000, b'{"format": 1, "version": 1}'),
    b'{"format": "restante journal", "version": 1, "x": ' + b"[" * 100_000,
    b'{"format": "restante journal", "version": "1"}',
    b'{"format": "\xff", "version": 1}',
)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((content, "is not a journal") for content in NO_JOURNALS),
        (b'{"format": "another", "version": 1}', "another program"),
        (b'{"format": "restante journal", "version": 1}', "damaged journal"),
        (b'{"format": "restante journal", "version": 1, "application": {}, "wormholes": []}', "damaged journal"),
        (b'{"format": "restante journal", "version": 1, "application": [1]}', "another application"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "journal"
    file.write_bytes(content)
    refused(file, reason)


@pytest.mark.parametrize(
    ("name", "make", "error", "reason"),
    [
        ("journal", Path.mkdir, StoreError, "cannot read the journal .* Is a directory"),
        ("journal", lambda file: file.symlink_to(file), StoreError, "cannot read the journal .* Too many levels"),
        ("journal", lambda file: sparse(file, MAX_CHECKPOINT_BYTES + 1), CheckpointError, "more than"),
        ("missing/journal", Path.exists, StoreError, "cannot use the journal"),
        ("file/journal", lambda file: file.parent.touch(), StoreError, "cannot use the journal"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], error: type[RestanteError], reason: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(error, match=reason):
        Journal[State](tmp_path / name, {"received": []})


WELCOME: Final = {"type": "welcome", "welcome": {}}
PONG, RELEASED = {"type": "pong", "pong": "end of replay"}, {"type": "released"}
LOST: Final = (WELCOME, RELEASED, PONG)

MESSAGES: Final = [
    {"type": "message", "side": "PEER", "phase": name, "body": "00"} for name in ("0", "pake", "version")
]
LIES: Final = (WELCOME, {"type": "claimed", "mailbox": "m"}, *MESSAGES, PONG, RELEASED)

DAMAGED: Final[tuple[Any, ...]] = (None, True, -1, 1, 1.5, "", "x", "00", [], {}, ["x"], {"x": "x"}, 10**30)


def damaged(value: Any) -> Iterator[Any]:
    yield from DAMAGED
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: other for name, other in value.items() if name != key}
            for other in damaged(inner):
                yield {**value, key: other}


def state_in(file: Path) -> Any:
    return json.loads(file.read_bytes())["wormholes"]["peer"]["state"]


def rewrite(file: Path, state: Any) -> None:
    checkpoint = json.loads(file.read_bytes())
    checkpoint["wormholes"]["peer"]["state"] = state
    file.write_text(json.dumps(checkpoint))


@pytest.mark.parametrize("payload", ["end of replay", "end", None, {"end of replay": 1}])
def test_a_pong_that_was_not_asked_for_changes_nothing(used: Path, payload: Any) -> None:
    machines = [Machine(msgspec.convert(state_in(used), WormholeState), bytes, lasting=True) for _ in range(2)]
    stray = {"type": "pong", "pong": payload, "id": "unknown"}
    for machine, frames in zip(machines, (LOST, (stray, *LOST, stray)), strict=True):
        machine.connected()
        for frame in frames:
            machine.receive(json.dumps(frame))
    assert machines[0].outputs() == machines[1].outputs()


@pytest.mark.parametrize("frames", [LOST, LIES], ids=["a server that lost the mailbox", "a server that lies"])
def test_a_damaged_value_at_most_ends_the_wormhole(used: Path, frames: tuple[dict[str, Any], ...]) -> None:
    peer = state_in(used)["peer_side"]
    tried, read = list(damaged(state_in(used))), 0
    for state in tried:
        rewrite(used, state)
        with suppress(CheckpointError):
            with closing(Journal[State](used, {"received": []})):
                read += 1
            machine = Machine(msgspec.convert(state, WormholeState), bytes, lasting=True)
            machine.connected()
            for frame in frames:
                machine.receive(json.dumps(frame).replace("PEER", peer))
            if machine.state.mood is None:
                machine.send(b"x")
                machine.close()
            msgspec.json.encode(machine.state)
    assert 0 < read < len(tried)  # some are read, some are refused
