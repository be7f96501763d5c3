"""Rows of the lake's tables, written as JSON, and tables compared as multisets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from restante.pipeline.schemas import CLEAN_TABLES, Table
from restante.pipeline.tables import BUILDS, BUILT_TABLES
from restante.pipeline.tables.build import FOLDERS, Build
from restante.pipeline.tables.sources import LEDGERS

CASES = Path(__file__).parents[2] / "pipeline" / "cases"
BASE: Mapping[str, dict[str, Any]] = json.loads((CASES / "base.json").read_text())
FIRST_TIME = ("started", "connect_time", "server_rx", "start", "sent", "as_of")
TABLES: Mapping[str, Table] = {
    **CLEAN_TABLES,
    **BUILT_TABLES,
    FOLDERS.name: FOLDERS,
    LEDGERS.name: LEDGERS,
}

Values = tuple[Any, ...]
"""A row, in the order of its table's columns."""

ARROW = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
"""The lake's types, as Arrow has them and as Spark hands them to a task."""
type_of = {"DATE": date.fromisoformat, "BINARY": bytes.fromhex, "DOUBLE": float}


def rows(name: str, written: Iterable[Mapping[str, Any]]) -> list[Values]:
    """Fill rows up from the base row of their table, and give their values in its order."""
    made = []
    for place, row in enumerate(written):
        base: dict[str, Any] = dict(BASE.get(name, {}))
        full = {**base, **({"id": place} if "id" in base else {}), **row}
        times = full.pop("_times", 1)
        if name in BASE and "day" not in full:
            full["day"] = _day(next(full[column] for column in FIRST_TIME if full.get(column) is not None))
        assert set(full) == {column.name for column in TABLES[name].columns}, name
        made += [tuple(_value(full[column.name], column.type) for column in TABLES[name].columns)] * times
    return made


def dicts(name: str, values: Iterable[Values]) -> list[dict[str, Any]]:
    """Return rows with the names of their columns."""
    names = [column.name for column in TABLES[name].columns]
    return [dict(zip(names, row, strict=True)) for row in values]


