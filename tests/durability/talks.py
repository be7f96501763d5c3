"""Sessions as shipped clients have them, taken up again after every kill."""

import asyncio
import random
from collections.abc import Iterator
from typing import Final

from support.mailbox.clients import Client, Clients, Command

MOODS: Final = ("happy", "lonely", "errory", "scary", None)

LONG: Final = 6000
"""Characters of a body that needs more than one page of the database."""


class Side:
    """One side of a talk, over all its connections."""

    def __init__(self, name: str, bodies: list[str], mood: str | None) -> None:
        self.name = name
        self.bodies = bodies
        """What it will add, in this order."""
        self.mood = mood
        self.connections: list[Client] = []

    def said(self, *kinds: str) -> Iterator[Command]:
        for client in self.connections:
            for command in client.said:
                if command.kind in kinds:
                    yield command

    def has_said(self, *kinds: str) -> bool:
        return any(True for _ in self.said(*kinds))

    def acked(self, *kinds: str) -> bool:
        return any(command.ack for command in self.said(*kinds))

    def told(self, kind: str, key: str) -> str | None:
        """Return what a direct response told it."""
        return next((str(command.reply[key]) for command in self.said(kind) if command.reply), None)


class Talk:
    """Two sides with a code, or with a mailbox that they agreed on elsewhere.

    Each talk has an app of its own, so that the rows of its app are its rows, and only ever one nameplate and one
    mailbox: nobody releases or closes before both sides are there.
    """

    def __init__(self, number: int, dice: random.Random) -> None:
        self.app = f"talk-{number}"
        self.dice = dice
        self.agreed = f"agreed-{number}" if dice.random() < 0.2 else None
        self.sides = [Side(name, self._bodies(name), dice.choice(MOODS)) for name in ("a", "b")]
        self._named = asyncio.Event()
        self._together = asyncio.Event()

    def _bodies(self, side: str) -> list[str]:
        count = self.dice.randrange(2, 8)
        lengths = [LONG if self.dice.random() < 0.05 else self.dice.randrange(20, 300) for _ in range(count)]
        return [f"{self.app} {side} {i} ".ljust(length, ".") for i, length in enumerate(lengths)]

    @property
    def nameplate(self) -> str | None:
        return self.sides[0].told("allocate", "nameplate")

    @property
    def mailbox(self) -> str | None:
        return self.agreed or self.sides[0].told("claim", "mailbox") or self.sides[1].told("claim", "mailbox")

    def unfinished(self) -> list[Side]:
        return [side for side in self.sides if not side.acked("close")]

    async def enter(self, side: Side, clients: Clients, url: str) -> Client:
        """Connect, go where the side was before and hear what is stored; what had no answer is said again."""
        client = await clients.connect(url)
        side.connections.append(client)
        await client.say("bind", appid=self.app, side=side.name)
        if side.has_said("close"):
            await client.call("close", mailbox=self.mailbox, mood=side.mood)
        else:
            if self.agreed is None and not side.has_said("release"):
                await self._claim(side, client)
            await client.say("open", mailbox=self.mailbox)
            await client.call("ping", ping="that was all")
        assert not [command.error for command in client.said if command.error]
        if all(each.acked("open") for each in self.sides):
            self._together.set()
        return client

    async def _claim(self, side: Side, client: Client) -> None:
        if self.nameplate is None:
            if side is self.sides[0]:
                await client.call("allocate")
                self._named.set()
            await self._named.wait()
        before = self.mailbox
        claimed = await client.call("claim", nameplate=self.nameplate)
        assert before in {None, claimed["mailbox"]}, f"{self.app}: the same claim, another mailbox"

    async def proceed(self, side: Side, client: Client, *, stay: bool) -> None:
        """Add what is left, release and close; or stay until something happens to the connection."""
        if side.has_said("close"):
            return
        stored = {frame["body"] for frame in client.heard}
        left = [body for body in side.bodies if body not in stored]
        while left:
            size = self.dice.randrange(1, 5)
            added = [await client.say("add", phase=body.split()[2], body=body) for body in left[:size]]
            await client.answers(added[-1])
            left = left[size:]
        await self._together.wait()
        if self.agreed is None and not side.acked("release"):
            await client.call("release", nameplate=self.nameplate)
        if not stay:
            await client.call("close", mailbox=self.mailbox, mood=side.mood)
        assert not [command.error for command in client.said if command.error]
