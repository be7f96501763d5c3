"""The places where the server can be: alone in memory, or over a store; for the others see shells.py.

Each takes what connections say and keeps what they are told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from machine.givens import Clock, Dice, Options, Wire
from machine.model import REFUSED, Now, Rows
from machine.records import Usage
from machine.tables import check_store, live_rows, note, usage_rows
from restante.errors import StoreBusy
from restante.mailbox import model
from restante.mailbox.desk import Connection, Desk
from restante.mailbox.messages import stamp
from restante.mailbox.model import Change, Policy
from restante.mailbox.office import SETTLING
from restante.mailbox.state import State
from restante.mailbox.store.schema import connect
from restante.mailbox.store.sqlite import SqliteStore
from restante.mailbox.sweep import save, sweep

BOUND = 30.0
"""Seconds within which whatever is waited for must have happened; nothing here waits for a clock."""

T = TypeVar("T")


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
