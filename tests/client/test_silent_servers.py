"""Servers that are silent or hang up, and programs that are not mailbox servers: a typed error, and no hang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client.liar import HANG_UP, Answer, Sent, honest, instead_of, listening, lying
from client.live import Heard, use, wormhole
from restante.client import Reconnecting, ServerGoneError, WelcomeError, base
from restante.client.connection import driver, websocket
from support.bounds import bounded

AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "delay_before", lambda _attempt, _dice: 0.02)
    monkeypatch.setattr(base, "MAX_CLOSE_SECONDS", 0.5)


# ── silence ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_does_not_answer_pings_is_connected_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.1)
    heard = Heard()
    async with lying(honest) as liar, wormhole(liar.url, on_event=heard) as alice:
        await alice.allocate_code()
        await heard.until(Reconnecting)


# ── the first request ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nfail",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 301 Moved Permanently\r\nLocation: ws://127.0.0.1:1/\r\n\r\n",
        AGREED + b"\r\n",
        AGREED + b"Sec-WebSocket-Accept: AAAA\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"",
    ],
    ids=["404", "500", "200", "301", "no accept", "wrong accept", "ssh", "bytes", "headers", "nothing"],
)
async def test_what_is_no_mailbox_server_is_an_error(response: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async with listening(serve) as port:
        with pytest.raises(ServerGoneError, match="not a mailbox server"):
            await use(wormhole(f"ws://127.0.0.1:{port}/v1"))


async def test_a_server_that_never_opens_the_websocket_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CONNECT_SECONDS", 0.1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(serve) as port:
        with pytest.raises(ServerGoneError, match="did not answer"):
            await use(wormhole(f"ws://127.0.0.1:{port}/v1"))


async def test_a_welcome_error_after_a_restart_ends_the_wormhole() -> None:
    welcome = {"type": "welcome", "welcome": {"error": "go away"}}

    def turn_away(answer: Answer) -> list[Sent]:
        first = answer["connection"] == 1
        return [answer] if first and answer["type"] != "pong" else [HANG_UP] if first else [welcome]

    async with lying(turn_away) as liar:
        with pytest.raises(WelcomeError, match="go away"):
            await use(wormhole(liar.url))


async def test_work_that_is_demanded_again_and_again_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    async def search(*_: Any) -> str:
        nonlocal searches
        searches += 1
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(driver, "find_stamp", search)
    demand = {"permission-required": {"none": None, "hashcash": {"bits": 20, "resource": "r"}}}
    welcome: Answer = {"type": "welcome", "welcome": demand}
    pong = {"type": "nameplates", "nameplates": []}
    async with lying(instead_of("welcome", *[welcome] * 100, pong)) as liar, wormhole(liar.url) as alice:
        async with bounded("the message behind the welcomes"):
            assert await alice.nameplates() == []
        assert searches == 1
