"""The client at the reference server, also beside the Python and Go clients, and when that server is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from client.live import Heard, LiveReference, meet, read, serving_reference, wormhole
from restante.client import (
    DEFAULT_APP_ID,
    CodeKnown,
    CrowdedError,
    Event,
    KeyAgreed,
    MessageStored,
    PeerConfirmed,
    WaitingForPeer,
    Wormhole,
    WrongPasswordError,
    receive_text,
    seed_code,
    send_text,
)
from restante.client.connection import driver
from support.bounds import bounded
from support.mailbox.deployment import TRANSFERS
from support.mailbox.shipped import GO_NEW, program, running
from support.mailbox.wormhole import Client

TEXT = "held until called for, é"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveReference]:
    async with serving_reference(tmp_path) as server:
        yield server


async def test_two_sides_exchange_messages_with_receipts_and_meet_again(server: LiveReference) -> None:
    options = {"receipts": True, "seeds": True}
    async with wormhole(server.url, **options) as alice, wormhole(server.url, **options) as bob:
        await meet(alice, bob)
        sent = [await alice.send(b"%d" % number) for number in range(50)]
        assert await read(bob, 50) == [b"%d" % number for number in range(50)]
        async with bounded("the receipt"):
            await sent[-1].delivered()
        seed = await alice.seed()
        assert seed == await bob.seed()
        await asyncio.gather(alice.close(), bob.close())
    async with wormhole(server.url) as alice, wormhole(server.url) as bob, bounded("another meeting"):
        await asyncio.gather(*(each.set_code(seed_code(seed)) for each in (alice, bob)))
        assert await alice.verifier() == await bob.verifier()
        await asyncio.gather(alice.close(), bob.close())
    assert server.usage() == (["happy", "happy"], ["happy", "happy"])
    assert server.live() == {}


async def test_the_python_client_receives_our_text_there(server: LiveReference, tmp_path: Path) -> None:
    async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as alice, bounded("a text"):
        receiver = await Client.start(tmp_path, server.url, "receive", await alice.allocate_code())
        await send_text(alice, TEXT)
    outcome = await receiver.leaves()
    assert (outcome.exit_code, outcome.stdout) == (0, f"{TEXT}\n"), outcome


async def test_the_python_client_sends_us_a_text_there(server: LiveReference, tmp_path: Path) -> None:
    sender, received = await Client.start(tmp_path, server.url, "send", "--text", TEXT), list[str]()
    async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as bob, bounded("a text"):
        await bob.set_code(await sender.code())
        await receive_text(bob, received.append)
    assert received == [TEXT]
    assert (await sender.leaves()).exit_code == 0


async def repeated(transfer: Callable[[int], Awaitable[None]]) -> None:
    """Repeat a transfer whose keys differ, which is one of 256 with the Go client (`Deployment.pair`)."""
    for number in range(TRANSFERS):
        try:
            await transfer(number)
        except WrongPasswordError:
            continue
        return
    raise AssertionError("the keys differed each time")


@pytest.mark.thorough
async def test_the_go_client_receives_our_text_there(server: LiveReference, tmp_path: Path) -> None:
    program(GO_NEW)  # which is built, if need be: that may take longer than a text

    async def transfer(number: int) -> None:
        async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as alice, bounded("a text"):
            values = {"url": server.url, "code": await alice.allocate_code()}
            async with running(GO_NEW, (), tmp_path / f"{number}", GO_NEW.language.receive, **values) as receiver:
                await send_text(alice, TEXT)
                assert await receiver.ended() == 0, receiver.said
        assert receiver.said["stdout"] == f"{TEXT}\n"

    await repeated(transfer)


@pytest.mark.thorough
async def test_the_go_client_sends_us_a_text_there(server: LiveReference, tmp_path: Path) -> None:
    words, received = GO_NEW.language.send_text, list[str]()
    assert words is not None

    async def transfer(number: int) -> None:
        async with (
            running(GO_NEW, (), tmp_path / f"{number}", words, url=server.url, text=TEXT) as sender,
            Wormhole.create(DEFAULT_APP_ID, server=server.url) as bob,
            bounded("a text"),
        ):
            await bob.set_code(await sender.code())
            await receive_text(bob, received.append)
            assert await sender.ended() == 0, sender.said

    await repeated(transfer)
    assert received == [TEXT]


async def test_a_third_side_gives_back_the_number_that_it_did_not_get(server: LiveReference) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob, wormhole(server.url) as carol:
        code = await alice.allocate_code()
        await alice.nameplates()
        await bob.set_code(code)
        await bob.nameplates()  # the claims before are answered
        await carol.set_code(code)
        with pytest.raises(CrowdedError):
            async with bounded("the refusal"):
                await carol.verifier()
    async with wormhole(server.url) as later:
        assert await later.nameplates() == []


@pytest.mark.parametrize("moment", [CodeKnown, WaitingForPeer, KeyAgreed, PeerConfirmed, MessageStored])
async def test_the_reference_server_is_killed_and_comes_back(
    server: LiveReference, monkeypatch: pytest.MonkeyPatch, moment: type[Any]
) -> None:
    monkeypatch.setattr(driver, "delay_before", lambda _attempt, _dice: 0.02)
    heard, restarting = Heard(), list[asyncio.Task[None]]()

    def kill(event: Event) -> None:
        if isinstance(event, moment) and not restarting:
            server.kill()
            restarting.append(asyncio.create_task(server.restart()))

    heard.act = kill
    messages = [b"%d" % number for number in range(20)]
    async with wormhole(server.url, on_event=heard) as alice, wormhole(server.url) as bob:
        await bob.nameplates()  # its first connection, which must succeed
        code = await alice.allocate_code()
        if moment is WaitingForPeer:
            await heard.until(WaitingForPeer)
        async with bounded("everything, over a killed server"):
            await bob.set_code(code)
            for message in messages:
                await alice.send(message)
                await bob.send(message)
            assert [await bob.receive() for _ in messages] == messages
            assert [await alice.receive() for _ in messages] == messages
            await asyncio.gather(*restarting, alice.flush(), bob.flush())
        await asyncio.gather(alice.close(), bob.close())
    assert len(restarting) == 1
    assert server.live() == {}
