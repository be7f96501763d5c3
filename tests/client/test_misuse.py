"""Calls that no correct program makes: each is an error at once, and never a wait without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.live import LiveServer, meet, read, serving, wormhole
from client.world import APP_ID
from restante.client import LonelyError, Misuse, Wormhole
from restante.client.sent_message import MAX_SENT_BYTES
from support.bounds import bounded

NOBODY = "ws://server.example/v1"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with serving(tmp_path) as server:
        yield server


async def test_a_wormhole_outside_of_its_context_does_not_wait_for_ever() -> None:
    outside = wormhole(NOBODY)
    async with bounded("the errors"):
        for use in (outside.allocate_code(), outside.nameplates(), outside.verifier(), outside.receive()):
            with pytest.raises(Misuse, match="in its context"):
                await use
        await outside.close()


async def test_a_message_that_no_server_takes_is_refused_before_it_is_sent(server: LiveServer) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        with pytest.raises(Misuse, match="at most 1,000,000 bytes, and this one has 1,000,001: send it in parts"):
            await alice.send(bytes(MAX_SENT_BYTES + 1))
        await alice.send(bytes(MAX_SENT_BYTES))
        assert await read(bob, 1) == [bytes(MAX_SENT_BYTES)]


async def test_a_wormhole_is_entered_once(server: LiveServer) -> None:
    alice = wormhole(server.url)
    async with alice:
        with pytest.raises(Misuse, match="entered once"):
            async with alice:
                pass
        await alice.allocate_code()
    with pytest.raises(Misuse, match="entered once"):
        async with alice:
            pass
    with pytest.raises(LonelyError):
        await alice.allocate_code()
    assert server.live() == {}


def test_a_wormhole_can_be_created_before_the_event_loop_runs() -> None:
    before = wormhole(NOBODY)

    async def use() -> None:
        await before.close()

    asyncio.run(use())


@pytest.mark.parametrize("app_id", ["\ud800", 5, None])
def test_an_application_id_that_is_no_text_is_refused(app_id: Any) -> None:
    with pytest.raises(Misuse, match="an application id is a text"):
        Wormhole.create(app_id, server=NOBODY)


NOT_IN_JSON = [
    *([1], "text", {"a": object()}, {"a": "\ud800"}),
    *({"a": float("nan")}, {"a": [-float("inf")]}, {"a": b"bytes"}, {"a": (1, 2)}, {"a": {1}}, {1: "a"}),
]


@pytest.mark.parametrize("versions", NOT_IN_JSON)
def test_versions_that_the_peer_could_not_read_are_refused(versions: Any) -> None:
    with pytest.raises(Misuse, match="`versions` is a dict that JSON can express"):
        Wormhole.create(APP_ID, server=NOBODY, versions=versions)


@pytest.mark.parametrize("mood", ["glad", "", "unwelcome", 5, ["happy"]])
async def test_a_mood_that_servers_do_not_know_is_refused_and_the_wormhole_goes_on(
    server: LiveServer, mood: Any
) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        with pytest.raises(Misuse, match="the mood happy, lonely, errory or scary, not "):
            await alice.close(mood)
        await meet(alice, bob)
        await alice.close("scary")
        await bob.close()
    assert server.usage().mailboxes == ["scary"]


@pytest.mark.parametrize("message", [5, "text", [1, 2], None])
async def test_a_message_that_is_not_bytes_is_refused_and_the_wormhole_goes_on(
    server: LiveServer, message: Any
) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        await meet(alice, bob)
        with pytest.raises(TypeError):
            await alice.send(message)
        await alice.send(b"bytes")
        assert await read(bob, 1) == [b"bytes"]


async def test_calls_that_are_cancelled_again_and_again_leave_nothing_behind(server: LiveServer) -> None:
    async with wormhole(server.url) as alice:
        await alice.allocate_code()
        for _ in range(100):
            waiting = asyncio.create_task(alice.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert len(alice._changes._waiters) == 0
