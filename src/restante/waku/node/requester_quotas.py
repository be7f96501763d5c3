"""What requesters of history have requested: quotas per node and per address, and page slots."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Literal

from restante.common.token_bucket import Bucket
from restante.waku.connection.quotas import make_room
from restante.waku.limits import Limits

MAX_PAGES_PER_ADDRESS: Final = 4
"""Pages of one address in memory at a time. A requester with many connections delays only its own address."""

REMEMBERED_REQUESTERS: Final = 10_000
"""Nodes and addresses whose quotas are remembered. The least recently used is forgotten first, unless it has
queues."""


class PageSlots(asyncio.Semaphore):
    """A limited number of pages, for the tasks that have waited longest."""

    waiting = 0
    """Tasks that wait for a page."""

    async def acquire(self) -> Literal[True]:
        """Wait for a free slot."""
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


class RequesterQuota:
    """What one node, or one address, has requested."""

    __slots__ = ("lines", "pages", "rows", "slots")

    def __init__(self) -> None:
        self.lines = 0
        """Only for an address: queues that have one of its pages, or wait for one."""
        self.pages = Bucket()
        self.rows = Bucket()
        self.slots = PageSlots(MAX_PAGES_PER_ADDRESS)

    def wait(self, now: float, limits: Limits) -> float:
        """Return the seconds until the requester may have its next page."""
        pages = self.pages.wait(now, limits.pages, limits.pages_at_once) if limits.pages else 0.0
        rows = self.rows.wait(now, limits.rows, limits.rows_at_once) if limits.rows else 0.0
        return max(pages, rows)


class RequesterQuotas:
    """The quotas of all nodes and addresses."""

    def __init__(self) -> None:
        self._quotas: OrderedDict[bytes | str, RequesterQuota] = OrderedDict()

    def obtain(self, name: bytes | str) -> RequesterQuota:
        """Return the quota of a node id or an address, a new one if necessary."""
        quota = self._quotas.get(name)
        if quota is None:
            make_room(self._quotas, REMEMBERED_REQUESTERS, lambda each: bool(each.lines))
            quota = self._quotas[name] = RequesterQuota()
        self._quotas.move_to_end(name)
        return quota
