"""What happens in a fleet besides everyday use, and the file that says so: the ground truth.

The seed decides where, when and how strongly each event happens. Strengths are in terms of the load, so that they
are the same whatever the size of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from restante.demo.fleet import (
    DAY_SECONDS,
    HOUR_SECONDS,
    MAILBOX_SERVERS,
    MAILSERVERS,
    Fleet,
    MailboxServer,
    midnight,
)
from restante.demo.load import Load, conversation_load

FORMAT_VERSION: Final = 1
"""The version of the file. A greater number means a later version of Restante."""

QUIET_DAYS: Final = 8
"""Days at the beginning without events: a week to compare with, and the day on which everything is new."""

ATTACK_BEGINS: Final = (6.0, 9.0)
"""The hour at which an attack begins by the users' clocks, so that it meets them."""

ATTACKED_CONVERSATIONS: Final = (25.0, 60.0)
"""Conversations that are expected to begin during an attack, for a fleet of DEFAULT_TRANSFERS. At the smallest
server an attack lasts until midnight and meets about as many on a working day."""

GUESS_SECONDS: Final = (7.0, 14.0)
"""Seconds between two guesses. The quota of an address allows twelve a minute (Limits.address_claims)."""

RELEASE_DAYS: Final = (3, 5)
"""Days until a bad release is noticed and withdrawn."""

FAILING_SHARE: Final = (0.55, 0.85)
"""Share of conversations that fail if a client of the bad release takes part."""

OUTAGE_BEGINS: Final = (7.0, 10.0)
"""The hour at which an outage begins, by the users' clocks: at night few would notice it."""

OUTAGE_SHARE: Final = (0.4, 0.65)
"""Share of the day's conversations that are expected during an outage."""

GAP_HOURS: Final = {"alpha": ((8.0, 14.0),), "beta": ((2.0, 4.0), (3.0, 6.0))}
"""How long each Mailserver receives nothing, each time."""

BAD_VERSIONS: Final = {"desktop": "3.2.0", "phone": "7.6.0"}
"""The clients that may have a bad release, because they update themselves, and its version."""


class EventSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time. It does not contain its end."""

    begin: datetime = msgspec.field(name="from")
    end: datetime = msgspec.field(name="to")
    days: tuple[date, ...]
    """The days (UTC) that it touches."""

    def contains(self, at: float) -> bool:
        """Return whether a time, in seconds since 1970, is in the span."""
        return self.begin.timestamp() <= at < self.end.timestamp()


class Attack(EventSpan, frozen=True, kw_only=True):
    """Somebody lists the nameplates of the server, and guesses the codes of those who wait."""

    server: str
    guess_seconds: float
    """Seconds between two guesses, on average."""


class BadRelease(EventSpan, frozen=True, kw_only=True):
    """A version of a client program with which transfers fail. It is withdrawn at the end."""

    implementation: str
    version: str
    failing: float
    """Share of conversations that fail if such a client takes part."""


class Outage(EventSpan, frozen=True, kw_only=True):
    """The mailbox server does not run."""

    server: str


class MailserverGap(EventSpan, frozen=True, kw_only=True):
    """The Mailserver receives no envelopes."""

    mailserver: str


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """All events of a fleet. A day that none of them touches is a quiet one."""

    attacks: tuple[Attack, ...] = ()
    releases: tuple[BadRelease, ...] = ()
    outages: tuple[Outage, ...] = ()
    gaps: tuple[MailserverGap, ...] = ()


class GroundTruth(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    format: Literal["restante demo fleet"] = "restante demo fleet"
    version: Annotated[int, Meta(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    fleet: Fleet
    events: Events


def encode_truth(truth: GroundTruth) -> bytes:
    """Return the content of the file, as JSON. Times are in UTC."""
    return msgspec.json.format(msgspec.json.encode(truth)) + b"\n"


def decode_truth(content: bytes) -> GroundTruth:
    """Return what a file says. Raises msgspec.DecodeError if it is not one of a version that is known."""
    return msgspec.json.decode(content, type=GroundTruth)


def draw_events(fleet: Fleet) -> Events:
    """Return what happens in a fleet. Attack, release and outage have days of their own."""
    dice = fleet.dice("events")
    length = min(dice.randint(*RELEASE_DAYS), fleet.days - QUIET_DAYS - 2)
    release_day = dice.randint(QUIET_DAYS, fleet.days - length)
    free_days = [day for day in range(QUIET_DAYS, fleet.days) if not release_day <= day < release_day + length]
    attack_day, outage_day = dice.sample(free_days, 2)
    return Events(
        attacks=(_draw_attack(fleet, fleet.day(attack_day), dice),),
        releases=(_draw_release(fleet.day(release_day), length, dice),),
        outages=(_draw_outage(fleet, fleet.day(outage_day), dice),),
        gaps=tuple(_draw_gaps(fleet, dice)),
    )


def _draw_attack(fleet: Fleet, day: date, dice: Random) -> Attack:
    server, load = _draw_server(fleet, dice)
    begin = _morning(day, server, dice.uniform(*ATTACK_BEGINS))
    scale = fleet.transfers / Fleet(last=day).transfers
    end = load.time_of(begin, dice.uniform(*ATTACKED_CONVERSATIONS) * scale)
    return Attack(
        **_span_fields(begin, end), server=server.name, guess_seconds=round(dice.uniform(*GUESS_SECONDS), 1)
    )


def _draw_release(day: date, length: int, dice: Random) -> BadRelease:
    implementation = dice.choice(sorted(BAD_VERSIONS))
    return BadRelease(
        **_span_fields(midnight(day), midnight(day) + length * DAY_SECONDS),
        implementation=implementation,
        version=BAD_VERSIONS[implementation],
        failing=round(dice.uniform(*FAILING_SHARE), 2),
    )


def _draw_outage(fleet: Fleet, day: date, dice: Random) -> Outage:
    server, load = _draw_server(fleet, dice)
    begin = _morning(day, server, dice.uniform(*OUTAGE_BEGINS))
    expected = load.expected(midnight(day), midnight(day) + DAY_SECONDS)
    end = load.time_of(begin, dice.uniform(*OUTAGE_SHARE) * expected)
    return Outage(**_span_fields(begin, end), server=server.name)


def _draw_gaps(fleet: Fleet, dice: Random) -> Iterable[MailserverGap]:
    """Yield the gaps, each on days of its own, so that no envelope is lost to all."""
    lengths = [(name, hours) for name in MAILSERVERS for hours in GAP_HOURS[name]]
    for (name, hours), day in zip(lengths, dice.sample(range(1, fleet.days - 1), len(lengths)), strict=True):
        length = dice.uniform(*hours) * HOUR_SECONDS
        begin = midnight(fleet.day(day)) + dice.uniform(0, DAY_SECONDS - length)
        yield MailserverGap(**_span_fields(begin, begin + length), mailserver=name)


def _draw_server(fleet: Fleet, dice: Random) -> tuple[MailboxServer, Load]:
    server = dice.choice(MAILBOX_SERVERS)
    return server, conversation_load(fleet, server)


def _morning(day: date, server: MailboxServer, hour: float) -> float:
    return midnight(day) + (hour - server.hours_ahead) * HOUR_SECONDS


def _span_fields(begin: float, end: float) -> dict[str, Any]:
    """Return the fields of an EventSpan."""
    begin_time, end_time = (datetime.fromtimestamp(round(at), UTC) for at in (begin, end))
    days = ((end_time - timedelta(microseconds=1)).date() - begin_time.date()).days
    return {
        "begin": begin_time,
        "end": end_time,
        "days": tuple(begin_time.date() + timedelta(day) for day in range(days + 1)),
    }
