"""Subscribers who do not read: what they are owed is kept within bounds, and nobody else waits for them."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from restante.mailbox.core.limits import MIB, Limits
from support.mailbox.siege import LiveSiege

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS: Final = replace(Limits(), mailbox_bytes=MIB, commands=0.0, bytes=0.0)
BODY: Final = "ab" * 5000


async def test_subscribers_that_do_not_read_cost_little_and_lose_nothing(siege: LiveSiege) -> None:
    async with siege.beside_the_pair("subscribers who do not read") as pair:
        adder = await siege.bind("adder")
        adder.say(type="open", mailbox="slow")
        assert (await adder.hear())["type"] == "ack"
        readers = [await siege.bind("reader") for _ in range(6)]
        for reader in readers:
            reader.reader._transport.pause_reading()  # type: ignore[attr-defined]
            reader.say(type="open", mailbox="slow")
        await siege.fence()
        added = 0
        while "error" not in (answer := await siege.call(adder, type="add", phase=str(added), body=BODY)):
            added += 1
        assert answer["error"] == "the mailbox is full"
        await pair.plays(3)
        assert siege.live.server.owing <= len(readers) * MIB
        for reader in readers:
            reader.reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert (await reader.hear())["type"] == "ack"
            assert [(await reader.hear())["phase"] for _ in range(added)] == [str(number) for number in range(added)]
        for client in (adder, readers[0]):
            await siege.close(client, "slow")
