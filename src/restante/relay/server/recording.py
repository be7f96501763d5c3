"""Saves usage records and counts, and deletes old records. The relay goes on whatever the disk does."""

from __future__ import annotations

import asyncio
from typing import Final

from restante.common.address_registry import SECONDS_PER_DAY
from restante.common.disk_probe import DiskSpace
from restante.common.errors import StoreBusy, StoreError
from restante.common.logs import log
from restante.common.transfer_records import CurrentTransfers
from restante.relay.server.server import Server
from restante.relay.store.sqlite import Store

SAVE_SECONDS: Final = 5
"""Seconds between saves. A crash loses the records and counts of that time."""

MAX_WAITING_RECORDS: Final = 100_000
"""Records that wait in memory for the disk, of about 200 bytes each. Further ones are lost, and counted."""

HANG_SECONDS: Final = 10.0
"""Seconds after which a save that has not ended counts as hanging. A working disk takes milliseconds."""

HANGS: Final = "the disk hangs"

DELETED_AT_ONCE: Final = 1000
"""Old records that are deleted in one save: 10 ms."""


class Recording:
    """The records of one relay on their way to the disk."""

    def __init__(self, server: Server, store: Store, keep_seconds: float | None, disk: DiskSpace) -> None:
        """Continue with the counts that the store has.

        Records older than `keep_seconds` are deleted. `disk` is that of the store.
        """
        self._server = server
        self._store = store
        self._disk = disk
        self._keep_seconds = keep_seconds
        self._started = server.clock.wall()
        self._saving: asyncio.Task[None] | None = None
        self._began = 0.0
        """When it began, by the monotonic clock."""
        self.lost_records = 0
        """Records that were not written, since the start."""
        self.problem = ""
        """Why records are not written; "" if they are."""
        wall = server.clock.wall()
        registry = server.admission.addresses
        if store.traffic is not None:
            if store.day_key and store.traffic.day == int(wall // SECONDS_PER_DAY):
                registry.day, registry.day_key = store.traffic.day, store.day_key
            server.relay.traffic.restore(store.traffic, wall)
        registry.begin_day(wall)
        server.relay.traffic.begin_day(wall)

    def save_soon(self) -> None:
        """Begin to save what is new, unless a save is under way: the disk may hang."""
        self._drop_excess()
        now = self._server.clock.monotonic()
        if self._saving is None or self._saving.done():
            self._saving, self._began = asyncio.create_task(self.save()), now
        elif now - self._began >= HANG_SECONDS:
            self._set_problem(HANGS)

    async def close(self) -> bool:
        """Save what is new for the last time. Return whether the disk has answered: else it is not waited for."""
        for _ in range(2):  # a save that is under way may lack what came since it began
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self.save())
            await asyncio.wait({self._saving}, timeout=HANG_SECONDS)
            if not self._saving.done():
                self._set_problem(HANGS)
                return False
        return True

    async def save(self) -> None:
        """Save what is new. A failure is logged. What was certainly not written waits for the next save."""
        relay, registry = self._server.relay, self._server.admission.addresses
        limit, problem = relay.limits.free_disk, ""
        has_room = not limit or await self._disk.free() >= limit  # NaN is not
        records, relay.records = relay.records, []
        if not has_room:
            problem = f"less than {limit} bytes are free on the disk (free_disk)"
            self.lost_records += len(records)
            records = []
        pairs = self._server.running
        current = CurrentTransfers(
            rebooted=self._started,
            updated=self._server.clock.wall(),
            connected=2 * len(pairs),
            waiting=relay.waiting_tokens,
            incomplete_bytes=sum(pair.bytes for pair in pairs),
        )
        try:
            await self._store.save(records, relay.traffic.saved(), registry.day_key, current)
        except StoreBusy as error:
            problem = str(error)
            relay.records = records + relay.records
            self._drop_excess()
        except StoreError as error:
            problem = str(error)
            self.lost_records += len(records)
        else:
            problem = await self._forget(current.updated) or problem
        self._set_problem(problem)

    def _set_problem(self, problem: str) -> None:
        """Set `problem`, and log when it begins and ends."""
        if problem and not self.problem:
            log.error("usage records cannot be written; the relay goes on without them", reason=problem)
        elif self.problem and not problem:
            log.info("usage records are written again", lost_since_start=self.lost_records)
        self.problem = problem

    async def _forget(self, wall: float) -> str:
        """Delete some old records. Return why that failed; "" if it did not."""
        try:
            if self._keep_seconds is not None:
                await self._store.forget_records(wall - self._keep_seconds, DELETED_AT_ONCE)
        except StoreError as error:
            return str(error)
        return ""

    def _drop_excess(self) -> None:
        """Lose the oldest records if too many wait."""
        records = self._server.relay.records
        excess = max(0, len(records) - MAX_WAITING_RECORDS)
        del records[:excess]
        self.lost_records += excess
