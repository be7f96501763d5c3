"""Restante's client, as bench/client.py measures it, on asyncio's own event loop. See client_sides.py."""

from __future__ import annotations

import asyncio
from typing import Self

from client_sides import APPID, task
from restante.client import Wormhole


class OurSide:
    """A wormhole of `restante.client`."""

    def __init__(self, wormhole: Wormhole) -> None:
        self._wormhole = wormhole
        self.allocate_code = wormhole.allocate_code
        self.set_code = wormhole.set_code
        self.verifier = wormhole.verifier
        self.receive = wormhole.receive
        self.close = wormhole.close

    @classmethod
    async def connect(cls, url: str) -> Self:
        return cls(await Wormhole.create(APPID, server=url).__aenter__())

    async def send(self, message: bytes) -> None:
        await self._wormhole.send(message)


if __name__ == "__main__":
    asyncio.run(task(OurSide.connect))
