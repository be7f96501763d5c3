"""A mailbox server in the test's own loop that can be told to lie, frame by frame."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext
from typing import Any, Final

from support.mailbox.givens import Inbox, Options
from support.mailbox.raw_socket import CLOSE, PONG, TEXT, frame
from support.mailbox.scene import read_frame
from support.mailbox.worlds import CoreWorld

Answer = dict[str, Any]
Sent = Answer | bytes
Lie = Callable[[Answer], list[Sent]]
"""What is sent in place of an answer. Bytes go onto the wire as they are."""

CLOSE_BYTE, PING_BYTE = 0x88, 0x89
NO_ROOM: Final = frame(CLOSE, (1013).to_bytes(2, "big") + b"no room", mask=False)
GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def honest(answer: Answer) -> list[Sent]:
    return [answer]


def text(content: bytes) -> bytes:
    return frame(TEXT, content, mask=False)


def instead_of(kind: str, *sent: Sent) -> Lie:
    return lambda answer: list(sent) if answer["type"] == kind else [answer]


class Liar:
    def __init__(self, lie: Lie, scheme: str = "ws") -> None:
        self.scheme = scheme
        self.lie = lie
        self.answers_pings = False
        self.pings: asyncio.Queue[int] = asyncio.Queue()
        self.port = 0
        self.connections = 0
        self.heard: list[Answer] = []
        self._world = CoreWorld(Options())
        self._clients: dict[int, tuple[Inbox, asyncio.StreamWriter]] = {}

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    def writer(self, number: int) -> asyncio.StreamWriter:
        return self._clients[number][1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        await answer_handshake(reader, writer)
        inbox = self._world.connect()
        self._clients[number] = inbox, writer
        self._tell_all()
        try:
            while True:
                raw, message = await read_frame(reader)
                if message:
                    self.heard.append(message)
                    self._world.say(inbox, json.dumps(message))
                    self._tell_all()
                elif raw[0] == CLOSE_BYTE:
                    return
                elif raw[0] == PING_BYTE:
                    self.pings.put_nowait(number)
                    if self.answers_pings:
                        writer.write(frame(PONG, mask=False))
        finally:
            del self._clients[number]
            self._world.lose(inbox)

    def _tell_all(self) -> None:
        self._world.flush()
        for number, (inbox, writer) in self._clients.items():
            answers, inbox.frames = inbox.frames, []
            for sent in (sent for answer in answers for sent in self.lie({**answer, "connection": number})):
                writer.write(sent if isinstance(sent, bytes) else text(json.dumps(sent).encode()))


async def answer_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    [key] = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")]
    accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest()).decode()
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        + f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
    )


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def listening(serve: Serve, ssl: SSLContext | None = None) -> AsyncIterator[int]:
    tasks: list[asyncio.Task[None]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(run(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=ssl)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def lying(lie: Lie, ssl: SSLContext | None = None) -> AsyncIterator[Liar]:
    liar = Liar(lie, "ws" if ssl is None else "wss")
    async with listening(liar.serve, ssl) as liar.port:
        yield liar
