"""The Mailservers' archives: sealed envelopes that reach each of them a little later, but not during its gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Final

from restante.demo.events import Events, MailserverGap
from restante.demo.fleet import DAY_SECONDS, ENVELOPES_PER_TRANSFER, MAILSERVERS, Fleet, SeededDice, log_normal
from restante.demo.load import Load
from restante.waku.archive.sqlite import Archive, open_archive
from restante.waku.envelope.envelope import U32, Envelope, make
from restante.waku.envelope.mining import mine
from restante.waku.envelope.payload import SYMMETRIC_KEY_BYTES, SymmetricKey, seal, topic_of
from restante.waku.protocol.policy import MIN_POW, TTL_SECONDS

CHANNELS: Final = 48
CHANNEL_EXPONENT: Final = 3.0
"""How unequal the channels are: of N channels, an envelope is in number N x u^CHANNEL_EXPONENT for a random u from 0
to 1. The busiest one has a quarter of the envelopes, the last ones a few each day."""

TEXT_BYTES: Final = 90
TEXT_SIGMA: Final = 0.9
MAX_TEXT_BYTES: Final = 4_000
"""Bytes of a message in an envelope: half of them have up to 90."""

ARRIVAL_SECONDS: Final = {"alpha": 0.4, "beta": 0.9}
"""The median of the seconds until an envelope reaches a Mailserver. Beta is further away."""

ARRIVAL_SIGMA: Final = 0.9

AHEAD_SHARE: Final = 0.01
AHEAD_SECONDS: Final = 8
"""Share of the senders' clocks that are ahead, and by how much at most. Nodes accept 10 s
(restante.waku.protocol.acceptance)."""


def make_archives(fleet: Fleet, events: Events, folders: Mapping[str, Path]) -> int:
    """Make the archives of all Mailservers, each in its folder. Return the number of envelopes that were sent."""
    return asyncio.run(_archive(fleet, events, folders))


async def _archive(fleet: Fleet, events: Events, folders: Mapping[str, Path]) -> int:
    archives = {name: open_archive(folder) for name, folder in folders.items()}
    try:
        for archive in archives.values():
            archive.database.execute("PRAGMA synchronous = OFF")  # until the end the files are drafts
        sent = 0
        for day in _days(fleet):
            sent += len(day)
            for name, opened in archives.items():
                gaps = [gap for gap in events.gaps if gap.mailserver == name]
                await _save(opened, day, name, gaps, fleet.dice(name, str(sent)), fleet.end)
        for archive in archives.values():
            archive.database.execute("PRAGMA synchronous = FULL")  # the last checkpoint flushes all of them
    finally:
        for archive in archives.values():
            await archive.close()
    return sent


async def _save(
    archive: Archive,
    day: list[tuple[float, Envelope]],
    name: str,
    gaps: list[MailserverGap],
    dice: Random,
    end: float,
) -> None:
    """Save a day's envelopes as they arrive until the end of the fleet, those of a second in one transaction."""
    arriving = ((at + log_normal(dice, ARRIVAL_SECONDS[name], ARRIVAL_SIGMA), envelope) for at, envelope in day)
    arrived = sorted((int(at), envelope.hash, envelope) for at, envelope in arriving)
    for second, group in groupby(arrived, lambda item: item[0]):
        if second < end and not any(gap.contains(second) for gap in gaps):
            await archive.save([envelope for _, _, envelope in group], second)


def _days(fleet: Fleet) -> Iterator[list[tuple[float, Envelope]]]:
    """Yield each day's envelopes with the true time at which they were sent."""
    dice = fleet.dice("envelopes")
    load = Load(fleet, MAILSERVERS[0], fleet.transfers * ENVELOPES_PER_TRANSFER)
    channels = [
        (topic_of(f"channel-{number}"), SymmetricKey(dice.randbytes(SYMMETRIC_KEY_BYTES)))
        for number in range(CHANNELS)
    ]
    for _, times in groupby(load.arrivals(dice), lambda at: int(at) // DAY_SECONDS):
        yield [
            (at, _envelope(at, *channels[int(CHANNELS * dice.random() ** CHANNEL_EXPONENT)], dice)) for at in times
        ]


def _envelope(at: float, topic: bytes, key: SymmetricKey, dice: Random) -> Envelope:
    """Return an envelope as status-go sends it: sealed, and with the work that nodes demand."""
    text = dice.randbytes(1 + min(int(log_normal(dice, TEXT_BYTES, TEXT_SIGMA)), MAX_TEXT_BYTES))
    seconds_ahead = dice.uniform(0, AHEAD_SECONDS) if dice.random() < AHEAD_SHARE else 0.0
    sealed = seal(text, to=key, dice=SeededDice(dice))
    bare = make(int(at + seconds_ahead) + TTL_SECONDS, TTL_SECONDS, topic, sealed)
    return mine(bare, MIN_POW, start=dice.randrange(U32))
