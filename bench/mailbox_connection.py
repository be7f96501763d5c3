"""A client for single questions: says one thing, waits for the answer, knows how long it took."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

import words
from wire import BadWireError, Wire, frame

if TYPE_CHECKING:
    import ssl

CALL_SECONDS = 60.0
R = TypeVar("R", bound=words.Reply)
_sides = itertools.count()


class Connection(Wire):
    """One connection, one call at a time."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port, tls)
        self.side = f"side-{next(_sides)}"
        self.seconds = 0.0
        self.broken = ""
        self._wanted: type[words.Reply] = words.Welcome
        self._answer: asyncio.Future[words.Reply] | None = None
        self._asked = 0.0

    async def greet(self) -> None:
        """Connect and wait for the welcome."""
        self._expect(words.Welcome)
        await self.connect()
        await self._wait()

    async def bind(self) -> None:
        await self.call(words.Ack, "bind", appid=words.APPID, side=self.side)

    async def call(self, wanted: type[R], type_: str, **keys: object) -> R:
        """Say it and return the first answer of the type wanted; an error or a broken connection raises."""
        self._expect(wanted)
        self.write(frame(words.command(type_, id="0", **keys)))
        return cast("R", await self._wait())

    def received(self, payload: bytes, now: float) -> None:
        try:
            reply = words.parse(payload)
        except msgspec.DecodeError as error:
            self.fail(f"{error}: {payload[:200]!r}")
            return
        if isinstance(reply, words.Error):
            self.fail(f"error: {reply.error} {reply.orig}")
        elif type(reply) is self._wanted and self._answer is not None and not self._answer.done():
            self.seconds = now - self._asked
            self._answer.set_result(reply)

    def failed(self, why: str) -> None:
        self.broken = why
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BadWireError(why))

    def _expect(self, wanted: type[words.Reply]) -> None:
        self._wanted = wanted
        self._answer = asyncio.get_running_loop().create_future()
        self._asked = time.perf_counter()
        if self.over:
            self._answer.set_exception(BadWireError(self.broken))

    async def _wait(self) -> words.Reply:
        assert self._answer is not None
        async with asyncio.timeout(CALL_SECONDS):
            return await self._answer
