"""Envelopes for archives, and what an archive is shown to hold."""

from __future__ import annotations

from typing import Final

import msgspec

from restante.waku.archive.records import Archived, TopicCount
from restante.waku.archive.sqlite import Archive
from restante.waku.envelope.envelope import U32, Envelope, make

T0: Final = 1_700_000_000
TTL: Final = 50


def envelope(sent: int, number: int = 0, *, topic: bytes = b"\1\2\3\4", size: int = 8) -> Envelope:
    """Make the envelope of this number that is sent `sent` seconds after T0."""
    return make((T0 + sent + TTL) & U32, TTL, topic, number.to_bytes(size, "big"))


def alike(kind: Envelope, start: bytes = b"\xaa\xbb\xcc\xdd") -> Envelope:
    """Return it a hash that begins like that of all others this was done to."""
    return msgspec.structs.replace(kind, hash=start + kind.hash[len(start) :])


async def everything(archive: Archive) -> list[Archived]:
    """Return all there is, read as whoever goes on where he stopped."""
    found: list[Archived] = []
    while some := await archive.after(found[-1].arrival if found else 0, 3):
        found += some
    return found


async def held(archive: Archive) -> list[bytes]:
    return [each.raw for each in await everything(archive)]


def topics_of(rows: list[Envelope]) -> dict[bytes, TopicCount]:
    """Count by hand."""
    found = {}
    for topic in {each.topic for each in rows}:
        sent = [each.sent for each in rows if each.topic == topic]
        found[topic] = TopicCount(topic, len(sent), min(sent), max(sent))
    return found
