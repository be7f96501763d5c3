"""Servers in processes of their own that are killed and come back, also with an older backup: ours and the reference.

What becomes of connections that are lost in memory and in virtual time is in test_simulated.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.live import Heard, meet, read, serving, url_of, wormhole
from restante import client
from restante.mailbox.store import backup
from support.bounds import bounded
from support.mailbox.servers import Server


@pytest.mark.parametrize(
    ("kind", "event", "count"),
    [
        ("ours", client.WaitingForPeer, 1),
        ("ours", client.MessageStored, 17),
        ("the reference", client.MessageStored, 1),
        pytest.param("ours", client.KeyAgreed, 1, marks=pytest.mark.thorough),
        pytest.param("the reference", client.WaitingForPeer, 1, marks=pytest.mark.thorough),
    ],
)
async def test_a_server_that_is_killed_and_comes_back_loses_nothing(
    tmp_path: Path, no_delay: None, kind: str, event: type[Any], count: int
) -> None:
    events, restarting = {"alice": Heard(), "bob": Heard()}, list[asyncio.Task[None]]()

    def kill(_: client.Event) -> None:
        if len(events["alice"].of(event)) == count and not restarting:
            running.kill()
            restarting.append(asyncio.create_task(running.restart()))

    events["alice"].act = kill
    messages = [b"%d" % number for number in range(20)]
    async with (
        serving(tmp_path, kind=kind) as running,
        wormhole(url_of(running), on_event=events["alice"]) as alice,
        wormhole(url_of(running), on_event=events["bob"]) as bob,
    ):
        await bob.nameplates()  # its first connection, which must succeed
        code = await alice.allocate_code()
        if event is client.WaitingForPeer:
            await events["alice"].until(client.WaitingForPeer)
        async with bounded("everything, over a killed server"):
            await bob.set_code(code)
            for message in messages:
                await alice.send(message)
                await bob.send(message)
            assert await read(bob, 20) == await read(alice, 20) == messages
            await asyncio.gather(*restarting, alice.flush(), bob.flush())
            await asyncio.gather(alice.close(), bob.close())
        assert len(restarting) == 1
        for heard in events.values():
            assert Counter(stored.number for stored in heard.of(client.MessageStored)) == Counter(range(20))
        assert running.live() == {}


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, kind=getattr(request, "param", "ours")) as running:
        yield running


async def back_up(server: Server) -> None:
    await asyncio.to_thread(backup.back_up, server.folder / "data", server.folder / "b", lambda _: None)


async def restored(server: Server) -> None:
    """Kill the server, and start it on the same port with what the backup has."""
    server.kill()
    (server.folder / "data").rename(server.folder / "damaged")
    await asyncio.to_thread(backup.restore, server.folder / "b", server.folder / "data", lambda _: None)
    await server.restart()


@pytest.mark.parametrize("mailbox_is_in_it", [True, False])
async def test_clients_add_again_what_a_backup_lacks(server: Server, no_delay: None, mailbox_is_in_it: bool) -> None:
    heard, url = Heard(), url_of(server)
    if not mailbox_is_in_it:
        await back_up(server)
    async with wormhole(url, on_event=heard) as alice, wormhole(url) as bob:
        await meet(alice, bob)
        await alice.send(b"before")
        assert await read(bob, 1) == [b"before"]
        if mailbox_is_in_it:
            await back_up(server)
        for number in range(5):
            await alice.send(b"%d" % number)
        await heard.until(client.MessageStored, 6)
        await restored(server)
        await heard.until(client.Reconnecting)
        await bob.send(b"after")
        assert await read(alice, 1) == [b"after"]
        assert await read(bob, 5) == [b"%d" % number for number in range(5)]
    assert server.live() == {}


at_the_reference = pytest.mark.parametrize("server", ["the reference"], indirect=True)


@at_the_reference
async def test_two_sides_exchange_messages_with_receipts_there_and_meet_again(server: Server) -> None:
    url = url_of(server)
    async with wormhole(url, receipts=True, seeds=True) as alice, wormhole(url, receipts=True, seeds=True) as bob:
        await meet(alice, bob)
        sent = [await alice.send(b"%d" % number) for number in range(50)]
        assert await read(bob, 50) == [b"%d" % number for number in range(50)]
        async with bounded("the receipt"):
            await sent[-1].delivered()
        seed = await alice.seed()
        assert seed == await bob.seed()
        await asyncio.gather(alice.close(), bob.close())
    async with wormhole(url) as alice, wormhole(url) as bob, bounded("another meeting"):
        await asyncio.gather(*(side.set_code(client.seed_code(seed)) for side in (alice, bob)))
        assert await alice.verifier() == await bob.verifier()
        await asyncio.gather(alice.close(), bob.close())
    assert server.usage() == (["happy", "happy"], ["happy", "happy"])
    assert server.live() == {}


@at_the_reference
async def test_a_third_side_gives_back_the_number_that_it_did_not_get_there(server: Server) -> None:
    url = url_of(server)
    async with wormhole(url) as alice, wormhole(url) as bob, wormhole(url) as carol:
        code = await alice.allocate_code()
        await alice.nameplates()
        await bob.set_code(code)
        await bob.nameplates()  # the claims before are answered
        await carol.set_code(code)
        async with bounded("the refusal"):
            with pytest.raises(client.CrowdedError):
                await carol.verifier()
    async with wormhole(url) as later:
        assert await later.nameplates() == []
