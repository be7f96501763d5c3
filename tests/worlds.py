"""The servers that conversations are replayed on: the core, the store, and a live socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
from msgspec.structs import replace

from conversation import Frame
from restante.mailbox import messages, model
from restante.mailbox.addresses import networks
from restante.mailbox.desk import Connection, Desk
from restante.mailbox.door import Door, Terms
from restante.mailbox.limits import UNLIMITED
from restante.mailbox.model import Now, Policy
from restante.mailbox.office import Lifetime, Office
from restante.mailbox.permission import Mode
from restante.mailbox.server import Manners, Server
from restante.mailbox.session import Session
from restante.mailbox.state import State
from restante.mailbox.store.sqlite import SqliteStore
from restante.mailbox.sweep import save, sweep
from restante.records import ClientVersion, MailboxUsage, NameplateUsage

EPOCH = 1_000_000_000.0
PRUNE_AFTER = 660.0


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.skew = 0.0

    def wall(self) -> float:
        return EPOCH + self.now + self.skew

    def monotonic(self) -> float:
        return self.now


class CountingDice:
    """The lowest free number first; mailbox ids that can be told apart."""

    def __init__(self) -> None:
        self._draws = 0
        self._mailboxes = 0

    def below(self, bound: int) -> int:
        self._draws += 1
        return (self._draws - 1) % bound

    def mailbox_id(self) -> str:
        self._mailboxes += 1
        return f"mailbox-{self._mailboxes}"


def policy_of(options: dict[str, str]) -> Policy:
    limits = {name.removeprefix("limit."): int(value) for name, value in options.items() if name.startswith("limit.")}
    return Policy(int(options.get("blur", 0)), "no_list" not in options, replace(UNLIMITED, **limits))


def named_by_a_proxy(options: dict[str, str]) -> dict[str, str]:
    """Give the headers with which a proxy says where the clients of a script come from."""
    return {"X-Real-IP": options["address"], "X-Real-Port": "1"} if "address" in options else {}


def door_of(options: dict[str, str]) -> Door:
    """Give a door whose secrets are all alike, so that scripts can have stamps in them."""
    terms = Terms(
        mode=cast("Mode", options.get("permission", "none")),
        bits=int(options.get("bits", 20)),
        trusted=networks(["127.0.0.0/8"]),
    )
    door = Door(terms, lambda: bytes(32))
    door.limits = policy_of(options).limits
    return door


class Inbox:
    """A line that keeps what it is told."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.code: int | None = None
        self.paused = False

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        self.frames += [json.loads(body + stamp) for body in bodies]

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def hang_up(self, code: int, reason: str) -> None:
        assert reason
        self.code = code


class CoreWorld:
    """The desk and the state, with nothing below them."""

    tells_the_lost = True

    def __init__(self, options: dict[str, str]) -> None:
        self.policy = policy_of(options)
        self.clock = FakeClock()
        self.desk = Desk(State(), CountingDice(), self.policy)
        self.headers = named_by_a_proxy(options)
        self.door = door_of(options)
        self.lines: dict[str, tuple[Connection, Inbox]] = {}
        self.records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.held = False

    def now(self) -> Now:
        return Now(self.clock.wall(), self.clock.monotonic())

    async def connect(self, name: str) -> None:
        inbox = Inbox()
        connection = Connection(inbox)
        self.lines[name] = connection, inbox
        entrance = self.door.enter(("127.0.0.1", 1), self.headers, self.now(), len(self.desk.connections))
        connection.account, connection.session = entrance.account, Session(entrance.demand)
        self.desk.meet(connection)
        inbox.send([Manners().welcome(entrance.client, entrance.offer)], messages.stamp(self.clock.wall()))

    async def send(self, name: str, text: str) -> None:
        self.desk.take(self.lines[name][0], text, self.now())
        await self._batch_ends()

    async def drop(self, name: str) -> None:
        self.desk.lose(self.lines[name][0], self.now())
        await self._batch_ends()

    async def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    async def prune(self) -> None:
        for _ in sweep(self.desk, self.now, PRUNE_AFTER, EPOCH):
            await self._batch_ends()
        await self._batch_ends()

    async def restart(self) -> None:
        for connection, _ in self.lines.values():
            if not connection.lost:
                self.desk.lose(connection, self.now())
        await self._batch_ends()

    async def hold(self) -> None:
        self.held = True

    async def release(self) -> None:
        self.held = False
        await self._batch_ends()

    async def _batch_ends(self) -> None:
        if self.held:
            return
        await self._keep(self.desk.changes)
        inboxes = dict(self.lines.values())  # also of those that are lost by now: what was said first is compared
        for connection in self.desk.turn():
            bodies, connection.outbox = connection.outbox, []
            inboxes[connection].send(bodies, messages.stamp(self.clock.wall()))
            if connection.verdict is not None:
                inboxes[connection].hang_up(connection.verdict.code, connection.verdict.words)

    async def _keep(self, changes: list[model.Change]) -> None:
        for change in changes:
            match change:
                case NameplateUsage():
                    self.records["nameplate"].append(_shown(change))
                case MailboxUsage():
                    self.records["mailbox"].append(_shown(change))
                case ClientVersion():
                    self.records["client"].append(_shown(change))

    async def frames(self) -> dict[str, list[Frame]]:
        got = {name: inbox.frames for name, (_, inbox) in self.lines.items()}
        for _, inbox in self.lines.values():
            inbox.frames = []
        return got

    async def cut(self, name: str) -> int | None:
        return self.lines[name][1].code

    async def rows(self) -> dict[str, str]:
        boxes = list(self.desk.state.mailboxes())
        apps = self.desk.state.apps.values()
        return _as_text(
            nameplates=sum(len(app.nameplates) for app in apps),
            mailboxes=len(boxes),
            messages=sum(len(box.messages) for box in boxes),
            sides=sum(len(box.sides) for box in boxes),
        )

    async def usage(self) -> dict[str, list[dict[str, Any]]]:
        return self.records


