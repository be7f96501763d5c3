"""Subscribers who do not read: what they are owed is kept within bounds, and nobody else waits for them."""

from __future__ import annotations

from typing import Final

import pytest

from restante.mailbox.core.limits import MIB
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS: Final = ("--limit", f"mailbox_bytes={MIB}")

BODY: Final = "ab" * 5000
READERS: Final = 6
"""What an `add` makes others be sent is charged to its sender: more would be slowed."""


async def test_subscribers_that_do_not_read_cost_little_and_lose_nothing(siege: Siege) -> None:
    async with siege.beside_the_pair("subscribers who do not read") as pair:
        adder = await siege.bind("adder")
        adder.say(type="open", mailbox="slow")
        assert (await adder.hear())["type"] == "ack"
        readers = [await siege.bind("reader") for _ in range(READERS)]
        for reader in readers:
            reader.reader._transport.pause_reading()  # type: ignore[attr-defined]
            reader.say(type="open", mailbox="slow")
        await siege.fence()
        before = siege.resident_mib()
        added = 0
        while "error" not in (answer := await siege.call(adder, type="add", phase=str(added), body=BODY)):
            added += 1
        assert answer["error"] == "the mailbox is full"
        await pair.plays(3)
        assert siege.resident_mib() - before < 4  # one mailbox of 1 MiB, and not one for each
        for reader in readers:
            reader.reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert (await reader.hear())["type"] == "ack"
            assert [(await reader.hear())["phase"] for _ in range(added)] == [str(each) for each in range(added)]
        for client in (adder, readers[0]):
            client.say(type="close", mailbox="slow")
            assert [(await client.hear())["type"] for _ in range(2)] == ["ack", "closed"]
