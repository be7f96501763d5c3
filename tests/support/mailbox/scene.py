"""People with real clients, their server, and a wire between them that a test holds or cuts at the message it names.

The wire keeps its port whatever happens to the server, and forwards frames as they are. A test says where it wants to
step in before the conversation gets there:

    killed = scene.kill_at(to_client(RECEIVER, "claimed"), BEFORE)      # kill the server at that moment
    held = scene.hold(to_server(SENDER, "close"))                       # keep it, and all behind it, until let go
    await scene.passed(to_client(SENDER, "message", phase="pake"))      # it went through (now or long ago)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Self

from support.bounds import bounded
from support.mailbox.raw_socket import BINARY, TEXT
from support.mailbox.servers import Server
from support.mailbox.wormhole import Client
from support.ports import held_port

# Clients are numbered as they come; tests start the sender first, since the receiver needs its code.
SENDER, RECEIVER = 1, 2

BEFORE, AFTER = "before", "after"
"""When to act: the named message has not gone further yet, or it just has (and nothing behind it)."""


@dataclass(frozen=True)
class Moment:
    """A message: which way, whose, of which type, and what else must be in it."""

    to_server: bool
    client: int | None
    """1 for the first side that said `bind`; None for what a connection says before that."""
    type: str
    phase: str | None = None
    author: int | None = None

    def matches(self, passing: Moment) -> bool:
        return all(wanted in (None, its) for wanted, its in zip(astuple(self), astuple(passing), strict=True))

    def __str__(self) -> str:
        words = (f"client-{self.client}", "says" if self.to_server else "hears", self.type, self.phase)
        author = self.author and f"of-{self.author}"
        return "-".join(word for word in (*words, author) if word)


def to_server(client: int, kind: str, phase: str | None = None) -> Moment:
    return Moment(True, client, kind, phase)


def to_client(client: int, kind: str, phase: str | None = None, author: int | None = None) -> Moment:
    return Moment(False, client, kind, phase, author)


@dataclass(eq=False)
class Connection:
    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    client: int | None = None
    is_cut: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stops: list[Stop] = field(default_factory=list)

    def cut(self) -> None:
        """Let nothing more pass; close half of each socket, since a reset may overtake what was forwarded last."""
        self.is_cut = True
        for end in self.ends:
            end_stream(end)
        for stop in self.stops:
            stop.let_go()


def end_stream(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, RuntimeError):  # that end is gone already
        writer.write_eof()


@dataclass(eq=False)
class Stop:
    """A moment that is still to come. The test acts there, once, or its message waits, and with it all behind it."""

    moment: Moment
    order: str
    act: Callable[[], None] | None
    """What is done at that moment: nothing else passes meanwhile. None: the message waits until it is let go."""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self) -> None:
        async with bounded(f"{self.order} {self.moment}"):
            await self.came.wait()

    def let_go(self) -> None:
        self._go_on.set()

    async def meet(self, connection: Connection) -> None:
        if self.act is not None:
            self.act()
            self.let_go()
        connection.stops.append(self)
        self.came.set()
        await self._go_on.wait()


async def read_frame(source: asyncio.StreamReader) -> tuple[bytes, dict[str, Any]]:
    """Read a WebSocket frame (RFC 6455, section 5.2): return it as it is, and the message in it, or an empty one."""
    head = await source.readexactly(2)
    opcode, masked, size = head[0] & 0x0F, head[1] & 0x80, head[1] & 0x7F
    assert head[0] & 0xF0 == 0x80, "neither fragments nor extensions are known here"
    if size > 125:
        longer = await source.readexactly(2 if size == 126 else 8)
        head, size = head + longer, int.from_bytes(longer)
    mask = await source.readexactly(4) if masked else b""
    payload = await source.readexactly(size)
    if opcode not in {TEXT, BINARY}:
        return head + mask + payload, {}
    key = (mask * (size // 4 + 1))[:size]
    message = json.loads((int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size))
    assert isinstance(message, dict), message
    return head + mask + payload, message


class Scene:
    """Everything runs from `async with` on, and nothing of it after that."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.url = ""
        self.transcript: list[tuple[Moment, dict[str, Any]]] = []
        self._folder = folder
        self._clients: list[Client] = []
        self._sides: dict[str, int] = {}
        self._connections: list[Connection] = []
        self._stops: list[Stop] = []
        self._failures: list[Exception] = []
        self._ends = AsyncExitStack()
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.server.port = self._server_port = self._ends.enter_context(held_port())
        self._ends.push_async_callback(self.server.end)
        wire = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._ends.callback(wire.close)
        self.url = f"ws://127.0.0.1:{wire.sockets[0].getsockname()[1]}/v1"
        # It starts while the sender does, which takes as long. Connections that come too early wait: a client whose
        # first connection fails gives up (_rendezvous.py:106).
        self._starting = asyncio.create_task(self.server.start())
        return self

    async def __aexit__(self, *_: object) -> None:
        said = (client.said for client in self._clients)
        print(*self.transcript, self.server.log(), *said, sep="\n")  # noqa: T201 (pytest shows it with a failure)
        async with self._ends:
            await self._starting
            for client in self._clients:
                await client.end()
            await self.server.stop()
        if self._failures:
            raise ExceptionGroup("the wire could not follow the conversation", self._failures)

    async def send_text(self, text: str) -> Client:
        return await self.start("sender", "send", "--text", text)

    async def send_file(self, name: str, content: bytes) -> Client:
        (self._home("sender") / name).write_bytes(content)
        return await self.start("sender", "send", name)

    async def receive(self, code: str, *options: str, name: str = "receiver") -> Client:
        return await self.start(name, "receive", *options, code)

    def received(self, name: str) -> bytes:
        return (self._home("receiver") / name).read_bytes()

    async def start(self, name: str, *command: str) -> Client:
        client = await Client.start(self._home(name), self.url, *command)
        self._clients.append(client)
        self._ends.push_async_callback(client.end)
        return client

    def _home(self, name: str) -> Path:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        return home

    def kill(self) -> None:
        """SIGKILL the server; not even what it had already written passes any more."""
        self.server.kill()
        for connection in self._connections:
            connection.cut()

    async def cut_off(self, client: int) -> None:
        """Cut the connections of a client, and wait until the server has noticed: it closed its own end."""
        for connection in self._connections:
            if connection.client == client:
                connection.cut()
                async with bounded(f"the end of a connection of client {client}"):
                    await connection.over.wait()

    def kill_at(self, moment: Moment, order: str) -> Stop:
        return self.stop_at(moment, order, self.kill)

    def hold(self, moment: Moment) -> Stop:
        """Keep a message back until the test lets it go or the wire is cut."""
        return self.stop_at(moment, BEFORE, None)

    def stop_at(self, moment: Moment, order: str, act: Callable[[], None] | None) -> Stop:
        self._stops.append(Stop(moment, order, act))
        return self._stops[-1]

    async def passed(self, moment: Moment) -> None:
        async with bounded(f"passed: {moment}"):
            while not self.messages(moment):
                self._news.clear()
                await self._news.wait()

    def messages(self, moment: Moment) -> list[dict[str, Any]]:
        return [message for passing, message in self.transcript if moment.matches(passing)]

    def connections_of(self, client: int) -> int:
        return sum(connection.client == client for connection in self._connections)

    def assert_one_happy_session(self) -> None:
        """Both sides used one nameplate and one mailbox, each recorded once, and nothing is left of them."""
        assert self.server.usage() == (["happy"], ["happy"])
        assert self.server.live() == {}

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait([self._starting])
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:  # the server is down; the client will try again
            writer.transport.abort()
            return
        connection = Connection((writer, to_server))
        self._connections.append(connection)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(connection, True, reader, to_server))
                pumps.create_task(self._pump(connection, False, from_server, writer))
        except ExceptionGroup as error:
            self._failures.append(error)
        finally:
            for end in connection.ends:
                end.close()
            connection.over.set()

    async def _pump(
        self, connection: Connection, to_server: bool, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            sink.write(await source.readuntil(b"\r\n\r\n"))
            while True:
                frame, message = await read_frame(source)
                if connection.is_cut:
                    continue  # read on to the end, so that the socket closes without a reset
                moment = self._moment(connection, to_server, message)
                await self._stop(BEFORE, moment, connection)
                if connection.is_cut:
                    continue
                sink.write(frame)
                self.transcript.append((moment, message))
                await self._stop(AFTER, moment, connection)
                self._news.set()
                await sink.drain()
        end_stream(sink)

    def _moment(self, connection: Connection, to_server: bool, message: dict[str, Any]) -> Moment:
        kind = message.get("type", "")
        if to_server and kind == "bind":
            connection.client = self._sides.setdefault(message["side"], len(self._sides) + 1)
        author = self._sides.get(message["side"]) if kind == "message" else None
        return Moment(to_server, connection.client, kind, message.get("phase"), author)

    async def _stop(self, order: str, moment: Moment, connection: Connection) -> None:
        def due() -> Stop | None:
            return next((stop for stop in self._stops if stop.order == order and stop.moment.matches(moment)), None)

        while stop := due():  # the test may have made one while a message waited
            self._stops.remove(stop)
            await stop.meet(connection)


async def assert_text_arrives(sender: Client, receiver: Client, text: str) -> None:
    outcome = await receiver.leaves()
    assert (outcome.exit_code, outcome.stdout) == (0, f"{text}\n"), outcome
    outcome = await sender.leaves()
    assert outcome.exit_code == 0, outcome
    assert outcome.stderr.endswith("text message sent\n"), outcome