class StoreWorld(CoreWorld):
    """The same desk with the SQLite engine below it; every batch is a transaction, and rows are read from it."""

    def __init__(self, options: dict[str, str], data: Path) -> None:
        super().__init__(options)
        self.data = data
        self.store = SqliteStore.open(data)

    async def _keep(self, changes: list[model.Change]) -> None:
        if changes:
            await self.store.apply(changes, self.now())

    async def restart(self) -> None:
        await super().restart()
        for _ in save(self.desk):
            await self._batch_ends()
        await self._batch_ends()
        await self.store.close()
        self.store = SqliteStore.open(self.data)
        self.desk = Desk(await self.store.view(), self.desk.dice, self.policy)

    async def close(self) -> None:
        await self.store.close()

    async def rows(self) -> dict[str, str]:
        return sql_rows(self.data)

    async def usage(self) -> dict[str, list[dict[str, Any]]]:
        return sql_usage(self.data)


@dataclass
class Client:
    socket: aiohttp.ClientWebSocketResponse
    frames: list[Frame]
    fences: int = 0


class LiveWorld:
    """The whole server on a port of its own, spoken to over real sockets."""

    tells_the_lost = False

    def __init__(self, options: dict[str, str], data: Path, http: aiohttp.ClientSession) -> None:
        self.options = options
        self.data = data
        self.http = http
        self.clock = FakeClock()
        self.dice = CountingDice()
        self.clients: dict[str, Client] = {}
        self.held: int | None = None
        """How many commands wait while the office is closed; None: it is open."""

    async def start(self) -> None:
        lifetime = Lifetime(prune_after=PRUNE_AFTER)
        self.store = SqliteStore.open(self.data)
        self.office = await Office.open(self.store, self.clock, self.dice, policy_of(self.options), lifetime)
        manners = Manners(motd=self.options.get("motd"), error=self.options.get("error"))
        self.server = Server(self.office, self.clock, manners, door_of(self.options))
        self.server.parting = float(self.options.get("parting", 0.05))
        addresses = await self.server.listen("127.0.0.1", 0)
        self.port = addresses[0][1]
        self.office.desk.state.settled()  # in scripts, who is gone is gone
        self.running = asyncio.create_task(self.office.run())

    async def stop(self) -> None:
        await self.server.drain(self.running)
        await self.store.close()
        for client in self.clients.values():
            await client.socket.close()

    async def connect(self, name: str) -> None:
        socket = await self.http.ws_connect(
            f"ws://127.0.0.1:{self.port}/v1", max_msg_size=0, headers=named_by_a_proxy(self.options)
        )
        self.clients[name] = Client(socket, [])

    async def send(self, name: str, text: str) -> None:
        await self.clients[name].socket.send_str(text)
        if self.held is None:
            await self._fence(name)
        else:
            self.held += 1
            async with asyncio.timeout(10):
                while len(self.office.turns) < self.held:  # noqa: ASYNC110 - it is a list, and nobody else asks
                    await asyncio.sleep(0)

    async def drop(self, name: str) -> None:
        await self.clients[name].socket.close()
        await self._settle()

    async def _settle(self) -> None:
        """Let the server take note of what its sockets did: a new connection's fence comes after it."""
        name = "the fence"
        await self.connect(name)
        await self._fence(name)
        await self.clients.pop(name).socket.close()

    async def _fence(self, name: str) -> None:
        """Read until the answer to a ping: everything sent before is done."""
        client = self.clients[name]
        if client.socket.closed:
            return
        client.fences += 1
        fence = f"fence {client.fences}"
        with contextlib.suppress(ConnectionError):
            await client.socket.send_json({"type": "ping", "ping": fence, "id": fence})
        while True:
            message = await client.socket.receive(timeout=10)
            if message.type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING}:
                return
            if message.type is aiohttp.WSMsgType.ERROR:
                return
            frame = json.loads(message.data)
            if frame.get("id") == fence or frame.get("pong") == fence:
                if frame["type"] == "pong":
                    return
            else:
                client.frames.append(frame)

    async def frames(self) -> dict[str, list[Frame]]:
        for name in self.clients:
            await self._fence(name)
        got = {name: client.frames for name, client in self.clients.items()}
        for client in self.clients.values():
            client.frames = []
        return got

    async def cut(self, name: str) -> int | None:
        """Wait for the close: it may come a moment after the error."""
        socket = self.clients[name].socket
        if not socket.closed:
            await socket.receive(timeout=10)
        return socket.close_code

    async def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    async def prune(self) -> None:
        self.office.sweep()
        await self.office.idle.wait()

    async def restart(self) -> None:
        await self.stop()
        self.clients = {}
        await self.start()

    async def hold(self) -> None:
        """Close the office: what is received waits, and is one batch when it opens."""
        await self.office.idle.wait()
        self.running.cancel()
        await asyncio.wait((self.running,))
        self.held = 0

    async def release(self) -> None:
        self.held = None
        self.running = asyncio.create_task(self.office.run())

    async def rows(self) -> dict[str, str]:
        return sql_rows(self.data)

    async def usage(self) -> dict[str, list[dict[str, Any]]]:
        self.office.write_down()
        await self.office.idle.wait()
        return sql_usage(self.data)


