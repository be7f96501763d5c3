"""Archiving: saves the envelopes that the Mailserver has gathered, confirms them, and prunes the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from restante.common.errors import StoreBusy, StoreFull
from restante.common.logs import log
from restante.waku.archive.sqlite import Archive
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.connection.read_pacing import PAUSED_BY_ARCHIVE
from restante.waku.limits import Limits
from restante.waku.node.clock import NodeClock
from restante.waku.node.mailserver import FULL_TEXT, LOCKED_TEXT, Batch, Mailserver
from restante.waku.node.save_schedule import SaveSchedule
from restante.waku.protocol.packets import Response

QUIET_TURNS: Final = 2
"""Turns of the loop without a new envelope, after which nothing more waits to be read: a peer that has sent much is
read again in the turn after the next (`read_pacing.PAUSED_FOR_OTHERS`)."""

PRUNE_SLICE_ROWS: Final = 1000
"""Envelopes pruned in one step, so that new envelopes wait for some 50 ms at most."""


class ArchiveOutage(NamedTuple):
    """A reason for which the archive accepts nothing for now: the texts for `/readyz`, for the log, and for peers."""

    state: str
    event: str
    refusal: str


DISK_FULL: Final = ArchiveOutage("the disk is full", "envelopes are not archived until there is room", FULL_TEXT)
ARCHIVE_LOCKED: Final = ArchiveOutage(
    "the archive cannot be written", "envelopes are not archived until the archive can be written", LOCKED_TEXT
)
"""Another program writes to the archive, or the archive is read-only."""


class Archiving:
    """Moves envelopes from the Mailserver to the archive. `confirm` sends responses to the peers with these ids."""

    def __init__(
        self,
        mailserver: Mailserver,
        archive: Archive,
        limits: Limits,
        clock: NodeClock,
        confirm: Callable[[Iterable[tuple[bytes, Response]]], None],
        save_interval: float,
    ) -> None:
        self.mailserver = mailserver
        self.archive = archive
        self.stopping = False
        self.outage: ArchiveOutage | None = None
        """Why the archive refused the last batch, or None."""
        self.short_of_room = asyncio.Event()
        """Set when the archive is full. The task that prunes clears it."""
        self._limits = limits
        self._clock = clock
        self._confirm = confirm
        self._loop = asyncio.get_running_loop()
        self._paused: set[PeerConnection] = set()
        """Connections that are not read until the next batch is saved."""
        self._wake = asyncio.Event()
        """Set when there are envelopes to save, or `run` is to end."""
        self._save_now = asyncio.Event()
        """Set when the gathered envelopes do not wait for more."""
        self._schedule = SaveSchedule(save_interval)

    def now(self) -> int:
        """Return the seconds since 1970."""
        return int(self._clock.wall())

    def envelopes_gathered(self, connection: PeerConnection) -> None:
        """Begin to save envelopes that a peer has sent. Stop reading the peer if too many bytes are unsaved."""
        now = self._clock.monotonic()
        if connection.pace.arrive(now):
            self._schedule.await_save()
        self._wake.set()
        if not self._schedule.wait(len(self.mailserver.gathered), now):
            self._save_now.set()
        self.limit_unsaved(connection)

    def limit_unsaved(self, connection: PeerConnection) -> None:
        """Stop reading a peer until the next batch is saved, if too many bytes are unsaved."""
        if self.mailserver.gathered_size + self.mailserver.waiting_size > self._limits.unsaved_bytes:
            self._paused.add(connection)
            connection.reading.pause(PAUSED_BY_ARCHIVE)

    def forget(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""
        self._paused.discard(connection)

    def stop(self) -> None:
        """Let `run` return once all gathered envelopes are saved."""
        self.stopping = True
        self._wake.set()
        self._save_now.set()

    async def run(self) -> None:
        """Archive gathered envelopes until `stop`. Raises StoreError if it is unknown whether a commit succeeded."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.mailserver.gathered:
                await self._wait_for_more()
                batch = self.mailserver.take_batch()
                if batch is not None:
                    await self._save(batch)
            if self.stopping:
                return

    async def _wait_for_more(self) -> None:
        """Wait until nothing more waits to be read and the schedule allows a save."""
        await self._read_waiting()
        wait = self._schedule.wait(len(self.mailserver.gathered), self._clock.monotonic())
        if wait and not self.stopping:
            self._save_now.clear()
            timer = self._loop.call_later(wait, self._save_now.set)
            await self._save_now.wait()
            timer.cancel()
            await self._read_waiting()
        self._schedule.begin(self._clock.monotonic())

    async def _read_waiting(self) -> None:
        """Let the loop run until no more envelopes arrive, there are enough for a save, or the save is due."""
        gathered, quiet = self.mailserver.gathered, 0
        while (
            quiet < QUIET_TURNS
            and not self.stopping
            and self._schedule.may_read_more(len(gathered), self._clock.monotonic())
        ):
            before = len(gathered)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(gathered) == before else 0

    async def _save(self, batch: Batch) -> None:
        try:
            await self.archive.save(batch.envelopes, self.now())
        except StoreBusy as error:
            before, self.outage = self.outage, DISK_FULL if isinstance(error, StoreFull) else ARCHIVE_LOCKED
            if self.outage is not before:
                log.error(self.outage.event, reason=str(error))
            if self.outage is DISK_FULL:
                self.short_of_room.set()
            answers = self.mailserver.refuse(batch, self.now(), self.outage.refusal)
        else:
            if self.outage is not None:
                log.info("envelopes are archived again")
            self.outage = None
            answers = self.mailserver.confirm(batch)
        self._confirm(answers)
        paused, self._paused = self._paused, set()
        for connection in paused:
            connection.reading.resume(PAUSED_BY_ARCHIVE)

    async def prune(self) -> int:
        """Remove envelopes that are too old or too many. Return how many were removed."""
        old = surplus = 0
        terms = self.mailserver.terms
        if terms.retention is not None:
            before = self.now() - terms.retention
            while part := await self._pruned(self.archive.prune(before, PRUNE_SLICE_ROWS)):
                old += part
        if terms.retention_bytes is not None:
            while part := await self._pruned(self.archive.prune_bytes(terms.retention_bytes, PRUNE_SLICE_ROWS)):
                surplus += part
            self.mailserver.floor = self.archive.pruned_until if surplus else -1
        return old + surplus

    async def _pruned(self, pruning: Awaitable[int]) -> int:
        """Wait for a step of pruning, and set the Mailserver's `pruned_until`. Return how many were removed."""
        count = await pruning
        self.mailserver.pruned_until = self.archive.pruned_until
        return count
