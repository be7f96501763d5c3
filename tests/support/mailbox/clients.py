"""A side's connection: what it said, and what it was told, as it came."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from aiohttp import WSMsgType

from support.bounds import bounded

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
class Command:
    """What was said, and its answers so far."""

    kind: str
    fields: Frame
    ack: Frame | None = None
    reply: Frame | None = None
    error: Frame | None = None

    @property
    def answered(self) -> bool:
        """All that is due has come."""
        return self.error is not None or (self.reply if self.kind in REPLIES else self.ack) is not None


class Client:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, clients: Clients) -> None:
        self.said: list[Command] = []
        self.frames: list[Frame] = []
        """Everything it was told, the welcome first."""
        self.texts: list[str] = []
        """The same, as it stood in the frames."""
        self.heard: list[Frame] = []
        """The stored messages among them."""
        self.close_code: int | None = None
        """What the server said at the end, if it did."""
        self.over = False
        self._socket = socket
        self._clients = clients
        self._ids = itertools.count(1)
        self._pongs: set[bytes] = set()
        self._shown = 0
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    # ── saying ───────────────────────────────────────────────────────────────────────────────────

    async def say(self, kind: str, **fields: object) -> Command:
        """Send a command; does not wait for its answers."""
        command = Command(kind, {"type": kind, "id": next(self._ids), **fields})
        self.said.append(command)
        try:
            await self._socket.send_str(json.dumps(command.fields))
        except ConnectionError as error:
            raise LostError(kind) from error
        return command

    async def call(self, kind: str, **fields: object) -> Frame:
        """Send a command and wait for all its answers; gives the last of them, which must be no error."""
        command = await self.say(kind, **fields)
        await self.answers(command)
        assert command.error is None, command.error
        answer = command.reply or command.ack
        assert answer is not None
        return answer

    async def answers(self, command: Command) -> None:
        await self.until(f"the answers to {command.fields}", lambda: command.answered)

    async def refused(self, command: Command) -> Frame:
        """Wait for the error that a command gets."""
        await self.until(f"an error for {command.fields}", lambda: command.error is not None)
        assert command.error is not None
        return command.error

    async def fence(self) -> None:
        """Wait for the pong to a WebSocket ping, which the transport answers by itself: all that was sent to this
        client before has come, for the bytes of a connection keep their order, and the server's loop has turned.
        """
        token = str(next(self._ids)).encode()
        await self._socket.ping(token)
        await self.until("a pong", lambda: token in self._pongs)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds():
                if self.over:
                    self._reading.result()
                    raise LostError(what)
                self._news.clear()
                await self._news.wait()

    async def ends(self) -> None:
        """Wait until the connection is over."""
        async with bounded("the end of the connection"):
            await asyncio.wait([self._reading])
        self._reading.result()

    async def leave(self) -> None:
        """Hang up."""
        async with bounded("a closed connection"):
            await self._socket.close()
        await self.ends()

    def new(self) -> list[Frame]:
        """Return the frames that came since this was asked last."""
        frames, self._shown = self.frames[self._shown :], len(self.frames)
        return frames

    # ── being told ───────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        try:
            while not self.over:
                self._receive(await self._socket.receive())
                self._news.set()
            await self._socket.close()
        finally:
            self.over = True
            self._news.set()

    def _receive(self, frame: aiohttp.WSMessage) -> None:
        if frame.type is WSMsgType.TEXT:
            self._take(frame.data)
        elif frame.type is WSMsgType.PONG:
            self._pongs.add(bytes(frame.data))
        else:
            assert frame.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR}, frame
            if frame.type is WSMsgType.CLOSE:
                self.close_code = frame.data
            self.over = True

    def _take(self, text: str) -> None:
        frame: Frame = json.loads(text)
        self.texts.append(text)
        self.frames.append(frame)
        kind = frame["type"]
        if kind == "welcome":
            return
        if kind == "message":
            self.heard.append(frame)
        elif kind == "error":
            self._by_id(frame["orig"]["id"]).error = frame
        elif kind == "ack":
            self._by_id(frame["id"]).ack = frame
        else:
            command = self._by_id(frame["id"])
            assert REPLIES[command.kind] == kind, frame
            command.reply = frame
        self._clients.on_answer()

    def _by_id(self, number: int) -> Command:
        return next(command for command in self.said if command.fields["id"] == number)


class Clients:
    """Connects clients, and hangs up for those that have not when it is over."""

    def __init__(self) -> None:
        self.all: list[Client] = []
        self.on_answer: Callable[[], None] = lambda: None
        """Called at every frame but welcomes, whoever gets it."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for client in self.all:
            await client.leave()
        await self._session.close()

    async def connect(self, url: str) -> Client:
        """Connect, and wait for the welcome."""
        async with bounded("a connection"):
            try:
                socket = await self._session.ws_connect(url, autoping=False, autoclose=False, max_msg_size=0)
            except aiohttp.ClientError as error:
                raise LostError(url) from error
        client = Client(socket, self)
        self.all.append(client)
        await client.until("the welcome", lambda: bool(client.frames))
        return client

    async def bind(self, url: str, app: str, side: str) -> Client:
        client = await self.connect(url)
        await client.call("bind", appid=app, side=side)
        return client

    async def opened(self, url: str, app: str, side: str, mailbox: str) -> Client:
        """Connect, bind and open a mailbox."""
        client = await self.bind(url, app, side)
        await client.call("open", mailbox=mailbox)
        return client
