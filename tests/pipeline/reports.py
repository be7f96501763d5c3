"""Random rows of a lake, its built tables in a DuckDB in memory, and reports of them, also with hostile names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import cycle, product
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from msgspec.structs import replace

from restante.pipeline import views
from restante.pipeline.lake import columns
from restante.pipeline.report.changes.measure import quoted_name
from restante.pipeline.report.making import make_report
from restante.pipeline.report.model import Cell, Fact, PunchCard, Report, ReportChange, ReportChanges, ValueKind
from restante.pipeline.report.periods import parse_period
from restante.pipeline.schemas import Table
from restante.pipeline.tables import TABLES
from restante.pipeline.tables.buckets import bucket_edges

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]

RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
SERVERS = ("north", "east", "s\u00fcd; DROP TABLE")
MAILSERVERS = ("alpha", "beta")
RELAYS = ("relay", "second relay")
TRANSFER_RESULTS = ("happy", "lonely", "redundant", "errory", "impatient", "empty")


class LakeTables:
    """All tables of a lake, with the columns and types that its views have."""

    def __init__(self, rows: Tables) -> None:
        self._database = duckdb.connect(config={"threads": 1})
        self._database.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            types = ", ".join(f"{views.sql_name(c.name)} {columns.column_type(c).duckdb}" for c in table.columns)
            self._database.execute(f"CREATE TABLE {views.sql_name(table.name)} ({types})")
        for name, of_table in rows.items():
            self.insert(TABLES[name], of_table)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._database.register("new", pa.Table.from_pylist([*rows], columns.row_schema(table.columns)))
        self._database.execute(f"INSERT INTO {views.sql_name(table.name)} SELECT * FROM new")
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
    for day, source in product(days, RELAYS):
        _add_relay(tables, dice, {"day": day, "source": source})
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


EDGES = bucket_edges()[::150]


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


def _add_relay(tables: dict[str, list[Row]], dice: Random, key: Row) -> None:
    for hour, result in product([None, *dice.sample(range(24), 5)], TRANSFER_RESULTS):
        size = dice.randint(1, 10**12) if result == "happy" else 0
        times = {"waiting_us": dice.randint(0, 10**9), "relaying_us": size // 1_000}
        tables["relay_hours"].append({**key, "hour": hour, "result": result, "ended": 2, "bytes": size, **times})
    for (measure, result), _ in product(
        (("waiting", "happy"), ("waiting", "empty"), ("relaying", "happy")), range(3)
    ):
        bucket = {"count": dice.randint(1, 9), "from_us": dice.choice([0, *EDGES])}
        tables["relay_durations"].append({**key, "result": result, "measure": measure, "bucket": 1, **bucket})


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


HOSTILE = (
    "</style></script></title><script>alert(1)</script>",
    "<!--<svg onload=alert(1)>&lt;\"' x=`",
    '=HYPERLINK("http://evil.example")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\x1b[31mred\x1b]8;;http://evil.example\x07\x9b1m",
    "abc\u202egnp.exe\u2066\u2069\u200f\u061c",
    "\u05d0\u05d1\u05d2 \u0627\u0644\u0639",
    "line\r\nbreak\ttab\u2028\u2029\x0b\x0c",
    "\ufeff\u200b\u00ad\ue000\U000e0041",
    "e" + "\u0301" * 120,
    "W" * 128,
    "\u5b57" * 128,
    'a,b;"c"',
    "$policy ${style} $$ %s {0}",
    "",
    " ",
    "others",
)

MADE = datetime(2026, 12, 1, 6, 30, tzinfo=UTC)


@cache
def of_lake(period: str) -> Report:
    """Return a report of a lake whose records begin on 3 November 2026."""
    rows = lake(Random(1), [date(2026, 11, 3) + timedelta(number) for number in range(28)])
    return make_report(LakeTables(rows).fetch, parse_period(period), MADE.date(), MADE)


def whole() -> Report:
    report = of_lake("2026-11")
    change = ReportChange(
        "results", ("Failures grew.",), 0.1, 0.27, ValueKind.SHARE, "failures", days=report.period.days[:3]
    )
    return replace(report, changes=ReportChanges(("A rule.",), (change,)))


def hostile() -> Report:
    """Return a report whose names are those of somebody hostile: in tables, charts, facts and changes."""
    names = cycle(HOSTILE)
    sections = []
    for section in of_lake("2026-W47").sections:
        figures = []
        for figure in section.figures:
            texts = dict.fromkeys(cell for row in figure.table.rows for cell in row if isinstance(cell, str))
            renamed: dict[Cell, Cell] = dict(zip(texts, names, strict=False))
            rows = tuple(tuple(renamed.get(cell, cell) for cell in row) for row in figure.table.rows)
            known = isinstance(figure.chart, PunchCard)  # it has the names of weekdays
            figures.append(figure if known else replace(figure, table=replace(figure.table, rows=rows)))
        sections.append(replace(section, figures=tuple(figures)))
    facts = tuple(Fact(f"Name {at}", name, ValueKind.TEXT) for at, name in enumerate(HOSTILE))
    first, *others = sections
    changes = tuple(
        ReportChange(
            first.id, (quoted_name(name), " is new."), 0, 1, ValueKind.COUNT, "versions", days=(date(2026, 11, 20),)
        )
        for name in HOSTILE
    )
    return Report(
        *(parse_period("2026-W47"), MADE, (replace(first, facts=facts), *others)),
        changes=ReportChanges(("A rule.",), changes),
    )
