"""Two wormholes meet at a server of our own, whatever becomes of the server and of them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from client.live import Heard, LiveServer, meet, read, serving, use, wormhole
from client.world import APP_ID
from restante.client import (
    Closed,
    ClosedError,
    CodeError,
    CodeExpiredError,
    CodeKnown,
    Connecting,
    CrowdedError,
    Event,
    KeyAgreed,
    LonelyError,
    MessageStored,
    Misuse,
    NoReceiptsError,
    PeerConfirmed,
    ReplayEnded,
    ServerGoneError,
    WaitingForPeer,
    Welcomed,
    WelcomeError,
    Wormhole,
    WrongPasswordError,
    unread,
)
from restante.client.core import unstored
from support.bounds import bounded
from support.mailbox.clients import Clients
from support.ports import nobodys_port


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with serving(tmp_path) as server:
        yield server


# ── two sides meet ───────────────────────────────────────────────────────────────────────────────


async def test_two_sides_meet_and_exchange_messages(server: LiveServer) -> None:
    heard, messages = Heard(), [b"%d" % number for number in range(100)]
    async with wormhole(server.url, versions={"chat": 1}, on_event=heard) as alice, wormhole(server.url) as bob:
        await alice.send(messages[0])  # before there is a peer
        code = await alice.allocate_code()
        await heard.until(WaitingForPeer)
        async with bounded("a key"):
            await bob.set_code(code)
            assert await alice.verifier() == await bob.verifier()
        assert (await alice.versions(), await bob.versions()) == ({}, {"chat": 1})
        for message in messages[1:]:
            await alice.send(message)
        for message in messages:
            await bob.send(message)
        assert await read(bob, 100) == messages
        assert await read(alice, 100) == messages
        keys = [await each.derive_key("files", 40) for each in (alice, bob)]
        assert keys[0] == keys[1]
        assert len(keys[0]) == 40
        assert await alice.derive_key("chat", 40) != keys[0]
        await alice.flush()
    assert heard.of(CodeKnown) == [CodeKnown(code)]
    assert [event.number for event in heard.of(MessageStored)] == list(range(100))
    wanted = [Connecting, Welcomed, CodeKnown, ReplayEnded, WaitingForPeer, KeyAgreed, PeerConfirmed, Closed]
    assert [kind for kind in heard.kinds if kind != "MessageStored"] == [kind.__name__ for kind in wanted]
    assert server.usage() == (["happy"], ["happy"])
    assert server.live() == {}


async def test_messages_are_iterated_until_the_wormhole_is_closed(server: LiveServer) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        await alice.send(b"one")
        await alice.send(b"two")
        messages = []
        async with bounded("the end of the messages"):
            async for message in bob:
                messages.append(message)
                if message == b"two":
                    await bob.close()
        assert messages == [b"one", b"two"]
        with pytest.raises(ClosedError):
            await bob.send(b"three")


async def test_a_message_is_known_to_be_stored_and_delivered(server: LiveServer) -> None:
    options = {"receipts": True}
    async with wormhole(server.url, **options) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        sent = await alice.send(b"hello")
        async with bounded("the server's and the peer's confirmation"):
            await sent.stored()
            await bob.receive()
            await sent.delivered()
            answer = await bob.send(b"hello yourself")
            await answer.stored()
        with pytest.raises(NoReceiptsError):
            await answer.delivered()


async def test_what_the_peer_sent_before_it_closed_can_be_read(server: LiveServer) -> None:
    async with wormhole(server.url) as bob:
        async with wormhole(server.url) as alice:
            await meet(alice, bob)
            for number in range(50):
                await alice.send(b"%d" % number)
        assert await read(bob, 50) == [b"%d" % number for number in range(50)]
    assert server.live() == {}


async def test_nameplates_are_listed_and_codes_completed(server: LiveServer) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        assert await bob.nameplates() == []
        nameplate, *words = (await alice.allocate_code()).split("-")
        assert await bob.nameplates() == [nameplate]
        assert await bob.complete("") == [f"{nameplate}-"]
        assert f"{nameplate}-{words[0]}-" in await bob.complete(f"{nameplate}-{words[0][:2]}")


@pytest.mark.parametrize("code", ["", "purple-sausages", "4", "4-", "4-purple sausages", "four-purple-sausages"])
async def test_a_text_that_is_no_code_is_refused_and_the_wormhole_goes_on(server: LiveServer, code: str) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        with pytest.raises(CodeError):
            await bob.set_code(code)
        await meet(alice, bob)


async def test_what_cannot_be_used_is_refused_and_the_wormhole_goes_on(server: LiveServer) -> None:
    text: Any = "text"
    number: Any = 3
    array: Any = bytearray(b"hello")
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        for message in (text, number):
            with pytest.raises(TypeError, match="a message is bytes, not "):
                await alice.send(message)
        await meet(alice, bob)
        for size in (-1, 0, 8161):
            with pytest.raises(Misuse, match="1 to 8160 bytes"):
                await alice.derive_key("files", size)
        assert len(await alice.derive_key("files", 8160)) == 8160
        await alice.send(array)
        assert await read(bob, 1) == [b"hello"]


async def test_what_json_cannot_express_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Misuse, match="versions"):
        wormhole("ws://127.0.0.1:1/v1", versions={"chat": object()})


async def test_a_wormhole_that_was_not_entered_says_so_instead_of_waiting() -> None:
    outside = wormhole("ws://127.0.0.1:1/v1")
    calls = (outside.allocate_code(), outside.verifier(), outside.receive(), outside.flush())
    for call in calls:
        async with bounded("an error"):
            with pytest.raises(Misuse, match="async with"):
                await call
    await outside.close()


async def test_a_server_that_sends_binary_frames_serves_as_well(tmp_path: Path) -> None:
    flags = ("--frames", "binary")
    async with serving(tmp_path, *flags) as server, wormhole(server.url) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        await alice.send(b"hello")
        assert await read(bob, 1) == [b"hello"]


async def test_a_send_waits_while_too_much_is_not_stored(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstored, "MAX_UNSTORED_BYTES", 1000)
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        await alice.send(bytes(1000))
        waiting = asyncio.create_task(alice.send(b"next"))
        code = await alice.allocate_code()
        assert not waiting.done()
        await bob.set_code(code)
        async with bounded("room"):
            await waiting
        assert await read(bob, 2) == [bytes(1000), b"next"]


# ── it goes wrong ────────────────────────────────────────────────────────────────────────────────


async def test_a_wrong_password_is_an_error_at_both_sides(server: LiveServer) -> None:
    async with wormhole(server.url) as alice:
        nameplate = (await alice.allocate_code()).partition("-")[0]
        with pytest.raises(WrongPasswordError):
            await use(wormhole(server.url), f"{nameplate}-guess")
        async with bounded("the error at the other side"):
            with pytest.raises(WrongPasswordError):
                await alice.receive()
    assert server.usage().mailboxes == ["scary"]
    assert server.live() == {}


async def test_who_is_left_alone_is_lonely(server: LiveServer) -> None:
    async with wormhole(server.url) as alice:
        await alice.allocate_code()
        waiting = asyncio.create_task(alice.verifier())
        await asyncio.sleep(0)
        await alice.close()
        with pytest.raises(LonelyError):
            await waiting
        await alice.close()  # again
    assert server.usage().mailboxes == ["lonely"]
    assert server.live() == {}


async def test_a_third_side_is_told_that_the_code_is_in_use(server: LiveServer) -> None:
    async with Clients() as clients, wormhole(server.url) as alice:
        code = await alice.allocate_code()
        other = await clients.bind(server.url, APP_ID, "other")
        await other.call("claim", nameplate=code.partition("-")[0])
        with pytest.raises(CrowdedError):
            await use(wormhole(server.url), code)


async def test_the_welcome_of_a_server_that_turns_clients_away_is_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path, "--signal-error", "moved to another place") as server:
        with pytest.raises(WelcomeError, match="moved to another place"):
            await use(wormhole(server.url))


async def test_a_welcome_has_the_message_of_the_day(tmp_path: Path) -> None:
    heard = Heard()
    flags = ("--motd", "hello", "--advertise-version", "1.2.3")
    async with serving(tmp_path, *flags) as server, wormhole(server.url, on_event=heard):
        await heard.until(Welcomed)
    assert heard.of(Welcomed) == [Welcomed("hello", "1.2.3")]


async def test_a_code_that_the_server_forgot_is_expired(server: LiveServer, no_delay: None) -> None:
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice:
        await alice.allocate_code()
        await heard.until(WaitingForPeer)
        server.kill()
        shutil.rmtree(server.folder / "data")
        await server.restart()
        async with bounded("the error"):
            with pytest.raises(CodeExpiredError):
                await alice.verifier()
    assert server.live() == {}


async def test_a_server_that_cannot_be_reached_is_an_error() -> None:
    with pytest.raises(ServerGoneError, match="refused"):
        await use(wormhole(f"ws://127.0.0.1:{nobodys_port()}/v1"))


@pytest.mark.parametrize("kind", [Connecting, Welcomed, CodeKnown, ReplayEnded, WaitingForPeer])
async def test_an_error_of_the_function_for_events_ends_the_wormhole_and_leaves_nothing_at_the_server(
    server: LiveServer, kind: type[Event]
) -> None:
    def stumble(event: Event) -> None:
        if isinstance(event, kind):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use(wormhole(server.url, on_event=stumble))
    assert server.live() == {}


# ── it ends ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("meeting", [False, True])
async def test_leaving_with_an_exception_closes_with_the_right_mood(server: LiveServer, meeting: bool) -> None:
    async def stumble(bob: Wormhole) -> None:
        async with wormhole(server.url) as alice:
            if meeting:
                await meet(alice, bob)
            else:
                await alice.allocate_code()
            raise ZeroDivisionError

    async with wormhole(server.url) as bob:
        with pytest.raises(ZeroDivisionError):
            await stumble(bob)
    assert server.usage().mailboxes == ["errory" if meeting else "lonely"]
    assert server.live() == {}


@pytest.mark.parametrize("stage", ["nothing", "a code", "a key"])
async def test_a_task_that_is_cancelled_leaves_nothing_at_the_server(server: LiveServer, stage: str) -> None:
    heard = Heard()
    async with wormhole(server.url) as bob:

        async def run() -> None:
            async with wormhole(server.url, on_event=heard) as alice:
                if stage == "a code":
                    await alice.allocate_code()
                elif stage == "a key":
                    await meet(alice, bob)
                reached.set()
                await asyncio.Event().wait()

        reached = asyncio.Event()
        task = asyncio.create_task(run())
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # again, while it closes
        with pytest.raises(asyncio.CancelledError):
            await task
        if stage != "nothing":
            assert len(heard.of(Closed)) == 1
    assert server.live() == {}


async def test_a_call_that_is_cancelled_leaves_the_wormhole_usable(server: LiveServer) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        waiting = asyncio.create_task(bob.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await meet(alice, bob)
        await alice.send(b"hello")
        assert await read(bob, 1) == [b"hello"]


async def test_messages_that_nobody_reads_do_not_hinder_the_close(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "MAX_UNREAD_MESSAGES", 10)
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        for _ in range(50):
            await alice.send(b"unread")
        await alice.flush()
        for _ in range(5):
            await bob.send(b"last words")
        async with bounded("the close"):
            await bob.close()
        assert await read(alice, 5) == [b"last words"] * 5
