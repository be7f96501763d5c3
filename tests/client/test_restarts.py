"""The server is killed in each phase of a conversation, and comes back, or does not."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from client.live import Heard, LiveServer, meet, read, serving, wormhole
from restante.client import (
    CodeKnown,
    Connecting,
    Event,
    KeyAgreed,
    LonelyError,
    MessageStored,
    PeerConfirmed,
    Reconnecting,
    ReplayEnded,
    ServerGoneError,
    WaitingForPeer,
    Welcomed,
)
from restante.mailbox.store import sqlite as store
from restante.mailbox.store.schema import FILE
from support.bounds import bounded
from support.mailbox.days import server_of_days


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with serving(tmp_path) as server:
        yield server


class Restart:
    """Kill the server when an event comes for the n-th time, and start it again."""

    def __init__(self, server: LiveServer, heard: Heard, kind: type[Any], count: int = 1) -> None:
        self.server, self.kind, self.count = server, kind, count
        self.restarting: asyncio.Task[None] | None = None
        heard.act = self.see

    def see(self, event: Event) -> None:
        self.count -= isinstance(event, self.kind)
        if self.count == 0 and self.restarting is None:
            self.server.kill()
            self.restarting = asyncio.create_task(self.server.restart())

    async def over(self) -> None:
        assert self.restarting is not None, "the event did not come"
        await self.restarting


@pytest.mark.parametrize("kind", [Welcomed, CodeKnown, ReplayEnded, WaitingForPeer])
async def test_a_restart_before_the_peer_comes_is_survived(
    server: LiveServer, no_delay: None, kind: type[Any]
) -> None:
    heard = Heard()
    restart = Restart(server, heard, kind)
    async with wormhole(server.url, on_event=heard) as alice:
        async with bounded("a code"):
            code = await alice.allocate_code()
        await heard.until(kind)
        await restart.over()
        async with wormhole(server.url) as bob, bounded("a key"):
            await bob.set_code(code)
            assert await alice.verifier() == await bob.verifier()
            await bob.send(b"hello")
            assert await read(alice, 1) == [b"hello"]
    assert len(heard.of(CodeKnown)) == 1
    assert heard.of(Reconnecting)
    assert server.live() == {}


@pytest.mark.parametrize("who", ["alice", "bob"])
@pytest.mark.parametrize(
    ("kind", "count"), [(KeyAgreed, 1), (PeerConfirmed, 1), (MessageStored, 1), (MessageStored, 17)]
)
async def test_a_restart_with_the_peer_there_is_survived(
    server: LiveServer, no_delay: None, kind: type[Any], count: int, who: str
) -> None:
    events = {"alice": Heard(), "bob": Heard()}
    messages = [b"%d" % number for number in range(40)]
    async with (
        wormhole(server.url, on_event=events["alice"]) as alice,
        wormhole(server.url, on_event=events["bob"]) as bob,
    ):
        async with bounded("the second connection"):
            await bob.nameplates()
        restart = Restart(server, events[who], kind, count)
        await meet(alice, bob)
        for message in messages:
            await alice.send(message)
            await bob.send(message)
        assert await read(alice, 40) == messages
        assert await read(bob, 40) == messages
        await events[who].until(kind, count)
        await restart.over()
    for heard in events.values():
        assert Counter(event.number for event in heard.of(MessageStored)) == Counter(range(40))
    assert server.live() == {}


@pytest.mark.parametrize("stage", ["a code", "a message", "the close"])
async def test_a_server_that_cannot_store_for_a_while_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_delay: None, stage: str
) -> None:
    monkeypatch.setattr(store, "LOCK_TIMEOUT_SECONDS", 0.01)
    heard = Heard()
    async with server_of_days(tmp_path / "data") as server:
        data = sqlite3.connect(tmp_path / "data" / FILE, isolation_level=None)

        def lock() -> None:
            data.execute("BEGIN IMMEDIATE")

        def unlock(event: Event) -> None:
            if isinstance(event, Reconnecting) and len(heard.of(Reconnecting)) == 3:
                data.execute("ROLLBACK")

        heard.act = unlock
        with closing(data):
            async with wormhole(server.url, on_event=heard) as alice, wormhole(server.url) as bob:
                await heard.until(Welcomed)
                if stage == "a code":
                    lock()
                await meet(alice, bob)
                if stage == "a message":
                    await alice.flush()
                    await bob.flush()
                    lock()
                await alice.send(b"held until called for")
                assert await read(bob, 1) == [b"held until called for"]
                await bob.close()
                if stage == "the close":
                    await alice.flush()
                    lock()
                await alice.close()
            assert server.mailboxes == 0
        words = "the server asks to try again later: the server could not store this, try again"
        assert [each.reason for each in heard.of(Reconnecting)] == [words] * 3


async def test_a_wormhole_that_is_closed_while_the_server_starts_leaves_nothing_there(server: LiveServer) -> None:
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        server.kill()
        await heard.until(Reconnecting, 2)  # the next attempts would be seconds away
        restarting = asyncio.create_task(server.restart())
    await restarting
    assert server.live() == {}


async def test_a_server_that_is_gone_for_good_does_not_keep_a_wormhole_open(
    server: LiveServer, no_delay: None, short_close: None
) -> None:
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        await alice.flush()
        server.kill()
        await heard.until(Reconnecting)
        async with bounded("the close"):
            await alice.close()  # all was stored: no error
        assert len(heard.of(Connecting)) < 50, "it has tried too often"
        await bob.send(b"lost")
        async with bounded("the close"):
            with pytest.raises(ServerGoneError, match="not stored"):
                await bob.close()


async def test_who_waits_for_a_server_that_is_gone_is_told_when_the_wormhole_is_closed(
    server: LiveServer, no_delay: None, short_close: None
) -> None:
    heard = Heard()
    async with wormhole(server.url, on_event=heard) as alice:
        await alice.allocate_code()
        server.kill()
        waiting = asyncio.create_task(alice.verifier())
        await heard.until(Reconnecting)
        async with bounded("the close"):
            await alice.close()
            with pytest.raises(LonelyError):
                await waiting
