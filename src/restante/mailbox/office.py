"""The office: batch, commit, then speak.

While one batch is being committed, the next one gathers. Each is one transaction, and nothing that was decided
in it is said to anybody before it is durable. There is no timer: under light load a batch is one
command, under heavy load it is whatever came during one disk flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from restante.errors import PeerError, StoreBusy
from restante.mailbox import messages
from restante.mailbox.desk import Connection, Desk
from restante.mailbox.model import Dice, Now, Policy
from restante.mailbox.store import Store
from restante.mailbox.sweep import save, sweep
from restante.ops.logs import log, where

BATCH: Final = 500
"""Commands in a batch at most: at some 15 µs each, the loop is back at its sockets within 10 ms."""

SETTLING: Final = 120.0
"""Seconds after a start in which nothing is pruned and nobody's place is given away. The Python client's delay
between attempts grows to 61 s (mailbox reference client: min(1.5^n, 60) + U(0, 1))."""

FORGET: Final = 500
"""Usage records of each kind dropped in one transaction."""

REFUSED: Final = "the server could not store this, try again"


Entry = tuple[Connection, str | PeerError | None, Now]
"""Who said what, and when; None: the connection is lost."""


class Lifetime(msgspec.Struct, frozen=True):
    """How long things are kept."""

    prune_after: float = 660.0
    """Seconds of service after which an idle mailbox is pruned (the reference: server_tap.py:63, 0.8.0)."""
    keep_usage: float | None = None
    """Seconds for which usage records are kept; None: for ever."""


class Clock(Protocol):
    """Wall time in seconds since 1970, and seconds since some fixed moment that nobody can set."""

    def wall(self) -> float: ...

    def monotonic(self) -> float: ...


class Office:
    """The queue, the batches, and what is to be said after each."""

    def __init__(self, store: Store, desk: Desk, clock: Clock, lifetime: Lifetime) -> None:
        self.desk = desk
        self._store = store
        self._clock = clock
        self._lifetime = lifetime
        self._started = clock.monotonic()
        self._served_before = store.service
        self._rebooted = clock.wall()
        self._queue: list[Entry] = []
        self._chores: Iterator[None] | None = None
        self._forgetting = False
        self._stopping = False
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while everything that came in is done and said."""

    @classmethod
    async def open(cls, store: Store, clock: Clock, dice: Dice, policy: Policy, lifetime: Lifetime) -> Office:
        """Read the state and open for business."""
        state = await store.view()
        state.settling = True
        return cls(store, Desk(state, dice, policy), clock, lifetime)

    def now(self) -> Now:
        served = self._clock.monotonic() - self._started
        return Now(self._clock.wall(), self._served_before + served)

    # ── what comes in ────────────────────────────────────────────────────────────────────────────

    def receive(self, connection: Connection, said: str | PeerError) -> None:
        """Take a frame's text, or what is wrong with it; it is answered when its batch is durable."""
        self._queue.append((connection, said, self.now()))
        self._rouse()

    def lose(self, connection: Connection) -> None:
        """Take note, in its turn, that a connection is gone."""
        self._queue.append((connection, None, self.now()))
        self._rouse()

    def sweep(self) -> None:
        """Start a sweep, unless one is under way."""
        if self._chores is None:
            self._chores = sweep(self.desk, self.now, self._lifetime.prune_after, self._rebooted)
            self._forgetting = self._lifetime.keep_usage is not None
            self._rouse()

    def save(self) -> None:
        """Start saving touches, unless a sweep is under way."""
        if self._chores is None and self.desk.state.unsaved:
            self._chores = save(self.desk)
            self._rouse()

    def stop(self) -> None:
        """Let `run` return once everything that was received is done and answered."""
        self._stopping = True
        self._forgetting = False
        self._chores = save(self.desk)
        self._rouse()

    def _rouse(self) -> None:
        self.idle.clear()
        self._wake.set()

    # ── batch, commit, then speak ────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Serve until `stop`. Raises StoreError when a commit failed: then nothing more may be said."""
        while True:
            if not (self._queue or self._chores or self._forgetting):
                if self._stopping:
                    return
                self.idle.set()
                self._wake.clear()
                await self._wake.wait()
            batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
            self._take(batch)
            for fault in self.desk.faults:
                log.error("a command failed; its connection is closed", fault=where(fault))
            try:
                await self._commit()
            except StoreBusy as busy:
                log.warning("a batch was not stored; its senders are told to try again", error=str(busy))
                await self._undo(batch)
            self._speak()
            await self._tend()

    def _take(self, batch: list[Entry]) -> None:
        desk = self.desk
        if desk.state.settling:
            since = self.now().service - self._served_before
            if since >= min(SETTLING, self._lifetime.prune_after):
                desk.state.settled()
        for connection, said, now in batch:
            if isinstance(said, str):
                desk.take(connection, said, now)
            elif said is None:
                desk.lose(connection, now)
            else:
                desk.refuse_frame(connection, said)
        if self._chores is not None and next(self._chores, self) is self:
            self._chores = None

    async def _commit(self) -> None:
        if self.desk.changes:
            await self._store.apply(self.desk.changes, self.now())
        elif self._chores is not None:
            await asyncio.sleep(0)  # a slice that changed nothing must not keep the loop from its sockets

    async def _tend(self) -> None:
        """Do what can wait until everything is said."""
        if self._forgetting and self._chores is None:
            before = self.now().wall - (self._lifetime.keep_usage or 0.0)
            try:
                self._forgetting = await self._store.forget_usage(before, FORGET) > 0
            except StoreBusy as busy:  # the next sweep will
                log.warning("old usage records were not dropped", error=str(busy))
                self._forgetting = False
        await self._store.tend()

    async def _undo(self, batch: list[Entry]) -> None:
        settling = self.desk.state.settling
        state = await self._store.view()
        state.settling = settling
        self.desk.undo(state)
        self._chores, self._forgetting = None, False
        for connection, said, _ in batch:
            if isinstance(said, str):
                self.desk.refuse(connection, said, REFUSED)
            elif said is not None:
                self.desk.refuse_frame(connection, said)

    def _speak(self) -> None:
        stamp = messages.stamp(self._clock.wall())
        for connection in self.desk.turn():
            bodies, connection.outbox = connection.outbox, []
            if connection.lost:
                continue
            connection.line.send(bodies, stamp)
            if connection.verdict is not None:
                connection.line.hang_up(connection.verdict.code, connection.verdict.words)
