"""Rows of the lake's tables, written as JSON, and tables compared as multisets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.tables import BUILT_TABLES
from restante.pipeline.tables.build import FOLDERS, Build
from restante.pipeline.tables.sources import LEDGERS

CASES: Final = Path(__file__).parents[2] / "pipeline" / "cases"
BASE: Final[Mapping[str, dict[str, Any]]] = json.loads((CASES / "base.json").read_text())
FIRST_TIME: Final = ("started", "connect_time", "start", "server_rx", "sent", "as_of")
TABLES: Final = {**CLEAN_TABLES, **BUILT_TABLES, **{table.name: table for table in (FOLDERS, LEDGERS)}}

Values = tuple[Any, ...]
"""A row, in the order of its table's columns."""

Inputs = Mapping[str, Sequence[Values]]
"""Rows by table."""

ARROW: Final = {
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
FROM_JSON: Final[Mapping[str, Any]] = {
    "DATE": date.fromisoformat,
    "BINARY": bytes.fromhex,
    "DOUBLE": float,
    "TIMESTAMP": lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
}


def column_names(table: str) -> list[str]:
    return [column.name for column in TABLES[table].columns]


def rows(name: str, records: Iterable[Mapping[str, Any]]) -> list[Values]:
    """Fill rows up from the base row of their table, and give their values in its order."""
    values: list[Values] = []
    for number, record in enumerate(records):
        base = BASE.get(name, {})
        full = {**base, **({"id": number} if "id" in base else {}), **record}
        times = full.pop("_times", 1)
        if base and "day" not in full:
            first = next(full[column] for column in FIRST_TIME if full.get(column) is not None)
            full["day"] = first[:10] if isinstance(first, str) else str(datetime.fromtimestamp(first, UTC).date())
        assert set(full) == set(column_names(name)), name
        values += [tuple(_value(full[column.name], column.type) for column in TABLES[name].columns)] * times
    return values


def _value(value: Any, kind: str) -> Any:
    return FROM_JSON[kind](value) if kind in FROM_JSON and value is not None else value


def dicts(name: str, values: Iterable[Values]) -> list[dict[str, Any]]:
    names = column_names(name)
    return [dict(zip(names, row, strict=True)) for row in values]


def frame(spark: SparkSession, name: str, values: Sequence[Values]) -> DataFrame:
    """Make a frame of them; coalesced, since what is local to the planner is not run as a job, but slowly there."""
    columns = TABLES[name].columns
    schema = pa.schema([pa.field(column.name, ARROW[column.type], column.null) for column in columns])
    arrays = [pa.array([row[number] for row in values], field.type) for number, field in enumerate(schema)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema)).coalesce(1)


def input_names(build: Build) -> tuple[str, ...]:
    """Return the names of all that `make` gets."""
    return build.inputs if build.folders is None else (*build.inputs, FOLDERS.name)


def with_folders(build: Build, inputs: Inputs) -> Inputs:
    """Add the folders that the table must have, where it says so, from all rows of its inputs."""
    if build.folders is None:
        return inputs
    partitions = [
        {column: str(row[column]) for column in TABLES[table].partitions}
        for table in build.inputs
        for row in dicts(table, inputs.get(table, ()))
    ]
    return {**inputs, FOLDERS.name: sorted(build.folders(partitions))}


def collected(frame: DataFrame) -> Counter[Values]:
    return Counter(tuple(_plain(value) for value in row) for row in frame.collect())


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


BY_DAY: Final = {"archived", "envelopes", "traffic", "coverage", "hourly_coverage", "gaps", "lateness", FOLDERS.name}
"""Of these, rows of one day belong together whatever their source is; of all others, rows of one source."""

SOURCE_NAMES: Final = {"source", "server", "peer_source", "receiver_source"}
LOG_KEYS: Final = {"file", "peer_file", "sender_file", "receiver_file", "command_id"}
"""Columns of logs that are compared whatever the source is."""

FIRST: Final = date(2026, 2, 23)
SPAN: Final = 40
"""All rows of a case are of these days, from FIRST on."""


def apart(case: int, name: str, values: Iterable[Values]) -> list[Values]:
    """Move a case's rows of a table to days, or sources, that no other case has; below 0: back."""
    assert 0 < abs(case) <= 999
    moves = [_move(case, name, column.name, column.type) for column in TABLES[name].columns]
    return [
        tuple(value if value is None or move is None else move(value) for move, value in zip(moves, row, strict=True))
        for row in values
    ]


def parted(name: str, values: Counter[Values]) -> dict[int, Counter[Values]]:
    """Return each case the rows of a built table that it has there, moved back."""
    cases: dict[int, Counter[Values]] = {}
    for row, times in values.items():
        [fields] = dicts(name, [row])
        case = (fields["day"] - FIRST).days // SPAN if name in BY_DAY else int(fields["source"][:3])
        [back] = apart(-case, name, [row])
        cases.setdefault(case, Counter())[back] += times
    return cases


def _move(case: int, table: str, column: str, kind: str) -> Any:
    if table in BY_DAY:
        if column == "day" and case > 0:
            return lambda day: _checked(day) + timedelta(days=case * SPAN)
        return (lambda value: value + timedelta(days=case * SPAN)) if kind in {"DATE", "TIMESTAMP"} else None
    if column not in SOURCE_NAMES | LOG_KEYS:
        return None
    return (lambda value: f"{case:03} {value}") if case > 0 else (lambda value: value[4:])


def _checked(day: date) -> date:
    assert 0 <= (day - FIRST).days < SPAN, f"a case has a row of {day}, which is another case's day"
    return day
