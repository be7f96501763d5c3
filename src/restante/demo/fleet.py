"""The fleet: its days, its servers, and the randomness of each of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Final

import msgspec

DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3_600

DEFAULT_SEED: Final = 1
DEFAULT_DAYS: Final = 30

DEFAULT_TRANSFERS: Final = 360
"""Conversations that begin at all mailbox servers on an average day at the beginning. So few that a month is made in
seconds, and so many that an event stands out of chance at the smallest server."""

ENVELOPES_PER_TRANSFER: Final = 5 / 3
"""Envelopes that are sent for each of them: other people's chats, in the same proportion whatever the size."""

MIN_DAYS: Final = 14
"""A release, an attack and an outage on days of their own, after eight days without any."""

MAX_DAYS: Final = 366
"""A year takes minutes to make."""

MIN_TRANSFERS: Final = 3
MAX_TRANSFERS: Final = 100_000
"""A busy day of a public server. The generator makes a thousand or two in a second."""


class MailboxServer(msgspec.Struct, frozen=True):
    """A mailbox server of the fleet."""

    name: str
    share: float
    """Share of the fleet's conversations."""
    hours_ahead: int
    """How far its users' clocks are ahead of UTC: their days and nights shape its load."""


MAILBOX_SERVERS: Final = (
    MailboxServer("north", 0.45, 1),
    MailboxServer("east", 0.3, 3),
    MailboxServer("south", 0.25, -3),
)

MAILSERVERS: Final = ("alpha", "beta")

RELAY: Final = "relay"
"""The transit relay of all users."""

PROBED_SERVER: Final = MAILBOX_SERVERS[0].name
"""The server whose operator keeps timing logs of test transfers, and lately a trace."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Which fleet: equal ones are made of equal bytes."""

    seed: int = DEFAULT_SEED
    last: date
    """The last day, which is over."""
    days: int = DEFAULT_DAYS
    transfers: int = DEFAULT_TRANSFERS

    @property
    def first(self) -> date:
        """Return the first day."""
        return self.last - timedelta(self.days - 1)

    @property
    def begin(self) -> float:
        """Return when the first day begins, in seconds since 1970."""
        return midnight(self.first)

    @property
    def end(self) -> float:
        """Return when the last day is over, in seconds since 1970."""
        return midnight(self.last) + DAY_SECONDS

    def day(self, number: int) -> date:
        """Return a day by its number, from 0."""
        return self.first + timedelta(number)

    def dice(self, *names: str) -> Random:
        """Return the randomness of a part of the fleet.

        Python hashes a text seed with SHA-512, so that it does not depend on PYTHONHASHSEED (random.seed, version 2).
        """
        return Random("/".join(map(str, (self.seed, *names))))  # noqa: S311 - nothing here is secret


class SeededDice:
    """The source of randomness that the servers' rules and the encoders take (restante.common.dice)."""

    def __init__(self, dice: Random) -> None:
        self.draw: Callable[[int], bytes] = dice.randbytes
        self.below: Callable[[int], int] = dice.randrange


def midnight(day: date) -> float:
    """Return when a day begins in UTC, in seconds since 1970."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def log_normal(dice: Random, median: float, sigma: float) -> float:
    """Return a positive number; half of them are below the median. Waits of people and networks look like this."""
    return median * math.exp(sigma * dice.gauss())  # lognormvariate takes twice as long