def _as_text(**counts: int) -> dict[str, str]:
    """Scripts write numbers as text."""
    return {name: str(count) for name, count in counts.items()}


def _shown(record: NameplateUsage | MailboxUsage | ClientVersion) -> dict[str, Any]:
    return shown({name: getattr(record, name) for name in record.__struct_fields__})


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """Give a usage record as scripts write it: seconds since the script began, everything as text."""
    started = record["started"] if "started" in record else record["connect_time"]
    waiting = record.get("waiting_time")
    return {
        "app": record["app_id"],
        "result": record.get("result"),
        "started": f"{started - EPOCH:g}",
        "waiting": "none" if waiting is None else f"{waiting:g}",
        "total": f"{record.get('total_time', 0):g}",
        "for_nameplate": "yes" if record.get("for_nameplate") else "no",
        "side": record.get("side"),
        "implementation": str(record.get("implementation")),
        "version": str(record.get("version")),
    }


def _read(data: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{data / 'restante.sqlite'}?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    return database


def sql_rows(data: Path) -> dict[str, str]:
    with contextlib.closing(_read(data)) as database:
        row = database.execute(
            "SELECT (SELECT count(*) FROM nameplates) AS nameplates, (SELECT count(*) FROM mailboxes) AS mailboxes,"
            " (SELECT count(*) FROM messages) AS messages,"
            " (SELECT ifnull(sum(json_array_length(sides)), 0) FROM mailboxes) AS sides"
        ).fetchone()
        return _as_text(**dict(row))


def sql_usage(data: Path) -> dict[str, list[dict[str, Any]]]:
    tables = {"nameplate": "usage_nameplates", "mailbox": "usage_mailboxes", "client": "usage_client_versions"}
    with contextlib.closing(_read(data)) as database:
        return {
            kind: [shown(dict(row)) for row in database.execute(f"SELECT * FROM {table} ORDER BY id")]
            for kind, table in tables.items()
        }
