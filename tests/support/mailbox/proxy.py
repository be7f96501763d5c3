"""A wire between clients and server that a test can read, hold and cut, at the message it names.

The proxy keeps its port whatever happens to the server, forwards bytes as they are, and hurries or delays nothing
by itself. A test says where it wants to step in before the conversation gets there:

    stop = proxy.act(to_client(RECEIVER, "claimed"), BEFORE, kill)      # do something at that moment
    held = proxy.hold(to_server(SENDER, "close"))                       # keep it, and all behind it, until told
    await proxy.passed(to_client(SENDER, "message", phase="pake"))      # it went through (now or long ago)
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar

from support.bounds import bounded
from support.mailbox.frames import Follower, Piece


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
        words = [f"client-{self.client}", "says" if self.way is TO_SERVER else "hears", self.type]
        if self.phase is not None:
            words.append(self.phase)
        if self.author is not None:
            words.append(f"of-{self.author}")
        return "-".join(words)


def to_server(client: int, kind: str, phase: str | None = None) -> Moment:
    return Moment(TO_SERVER, client, kind, phase)


def to_client(client: int, kind: str, phase: str | None = None, author: int | None = None) -> Moment:
    return Moment(TO_CLIENT, client, kind, phase, author)


@dataclass(eq=False)
class _Connection:
    number: int
    to_client: asyncio.StreamWriter
    to_server: asyncio.StreamWriter
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
            for writer in (self.to_client, self.to_server):
                with suppress(OSError):  # that end is gone already
                    writer.write_eof()


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
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: _Connection | None = None

    async def reached(self) -> None:
        async with bounded(f"held: {self.moment}"):
            await self._arrived.wait()

    def let_go(self) -> None:
        self._go_on.set()

    def drop(self) -> None:
        """Lose the message and cut its connection."""
        assert self._connection is not None, f"{self.moment} has not come yet"
        self._connection.sever()

    async def keep(self, connection: _Connection) -> None:
        self._connection = connection
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
        self._connections: list[_Connection] = []
        self._stops: list[Stop] = []
        self._holds: list[Hold] = []
        self._waiting: list[tuple[Moment, asyncio.Future[Passage]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[Exception] = []
        self._listener: asyncio.Server | None = None
        self._opened = asyncio.Event()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.wait_closed()
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
        for passage in self.transcript:
            if passage.passed and moment.matches(passage):
                return passage
        future: asyncio.Future[Passage] = asyncio.get_running_loop().create_future()
        self._waiting.append((moment, future))
        async with bounded(f"passed: {moment}"):
            return await future

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

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except Exception as error:  # noqa: BLE001 (told to the test when the proxy ends)
            self._failures.append(error)
        except asyncio.CancelledError:
            pass  # the end of the test: nobody awaits this task but __aexit__
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._opened.wait()
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except ConnectionRefusedError:
            return  # the server is down; the client will try again
        connection = _Connection(len(self._connections) + 1, to_client=writer, to_server=server_writer)
        self._connections.append(connection)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(connection, TO_SERVER, reader, server_writer))
                pumps.create_task(self._pump(connection, TO_CLIENT, server_reader, writer))
        finally:
            connection.over.set()
            server_writer.close()
            with suppress(OSError):
                await server_writer.wait_closed()

    async def _pump(
        self, connection: _Connection, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        follower = Follower()
        with suppress(ConnectionError):  # one end died without a word: the same as an end of the stream
            while data := await source.read(65536):
                if connection.cut.is_set():
                    continue  # read on to the end, so that the socket closes without a reset
                for piece in follower.feed(data):
                    await self._forward(connection, way, piece, sink)
                    if connection.cut.is_set():
                        break
        connection.sever()

    async def _forward(self, connection: _Connection, way: Way, piece: Piece, sink: asyncio.StreamWriter) -> None:
        if piece.payload is None:
            if way is TO_CLIENT and piece.raw.startswith(b"HTTP/") and b" 101 " not in piece.raw[:13]:
                raise ValueError(f"the server refused the upgrade: {piece.raw!r}")
            sink.write(piece.raw)
            await sink.drain()
            return
        passage = self._read(connection, way, piece.payload)
        for hold in _due(self._holds, passage):
            await hold.keep(connection)
        stops = _due(self._stops, passage)
        _act(stops, BEFORE)
        if connection.cut.is_set():
            return
        sink.write(piece.raw)
        await sink.drain()
        passage.passed = True
        _act(stops, AFTER)
        for moment, future in self._waiting:
            if not future.done() and moment.matches(passage):
                future.set_result(passage)

    def _read(self, connection: _Connection, way: Way, payload: bytes) -> Passage:
        message = json.loads(payload)
        assert isinstance(message, dict), message
        if way is TO_SERVER and message.get("type") == "bind":
            connection.client = self._sides.setdefault(message["side"], len(self._sides) + 1)
        author = self._sides.get(message["side"]) if message.get("type") == "message" else None
        passage = Passage(connection.number, connection.client, way, message, author)
        self.transcript.append(passage)
        return passage


Place = TypeVar("Place", Stop, Hold)


def _due(places: list[Place], passage: Passage) -> list[Place]:
    """Remove from PLACES those whose moment has come: each counts once."""
    due = [place for place in places if place.moment.matches(passage)]
    places[:] = [place for place in places if place not in due]
    return due


def _act(stops: list[Stop], order: Order) -> None:
    for stop in stops:
        if stop.order is order:
            stop.act()
            stop.happened.set()
