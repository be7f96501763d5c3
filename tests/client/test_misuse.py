"""Calls that no correct program makes: each is an error at once, and never a wait without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.live import LiveServer, meet, read, serving, wormhole
from client.world import APP_ID
from restante.client import (
    CodeError,
    Journal,
    LonelyError,
    Misuse,
    Wormhole,
    completions,
    send_directory,
    send_file,
    send_text,
)
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


async def test_what_cannot_be_sent_is_refused_before_anything_is_offered(tmp_path: Path) -> None:
    outside: Any = wormhole(NOBODY)
    wrong: Any = str(tmp_path)
    for use, words in (
        (send_text(outside, 5), "a str that UTF-8 can encode, not 5"),  # type: ignore[arg-type]
        (send_text(outside, "\udcff"), "a str that UTF-8 can encode"),
        (send_file(outside, wrong), r"a path is a pathlib\.Path, not '/"),
        (send_directory(outside, wrong), r"a path is a pathlib\.Path, not '/"),
        (send_directory(outside), "there is nothing to send"),
    ):
        with pytest.raises(Misuse, match=words):
            await use


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


NO_BITS = [True, -1, 20.0, float("nan"), float("inf"), "20", None]
NO_NUMBERS_OF_WORDS = [0, 33, 2.0, float("nan"), "2", None]


@pytest.mark.parametrize("bits", NO_BITS)
async def test_a_limit_of_work_that_is_no_number_of_bits_is_refused(tmp_path: Path, bits: Any) -> None:
    words = "`max_work_bits` is a whole number, 0 or more, not "
    with pytest.raises(Misuse, match=words):
        Wormhole.create(APP_ID, server=NOBODY, max_work_bits=bits)
    async with Journal[dict[str, str]](tmp_path / "journal", {}) as journal:
        with pytest.raises(Misuse, match=words):
            journal.wormhole("peer", APP_ID, max_work_bits=bits)
        assert journal.names == []


@pytest.mark.parametrize("name", [5, None, b"peer", "\ud800"])
async def test_a_name_of_a_wormhole_that_is_no_text_is_refused(tmp_path: Path, name: Any) -> None:
    async with Journal[dict[str, str]](tmp_path / "journal", {}) as journal:
        with pytest.raises(Misuse, match="the name of a wormhole is a text, not "):
            journal.wormhole(name, APP_ID)


@pytest.mark.parametrize("words", NO_NUMBERS_OF_WORDS)
async def test_a_code_of_so_many_words_is_refused_and_the_wormhole_goes_on(server: LiveServer, words: Any) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        for use in (alice.allocate_code(words), alice.complete("4", words)):
            with pytest.raises(Misuse, match="a code has 1 to 32 words, not "):
                await use
        with pytest.raises(Misuse, match="a code has 1 to 32 words, not "):
            completions("4", ["4"], words)
        await meet(alice, bob)


@pytest.mark.parametrize("code", [5, None, b"7-a-b", ["7-a-b"], float("nan"), "7-\ud800"])
async def test_a_code_that_is_no_text_is_refused_and_the_wormhole_goes_on(server: LiveServer, code: Any) -> None:
    async with wormhole(server.url) as alice, wormhole(server.url) as bob:
        with pytest.raises(CodeError, match="a code is a text in UTF-8, and this one is not"):
            await alice.set_code(code)
        await meet(alice, bob)


@pytest.mark.parametrize("prefix", [5, None, b"7-"])
async def test_the_beginning_of_a_code_that_is_no_text_is_refused(prefix: Any) -> None:
    with pytest.raises(Misuse, match="the beginning of a code is a text, not "):
        completions(prefix, [])
    with pytest.raises(Misuse, match="the beginning of a code is a text, not "):
        await wormhole(NOBODY).complete(prefix)


@pytest.mark.parametrize(
    ("purpose", "size"), [(5, 32), ("\ud800", 32), ("a", 0), ("a", 8161), ("a", 1.5), ("a", "32")]
)
async def test_a_key_that_cannot_be_derived_is_refused_before_anybody_came(purpose: Any, size: Any) -> None:
    with pytest.raises(Misuse, match="a key"):
        await wormhole(NOBODY).derive_key(purpose, size)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"server": 5}, "a server's URL begins with ws:// or wss:// and names a host, not 5"),
        ({"server": b"ws://server.example/v1"}, "a server's URL begins with"),
        ({"server": NOBODY, "proxy": 5}, "a proxy's URL begins with"),
        ({"server": NOBODY, "ssl": True}, "`ssl` is an ssl.SSLContext, not True"),
    ],
)
def test_a_way_to_the_server_that_is_of_another_type_is_refused(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Wormhole.create(APP_ID, **argument)


async def test_calls_that_are_cancelled_again_and_again_leave_nothing_behind(server: LiveServer) -> None:
    async with wormhole(server.url) as alice:
        await alice.allocate_code()
        for _ in range(100):
            waiting = asyncio.create_task(alice.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert len(alice._changes._waiters) == 0
