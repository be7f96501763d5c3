"""The mailbox server without its shells (shells.py): worlds in which scripts and tests/machine hold talks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from restante.common.errors import StoreBusy
from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.model import Now, size_of
from restante.mailbox.core.pruning import prune_idle, save_touches
from restante.mailbox.core.session import Session
from restante.mailbox.core.state import State
from restante.mailbox.protocol.messages import stamp
from restante.mailbox.server.commit_loop import GRACE_SECONDS
from support.bounds import bounded
from support.dice import FakeDice
from support.mailbox.databases import Database, MemoryDatabase
from support.mailbox.givens import FakeClock, Inbox, Options
from support.mailbox.tables import Rows, Usage, counted, live_state, note

T = TypeVar("T")


class World:
    """What a test may do to a mailbox server, and ask of it."""

    durable: ClassVar[bool] = False
    """There is a database, so it can be restarted, and refused."""
    tells_the_lost: ClassVar[bool] = True
    """What a connection was told can be seen although it was lost in the same batch."""
    hanging_up_loses: ClassVar[bool] = False
    """Whoever is hung up on is gone at once."""
    dispatcher: Dispatcher
    database: Database

    def __init__(self, options: Options, clock: FakeClock | None = None, dice: FakeDice | None = None) -> None:
        self.options = options
        self.clock = clock or FakeClock()
        self.dice = dice or FakeDice()
        self.admission = options.admission()
        self._runner = asyncio.Runner()  # its own `run` costs more than most of what is run here

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with bounded("what a world was asked"):
                return await work

        return self._runner.get_loop().run_until_complete(in_time())

    def close(self) -> None:
        try:
            if self.durable:
                self.run(self.database.store.close())
        finally:
            self._runner.close()

    def connect(self) -> Inbox:
        """Return a connection that has its welcome. This one has no socket."""
        inbox = Inbox()
        connection = inbox.connection
        result = self.admission.admit(
            inbox.address, self.options.headers(), self.now(), len(self.dispatcher.connections)
        )
        connection.address_quotas, connection.session = result.address_quotas, Session(result.demand)
        self.dispatcher.add_connection(connection)
        welcome = self.options.welcome_options().welcome(result.client, result.offer)
        inbox.send([welcome], stamp(self.clock.wall()))
        return inbox

    def say(self, inbox: Inbox, text: str) -> None:
        raise NotImplementedError

    def lose(self, inbox: Inbox) -> None:
        raise NotImplementedError

    def gather(self) -> None:
        """Let what is said from now on wait for `flush`, as one batch; elsewhere a flush follows each."""

    def flush(self, *, refused: bool = False) -> bool:
        """Handle the commands and lost connections since the last call. Return whether the store kept the result."""
        raise NotImplementedError

    def ended(self, inbox: Inbox) -> int | None:
        """Return the code with which the server closed a connection; where that takes its time, wait for it."""
        return None if inbox.verdict is None else inbox.verdict[0]

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    def prune(self, *, refused: bool = False) -> bool:
        """Return whether the store kept the result."""
        raise NotImplementedError

    def save(self) -> None:
        raise NotImplementedError

    def restart(self, *, crash: bool = False) -> None:
        """End the process and start it again on what it has stored; a crash leaves it no time to save touches."""
        raise NotImplementedError

    def now(self) -> Now:
        raise NotImplementedError

    def live(self) -> dict[str, Rows]:
        self.check()
        return live_state(self.dispatcher.state)

    def usage(self) -> Usage:
        return self.run(self.database.usage())

    def counts(self) -> dict[str, str]:
        return counted(self.live())

    def touched(self) -> dict[tuple[str, str], float]:
        return {(box.app_id, box.mailbox_id): box.touched for box in self.dispatcher.state.mailboxes()}

    def check(self) -> None:
        """Whatever else must be so at any time, the clients apart: what is stored is what is in memory."""
        if self.durable:
            self.run(self.database.check(self.dispatcher.state, self.now()))


class CoreWorld(World):
    """The dispatcher and the state. No store, no I/O."""

    def __init__(self, options: Options, clock: FakeClock | None = None, dice: FakeDice | None = None) -> None:
        super().__init__(options, clock, dice)
        self._said: list[tuple[ConnectionState, str | None, Now]] = []
        self._inboxes: dict[ConnectionState, Inbox] = {}
        self._served_before = 0.0
        self._started = self.clock.monotonic()
        self._rebooted = self.clock.wall()
        self._usage = Usage()
        self.dispatcher = Dispatcher(State(), self.dice, self.options.policy())

    def now(self) -> Now:
        return Now(self.clock.wall(), self._served_before + self.clock.monotonic() - self._started)

    def connect(self) -> Inbox:
        inbox = super().connect()
        self._inboxes[inbox.connection] = inbox
        return inbox

    def say(self, inbox: Inbox, text: str) -> None:
        self._said.append((inbox.connection, text, self.now()))

    def lose(self, inbox: Inbox) -> None:
        self._said.append((inbox.connection, None, self.now()))

    def flush(self, *, refused: bool = False) -> bool:
        commands, self._said = self._said, []
        for connection, text, now in commands:
            self._end_grace_period(now)
            if text is None:
                self.dispatcher.lose(connection, now)
            else:
                self.dispatcher.handle(connection, text, size_of(text), now)
        assert self.dispatcher.internal_errors == []
        stored = self._commit(refused=refused)
        if not stored:
            for connection, text, _ in commands:
                if text is not None:
                    self.dispatcher.close_sender(connection)
        for connection in self.dispatcher.end_batch():
            bodies, connection.outbox = connection.outbox, []
            inbox = self._inboxes[connection]  # its line leads nowhere when it is lost; this is what it would say
            inbox.send(bodies, stamp(self.clock.wall()))
            if connection.verdict is not None:
                inbox.hang_up(connection.verdict.code, connection.verdict.text)
        return stored

    def _end_grace_period(self, now: Now) -> None:
        since = now.service - self._served_before
        if self.dispatcher.state.in_grace_period and since >= min(GRACE_SECONDS, self.options.prune_after):
            self.dispatcher.state.end_grace_period()

    def prune(self, *, refused: bool = False) -> bool:
        self._end_grace_period(self.now())
        for _ in prune_idle(self.dispatcher, self.now, self.options.prune_after, self._rebooted):
            if not self.flush(refused=refused):
                return False
        return self.flush(refused=refused)

    def save(self) -> None:
        for _ in save_touches(self.dispatcher):
            self.flush()
        self.flush()

    def restart(self, *, crash: bool = False) -> None:
        """Lose all connections: there is nothing else that a process could keep or forget."""
        assert not crash
        for inbox in self._inboxes.values():
            if not inbox.connection.lost:
                self.lose(inbox)
        self.flush()

    def _commit(self, *, refused: bool) -> bool:
        """Keep what the operator may see; there is nobody to refuse it."""
        assert not refused
        note(self._usage, self.dispatcher.changes)
        return True

    def usage(self) -> Usage:
        return self._usage


class StoreWorld(CoreWorld):
    """The dispatcher over SQLite, in memory. Each flush is a batch, and a transaction."""

    durable = True

    def __init__(self, options: Options, clock: FakeClock | None = None, dice: FakeDice | None = None) -> None:
        super().__init__(options, clock, dice)
        self.database = MemoryDatabase()
        self._open()

    def _open(self) -> None:
        self._served_before, self._started = self.database.store.service, self.clock.monotonic()
        self._rebooted = self.clock.wall()
        self._said = []
        self._inboxes = {}
        state = self.run(self.database.store.view())
        state.in_grace_period = self.options.in_grace_period
        self.dispatcher = Dispatcher(state, self.dice, self.options.policy())

    def _commit(self, *, refused: bool) -> bool:
        return not self.dispatcher.changes or self.run(self._apply(refused=refused))

    async def _apply(self, *, refused: bool) -> bool:
        self.database.refuse(refuses=refused)
        try:
            await self.database.store.apply(self.dispatcher.changes, self.now())
        except StoreBusy:
            self.dispatcher.undo_batch()
            return False
        await self.database.store.tend()
        return True

    def restart(self, *, crash: bool = False) -> None:
        if not crash:
            self.save()
        old, self.database = self.database, self.run(self.database.restarted(crash=crash))
        if crash:
            self.run(old.store.close())
        self._open()

    def usage(self) -> Usage:
        return World.usage(self)
