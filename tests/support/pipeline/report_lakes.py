"""The built tables of a lake in a DuckDB in memory, to run a report's queries on, and random rows for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import duckdb
import pyarrow as pa

from restante.pipeline import views
from restante.pipeline.lake import columns
from restante.pipeline.schemas import Table
from restante.pipeline.tables import TABLES
from restante.pipeline.tables.buckets import edges

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]

RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
SERVERS = ("north", "east", "s\u00fcd; DROP TABLE")
MAILSERVERS = ("alpha", "beta")


class LakeTables:
    """All tables of a lake, with the columns and types that its views have."""

    def __init__(self, rows: Tables) -> None:
        self._database = duckdb.connect(config={"threads": 1})
        self._database.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            types = ", ".join(f"{views.name(each.name)} {columns.of(each).duckdb}" for each in table.columns)
            self._database.execute(f"CREATE TABLE {views.name(table.name)} ({types})")
        for name, found in rows.items():
            self.insert(TABLES[name], found)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        given = pa.Table.from_pylist([*rows], columns.rows(table.columns))
        self._database.register("given", given)
        self._database.execute(f"INSERT INTO {views.name(table.name)} SELECT * FROM given")
        self._database.unregister("given")

    def fetch(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, dict(parameters)).fetchall()


def lake(
    dice: Random, days: Sequence[date], apps: Sequence[str] = ("lothar.com/wormhole", "other.example")
) -> Tables:
    """Return random rows of the tables that a report reads."""
    return {
        **_usage(dice, days, apps),
        **_envelopes(dice, days),
        "times": [
            {"phase": phase, "bucket": 1, "from_us": dice.choice([None, *EDGES]), "count": dice.randint(1, 9),
             "day": day, "source": "north"}
            for day in days for phase in ("server", "human", "round trip") for _ in range(4)
        ],
        "sources": [_source(name, dice, days) for name in (*SERVERS, *MAILSERVERS)],
        "quarantine": [
            {"table": "mailboxes", "identity": str(at), "reason": dice.choice(["wrong type", "out of range"]),
             "digest": "", "day": dice.choice(days), "source": dice.choice(SERVERS)}
            for at in range(20)
        ],
    }  # fmt: skip


EDGES = edges()[::150]


def _results(dice: Random) -> Row:
    return {name: dice.randint(0, 30) for name in RESULTS}


def _usage(dice: Random, days: Sequence[date], apps: Sequence[str]) -> Tables:
    found: dict[str, list[Row]] = {
        name: []
        for name in ("outcomes", "durations", "versions", "guesses", "busy_hours", "pressure", "mailbox_pressure")
    }
    for day in days:
        for source in SERVERS:
            key = {"day": day, "source": source}
            for app in apps:
                of_app = {**key, "app_id": app}
                for kind in ("nameplate", "claimed", "opened"):
                    results = _results(dice)
                    found["outcomes"].append({**of_app, "kind": kind, "ended": sum(results.values()), **results})
                    found["durations"] += [
                        {**of_app, "kind": kind, "measure": measure, "bucket": 1, "count": dice.randint(1, 9),
                         "from_us": dice.choice([None, 0, *EDGES])}
                        for measure in ("waiting", "total") for _ in range(3)
                    ]  # fmt: skip
                for attribution, name, version in (
                    ("version", "python", dice.choice(["0.23", "0.24"])),
                    ("version", None, None),
                    ("unbound", None, None),
                ):
                    results = _results(dice)
                    found["versions"].append(
                        {**of_app, "attribution": attribution, "implementation": name, "version": version,
                         "connections": dice.randint(0, 50), "mailboxes": sum(results.values()), **results}
                    )  # fmt: skip
                crowded, scary = dice.randint(0, 9), dice.randint(0, 9)
                found["guesses"].append(
                    {**of_app, "crowded_nameplates": crowded, "scary": scary, "suspects": crowded + scary,
                     "lonely": 3,
                     "median": 2, "threshold": 12, "stands_out": dice.choice([crowded + scary > 12, None])}
                )  # fmt: skip
            for hour in [None, *dice.sample(range(24), 12)]:
                counts = {each: dice.randint(0, 40) for each in ("connections", "mailboxes", "nameplates")}
                found["busy_hours"].append({**key, "hour": hour, **counts})
                for name in ("pressure", "mailbox_pressure"):
                    peak = None if hour is None else dice.randint(1, 40)
                    found[name].append(
                        {**key, "hour": hour, "peak": peak, "started": dice.randint(0, 9), "cut": 0,
                         "live_us": None if hour is None else dice.randint(1, 10**9)}
                    )  # fmt: skip
    return found


def _envelopes(dice: Random, days: Sequence[date]) -> Tables:
    found: dict[str, list[Row]] = {name: [] for name in ("traffic", "coverage", "hourly_coverage", "gaps")}
    for day in days:
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        for topic in ("0x00000001", "0x00000002", None):
            if topic:
                found["traffic"].append(
                    {"topic": topic, "envelopes": dice.randint(1, 99), "bytes": dice.randint(1, 99_999), "day": day}
                )
        for source in MAILSERVERS:
            key = {"day": day, "source": source}
            missing = dice.choice([0, 0, dice.randint(1, 20)])
            found["coverage"].append({**key, "envelopes": dice.randint(0, 99), "alone": 0, "missing": missing})
            found["hourly_coverage"].append({**key, "hour": 12, "envelopes": 5, "alone": 0, "missing": missing})
            if missing:
                last = noon + timedelta(seconds=dice.randint(0, 3000))
                found["gaps"].append(
                    {**key, "topic": dice.choice(["0x00000001", None]), "first": noon, "last": last,
                     "missing": missing, "holders": "alpha"}
                )  # fmt: skip
    return found


def _source(name: str, dice: Random, days: Sequence[date]) -> Row:
    last = datetime(days[-1].year, days[-1].month, days[-1].day, 23, 59, 59, 123456, tzinfo=UTC)
    clean, duplicate, quarantined = (dice.randint(0, 99) for _ in range(3))
    return {
        "source": name,
        "kind": "usage",
        "last_row": dice.choice([last, None]),
        "last_ingest": last,
        "lag_us": 0,
        "counted_since": last,
        "read": clean + duplicate + quarantined,
        "clean": clean,
        "duplicate": duplicate,
        "quarantined": quarantined,
        "missed": 0,
        "in_quarantine": quarantined,
        "day": days[-1],
    }
