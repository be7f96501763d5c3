"""The places where the server can be: alone in memory, over a store, behind its queue, behind a socket.

Each takes what connections say and keeps what they are told. Time and chance are given to it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, NamedTuple, TypeVar

import aiohttp
import msgspec

from machine.model import REFUSED, Frame, Now, Rows
from machine.records import Usage
from restante import records
from restante.errors import StoreBusy
from restante.mailbox import model
from restante.mailbox.desk import Connection, Desk
from restante.mailbox.messages import stamp
from restante.mailbox.model import Change, Policy
from restante.mailbox.office import SETTLING, Lifetime, Office
from restante.mailbox.server import Manners, Server
from restante.mailbox.state import State
from restante.mailbox.store.schema import connect
from restante.mailbox.store.sqlite import SqliteStore
from restante.mailbox.sweep import save, sweep
from stores.picture import picture

BOUND = 10.0
"""Seconds within which whatever is waited for must have happened; nothing here waits for a clock."""

T = TypeVar("T")


class Clock:
    """Moves only when it is told to, in steps that floats can add without loss."""

    def __init__(self) -> None:
        self.wall_time = 1_700_000_000.0
        self.uptime = 5000.0

    def wall(self) -> float:
        return self.wall_time

    def monotonic(self) -> float:
        return self.uptime


class Dice:
    """Chance from a seed. Every other id comes from a small pool, so that it may be taken already."""

    def __init__(self, seed: int, *, stubborn: bool) -> None:
        self.ids: deque[str] = deque()
        """The ids that were given, until somebody takes note of them."""
        self._random = random.Random(seed)
        self._stubborn = stubborn
        self._given = 0

    def below(self, bound: int) -> int:
        """A stubborn dice shows the same number for ever: whoever draws until it fits must know when to stop."""
        return 0 if self._stubborn else self._random.randrange(bound)

    def mailbox_id(self) -> str:
        self._given += 1
        self.ids.append(self._random.choice(("m1", "m2", "m3")) if self._given % 2 else f"drawn{self._given}")
        return self.ids[-1]


class Options(NamedTuple):
    """What the operator chose."""

    blur: int
    lists: bool
    prune_after: float
    binary: bool
    """The frames that the server sends; it takes either."""


class Wire:
    """A client's end of a connection: all that came out of it, and how it was ended."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.verdict: tuple[int, str] | None = None
        self.connection = Connection(self)

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        if self.verdict is None:
            self.frames += [json.loads(body + stamp) for body in bodies]

    def hang_up(self, code: int, reason: str) -> None:
        self.verdict = code, reason


class World:
    """What a machine may do to the server, and ask of it."""

    durable: ClassVar[bool] = True
    """There is a store, so it can be restarted, and refused."""
    gathers: ClassVar[bool] = False
    """What is said waits for `flush`; elsewhere the machine flushes after every command."""
    answers_the_lost: ClassVar[bool] = True
    """What a connection was told can be seen although it was lost in the same batch."""
    hanging_up_loses: ClassVar[bool] = False
    """Whoever is hung up on is gone at once."""

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        self.options = options
        self.clock = clock
        self.dice = dice
        self.policy = Policy(blur=options.blur, list_nameplates=options.lists)
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(BOUND):
                return await work

        return self._runner.run(bounded())

    def close(self) -> None:
        self._runner.close()

    @property
    def desk(self) -> Desk:
        raise NotImplementedError

    def now(self) -> Now:
        """Wall clock, and seconds of service."""
        raise NotImplementedError

    # ── what connections do ──────────────────────────────────────────────────────────────────────

    def connect(self) -> Wire:
        raise NotImplementedError

    def say(self, wire: Wire, text: str) -> None:
        raise NotImplementedError

    def lose(self, wire: Wire) -> None:
        raise NotImplementedError

    def flush(self, *, refused: bool = False) -> bool:
        """Take what was said and lost since the last time; tell whether the store kept what came of it."""
        raise NotImplementedError

    # ── what the process does ────────────────────────────────────────────────────────────────────

    def sweep(self, *, refused: bool = False) -> bool:
        """Tell whether the store kept what came of it."""
        raise NotImplementedError

    def save(self) -> None:
        raise NotImplementedError

    def restart(self, *, crash: bool) -> None:
        """End the process and start it again on what it has stored; a crash leaves it no time to save touches."""
        raise NotImplementedError

    # ── what can be seen ─────────────────────────────────────────────────────────────────────────

    def live(self) -> dict[str, Rows]:
        raise NotImplementedError

    def usage(self) -> Usage:
        raise NotImplementedError

    def touched(self) -> dict[tuple[str, str], float]:
        return {(each.app_id, each.mailbox_id): each.touched for each in self.desk.state.mailboxes()}

    def check(self) -> None:
        """Whatever else must be so at any time, the clients apart."""


