"""Calls that no correct program makes: each is an error at once, and never a wait without end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from client.live import NOBODY, meet, read, wormhole
from client.virtual import Network
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

NAN, INFINITY = float("nan"), float("inf")


# ── before anything is sent ──────────────────────────────────────────────────────────────────────


NOT_IN_JSON: list[Any] = [
    *([1], "text", {"a": object()}, {"a": "\ud800"}, {"a": NAN}, {"a": [-INFINITY]}),
    *({"a": b"bytes"}, {"a": (1, 2)}, {"a": {1}}, {1: "a"}),
]
BITS = "`max_work_bits` is a whole number, 0 or more, not "
URL = "a server's URL begins with ws:// or wss:// and names a host, not 5"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        *(({"app_id": app_id}, "an application id is a text") for app_id in ("\ud800", 5, None)),
        *(({"versions": versions}, "`versions` is a dict that JSON can express") for versions in NOT_IN_JSON),
        *(({"max_work_bits": bits}, BITS) for bits in (True, -1, 20.0, NAN, INFINITY, "20", None)),
        ({"server": 5}, URL),
        ({"server": b"ws://server.example/v1"}, "a server's URL begins with"),
        ({"proxy": 5}, "a proxy's URL begins with"),
        *(({"proxy": proxy}, "a proxy's URL") for proxy in ("127.0.0.1:9050", "ftp://a", "socks5://", "http://a b")),
        ({"ssl": True}, "`ssl` is an ssl.SSLContext, not True"),
    ],
)
def test_an_argument_of_another_kind_is_refused(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Wormhole.create(**{"app_id": APP_ID, "server": NOBODY, **argument})


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"max_work_bits": -1}, BITS),
        *(({"name": name}, "the name of a wormhole is a text, not ") for name in (5, None, b"peer", "\ud800")),
    ],
)
async def test_a_journal_refuses_such_an_argument(tmp_path: Path, argument: dict[str, Any], words: str) -> None:
    async with Journal[dict[str, str]](tmp_path / "journal", {}) as journal:
        with pytest.raises(Misuse, match=words):
            journal.wormhole(**{"name": "peer", "app_id": APP_ID, **argument})
        assert journal.names == []


Call = Callable[[Wormhole], Awaitable[object]]
OUTSIDE: list[tuple[Call, str]] = [
    (Wormhole.allocate_code, "in its context"),
    (Wormhole.nameplates, "in its context"),
    (Wormhole.verifier, "in its context"),
    (Wormhole.receive, "async with"),
    (Wormhole.flush, "async with"),
]


def calls(call: Callable[..., Awaitable[object]], words: str, *values: Any) -> list[tuple[Call, str]]:
    """Return a call with each of these arguments, and what is said of each."""
    return [(lambda wormhole, value=value: call(wormhole, *value), words) for value in values]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("use", "words"),
    [
        *OUTSIDE,
        *calls(send_text, "a str that UTF-8 can encode", (5,), ("\udcff",)),
        *calls(send_file, r"a path is a pathlib\.Path, not '/", ("/tmp",)),
        *calls(send_directory, r"a path is a pathlib\.Path, not '/", ("/tmp",)),
        *calls(send_directory, "there is nothing to send", ()),
        *calls(Wormhole.derive_key, "a key", (5, 32), ("\ud800", 32), ("a", 0), ("a", 8161), ("a", 1.5), ("a", "32")),
        *calls(Wormhole.complete, "the beginning of a code is a text, not ", (5,), (None,), (b"7-",)),
    ],
)
async def test_outside_of_its_context_a_wormhole_refuses_instead_of_waiting(use: Call, words: str) -> None:
    outside = wormhole()
    async with bounded("the error"):
        with pytest.raises(Misuse, match=words):
            await use(outside)
        await outside.close()


# ── a wormhole that goes on ──────────────────────────────────────────────────────────────────────


NO_CODES: list[Any] = [5, None, b"7-a-b", ["7-a-b"], NAN, "7-\ud800"]
NO_LENGTHS: list[Any] = [0, 33, 2.0, NAN, "2", None]
NO_MOODS: list[Any] = ["glad", "", "unwelcome", 5, ["happy"]]
LENGTH = "a code has 1 to 32 words, not "
MOOD = "the mood happy, lonely, errory or scary, not "


async def test_what_cannot_be_used_is_refused_and_the_wormhole_goes_on(network: Network) -> None:
    async with wormhole() as alice, wormhole() as bob:
        for code in NO_CODES:
            with pytest.raises(CodeError, match="a code is a text in UTF-8, and this one is not"):
                await alice.set_code(code)
        for code in ("", "purple-sausages", "4", "4-", "4-purple sausages", "four-purple-sausages"):
            with pytest.raises(CodeError):
                await alice.set_code(code)
        for length in NO_LENGTHS:
            for use in (alice.allocate_code(length), alice.complete("4", length)):
                with pytest.raises(Misuse, match=LENGTH):
                    await use
            with pytest.raises(Misuse, match=LENGTH):
                completions("4", ["4"], length)
        for prefix in (5, None, b"7-"):
            with pytest.raises(Misuse, match="the beginning of a code is a text, not "):
                completions(prefix, [])  # type: ignore[arg-type]
        for mood in NO_MOODS:
            with pytest.raises(Misuse, match=MOOD):
                await alice.close(mood)
        not_bytes: list[Any] = [5, "text", [1, 2], None]
        for message in not_bytes:
            with pytest.raises(TypeError, match="a message is bytes, not "):
                await alice.send(message)
        await meet(alice, bob)
        with pytest.raises(Misuse, match="at most 1,000,000 bytes, and this one has 1,000,001: send it in parts"):
            await alice.send(bytes(MAX_SENT_BYTES + 1))
        array: Any = bytearray(b"an array of bytes")
        await alice.send(array)
        await alice.send(bytes(MAX_SENT_BYTES))
        assert await read(bob, 2) == [b"an array of bytes", bytes(MAX_SENT_BYTES)]
        await alice.close("scary")
    assert network.moods == ["scary"]


async def test_a_wormhole_is_entered_once(network: Network) -> None:
    alice = wormhole()
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
    assert network.is_empty


async def test_calls_that_are_cancelled_again_and_again_leave_nothing_behind(network: Network) -> None:
    async with wormhole() as alice:
        await alice.allocate_code()
        for _ in range(100):
            waiting = asyncio.create_task(alice.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert len(alice._changes._waiters) == 0
