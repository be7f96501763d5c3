"""Envelopes for archives, and what an archive is shown to hold."""

from __future__ import annotations

from typing import Final

from restante.waku.archive.records import Archived
from restante.waku.archive.sqlite import Archive
from restante.waku.envelope.envelope import U32, Envelope, make

T0: Final = 1_700_000_000
TTL: Final = 50


def envelope(sent: int, number: int = 0, *, topic: bytes = b"\1\2\3\4", size: int = 8) -> Envelope:
    """Make the envelope of this number that is sent `sent` seconds after T0."""
    return make((T0 + sent + TTL) & U32, TTL, topic, number.to_bytes(size, "big"))


async def everything(archive: Archive) -> list[Archived]:
    """Return all there is, read as whoever goes on where he stopped."""
    rows: list[Archived] = []
    while page := await archive.after(rows[-1].arrival if rows else 0, 3):
        rows += page
    return rows