class CoreWorld(World):
    """The desk and the state. No store, no I/O."""

    durable = False

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        super().__init__(options, clock, dice)
        self._said: list[tuple[Connection, str | None, Now]] = []
        self._wires: dict[Connection, Wire] = {}
        self._served_before = 0.0
        self._started = clock.uptime
        self._rebooted = clock.wall_time
        self._usage = Usage()
        self._desk = Desk(State(), dice, self.policy)

    @property
    def desk(self) -> Desk:
        return self._desk

    def now(self) -> Now:
        return Now(self.clock.wall_time, self._served_before + self.clock.uptime - self._started)

    def _now(self) -> model.Now:
        return model.Now(*self.now())

    def connect(self) -> Wire:
        wire = Wire()
        self._wires[wire.connection] = wire
        self._desk.meet(wire.connection)
        return wire

    def say(self, wire: Wire, text: str) -> None:
        self._said.append((wire.connection, text, self.now()))

    def lose(self, wire: Wire) -> None:
        self._said.append((wire.connection, None, self.now()))

    def flush(self, *, refused: bool = False) -> bool:
        said, self._said = self._said, []
        for connection, text, now in said:
            self._settle(now)
            if text is None:
                self._desk.lose(connection, model.Now(*now))
            else:
                self._desk.take(connection, text, model.Now(*now))
        assert self._desk.faults == []
        stored = self._commit(refused=refused)
        if not stored:
            for connection, text, _ in said:
                if text is not None:
                    self._desk.refuse(connection, text, REFUSED)
        for connection in self._desk.turn():
            bodies, connection.outbox = connection.outbox, []
            wire = self._wires[connection]  # its line leads nowhere when it is lost; here is what it would have said
            wire.send(bodies, stamp(self.clock.wall_time))
            if connection.verdict is not None:
                wire.hang_up(connection.verdict.code, connection.verdict.words)
        return stored

    def _settle(self, now: Now) -> None:
        since = now.service - self._served_before
        if self._desk.state.settling and since >= min(SETTLING, self.options.prune_after):
            self._desk.state.settled()

    def sweep(self, *, refused: bool = False) -> bool:
        self._settle(self.now())
        for _ in sweep(self._desk, self._now, self.options.prune_after, self._rebooted):
            if not self.flush(refused=refused):
                return False
        return self.flush(refused=refused)

    def save(self) -> None:
        for _ in save(self._desk):
            self.flush()
        self.flush()

    def _commit(self, *, refused: bool) -> bool:
        """Keep what the operator may see; there is nobody to refuse it."""
        assert not refused
        note(self._usage, self._desk.changes)
        return True

    def live(self) -> dict[str, Rows]:
        return {
            "nameplates": {
                (app.app_id, name): {
                    "mailbox_id": nameplate.mailbox_id,
                    "crowded": nameplate.crowded,
                    "sides": [msgspec.structs.asdict(row) for row in nameplate.sides],
                }
                for app in self._desk.state.apps.values()
                for name, nameplate in app.nameplates.items()
            },
            "mailboxes": {
                (mailbox.app_id, mailbox.mailbox_id): {
                    "for_nameplate": mailbox.for_nameplate,
                    "crowded": mailbox.crowded,
                    "sides": [msgspec.structs.asdict(row) for row in mailbox.sides],
                    "messages": [json.loads(message.wire + b"}") for message in mailbox.messages],
                }
                for mailbox in self._desk.state.mailboxes()
            },
        }

    def usage(self) -> Usage:
        return self._usage


