"""A wire between clients and server that a test can read, hold and cut, at the message it names.

The proxy keeps its port whatever happens to the server, forwards messages as they are, and hurries or delays nothing
by itself. A test says where it wants to step in before the conversation gets there:

    stop = proxy.act(to_client(RECEIVER, "claimed"), BEFORE, kill)      # do something at that moment
    held = proxy.hold(to_server(SENDER, "close"))                       # keep it, and all behind it, until told
    await proxy.passed(to_client(SENDER, "message", phase="pake"))      # it went through (now or long ago)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from socket import SHUT_WR
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from support.bounds import bounded


class Way(Enum):
    TO_SERVER = "->"
    TO_CLIENT = "<-"


class Order(Enum):
    """When to act: the named message has not gone further yet, or it just has (and nothing behind it)."""

    BEFORE = "before"
    AFTER = "after"


TO_SERVER, TO_CLIENT = Way.TO_SERVER, Way.TO_CLIENT
BEFORE, AFTER = Order.BEFORE, Order.AFTER


@dataclass(eq=False)
class Passage:
    """One message on its way, a line of the transcript."""

    connection: int
    """1 for the first connection that was made, and so on; a client that reconnects has several."""
    client: int | None
    """1 for the first side that said `bind`; None for what a connection says before that."""
    way: Way
    message: dict[str, Any]
    author: int | None
    """Which client added it, for `message` (number as in `client`)."""
    passed: bool = False
    """False while it is held, and for ever when the wire was cut first."""

    def __str__(self) -> str:
        who = f"{self.connection}/{self.client or '?'}"
        return f"{who} {self.way.value} {json.dumps(self.message)}{'' if self.passed else '   (never passed)'}"


@dataclass(frozen=True)
class Moment:
    """Names a message: whose, which way, which type, and what else must be in it."""

    way: Way
    client: int
    type: str
    phase: str | None = None
    author: int | None = None

    def matches(self, passage: Passage) -> bool:
        return (
            passage.way is self.way
            and passage.client == self.client
            and passage.message.get("type") == self.type
            and self.phase in (None, passage.message.get("phase"))
            and self.author in (None, passage.author)
        )

    def __str__(self) -> str:
        words = (f"client-{self.client}", "says" if self.way is TO_SERVER else "hears", self.type, self.phase)
        author = self.author and f"of-{self.author}"
        return "-".join(word for word in (*words, author) if word)


def to_server(client: int, kind: str, phase: str | None = None) -> Moment:
    return Moment(TO_SERVER, client, kind, phase)


def to_client(client: int, kind: str, phase: str | None = None, author: int | None = None) -> Moment:
    return Moment(TO_CLIENT, client, kind, phase, author)


Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(eq=False)
class Connection:
    number: int
    ends: tuple[Socket, Socket]
    client: int | None = None
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def sever(self) -> None:
        """Let nothing more pass; both ends read what already passed, then the end of the stream.

        Only half of each socket is closed: closing one with unread bytes sends a reset, which may overtake what was
        forwarded last. The rest closes when the other end has answered.
        """
        if not self.cut.is_set():
            self.cut.set()
            for end in self.ends:
                with suppress(OSError, AttributeError):  # that end is gone already
                    end.get_extra_info("socket").shutdown(SHUT_WR)


@dataclass(eq=False)
class Stop:
    """A place where the test steps in, once."""

    moment: Moment
    order: Order
    act: Callable[[], None]
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self) -> None:
        async with bounded(f"{self.order.value} {self.moment}"):
            await self.happened.wait()


@dataclass(eq=False)
class Hold:
    """A message that waits, and with it all that follows in its direction of its connection; once."""

    moment: Moment
    connection: Connection | None = None
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self) -> None:
        async with bounded(f"held: {self.moment}"):
            await self._arrived.wait()

    def let_go(self) -> None:
        self._go_on.set()

    def drop(self) -> None:
        """Lose the message and cut its connection."""
        assert self.connection is not None, f"{self.moment} has not come yet"
        self.connection.sever()

    async def keep(self, connection: Connection) -> None:
        self.connection = connection
        self._arrived.set()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._go_on, connection.cut)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class Proxy:
    """Listens on a port of its own and connects each client to the server on `server_port`."""

    def __init__(self) -> None:
        self.server_port = 0
        self.transcript: list[Passage] = []
        self.port = 0
        self._sides: dict[str, int] = {}
        self._connections: list[Connection] = []
        self._stops: list[Stop] = []
        self._holds: list[Hold] = []
        self._failures: list[Exception] = []
        self._opened = asyncio.Event()
        self._news = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()
        if self._failures:
            raise ExceptionGroup("the proxy could not follow the conversation", self._failures)

    def open(self) -> None:
        """The server has been started: connections that came too early wait for this, later ones no more."""
        self._opened.set()

    # what a test asks for

    def act(self, moment: Moment, order: Order, act: Callable[[], None]) -> Stop:
        """Call ACT when MOMENT comes, between two messages: nothing else passes meanwhile."""
        stop = Stop(moment, order, act)
        self._stops.append(stop)
        return stop

    def watch(self, moment: Moment) -> Stop:
        """Do nothing when MOMENT comes but say so; unlike `passed`, it is one that is still to come."""
        return self.act(moment, AFTER, lambda: None)

    def hold(self, moment: Moment) -> Hold:
        """Keep the message of MOMENT back until the test lets it go or the wire is cut."""
        hold = Hold(moment)
        self._holds.append(hold)
        return hold

    def cut(self) -> None:
        """Cut every connection there is; new ones may come."""
        for connection in self._connections:
            connection.sever()

    async def passed(self, moment: Moment) -> Passage:
        """Wait until the message of MOMENT has gone through, be it long ago."""

        def find() -> Passage | None:
            passages = (passage for passage in self.transcript if passage.passed and moment.matches(passage))
            return next(passages, None)

        async with bounded(f"passed: {moment}"), self._news:
            await self._news.wait_for(find)
        passage = find()
        assert passage is not None
        return passage

    async def gone(self, client: int) -> None:
        """Wait until no connection of CLIENT is left, as the server sees it too: it closed its own end."""
        for connection in self._connections:
            if connection.client == client:
                async with bounded(f"connection {connection.number} of client {client} over"):
                    await connection.over.wait()

    def heard(self, client: int, kind: str) -> list[dict[str, Any]]:
        """What the server told CLIENT, of one type, in order."""
        return [p.message for p in self.transcript if p.passed and to_client(client, kind).matches(p)]

    def connections_of(self, client: int) -> int:
        return sum(connection.client == client for connection in self._connections)

    # the wire itself

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._opened.wait()
        try:
            url = f"http://127.0.0.1:{self.server_port}{request.path_qs}"
            server = await self._session.ws_connect(url, autoping=False, autoclose=False, max_msg_size=0)
        except aiohttp.ClientError:
            assert request.transport is not None
            request.transport.abort()  # the server is down; the client will try again
            return web.Response()
        client = web.WebSocketResponse(autoping=False, autoclose=False, max_msg_size=0)
        await client.prepare(request)
        connection = Connection(len(self._connections) + 1, (client, server))
        self._connections.append(connection)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(connection, TO_SERVER, client, server))
                pumps.create_task(self._pump(connection, TO_CLIENT, server, client))
        except ExceptionGroup as error:
            self._failures.append(error)
        finally:
            connection.over.set()
            for end in connection.ends:
                await end.close()
        return client

    async def _pump(self, connection: Connection, way: Way, source: Socket, sink: Socket) -> None:
        with suppress(ConnectionError):  # one end died without a word: the same as an end of the stream
            async for message in source:
                if connection.cut.is_set():
                    continue  # read on to the end, so that the socket closes without a reset
                if message.type is aiohttp.WSMsgType.PING:
                    await sink.ping(message.data)
                elif message.type is aiohttp.WSMsgType.PONG:
                    await sink.pong(message.data)
                else:
                    await self._forward(connection, way, message, sink)
        if source.close_code in {None, aiohttp.WSCloseCode.ABNORMAL_CLOSURE}:
            connection.sever()
        elif not connection.cut.is_set():
            await sink.close(code=source.close_code or aiohttp.WSCloseCode.OK)

    async def _forward(self, connection: Connection, way: Way, message: aiohttp.WSMessage, sink: Socket) -> None:
        passage = self._read(connection, way, message.data)
        for hold in [hold for hold in self._holds if hold.moment.matches(passage)]:
            self._holds.remove(hold)
            await hold.keep(connection)
        stops = [stop for stop in self._stops if stop.moment.matches(passage)]
        self._stops = [stop for stop in self._stops if stop not in stops]
        _act(stops, BEFORE)
        if connection.cut.is_set():
            return
        if message.type is aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
        else:
            await sink.send_bytes(message.data)
        passage.passed = True
        _act(stops, AFTER)
        async with self._news:
            self._news.notify_all()

    def _read(self, connection: Connection, way: Way, payload: str | bytes) -> Passage:
        message = json.loads(payload)
        assert isinstance(message, dict), message
        if way is TO_SERVER and message.get("type") == "bind":
            connection.client = self._sides.setdefault(message["side"], len(self._sides) + 1)
        author = self._sides.get(message["side"]) if message.get("type") == "message" else None
        passage = Passage(connection.number, connection.client, way, message, author)
        self.transcript.append(passage)
        return passage


def _act(stops: list[Stop], order: Order) -> None:
    for stop in stops:
        if stop.order is order:
            stop.act()
            stop.happened.set()
