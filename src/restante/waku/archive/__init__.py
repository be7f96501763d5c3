"""The archive: it keeps envelopes, and never decides which. sqlite.py has the engine, and its contract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from restante.waku.envelope.envelope import Envelope, parse

if TYPE_CHECKING:
    from restante.waku.archive.sqlite import Archive


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


def open_archive(data: Path) -> Archive:
    """Open the archive in a data directory, making both if need be; nobody else may until it is closed.

    Raises StoreError when another process has it, or it is not ours, or it is newer than this program, or damaged.
    """
    from restante.waku.archive.sqlite import Archive

    return Archive.open(data)