def note(usage: Usage, changes: Sequence[Change]) -> None:
    """Gather the records among changes."""
    for change in changes:
        if isinstance(change, model.Pruned):
            usage.pruned = change.wall
        elif isinstance(change, records.NameplateUsage):
            usage.nameplates.append(msgspec.structs.asdict(change))
        elif isinstance(change, records.MailboxUsage):
            usage.mailboxes.append(msgspec.structs.asdict(change))
        elif isinstance(change, records.ClientVersion):
            usage.client_versions.append(msgspec.structs.asdict(change))
        elif isinstance(change, records.CurrentUsage):
            usage.current = msgspec.structs.asdict(change)


class Disk(SqliteStore):
    """The engine, on a disk that may refuse."""

    refuses = False
    refused = False
    """It did, since somebody looked."""

    async def apply(self, changes: Sequence[Change], now: model.Now) -> None:
        self.database.execute(f"PRAGMA query_only = {int(self.refuses)}")
        try:
            await super().apply(changes, now)
        except StoreBusy:
            self.refused = True
            raise
        finally:
            self.database.execute("PRAGMA query_only = 0")

    def copy(self) -> Disk:
        """Give what a process finds that starts now."""
        database = connect(":memory:")
        self.database.backup(database)
        return Disk(database)


class StoreWorld(CoreWorld):
    """The desk over SQLite in memory. Each command is a batch."""

    durable = True

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        super().__init__(options, clock, dice)
        self._store = Disk(connect(":memory:"))
        self._open()

    def _open(self) -> None:
        self._served_before, self._started = self._store.service, self.clock.uptime
        self._rebooted = self.clock.wall_time
        self._said = []
        self._desk = Desk(self.run(self._store.view()), self.dice, self.policy)
        self._desk.state.settling = True

    def _commit(self, *, refused: bool) -> bool:
        if not self._desk.changes:
            return True
        self._store.refuses = refused
        try:
            self.run(self._store.apply(self._desk.changes, self._now()))
        except StoreBusy:
            self._desk.undo(self.run(self._store.view()))
            return False
        self.run(self._store.tend())
        return True

    def restart(self, *, crash: bool) -> None:
        if not crash:
            self.save()
        old, self._store = self._store, self._store.copy()
        self.run(old.close())
        self._open()

    def live(self) -> dict[str, Rows]:
        return live_rows(self._store)

    def usage(self) -> Usage:
        return usage_rows(self._store)

    def check(self) -> None:
        check_store(self._store, self.run(self._store.view()), self._desk.state, self.now())

    def close(self) -> None:
        try:
            self.run(self._store.close())
        finally:
            super().close()


class BatchWorld(StoreWorld):
    """The same, but the store sees many commands at once."""

    gathers = True


