"""Rows as Spark takes them from a source: a table's columns, and what is wrong with the row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from restante.pipeline.schemas import Column, Table

ROWS_PER_BATCH: Final = 8192
"""Rows that are handed to Spark at once; more are no faster."""

FAULT_COLUMNS: Final = (
    Column("fault", "STRING", "NULL: it is clean; else why it cannot be taken", null=True),
    Column("identity", "STRING", "of a row with a fault: its id at the source", null=True),
    Column("digest", "STRING", "of a row with a fault: SHA-256 of it, hexadecimal", null=True),
)

_ARROW_TYPES: Final = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}
"""Dates go in as days, timestamps as microseconds since 1970."""


def columns(table: Table) -> tuple[Column, ...]:
    """Give the columns of a row from a source; where it has a fault, the table's may be NULL."""
    return (*table.columns, *FAULT_COLUMNS)


def ddl(table: Table) -> str:
    """Give the schema of rows from a source, as Spark reads it."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns(table))


def arrow_schema(table: Table) -> pa.Schema:
    """Return that schema as Arrow has it."""
    return pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in columns(table)])


def batches(table: Table, rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Put rows, each a value per column, into Arrow's batches."""
    of = arrow_schema(table)
    rest = iter(rows)
    while some := list(islice(rest, ROWS_PER_BATCH)):
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*some, strict=True), of, strict=True)]
        yield pa.record_batch(arrays, schema=of)
