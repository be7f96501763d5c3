"""A side's connection: what it said, and what it was told, as it came."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from support.bounds import bounded
from support.mailbox.raw_socket import BINARY, CLOSE, PING, PONG, TEXT, RawSocket, frame

Frame = dict[str, Any]

REPLIES: Final = {
    "list": "nameplates",
    "allocate": "allocated",
    "claim": "claimed",
    "release": "released",
    "close": "closed",
    "ping": "pong",
}
"""Commands with a direct response; the others have their ack alone."""


class LostError(Exception):
    """The connection ended before what was waited for came."""


@dataclass(eq=False)
class SaidCommand:
    kind: str
    fields: Frame
    ack: Frame | None = None
    reply: Frame | None = None
    error: Frame | None = None

    @property
    def answered(self) -> bool:
        return self.error is not None or (self.reply if self.kind in REPLIES else self.ack) is not None


class Client:
    def __init__(self, socket: RawSocket, on_answer: Callable[[], None] = lambda: None) -> None:
        self.said: list[SaidCommand] = []
        self.frames: list[Frame] = []
        """Everything it was told, the welcome first."""
        self.texts: list[str] = []
        self.heard: list[Frame] = []
        """The stored messages among them."""
        self.close_code: int | None = None
        """What the server said at the end, if it did."""
        self._socket = socket
        self._on_answer = on_answer
        self._ids = itertools.count(1)
        self._pongs: set[bytes] = set()
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, url: str, on_answer: Callable[[], None] = lambda: None) -> Self:
        address = urlsplit(url)
        assert address.port is not None
        try:
            socket = await RawSocket.dial(address.port, address.path, address.hostname or "")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LostError(url) from error
        client = cls(socket, on_answer)
        await client.until("the welcome", lambda: bool(client.frames))
        return client

    async def say(self, kind: str, **fields: object) -> SaidCommand:
        """Send a command; does not wait for its answers."""
        command = SaidCommand(kind, {"type": kind, "id": next(self._ids), **fields})
        if self._reading.done():
            raise LostError(kind)
        self.said.append(command)
        await self._send(frame(TEXT, json.dumps(command.fields).encode()))
        return command

    async def _send(self, data: bytes) -> None:
        self._socket.write(data)
        try:
            await self._socket.writer.drain()
        except ConnectionError as error:
            raise LostError from error

    async def call(self, kind: str, **fields: object) -> Frame:
        """Send a command and wait for all its answers; gives the last of them, which must be no error."""
        command = await self.say(kind, **fields)
        await self.answers(command)
        assert command.error is None, command.error
        answer = command.reply or command.ack
        assert answer is not None
        return answer

    async def answers(self, command: SaidCommand) -> None:
        await self.until(f"the answers to {command.fields}", lambda: command.answered)

    async def refused(self, command: SaidCommand) -> Frame:
        await self.answers(command)
        assert command.error is not None
        return command.error

    async def fence(self) -> None:
        """Wait for the pong to a WebSocket ping: all sent before has come, and the server's loop has turned."""
        token = str(next(self._ids)).encode()
        await self._send(frame(PING, token))
        await self.until("a pong", lambda: token in self._pongs)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds():
                if self._reading.done():
                    self._reading.result()
                    raise LostError(what)
                self._news.clear()
                await self._news.wait()

    async def ends(self) -> None:
        async with bounded("the end of the connection"):
            await asyncio.wait([self._reading])
        self._reading.result()

    async def leave(self) -> None:
        if not self._reading.done():
            self._socket.bid_farewell()
        await self.ends()

    async def _read(self) -> None:
        try:
            while self.close_code is None:
                self._take(*await self._socket.read(None))
                self._news.set()
            self._socket.bid_farewell(self.close_code)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it ended without a close
        finally:
            self._socket.writer.close()
            asyncio.get_running_loop().call_soon(self._news.set)

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._socket.write(frame(PONG, payload))
        elif opcode == PONG:
            self._pongs.add(payload)
        elif opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2])
        else:
            assert opcode in {TEXT, BINARY}
            self.texts.append(payload.decode())
            self.frames.append(json.loads(payload))
            self._note(self.frames[-1])

    def _note(self, message: Frame) -> None:
        kind = message["type"]
        if kind == "welcome":
            return
        if kind == "message":
            self.heard.append(message)
        else:
            number = (message["orig"] if kind == "error" else message)["id"]
            [command] = [command for command in self.said if command.fields["id"] == number]
            if kind == "error":
                command.error = message
            elif kind == "ack":
                command.ack = message
            else:
                assert REPLIES[command.kind] == kind, message
                assert command.ack is not None, message
                command.reply = message
        self._on_answer()


class Clients:
    """Connects clients, and hangs up for those that have not when it is over."""

    def __init__(self) -> None:
        self.all: list[Client] = []
        self.on_answer: Callable[[], None] = lambda: None
        """Called at every frame but welcomes, whoever gets it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.all:
            await client.leave()

    async def connect(self, url: str) -> Client:
        client = await Client.connect(url, lambda: self.on_answer())  # noqa: PLW0108 - it may be another by then
        self.all.append(client)
        return client

    async def bind(self, url: str, app: str, side: str) -> Client:
        client = await self.connect(url)
        await client.call("bind", appid=app, side=side)
        return client

    async def opened(self, url: str, app: str, side: str, mailbox: str) -> Client:
        client = await self.bind(url, app, side)
        await client.call("open", mailbox=mailbox)
        return client