def table(name: str, values: Sequence[Values]) -> pa.Table:
    columns = TABLES[name].columns
    schema = pa.schema([pa.field(column.name, ARROW[column.type], column.null) for column in columns])
    arrays = [pa.array([row[place] for row in values], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def frame(spark: SparkSession, name: str, values: Sequence[Values]) -> DataFrame:
    """Make a frame of them; coalesced, since what is local to the planner is not run as a job, but slowly there."""
    return spark.createDataFrame(table(name, values)).coalesce(1)


def built(spark: SparkSession, name: str, inputs: Mapping[str, Sequence[Values]]) -> Counter[Values]:
    """Build a table from these rows; give its rows, each with how often it is there."""
    build = BUILDS[name]
    full = with_folders(build, inputs)
    return collected(build.rows({each: frame(spark, each, full.get(each, ())) for each in needed(build)}))


def needed(build: Build) -> tuple[str, ...]:
    """Return the names of all that `make` gets."""
    return build.inputs if build.folders is None else (*build.inputs, FOLDERS.name)


def with_folders(build: Build, inputs: Mapping[str, Sequence[Values]]) -> Mapping[str, Sequence[Values]]:
    """Add the folders that the table must have, where it says so, from all rows of its inputs."""
    if build.folders is None:
        return inputs
    partitions = [
        {column: str(row[column]) for column in TABLES[each].partitions}
        for each in build.inputs
        for row in dicts(each, inputs.get(each, ()))
    ]
    return {**inputs, FOLDERS.name: sorted(build.folders(partitions))}


def collected(made: DataFrame) -> Counter[Values]:
    return Counter(tuple(_plain(value) for value in row) for row in made.collect())


# ── several cases as one table's rows ────────────────────────────────────────────────────────────

BY_DAY = {
    *("archived", "envelopes", "traffic", "coverage", "hourly_coverage", "gaps", "lateness"),
    FOLDERS.name,
}
"""Of these, rows of one day belong together whatever their source is; of all others, rows of one source."""

NAMES = {"source", "server", "peer_source", "receiver_source"}
"""Columns that name a source."""

KEYS = {"file", "peer_file", "sender_file", "receiver_file", "command_id"}
"""Columns of logs that are compared whatever the source is."""

FIRST = date(2026, 2, 23)
SPAN = 40
"""All rows of a case are of these days, from FIRST on."""

MAX_CASES = 999
"""Cases that a table can have."""


def apart(case: int, name: str, values: Iterable[Values]) -> list[Values]:
    """Move a case's rows of a table to days, or sources, that no other case has; their order stays."""
    assert 0 < abs(case) <= MAX_CASES
    move = [_mover(case, name, column.name, column.type) for column in TABLES[name].columns]
    return [
        tuple(value if value is None or to is None else to(value) for to, value in zip(move, row, strict=True))
        for row in values
    ]


def parted(name: str, made: Counter[Values]) -> dict[int, Counter[Values]]:
    """Return each case the rows of a built table that it has there, moved back."""
    found: dict[int, Counter[Values]] = {}
    names = [column.name for column in TABLES[name].columns]
    for row, times in made.items():
        fields = dict(zip(names, row, strict=True))
        case = (fields["day"] - FIRST).days // SPAN if name in BY_DAY else int(fields["source"][:3])
        [back] = apart(-case, name, [row])
        found.setdefault(case, Counter())[back] += times
    return found


def _mover(case: int, table: str, column: str, kind: str) -> Any:
    if table in BY_DAY:
        by = timedelta(days=case * SPAN)
        if column == "day" and case > 0:
            return lambda value: _within(value) + by
        return (lambda value: value + by) if kind in {"DATE", "TIMESTAMP"} else None
    if column not in NAMES | KEYS:
        return None
    return (lambda value: f"{case:03} {value}") if case >= 0 else (lambda value: value[4:])


def _within(day: date) -> date:
    assert 0 <= (day - FIRST).days < SPAN, f"a case has a row of {day}, which is another case's day"
    return day


ADD_UP: Mapping[str, Mapping[str, Sequence[str]]] = {
    "outcomes": {"ended": ("nameplates", "mailboxes")},
    "failures": {"ended": ("nameplates", "mailboxes")},
    "durations": {"count": ("nameplates", "mailboxes") * 2},
    "pressure": {"started": ("nameplates", "live nameplate")},
    "mailbox_pressure": {"started": ("mailboxes", "live mailbox")},
    "busy_hours": {"connections": ("client_versions",), "mailboxes": ("mailboxes",), "nameplates": ("nameplates",)},
    "addresses": {"connections": ("client_versions",) * 2},
    "versions": {"connections": ("client_versions",), "mailboxes": ("mailboxes",)},
    "times": {"count": ("timing",)},
    "traffic": {"envelopes": ("envelopes",)},
}
"""Columns that add up to the rows that were read, or to the counts of a kind of what is live."""


def assert_adds_up(name: str, made: Counter[Values], inputs: Mapping[str, Sequence[Values]]) -> None:
    columns = [column.name for column in TABLES[name].columns]
    for column, counted in ADD_UP.get(name, {}).items():
        wanted = sum(_counted(each, inputs) for each in counted)
        assert sum(row[columns.index(column)] * n for row, n in made.items()) == wanted


def _counted(what: str, inputs: Mapping[str, Sequence[Values]]) -> int:
    name, _, kind = what.partition(" ")
    if not kind:
        return len(inputs[name])
    return sum(row["count"] for row in dicts(name, inputs[name]) if row["kind"] == kind)


def _day(time: str | float) -> str:
    return time[:10] if isinstance(time, str) else datetime.fromtimestamp(time, UTC).date().isoformat()


def _value(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "TIMESTAMP":
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return type_of[kind](value) if kind in type_of else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return value
