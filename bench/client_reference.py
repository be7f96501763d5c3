"""The Python client, magic-wormhole, as bench/client.py measures it, on Twisted's default reactor.

See client_sides.py.
"""

from __future__ import annotations

from typing import Any, Self

import wormhole
from twisted.internet import defer, reactor
from twisted.internet import task as tasks

from client_sides import APPID, task

AT_A_TIME = 100
"""Messages that are sent before the reactor has a turn: `send_message` waits for nothing."""


class ReferenceSide:
    """A wormhole of `wormhole.create`, by its Deferred interface."""

    def __init__(self, wormhole_: Any) -> None:
        self._wormhole = wormhole_
        self._sent = 0

    @classmethod
    async def connect(cls, url: str) -> Self:
        return cls(wormhole.create(APPID, url, reactor))

    async def allocate_code(self) -> str:
        self._wormhole.allocate_code()
        code: str = await self._wormhole.get_code()
        return code

    async def set_code(self, code: str) -> None:
        self._wormhole.set_code(code)

    async def verifier(self) -> bytes:
        verifier: bytes = await self._wormhole.get_verifier()
        return verifier

    async def send(self, message: bytes) -> None:
        self._wormhole.send_message(message)
        self._sent += 1
        if self._sent % AT_A_TIME == 0:
            await tasks.deferLater(reactor, 0)

    async def receive(self) -> bytes:
        message: bytes = await self._wormhole.get_message()
        return message

    async def close(self) -> None:
        await self._wormhole.close()


if __name__ == "__main__":
    tasks.react(lambda _reactor: defer.ensureDeferred(task(ReferenceSide.connect)))
