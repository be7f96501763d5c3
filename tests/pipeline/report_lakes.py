"""The built tables of a lake in a DuckDB in memory, to run a report's queries on, and random rows for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import product
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
            types = ", ".join(f"{views.name(column.name)} {columns.of(column).duckdb}" for column in table.columns)
            self._database.execute(f"CREATE TABLE {views.name(table.name)} ({types})")
        for name, of_table in rows.items():
            self.insert(TABLES[name], of_table)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._database.register("new", pa.Table.from_pylist([*rows], columns.rows(table.columns)))
        self._database.execute(f"INSERT INTO {views.name(table.name)} SELECT * FROM new")
        self._database.unregister("new")

    def fetch(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, dict(parameters)).fetchall()


def lake(dice: Random, days: Sequence[date]) -> Tables:
    tables: dict[str, list[Row]] = defaultdict(list)
    for day, source in product(days, SERVERS):
        _add_server(tables, dice, {"day": day, "source": source})
    for day in days:
        _add_envelopes(tables, dice, day)
    for day, phase, _ in product(days, ("server", "human", "round trip"), range(4)):
        bucket = {"from_us": dice.choice([None, *EDGES]), "count": dice.randint(1, 9)}
        tables["times"].append({"phase": phase, "bucket": 1, **bucket, "day": day, "source": "north"})
    last = datetime.combine(days[-1], time(23, 59, 59, 123456), UTC)
    for name in (*SERVERS, *MAILSERVERS):
        clean, duplicate, quarantined = (dice.randint(0, 99) for _ in range(3))
        counts = {"clean": clean, "duplicate": duplicate, "quarantined": quarantined, "in_quarantine": quarantined}
        read = {"read": clean + duplicate + quarantined, "missed": 0, "last_row": dice.choice([last, None])}
        times = {"last_ingest": last, "counted_since": last, "lag_us": 0, "day": days[-1]}
        tables["sources"].append({"source": name, "kind": "usage", **counts, **read, **times})
    for at in range(20):
        row = {"table": "mailboxes", "identity": str(at), "reason": dice.choice(["wrong type", "out of range"])}
        tables["quarantine"].append({**row, "digest": "", "day": dice.choice(days), "source": dice.choice(SERVERS)})
    return tables


EDGES = edges()[::150]


def _add_server(tables: dict[str, list[Row]], dice: Random, key: Row) -> None:
    for app in ("lothar.com/wormhole", "other.example"):
        of_app = {**key, "app_id": app}
        for kind in ("nameplate", "claimed", "opened"):
            results = {name: dice.randint(0, 30) for name in RESULTS}
            row = {**of_app, "kind": kind, "ended": sum(results.values()), **results}
            tables["outcomes"].append(row)
            tables["failures"].append(
                {**row, "failed": row["ended"] - row["happy"], "hour": None if kind == "opened" else 5}
            )
            for measure, _ in product(("waiting", "total"), range(3)):
                bucket = {"count": dice.randint(1, 9), "from_us": dice.choice([None, 0, *EDGES])}
                tables["durations"].append({**of_app, "kind": kind, "measure": measure, "bucket": 1, **bucket})
        python = ("version", "python", dice.choice(["0.23", "0.24"]))
        for client in (python, ("version", None, None), ("unbound", None, None)):
            results = {name: dice.randint(0, 30) for name in RESULTS}
            names = dict(zip(("attribution", "implementation", "version"), client, strict=True))
            counts = {"connections": dice.randint(0, 50), "mailboxes": sum(results.values())}
            tables["versions"].append({**of_app, **names, **counts, **results})
        crowded, scary = dice.randint(0, 9), dice.randint(0, 9)
        suspects = {"crowded_nameplates": crowded, "scary": scary, "suspects": crowded + scary, "lonely": 3}
        judged = {"median": 2, "threshold": 12, "stands_out": dice.choice([crowded + scary > 12, None])}
        tables["guesses"].append({**of_app, **suspects, **judged})
    for hour in [None, *dice.sample(range(24), 12)]:
        counts = {name: dice.randint(0, 40) for name in ("connections", "mailboxes", "nameplates")}
        tables["busy_hours"].append({**key, "hour": hour, **counts})
        for name in ("pressure", "mailbox_pressure"):
            peak = None if hour is None else dice.randint(1, 40)
            row = {**key, "hour": hour, "peak": peak, "started": dice.randint(0, 9), "cut": 0}
            tables[name].append({**row, "live_us": None if hour is None else dice.randint(1, 10**9)})


def _add_envelopes(tables: dict[str, list[Row]], dice: Random, day: date) -> None:
    noon = datetime.combine(day, time(12), UTC)
    for topic in ("0x00000001", "0x00000002"):
        counts = {"envelopes": dice.randint(1, 99), "bytes": dice.randint(1, 99_999)}
        tables["traffic"].append({"topic": topic, **counts, "day": day})
    for source in MAILSERVERS:
        missing = dice.choice([0, 0, dice.randint(1, 20)])
        row = {"day": day, "source": source, "missing": missing}
        tables["coverage"].append({**row, "envelopes": dice.randint(0, 99), "alone": 0})
        tables["hourly_coverage"].append({**row, "hour": 12, "envelopes": 5, "alone": 0})
        if missing:
            last = noon + timedelta(seconds=dice.randint(0, 3000))
            of = {"topic": dice.choice(["0x00000001", None]), "first": noon, "last": last, "holders": "alpha"}
            tables["gaps"].append({**row, **of})
