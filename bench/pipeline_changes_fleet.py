"""The tables from which a report finds changes, of a demo's fleet, made without Spark.

The fleet is that of `restante pipeline demo`, but for the envelopes' proof of work, which takes most of the time. No
table here depends on it. `pipeline_changes.py --check` compares the tables with those that Spark made.
"""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from math import floor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from restante.demo import envelopes, usage
from restante.demo.events import Events
from restante.demo.fleet import MAILBOX_SERVERS, MAILSERVERS, Fleet
from restante.waku.envelope.envelope import Envelope

Row = tuple[Any, ...]
Tables = Mapping[str, Sequence[Row]]

RESULTS: Final = ("happy", "lonely", "errory", "scary", "pruney", "crowded")

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "outcomes": ("source", "day", "app_id", "kind", *RESULTS),
    "versions": (
        *("source", "day", "app_id", "attribution", "implementation", "version"),
        *("connections", "mailboxes", *RESULTS),
    ),
    "busy_hours": ("source", "day", "hour", "connections", "mailboxes", "nameplates"),
    "guesses": (
        *("source", "day", "app_id", "nameplates", "lonely", "crowded_nameplates", "scary", "suspects"),
        *("median", "threshold", "stands_out"),
    ),
    "coverage": ("source", "day", "envelopes", "alone", "missing"),
}
"""Tables of the lake, and those of their columns that are made."""

TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("source", "app_id", "kind", "attribution", "implementation", "version"), "VARCHAR"),
    "day": "DATE",
    "stands_out": "BOOLEAN",
}
"""The types of columns that are no counts."""

BIND_WINDOW_US: Final = 2_000_000
HOUR_US: Final = 3_600_000_000
"""As in the definitions of the tables `versions` and `busy_hours`."""


def made(fleet: Fleet, events: Events, folder: Path) -> Tables:
    """Make the servers' usage records in a folder, and return all tables."""
    for server in MAILBOX_SERVERS:
        usage.simulate_server(fleet, events, server, folder / server.name)
    found: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for server in MAILBOX_SERVERS:
        with closing(sqlite3.connect(folder / server.name / usage.DATA_FOLDER / "restante.sqlite")) as opened:
            records = Records(opened)
        for name, rows in records.tables(server.name).items():
            found[name] += rows
    found["coverage"] = list(_coverage(_archived(fleet, events)))
    return found


