"""The two sides of a connection between people, and somebody else at an address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Final, Self

from client.liar import Serve, listening
from restante.client.transit.connecting import Transit, TransitOptions
from restante.client.transit.hints import Address, Hints
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import Role, TransitKeys
from support.bounds import bounded
from support.dice import Seeded

KEY: Final = bytes(range(32))
SENDER, RECEIVER = TransitKeys.of(KEY, Role.SENDER), TransitKeys.of(KEY, Role.RECEIVER)
NO_RELAY: Final = TransitOptions(relays=())
DIAL_ONLY: Final = TransitOptions(relays=(), listen=False)


class Side(Transit):
    """A side whose keys are known."""

    def __init__(self, role: Role, options: TransitOptions = NO_RELAY) -> None:
        super().__init__(options, Seeded(list(Role).index(role)))
        self.role = role
        self.keys = SENDER if role is Role.SENDER else RECEIVER

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(None, None, None)

    async def meet(self, theirs: Hints) -> RecordPipe:
        return await self.connect(self.keys, self.role, theirs)


async def connected(sender: Side, receiver: Side) -> tuple[RecordPipe, RecordPipe]:
    async with bounded("a connection"), sender, receiver:
        return await asyncio.gather(sender.meet(receiver.hints), receiver.meet(sender.hints))


async def exchange(one: RecordPipe, other: RecordPipe) -> None:
    with closing(one), closing(other):
        one.send(b"there")
        assert bytes(await asyncio.to_thread(other.receive)) == b"there"
        other.send(b"back")
        assert bytes(await asyncio.to_thread(one.receive)) == b"back"


@asynccontextmanager
async def somebody(serve: Serve) -> AsyncIterator[Address]:
    """Somebody at an address, who is not the peer, or a peer of other habits."""
    async with listening(serve) as port:
        yield Address("127.0.0.1", port)
