from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from support.bounds import bounded
from support.mailbox.live import LiveServer, open_live
from support.mailbox.pair import APP, Pair
from support.mailbox.raw_socket import RawSocket

EVENTS: Final = {"listening", "draining", "stopped", "refused", "other refusals", "ended mailboxes had visitors"}
"""All that a server logs that serves, whoever comes."""


class Siege:
    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.pair = Pair(live.port)
        self.secrets: set[str] = set()

    async def call(self, client: RawSocket, **command: Any) -> dict[str, Any]:
        client.say(**command)
        assert (await client.hear())["type"] == "ack"
        return await client.hear()

    async def bind(self, side: str, app: str = APP, **headers: str) -> RawSocket:
        socket = await self.live.enter(**headers)
        self.secrets.add(side)
        socket.say(type="bind", appid=app, side=side)
        assert (await socket.hear())["type"] == "ack"
        return socket

    async def close(self, client: RawSocket, mailbox: str) -> None:
        client.say(type="close", mailbox=mailbox)
        while (await client.hear())["type"] != "closed":
            pass

    @asynccontextmanager
    async def beside_the_pair(self, attack: str, sessions: int = 2) -> AsyncIterator[None]:
        async with self.pair.playing() as plays:
            try:
                await plays(1)
                yield
                await plays(sessions)
            except BaseException as error:
                error.add_note(f"beside {attack}")
                raise
            finally:
                self.everybody_goes()

    def everybody_goes(self) -> None:
        while self.live.clients:
            self.live.clients.pop().cut()

    async def fence(self) -> None:
        """Wait for a turn of the server's loop: it has then noticed everything that happened before."""
        socket = await self.live.enter()
        await socket.is_served()
        await socket.leave()
        self.live.clients.remove(socket)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something that nobody tells; between two looks the server's loop turns."""
        async with bounded(what):
            while not holds():
                await self.fence()

    def empty(self) -> bool:
        server = self.live.server
        return (server.sockets(), server.held_bytes, len(server.memory_holders)) == ([], 0, 0)

    def check_log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        assert {line["log_level"] for line in lines} <= {"info", "warning"}, lines
        assert {line["event"] for line in lines} <= EVENTS, lines
        logged = "\n".join(str(line) for line in lines if line["event"] != "listening")
        for secret in (APP, "pair-a", "pair-b", "body of", "127.0.0.1", *self.pair.mailboxes, *self.secrets):
            assert secret not in logged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One server for all attacks of a file. In the end it holds nothing, and its log tells nothing of anybody."""
    trusted = getattr(request.module, "TRUSTED", ())
    data = tmp_path_factory.mktemp("siege") / "data"
    with capture_logs() as lines:
        async with open_live(data, trusted=trusted, limits=request.module.LIMITS) as live:
            siege = Siege(live)
            yield siege
            siege.everybody_goes()
            await siege.pair.play()
            async with bounded("an empty house"):
                while not siege.empty():
                    live.clock.now += 1.0  # who is over its rate is not read, and so not missed
                    live.server.tick()
                    await asyncio.sleep(0)
            live.server.commit_loop.log_refusals()
    siege.check_log(lines)
