"""A client in a few lines, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio

import aiohttp


def talk(url: str, texts: list[str]) -> list[str]:
    """Say each text, then read until the server closes; gives what it said."""

    async def _talk() -> list[str]:
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
            for text in texts:
                await socket.send_str(text)
            return [message.data async for message in socket]

    return asyncio.run(asyncio.wait_for(_talk(), 20))
