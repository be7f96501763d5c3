"""What clients observe of a server that was killed, and started with a backup (docs/mailbox/operating.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client.live import Heard, LiveServer, meet, read, serving, wormhole
from restante.client import CodeExpiredError, MessageStored, Reconnecting, WaitingForPeer
from restante.mailbox.store import backup
from support.bounds import bounded
from support.processes import RESTANTE, child


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with serving(tmp_path) as server:
        yield server


async def back_up(server: LiveServer) -> None:
    await asyncio.to_thread(backup.back_up, server.folder / "data", server.folder / "b", lambda _: None)


async def restored(server: LiveServer) -> None:
    """Kill the server, and start it on the same port with what the backup has."""
    server.kill()
    (server.folder / "data").rename(server.folder / "damaged")
    await asyncio.to_thread(backup.restore, server.folder / "b", server.folder / "data", lambda _: None)
    await server.restart()


async def test_a_text_that_waited_at_the_backup_arrives(server: LiveServer) -> None:
    words = (*RESTANTE, "send", "--server", server.url, "--text", "held until called for")
    async with child(*words) as sender:
        code = (await sender.says(r"code is: (\S+)"))[1]
        await sender.says("Waiting for the other side")
        await back_up(server)
        await restored(server)
        async with child(*RESTANTE, "receive", "--server", server.url, code) as receiver:
            assert await receiver.ended() == 0, receiver.said
            assert receiver.said["stdout"] == "held until called for\n"
        assert await sender.ended() == 0, sender.said
    assert server.live() == {}


async def test_connected_clients_add_again_what_the_backup_lacks(server: LiveServer, no_delay: None) -> None:
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        await alice.send(b"before")
        assert await read(bob, 1) == [b"before"]
        await back_up(server)
        for number in range(5):
            await alice.send(b"%d" % number)
        await heard.until(MessageStored, 6)
        await restored(server)
        await heard.until(Reconnecting)
        await bob.send(b"after")
        assert await read(alice, 1) == [b"after"]
        assert await read(bob, 5) == [b"%d" % number for number in range(5)]
    assert server.live() == {}


async def test_connected_clients_go_on_in_a_mailbox_that_the_backup_lacks(server: LiveServer, no_delay: None) -> None:
    await back_up(server)
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        await alice.send(b"before")
        assert await read(bob, 1) == [b"before"]
        await restored(server)
        await heard.until(Reconnecting)
        await alice.send(b"after")
        assert await read(bob, 1) == [b"after"]
    assert server.live() == {}


async def test_a_code_that_the_backup_lacks_has_expired(server: LiveServer, no_delay: None) -> None:
    await back_up(server)
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice, bounded("an error"):
        await alice.allocate_code()
        await heard.until(WaitingForPeer)
        await restored(server)
        with pytest.raises(CodeExpiredError, match="the code expired before the peer came"):
            await alice.verifier()


async def test_a_transfer_that_ended_after_the_backup_leaves_a_nameplate_until_it_is_pruned(
    tmp_path: Path, no_delay: None
) -> None:
    async with serving(tmp_path, "--prune-after", "1", "--prune-every", "1") as server:
        async with wormhole(server.url) as alice, wormhole(server.url) as bob:
            async with bounded("a code"):
                code = await alice.allocate_code()
            await back_up(server)
            async with bounded("a key"):
                await bob.set_code(code)
                await asyncio.gather(alice.verifier(), bob.verifier())
        assert server.live() == {}
        await restored(server)
        async with bounded("the prune"):
            while server.live():  # noqa: ASYNC110 - another process prunes, and tells nobody
                await asyncio.sleep(0.05)
        assert server.usage().mailboxes[-1] == "pruney"
