"""A mailbox server in virtual time: the real rules, admission, store and trace, without sockets and without waiting.

Like the commit loop it commits batches, but larger ones: nobody waits for an answer, so the disk is not asked to
flush. Each command is handled by itself all the same, on the state that the one before it left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

from restante.common.usage_records import ClientVersion
from restante.demo.fleet import SeededDice, log_normal
from restante.mailbox.core.admission import Admission, AdmissionTerms
from restante.mailbox.core.connection_state import ClientSocket, ConnectionState
from restante.mailbox.core.dispatcher import Dispatcher
from restante.mailbox.core.limits import Limits
from restante.mailbox.core.model import Change, Now, Policy, size_of
from restante.mailbox.core.pruning import prune_idle
from restante.mailbox.core.session import Session
from restante.mailbox.protocol import messages
from restante.mailbox.server.commit_loop import GRACE_SECONDS
from restante.mailbox.server.trace import Trace
from restante.mailbox.settings import Serve
from restante.mailbox.store.sqlite import SqliteStore

MAX_CHANGES: Final = 2_000
"""Changes of a transaction. Rows that are made and deleted in one are never written, which saves most of the work."""

QUEUE_SECONDS: Final = 0.00006
COMMIT_SECONDS: Final = 0.0004
"""Medians of the times from the receipt of a command to its commit, and of the commit (bench/README.md)."""

TIME_SIGMA: Final = 0.6
SLOW_FLUSH_SHARE: Final = 0.005
SLOW_FLUSH_SECONDS: Final = 0.04
"""Now and then a disk is busy with something else."""


class SimulatedServer:
    """A mailbox server that runs. Use it as a context manager: at the end it is as if its process was killed."""

    def __init__(self, data: Path, clock: Callable[[], float], dice: Random) -> None:
        """Open the data directory, make it if it is missing, and load the state that is stored there."""
        self._runner = asyncio.Runner()
        self._store = SqliteStore.open(data)
        self._store.database.execute("PRAGMA synchronous = OFF")  # until the end the files are drafts
        self._clock, self._dice = clock, dice
        self._started = clock()
        self._served_before = self._store.service
        state = self._runner.run(self._store.view())
        state.in_grace_period = True
        settings = Serve()
        self._prune_after = settings.prune_after
        self.prune_every: float = settings.prune_every
        self.dispatcher = Dispatcher(state, SeededDice(dice), Policy(limits=Limits()))
        terms = AdmissionTerms(bits=settings.permission_bits, load=settings.permission_load)
        self._admission = Admission(terms, lambda: dice.randbytes(32), self.dispatcher.policy)
        self._changes: list[Change] = []
        self.trace: Trace | None = None
        self._trace_file = ExitStack()
        self.sent_at = 0.0
        """When the answers that a client is given were sent, by this server's clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._store_changes()
                self._store.database.execute("PRAGMA synchronous = FULL")  # the last checkpoint flushes all of them
        finally:
            self._trace_file.close()
            self._runner.run(self._store.close())
            self._runner.close()

    def write_trace(self, path: Path) -> None:
        """Write a trace from now on."""
        self.trace = Trace(self._trace_file.enter_context(path.open("ab")).write)

    def now(self) -> Now:
        """Return the present, as the rules see it."""
        wall = self._clock()
        return Now(wall, self._served_before + wall - self._started)

    def connect(self, socket: ClientSocket, address: str) -> ConnectionState:
        """Accept a connection. If the address has too many, it is refused as the server would do it."""
        result = self._admission.admit((address, 1024), {}, self.now(), len(self.dispatcher.connections))
        connection = ConnectionState(socket)
        connection.session = Session(result.demand, result.address_id)
        connection.address_quotas = result.address_quotas
        self.dispatcher.add_connection(connection)
        if result.verdict is not None:
            self.dispatcher.refuse_frame(connection, result.verdict)
            self._answer(self.now())
        return connection

    def receive(self, connection: ConnectionState, frame: bytes) -> None:
        """Handle a frame, and answer it."""
        now = self.now()
        self._end_grace_period(now)
        text = frame.decode()
        self.dispatcher.handle(connection, text, size_of(text), now)
        for error in self.dispatcher.internal_errors:
            raise error
        if self.trace is not None:
            self.trace.add(connection.number, self.dispatcher.last_message, now.wall)
        self._answer(now)

    def lose(self, connection: ConnectionState) -> None:
        """Note that a connection is lost."""
        if not connection.lost:
            self._admission.release(connection.address_quotas)
            self.dispatcher.lose(connection, self.now())
            self._answer(self.now())

    def prune(self) -> None:
        """Prune idle mailboxes. Call it every `prune_every` seconds."""
        self._end_grace_period(self.now())
        for _ in prune_idle(self.dispatcher, self.now, self._prune_after, self._started):
            self._answer(self.now())
        self._answer(self.now())

    def _end_grace_period(self, now: Now) -> None:
        if self.dispatcher.state.in_grace_period and now.wall - self._started >= GRACE_SECONDS:
            self.dispatcher.state.end_grace_period()

    def _answer(self, now: Now) -> None:
        """End the batch: keep its changes for the next transaction, and send what it made the server send."""
        changes = self.dispatcher.changes
        self._changes += changes
        began, committed, sent = self._times(now.wall, changes)
        self.sent_at = sent
        stamp = messages.stamp(sent)
        for connection in reversed(self.dispatcher.end_batch()):
            bodies, connection.outbox = connection.outbox, []
            connection.socket.send(bodies, stamp)
            if connection.verdict is not None:
                connection.socket.hang_up(connection.verdict.code, connection.verdict.text)
        if self.trace is not None:
            self.trace.write(began, committed, sent)
        if len(self._changes) >= MAX_CHANGES:
            self._store_changes()

    def _times(self, received: float, changes: list[Change]) -> tuple[float | None, float | None, float]:
        """Return when the commit began, when it was on disk, and when the answers were sent.

        Where no trace is written, nobody can tell one commit from another.
        """
        if self.trace is None:
            return None, None, received + COMMIT_SECONDS
        began = received + log_normal(self._dice, QUEUE_SECONDS, TIME_SIGMA)
        if all(type(change) is ClientVersion for change in changes):  # no answer waits for the record of a bind
            return None, None, began
        slow = self._dice.random() < SLOW_FLUSH_SHARE
        committed = began + log_normal(self._dice, SLOW_FLUSH_SECONDS if slow else COMMIT_SECONDS, TIME_SIGMA)
        return began, committed, committed + log_normal(self._dice, QUEUE_SECONDS, TIME_SIGMA)

    def _store_changes(self) -> None:
        changes, self._changes = self._changes, []
        self._runner.run(self._store.apply(changes, self.now()))
        self._runner.run(self._store.tend())
