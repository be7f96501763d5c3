"""Two wormholes meet at a server in memory: what their programs can do, and how they end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.live import Heard, meet, read, serving, url_of, use, wormhole
from client.virtual import Network
from restante.client import (
    Closed,
    ClosedError,
    CodeKnown,
    Connecting,
    Event,
    KeyAgreed,
    LonelyError,
    MessageStored,
    NoReceiptsError,
    NoSeedError,
    PeerConfirmed,
    ReplayEnded,
    WaitingForPeer,
    Welcomed,
    WelcomeError,
    WrongPasswordError,
    seed_code,
    unread,
)
from restante.client.core import unstored
from support.bounds import bounded
from support.mailbox.givens import Options

# ── two sides meet ───────────────────────────────────────────────────────────────────────────────


async def test_two_sides_meet_and_exchange_messages(network: Network) -> None:
    heard, messages = Heard(), [b"%d" % number for number in range(100)]
    async with wormhole(versions={"chat": 1}, on_event=heard) as alice, wormhole() as bob:
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
        keys = [await side.derive_key("files", 40) for side in (alice, bob)]
        assert keys[0] == keys[1]
        assert len(keys[0]) == 40
        assert len(await alice.derive_key("files", 8160)) == 8160
        assert await alice.derive_key("chat", 40) != keys[0]
        await alice.flush()
    assert heard.of(CodeKnown) == [CodeKnown(code)]
    assert [event.number for event in heard.of(MessageStored)] == list(range(100))
    kinds = [Connecting, Welcomed, CodeKnown, ReplayEnded, WaitingForPeer, KeyAgreed, PeerConfirmed, Closed]
    assert [type(event) for event in heard.events if not isinstance(event, MessageStored)] == kinds
    assert network.moods == ["happy"]
    assert network.is_empty


async def test_messages_are_iterated_until_the_wormhole_is_closed(network: Network) -> None:
    async with wormhole() as alice, wormhole() as bob:
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


async def test_a_message_is_known_to_be_stored_and_delivered(network: Network) -> None:
    async with wormhole(receipts=True) as alice, wormhole() as bob:
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


async def test_two_sides_that_have_met_meet_again_without_a_code(network: Network) -> None:
    async with wormhole(seeds=True) as alice, wormhole(seeds=True) as bob:
        await meet(alice, bob)
        seed = await alice.seed()
        assert seed == await bob.seed()
    for _ in range(2):
        async with wormhole() as alice, wormhole() as bob, bounded("another meeting"):
            for side in (alice, bob):
                await side.set_code(seed_code(seed))
            await alice.send(b"hello again")
            assert await bob.receive() == b"hello again"
            with pytest.raises(NoSeedError):
                await alice.seed()
    assert network.is_empty


async def test_what_the_peer_sent_before_it_closed_can_be_read(network: Network) -> None:
    async with wormhole() as bob:
        async with wormhole() as alice:
            await meet(alice, bob)
            for number in range(50):
                await alice.send(b"%d" % number)
        assert await read(bob, 50) == [b"%d" % number for number in range(50)]
    assert network.is_empty


async def test_nameplates_are_listed_and_codes_completed(network: Network) -> None:
    async with wormhole() as alice, wormhole() as bob:
        assert await bob.nameplates() == []
        nameplate, *words = (await alice.allocate_code()).split("-")
        assert await bob.nameplates() == [nameplate]
        assert await bob.complete("") == [f"{nameplate}-"]
        assert f"{nameplate}-{words[0]}-" in await bob.complete(f"{nameplate}-{words[0][:2]}")


async def test_a_send_waits_while_too_much_is_not_stored(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstored, "MAX_UNSTORED_BYTES", 1000)
    async with wormhole() as alice, wormhole() as bob:
        await alice.send(bytes(1000))
        waiting = asyncio.create_task(alice.send(b"next"))
        code = await alice.allocate_code()
        assert not waiting.done()
        await bob.set_code(code)
        async with bounded("room"):
            await waiting
        assert await read(bob, 2) == [bytes(1000), b"next"]


# ── it goes wrong ────────────────────────────────────────────────────────────────────────────────


async def test_a_wrong_password_is_an_error_at_both_sides(network: Network) -> None:
    async with wormhole() as alice:
        nameplate = (await alice.allocate_code()).partition("-")[0]
        with pytest.raises(WrongPasswordError):
            await use(wormhole(), f"{nameplate}-guess")
        async with bounded("the error at the other side"):
            with pytest.raises(WrongPasswordError):
                await alice.receive()
    assert network.moods == ["scary"]
    assert network.is_empty


async def test_who_is_left_alone_is_lonely(network: Network) -> None:
    async with wormhole() as alice:
        await alice.allocate_code()
        waiting = asyncio.create_task(alice.verifier())
        await asyncio.sleep(0)
        await alice.close()
        with pytest.raises(LonelyError):
            await waiting
        await alice.close()  # again
    assert network.moods == ["lonely"]
    assert network.is_empty


async def test_the_welcome_of_a_server_is_told(network: Network) -> None:
    network.world.welcome_options = Options(motd="hello").welcome_options()  # type: ignore[attr-defined]
    heard = Heard()
    async with wormhole(on_event=heard):
        await heard.until(Welcomed)
    assert heard.of(Welcomed) == [Welcomed("hello", None)]
    network.world.welcome_options = Options(error="moved").welcome_options()  # type: ignore[attr-defined]
    with pytest.raises(WelcomeError, match="moved"):
        await use(wormhole())


@pytest.mark.parametrize("kind", [Connecting, Welcomed, CodeKnown, ReplayEnded, WaitingForPeer])
async def test_an_error_of_the_function_for_events_ends_the_wormhole_and_leaves_nothing_at_the_server(
    network: Network, kind: type[Event]
) -> None:
    def stumble(event: Event) -> None:
        if isinstance(event, kind):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use(wormhole(on_event=stumble))
    assert network.is_empty


# ── it ends ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize(("stage", "moods"), [("nothing", []), ("a code", ["lonely"]), ("a key", ["errory"])])
async def test_a_block_that_ends_with_an_error_leaves_nothing_at_the_server(
    network: Network, stage: str, moods: list[str], cancelled: bool
) -> None:
    heard, reached = Heard(), asyncio.Event()
    async with wormhole() as bob:

        async def run() -> None:
            async with wormhole(on_event=heard) as alice:
                if stage == "a code":
                    await alice.allocate_code()
                elif stage == "a key":
                    await meet(alice, bob)
                reached.set()
                if not cancelled:
                    raise ZeroDivisionError
                await asyncio.Event().wait()

        task = asyncio.create_task(run())
        await reached.wait()
        if cancelled:
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # again, while it closes
        with pytest.raises(asyncio.CancelledError if cancelled else ZeroDivisionError):
            await task
        assert stage == "nothing" or len(heard.of(Closed)) == 1
    assert network.moods == moods
    assert network.is_empty


async def test_messages_that_nobody_reads_hinder_no_close(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MAX_UNREAD_MESSAGES", 10)
    async with wormhole() as alice, wormhole() as bob:
        await meet(alice, bob)
        for _ in range(50):
            await alice.send(b"unread")
        await alice.flush()
        for _ in range(5):
            await bob.send(b"last words")
        async with bounded("the close"):
            await bob.close()
        assert await read(alice, 5) == [b"last words"] * 5


async def test_a_server_that_sends_binary_frames_on_a_real_port_serves_as_well(tmp_path: Path) -> None:
    flags = ("--frames", "binary", "--advertise-version", "1.2.3")
    heard = Heard()
    async with serving(tmp_path, *flags) as server:
        async with wormhole(url_of(server), on_event=heard) as alice, wormhole(url_of(server)) as bob:
            await meet(alice, bob)
            await alice.send(b"hello")
            assert await read(bob, 1) == [b"hello"]
        assert server.usage() == (["happy"], ["happy"])
        assert server.live() == {}
    assert heard.of(Welcomed) == [Welcomed(None, "1.2.3")]
