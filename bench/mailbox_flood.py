"""What one client that says as much as it can costs another pair: the time from an `add` to its delivery."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

import words
from mailbox_connection import Connection
from wire import frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

AT_A_TIME = 200
BUFFERED = 1 << 20
ADD_EVERY = 0.005
LAST_SECONDS = 30.0


class Flooder(Connection):
    """Adds to a mailbox of its own as fast as the server reads; takes no interest in the answers."""

    async def flood(self) -> None:
        await self.greet()
        await self.bind()
        await self.call(words.Ack, "open", mailbox="flooded")
        adds = frame(words.command("add", id="0", phase="0", body="00" * 300)) * AT_A_TIME
        while not self.over and self.transport is not None:
            while self.transport.get_write_buffer_size() < BUFFERED:
                self.write(adds)
            await asyncio.sleep(0.001)

    def received(self, payload: bytes, now: float) -> None:
        if self._answer is not None and not self._answer.done():
            super().received(payload, now)


class Listener(Connection):
    """Records when each message of the other side arrives."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.came: dict[str, float] = {}

    def received(self, payload: bytes, now: float) -> None:
        super().received(payload, now)
        said = msgspec.json.decode(payload)
        if said["type"] == "message":
            self.came[said["phase"]] = now


@contextlib.asynccontextmanager
async def flooder(port: int) -> AsyncIterator[None]:
    """Run a client that floods the server."""
    connection = Flooder(port)
    flooding = asyncio.create_task(connection.flood())
    await asyncio.sleep(1)
    try:
        yield
    finally:
        connection.end()
        flooding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flooding


async def delivery_times(port: int, seconds: float, beside: AbstractAsyncContextManager[None]) -> list[float]:
    """Return the seconds from add to delivery of a pair, while something else happens."""
    speaker, listener = Connection(port), Listener(port)
    for each in (speaker, listener):
        await each.greet()
        await each.bind()
        await each.call(words.Ack, "open", mailbox="the pair's")
    async with beside:
        sent: dict[str, float] = {}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            phase = str(len(sent))
            sent[phase] = time.perf_counter()
            speaker.write(frame(words.command("add", id="0", phase=phase, body="00" * 300)))
            await asyncio.sleep(ADD_EVERY)
        async with asyncio.timeout(LAST_SECONDS):
            while len(listener.came) < len(sent):  # noqa: ASYNC110 - looked at, not waited for by anybody else
                await asyncio.sleep(0.01)
    for each in (speaker, listener):
        each.end()
    return [listener.came[phase] - when for phase, when in sent.items()]
