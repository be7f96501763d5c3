"""The reference server as a world: the same conversations, a foreign peer."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

from worlds import LiveWorld, shown


class ReferencePeer:
    """The process; one serves all scripts."""

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).with_name("reference_server.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def ask(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), 20)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


class ReferenceWorld(LiveWorld):
    def __init__(self, options: dict[str, str], peer: ReferencePeer, http: aiohttp.ClientSession) -> None:
        super().__init__(options, Path(), http)
        self.peer = peer

    async def start(self) -> None:
        words = [f"{name}={value}" if value else name for name, value in self.options.items()]
        self.port = (await self.peer.ask("fresh", *words))["port"]

    async def stop(self) -> None:
        for client in self.clients.values():
            await client.socket.close()

    async def restart(self) -> None:
        await self.stop()
        self.clients = {}
        self.port = (await self.peer.ask("restart"))["port"]

    async def advance(self, seconds: float) -> None:
        await self.peer.ask("advance", str(seconds))

    async def prune(self) -> None:
        await self.peer.ask("prune")

    async def rows(self) -> dict[str, str]:
        rows: dict[str, str] = (await self.peer.ask("look"))["rows"]
        return rows

    async def usage(self) -> dict[str, list[dict[str, Any]]]:
        usage = (await self.peer.ask("look"))["usage"]
        return {kind: [shown(record) for record in records] for kind, records in usage.items()}