class OfficeWorld(World):
    """The office with its queue, over the same store. It stamps what comes, and chooses its batches itself."""

    gathers = True
    answers_the_lost = False

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        super().__init__(options, clock, dice)
        self._store = Disk(connect(":memory:"))
        self._waiting = False
        self.run(self._open())

    async def _open(self) -> None:
        lifetime = Lifetime(prune_after=self.options.prune_after)
        self._office = await Office.open(self._store, self.clock, self.dice, self.policy, lifetime)
        self._working = asyncio.get_running_loop().create_task(self._office.run())

    @property
    def desk(self) -> Desk:
        return self._office.desk

    def now(self) -> Now:
        now = self._office.now()
        return Now(now.wall, now.service)

    def connect(self) -> Wire:
        wire = Wire()
        self._office.desk.meet(wire.connection)
        return wire

    def say(self, wire: Wire, text: str) -> None:
        self._waiting = True
        self._office.receive(wire.connection, text)

    def lose(self, wire: Wire) -> None:
        self._waiting = True
        self._office.lose(wire.connection)

    def flush(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        if self._waiting:
            self._waiting = False
            self.run(self._work(lambda: None))
        self._store.refuses = False
        return not self._store.refused

    async def _work(self, begin: Callable[[], None]) -> None:
        """Wait until the office has done everything there was to do."""
        begin()
        idle = asyncio.ensure_future(self._office.idle.wait())
        await asyncio.wait((idle, self._working), return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            await self._working  # raises whatever ended it
            raise AssertionError("the office closed by itself")

    def sweep(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        self.run(self._work(self._office.sweep))
        self._store.refuses = False
        return not self._store.refused

    def save(self) -> None:
        if self.desk.state.unsaved:
            self.run(self._work(self._office.save))

    def restart(self, *, crash: bool) -> None:
        self.run(self._restart(crash=crash))

    async def _restart(self, *, crash: bool) -> None:
        survivor = self._store.copy() if crash else None
        await self._stop()
        old, self._store = self._store, survivor or self._store.copy()
        await old.close()
        await self._open()

    async def _stop(self) -> None:
        self._office.stop()
        await self._working

    def live(self) -> dict[str, Rows]:
        return live_rows(self._store)

    def usage(self) -> Usage:
        return usage_rows(self._store)

    def check(self) -> None:
        check_store(self._store, self.run(self._store.view()), self.desk.state, self.now())

    def close(self) -> None:
        try:
            self.run(self._end())
        finally:
            super().close()

    async def _end(self) -> None:
        await self._stop()
        await self._store.close()


class SocketWire(Wire):
    """The same behind a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self.socket = socket


class SocketWorld(OfficeWorld):
    """The whole server, with real clients on loopback."""

    gathers = False
    hanging_up_loses = True

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        self._wires: list[SocketWire] = []
        self._speaker: SocketWire | None = None
        self._barriers = 0
        self._sent = 0
        super().__init__(options, clock, dice)

    async def _open(self) -> None:
        await super()._open()
        self._server = Server(self._office, self.clock, Manners(motd="hello", binary=self.options.binary))
        [self._address] = await self._server.listen("127.0.0.1", 0)
        self._ends = AsyncExitStack()
        self._session = await self._ends.enter_async_context(aiohttp.ClientSession())

    def connect(self) -> Wire:
        return self.run(self._connect())

    async def _connect(self) -> Wire:
        host, port = self._address
        wire = SocketWire(await self._session.ws_connect(f"ws://{host}:{port}/v1"))
        await self._hear_one(wire)
        [welcome] = wire.frames
        ours = wire.socket.get_extra_info("sockname")
        assert welcome["type"] == "welcome"
        assert welcome["welcome"] == {"motd": "hello", "your-address": {"ipv4": ours[0], "port": ours[1]}}
        wire.frames.clear()
        self._wires.append(wire)
        return wire

    def say(self, wire: Wire, text: str) -> None:
        assert isinstance(wire, SocketWire)
        self._speaker = wire
        self._sent += 1
        if self._sent % 2:  # the letter of spec 000 has binary frames, clients send text
            self.run(wire.socket.send_str(text))
        else:
            self.run(wire.socket.send_bytes(text.encode()))

    def lose(self, wire: Wire) -> None:
        assert isinstance(wire, SocketWire)
        self.run(self._lose(wire))

    async def _lose(self, wire: SocketWire) -> None:
        self._wires.remove(wire)
        await wire.socket.close()
        while len(self.desk.connections) > len(self._wires) or not self._office.idle.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the server has read that we are gone

    def flush(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        self.run(self._hear())
        self._store.refuses = False
        return not self._store.refused

    async def _hear(self) -> None:
        """Read all that was sent: first to whoever spoke, since that is told when everybody else is."""
        speaker, self._speaker = self._speaker, None
        if speaker in self._wires:
            await self._hear_until_barrier(speaker)
        for wire in list(self._wires):
            if wire is not speaker:
                await self._hear_until_barrier(wire)

    async def _hear_until_barrier(self, wire: SocketWire) -> None:
        """Have a ping answered: whatever was sent before has come before (spec 000 has pings for just this)."""
        self._barriers += 1
        barrier = f"barrier {self._barriers}"
        await wire.socket.send_str(json.dumps({"type": "ping", "ping": 0, "id": barrier}))
        while await self._hear_one(wire):
            if wire.frames[-1].get("id") == barrier and wire.frames[-1]["type"] == "pong":
                wire.frames = [frame for frame in wire.frames if frame.get("id") != barrier]
                return
        await self._lose(wire)

    async def _hear_one(self, wire: SocketWire) -> bool:
        """Read a frame; false: the server closed."""
        message = await wire.socket.receive()
        if message.type is aiohttp.WSMsgType.CLOSE:
            wire.verdict = message.data, message.extra or ""
            return False
        assert message.type is (aiohttp.WSMsgType.BINARY if self.options.binary else aiohttp.WSMsgType.TEXT)
        wire.frames.append(json.loads(message.data))
        return True

    async def _stop(self) -> None:
        """Drain. Every client is told that the server restarts."""
        await self._server.drain(self._working)
        for wire in self._wires:
            assert not await self._hear_one(wire)
            assert wire.verdict == (1001, "server restarts")
            await wire.socket.close()
        self._wires.clear()
        await self._ends.aclose()
        await asyncio.sleep(0)


# ── the database, as an operator's SQL sees it ───────────────────────────────────────────────────


def live_rows(store: SqliteStore) -> dict[str, Rows]:
    messages: dict[int, list[Frame]] = {}
    for key, side, phase, body, msg_id, server_rx in store.database.execute(
        "SELECT mailbox, side, phase, body, msg_id, server_rx FROM messages ORDER BY mailbox, sequence"
    ):
        frame = {"type": "message", "side": side, "phase": json.loads(phase), "body": json.loads(body)}
        messages.setdefault(key, []).append(frame | {"id": json.loads(msg_id), "server_rx": server_rx})
    live: dict[str, Rows] = {"nameplates": {}, "mailboxes": {}}
    for app_id, name, mailbox_id, crowded, sides in store.database.execute(
        "SELECT app_id, name, mailbox_id, crowded, sides FROM nameplates"
    ):
        row = {"mailbox_id": mailbox_id, "crowded": bool(crowded), "sides": json.loads(sides)}
        assert live["nameplates"].setdefault((app_id, name), row) is row, "two rows for one nameplate"
    for key, app_id, mailbox_id, for_nameplate, crowded, sides in store.database.execute(
        "SELECT key, app_id, mailbox_id, for_nameplate, crowded, sides FROM mailboxes"
    ):
        row = {"for_nameplate": bool(for_nameplate), "crowded": bool(crowded), "sides": json.loads(sides)}
        row["messages"] = messages.pop(key, [])
        assert live["mailboxes"].setdefault((app_id, mailbox_id), row) is row, "two rows for one mailbox"
    assert messages == {}, "messages of no mailbox"
    return live


def usage_rows(store: SqliteStore) -> Usage:
    def table(name: str, columns: str) -> list[dict[str, Any]]:
        found = store.database.execute(f"SELECT {columns} FROM {name} ORDER BY id")
        return [dict(zip(columns.split(", "), row, strict=True)) for row in found]

    usage = Usage(
        table("usage_nameplates", "app_id, started, waiting_time, total_time, result"),
        table("usage_mailboxes", "app_id, for_nameplate, started, waiting_time, total_time, result"),
        table("usage_client_versions", "app_id, side, connect_time, implementation, version"),
    )
    for row in usage.mailboxes:
        row["for_nameplate"] = bool(row["for_nameplate"])
    columns = ("rebooted", "updated", "blur_time", "connections_websocket")
    for row in store.database.execute(f"SELECT {', '.join(columns)} FROM usage_current"):
        usage.current = dict(zip(columns, row, strict=True))
    usage.pruned = store.database.execute("SELECT pruned FROM service").fetchone()[0]
    return usage


def check_store(store: SqliteStore, found: State, state: State, now: Now) -> None:
    """What a restart would find is what is in memory, but for late touches; service time is not ahead of itself."""
    assert picture(found, touches=False) == picture(state, touches=False)
    assert store.database.execute("SELECT seconds FROM service").fetchone()[0] <= now.service
