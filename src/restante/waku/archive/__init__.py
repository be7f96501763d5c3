"""Archives: they keep envelopes. An archive never decides which.

The contract, which tests/waku/archive holds every engine to: what `save` returned from is on disk; an envelope is
there once, however often it is saved; readers see a batch as a whole or not at all, and neither wait for the writer
nor make it wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from restante.waku.archive.history.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.envelope.envelope import Envelope, parse


class Counts(msgspec.Struct, frozen=True):
    """What an archive holds. Times are seconds since 1970, None where it is empty."""

    envelopes: int
    bytes: int
    """Of all envelopes' RLP; what the disk needs is more."""
    topics: int
    """Different ones."""
    oldest: int | None
    """When the oldest was sent."""
    newest: int | None
    next_arrival: int
    """The number that the next envelope to be saved gets; those of the ones there are below it."""


class Archived(msgspec.Struct, frozen=True, gc=False):
    """An envelope as the archive has it."""

    arrival: int
    """Its number in the order of commits, from 1; never given twice, so numbers of pruned ones are missing."""
    arrived: int
    """When it was saved, in seconds since 1970."""
    raw: bytes
    """Its RLP, exactly."""

    def envelope(self) -> Envelope:
        """Read it. Raises RlpError where the archive is damaged."""
        return parse(self.raw)


class TopicCount(msgspec.Struct, frozen=True, gc=False):
    """What an archive holds of a topic."""

    topic: bytes
    count: int
    first: int
    """When its oldest envelope was sent."""
    last: int
    """And its newest."""


class Archive(Protocol):
    """An engine. Every method raises StoreError where the disk fails; some raise StoreBusy where it refuses."""

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        """Save envelopes that came at `arrived`, all or none; those that are there already are left as they are.

        On return they are on disk. Raises StoreBusy where nothing was changed and it may be tried again: somebody
        else is writing, or the disk is full. After any other StoreError nobody can tell: stop, never retry.
        """

    async def prune(self, before: int, most: int) -> int:
        """Drop envelopes sent before a time, oldest first, at most so many; tell how many went.

        It is over when fewer than `most` went. Raises StoreBusy as `save` does.
        """

    async def prune_bytes(self, limit: int, most: int) -> int:
        """Drop the oldest by `sent` until all together have at most `limit` bytes, at most so many; tell how many."""

    async def counts(self) -> Counts:
        """Count, at a small cost however much there is."""

    async def older(self, before: int) -> int:
        """Tell how many were sent before a time; looks at every one, if only for an instant."""

    async def topics(self) -> list[TopicCount]:
        """Give each topic there is, in no particular order."""

    async def after(self, arrival: int, limit: int) -> list[Archived]:
        """Give those that came after this arrival number, in that order; 0 is before all.

        At most `limit`; fewer where they are large (some 8 MiB), but none only where there is none.
        """

    async def page(self, query: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> Page:
        """Give a page of history; to go on, ask the same again after its cursor.

        Whatever is saved and pruned between the pages, an envelope that matches and is there all the time is given
        once, and in order. One that comes meanwhile may be given or not. Who stops waiting stops the search.
        """

    async def close(self) -> None:
        """Leave everything on disk in good order; nothing else may be under way."""


def open_archive(data: Path) -> Archive:
    """Open the archive in a data directory, making both if need be; nobody else may until it is closed.

    Raises StoreError when another process has it, or it is not ours, or it is newer than this program, or damaged.
    """
    from restante.waku.archive.sqlite import SqliteArchive

    return SqliteArchive.open(data)
