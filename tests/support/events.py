"""What a dashboard is sent, as tests read it (HTML, "Server-sent events")."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from support.bounds import bounded


class Events:
    """The events of one dashboard."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def until(self, name: str, **fields: Any) -> dict[str, Any]:
        """Return the data of the next event of this name with these fields."""
        async with bounded(f"{name} with {fields}"):
            while True:
                event = (await self._content.readuntil(b"\n\n")).decode()
                event_name, data = event.removeprefix("event: ").rstrip("\n").split("\ndata: ")
                if event_name == name and fields.items() <= (shown := json.loads(data)).items():
                    return dict(shown)


@asynccontextmanager
async def watching(session: aiohttp.ClientSession, url: str, **headers: str) -> AsyncIterator[Events]:
    """Read the events of a server's admin port, as a dashboard does."""
    async with session.get(f"{url}/events", headers=headers, read_bufsize=2**20) as response:
        assert response.status == 200, await response.text()
        yield Events(response.content)
