"""The people of a mailbox server: which application and which client they use, and from where."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from restante import __version__
from restante.demo.events import BadRelease
from restante.demo.fleet import DAY_SECONDS, Fleet, MailboxServer


class ClientRelease(msgspec.Struct, frozen=True):
    """A version of a client program, and how its users get it."""

    version: str
    at: float
    """When it was released, in seconds since 1970."""
    spread_days: float
    """Days after which two of three users have it, unless a later one replaces it."""
    until: float = float("inf")
    """When it was withdrawn: its users then return to the version before."""
    failing: float = 0.0
    """Share of the conversations in which it takes part that fail because of it."""


_Versions = tuple[tuple[str, float, float], ...]

VERSIONS: Final[dict[str, _Versions]] = {
    "python": (("0.22.0", -400.0, 25.0), ("0.23.0", -45.0, 25.0), ("0.24.0", 5.5, 25.0)),
    "desktop": (("3.0.2", -400.0, 3.0), ("3.1.0", 2.4, 3.0)),
    "restante": ((__version__, -400.0, 1.0),),
    "phone": (("7.4.1", -400.0, 1.2), ("7.5.0", -6.0, 1.2), ("7.5.1", 4.6, 1.2)),
}
"""Client program → its good versions: name, days from the fleet's first day to the release, and `spread_days`. A
program of a distribution reaches its users in weeks, one that updates itself in days."""

BAD_SPREAD_DAYS: Final = 0.5
"""`spread_days` of a bad release: on its first day already, four in ten conversations or more have such a client."""


class FleetApp(msgspec.Struct, frozen=True):
    """An application of the mailbox protocol."""

    app_id: str
    share: float
    """Share of the conversations."""
    clients: dict[str, float]
    """Client program → share of the users."""
    direct: float = 0.0
    """Share of the conversations whose sides know the mailbox, from an earlier meeting, and claim no nameplate."""


APPS: Final = (
    FleetApp("lothar.com/wormhole/text-or-file-xfer", 0.62, {"python": 0.3, "desktop": 0.4, "phone": 0.3}),
    FleetApp("example.org/device-pairing", 0.25, {"phone": 0.6, "desktop": 0.4}),
    FleetApp("example.net/notes-sync", 0.13, {"desktop": 0.6, "python": 0.4}, direct=0.7),
)

USERS_PER_TRANSFER: Final = 4
"""Users for each conversation of a day: most come once a week or less often, a few every day."""

USER_EXPONENT: Final = 2.5
"""How unequal they are: of N users, the one that comes is N x u^USER_EXPONENT for a random u from 0 to 1."""

MIN_USERS: Final = 4


class Person(msgspec.Struct, frozen=True):
    """A user. Two people of one household have one address, which does not matter here."""

    address: str
    implementation: str
    lag: float
    """How late this user updates, in units of `ClientRelease.spread_days`."""


class Population:
    """The users of a mailbox server, and the versions that there are."""

    def __init__(self, fleet: Fleet, server: MailboxServer, bad: Sequence[BadRelease]) -> None:
        dice = fleet.dice(server.name, "people")
        self._people: dict[str, list[Person]] = {}
        for app in APPS:
            count = max(MIN_USERS, round(fleet.transfers * server.share * app.share * USERS_PER_TRANSFER))
            self._people[app.app_id] = [_draw_person(app, dice) for _ in range(count)]
        self._releases = {name: _releases(fleet, name, bad) for name in VERSIONS}
        """Client program → its versions, in the order in which they were released."""

    def two_of(self, app: FleetApp, dice: Random) -> tuple[Person, Person]:
        """Return two users of an application who meet. Some talk to themselves, from one computer to another."""
        people = self._people[app.app_id]
        person, other = (people[int(len(people) * dice.random() ** USER_EXPONENT)] for _ in range(2))
        return person, other

    def release(self, person: Person, at: float) -> ClientRelease:
        """Return the version of the client that a user has at a time."""
        releases = self._releases[person.implementation]
        for release in reversed(releases):
            if release.at + person.lag * release.spread_days * DAY_SECONDS <= at < release.until:
                return release
        return releases[0]


def draw_address(dice: Random) -> str:
    """Return an IPv6 address. Servers keep only a hash of it, whose key nobody has."""
    return f"2a0{dice.randrange(16):x}:{dice.getrandbits(16):x}:{dice.getrandbits(16):x}:{dice.getrandbits(16):x}::1"


def _draw_person(app: FleetApp, dice: Random) -> Person:
    client = dice.choices(list(app.clients), list(app.clients.values()))[0]
    return Person(draw_address(dice), client, dice.expovariate(1.0))


def _releases(fleet: Fleet, implementation: str, bad_releases: Sequence[BadRelease]) -> list[ClientRelease]:
    good_releases = [
        ClientRelease(version, fleet.begin + days * DAY_SECONDS, spread)
        for version, days, spread in VERSIONS[implementation]
    ]
    withdrawn_releases = [
        ClientRelease(
            release.version, release.begin.timestamp(), BAD_SPREAD_DAYS, release.end.timestamp(), release.failing
        )
        for release in bad_releases
        if release.implementation == implementation
    ]
    return [*good_releases, *withdrawn_releases]
