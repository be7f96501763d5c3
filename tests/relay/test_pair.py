"""A pair on live sockets: what comes on one side leaves on the other."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from relay.pairs import KINDS, opened
from support.loops import Test, on_loop, on_uvloop

on_asyncio = on_loop(asyncio.SelectorEventLoop)

DATA = random.Random(40).randbytes(3 << 20)


@pytest.mark.parametrize(("first", "second"), [*((kind, "tcp") for kind in KINDS), *(("tcp", kind) for kind in KINDS[1:]), ("websocket", "websocket"), ("tls", "wss")])
@on_uvloop
async def test_each_side_gets_what_the_other_sends(tmp_path: Path, first: str, second: str) -> None:
    async with opened(tmp_path) as world:
        running = await world.pair(first, second, b"what came behind the line")
        assert await running.first.read(25) == b"what came behind the line"
        pieces = [DATA[at : at + 300_000] for at in range(0, len(DATA), 300_000)]

        async def send() -> None:
            for piece in pieces:
                await running.first.send(piece)
            running.first.end()

        await running.second.send(b"first")
        assert await running.first.read(5) == b"first"
        sending = asyncio.create_task(send())
        assert await running.second.rest() == DATA
        await sending
        assert running.counted == 25 + 5 + len(DATA)
        running.second.end()
        await running.ended()