class Records:
    """The usage records of a server. Times are in microseconds since 1970."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.nameplates = [
            (_us(started), *rest)
            for started, *rest in database.execute("SELECT started, app_id, result FROM usage_nameplates")
        ]
        self.mailboxes = [
            (_us(started), *rest)
            for started, *rest in database.execute(
                "SELECT started, app_id, result, for_nameplate FROM usage_mailboxes"
            )
        ]
        self.binds = [
            (_us(at), *rest)
            for at, *rest in database.execute(
                "SELECT connect_time, app_id, implementation, version FROM usage_client_versions"
            )
        ]

    def tables(self, source: str) -> dict[str, list[Row]]:
        """Return the rows of the tables that are made of them."""
        outcomes = self._outcomes()
        return {
            "outcomes": [(source, *key, *_results(of)) for key, of in outcomes.items()],
            "versions": [
                (source, *key, of["bind"], of.total() - of["bind"], *_results(of))
                for key, of in self._versions().items()
            ],
            "busy_hours": [(source, *key, *counts) for key, counts in self._hours().items()],
            "guesses": [(source, *row) for row in _guesses(outcomes)],
        }

    def _outcomes(self) -> dict[Row, Counter[str]]:
        found: dict[Row, Counter[str]] = defaultdict(Counter)
        for at, app, result in self.nameplates:
            found[_day(at), app, "nameplate"][result] += 1
        for at, app, result, for_nameplate in self.mailboxes:
            found[_day(at), app, "claimed" if for_nameplate else "opened"][result] += 1
        return found

    def _versions(self) -> dict[Row, Counter[str]]:
        found: dict[Row, Counter[str]] = defaultdict(Counter)
        bound: dict[str, list[Row]] = defaultdict(list)
        for at, app, *who in self.binds:
            found[_day(at), app, "version", *who]["bind"] += 1
            bound[app].append((at, tuple(who)))
        for each in bound.values():
            each.sort(key=lambda bind: bind[0])
        for at, app, result, _ in self.mailboxes:
            binds = bound[app]
            first = bisect_left(binds, at - BIND_WINDOW_US, key=lambda bind: bind[0])
            near = {who for _, who in binds[first : bisect_right(binds, at, key=lambda bind: bind[0])]}
            how = "unbound" if not near else "version" if len(near) == 1 else "mixed"
            found[_day(at), app, how, *(near.pop() if how == "version" else (None, None))][result] += 1
        return found

    def _hours(self) -> dict[Row, list[int]]:
        found: dict[Row, list[int]] = defaultdict(lambda: [0, 0, 0])
        for place, rows in enumerate((self.binds, self.mailboxes, self.nameplates)):
            for at, *_ in rows:
                found[_day(at), at // HOUR_US % 24][place] += 1
        return found


def _guesses(outcomes: Mapping[Row, Counter[str]]) -> Iterator[Row]:
    """Yield the rows of a server, by the rule of the table `guesses`."""
    empty = Counter[str]()
    days = {day for day, _, _ in outcomes}
    keys = {(day, app) for day, app, _ in outcomes}

    def suspects(day: date, app: str) -> int:
        scary = sum(outcomes.get((day, app, kind), empty)["scary"] for kind in ("claimed", "opened"))
        return outcomes.get((day, app, "nameplate"), empty)["crowded"] + scary

    for day, app in keys:
        of = outcomes.get((day, app, "nameplate"), empty)
        now = suspects(day, app)
        compared = [suspects(each, app) for back in range(1, 8) if (each := day - timedelta(back)) in days]
        median = threshold = None
        if len(compared) >= 4:
            median = _middle(compared)
            mad = _middle([abs(each - median) for each in compared])
            threshold = median + max(6 * mad, 10, median // 2)
        stands_out = None if threshold is None else now > threshold
        crowded = of["crowded"]
        yield day, app, of.total(), of["lonely"], crowded, now - crowded, now, median, threshold, stands_out


def _archived(fleet: Fleet, events: Events) -> dict[str, dict[bytes, date]]:
    """Return the envelopes of each Mailserver: their hashes, and the days on which they were sent."""
    held: dict[str, dict[bytes, date]] = {name: {} for name in MAILSERVERS}
    with (
        patch.object(envelopes, "open_archive", lambda folder: _Archive(held[folder.name])),
        patch.object(envelopes, "mine", lambda bare, _pow, start: bare),  # noqa: ARG005 - it is called by name
    ):
        envelopes.make_archives(fleet, events, {name: Path(name) for name in MAILSERVERS})
    return held


class _Archive:
    """Stands for an archive, and keeps only hashes and days."""

    def __init__(self, held: dict[bytes, date]) -> None:
        self._held = held
        self.database = SimpleNamespace(execute=lambda _: None)

    async def save(self, some: Sequence[Envelope], _second: int) -> None:
        for each in some:
            self._held[each.hash] = _day((each.expiry - each.ttl) * 1_000_000)

    async def close(self) -> None:
        await asyncio.sleep(0)


def _coverage(held: Mapping[str, Mapping[bytes, date]]) -> Iterator[Row]:
    all_ = {hash_: day for of in held.values() for hash_, day in of.items()}
    sent = Counter(all_.values())
    for name, own in held.items():
        others = set().union(*(of for other, of in held.items() if other != name))
        here, alone = Counter(own.values()), Counter(day for hash_, day in own.items() if hash_ not in others)
        for day, number in sent.items():
            if day >= min(own.values()):
                yield name, day, here[day], alone[day], number - here[day]


def _results(of: Counter[str]) -> list[int]:
    return [of[result] for result in RESULTS]


def _middle(numbers: Sequence[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]


def _us(seconds: float) -> int:
    return floor(seconds * 1e6 + 0.5)


def _day(us: int) -> date:
    return datetime.fromtimestamp(us // 1_000_000, UTC).date()
