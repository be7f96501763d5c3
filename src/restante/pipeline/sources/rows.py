"""Rows of a source in the form that Spark reads: a table's columns, and the row's fault."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from restante.pipeline.clean.rules import Faulty, SourceRow, row_digest
from restante.pipeline.lake import columns as lake_columns
from restante.pipeline.schemas import ARCHIVED, Column, Table

ROWS_PER_BATCH: Final = 8192
"""Rows that are handed to Spark at once. More rows are not faster."""

FAULT_COLUMNS: Final = (
    Column("fault", "STRING", "NULL: it is clean; else why it cannot be taken", null=True),
    Column("identity", "STRING", "of a row with a fault: its id at the source", null=True),
    Column("digest", "STRING", "of a row with a fault: SHA-256 of it, hexadecimal", null=True),
)


def columns(table: Table) -> tuple[Column, ...]:
    """Return the columns of a row from a source. If it has a fault, the table's own columns may be NULL."""
    return (*table.columns, *FAULT_COLUMNS)


def ddl(table: Table) -> str:
    """Return the schema of rows from a source in Spark's DDL."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns(table))


def id_column(table: Table) -> str:
    """Return the name of the column with the id of a row in its database."""
    return "arrival" if table is ARCHIVED else "id"


def arrow_schema(table: Table) -> pa.Schema:
    """Return the schema of rows from a source for Arrow."""
    return lake_columns.row_schema(columns(table))


def fault_row(
    table: Table, ids: tuple[Any, ...], source: str, fault: Faulty, identity: str, original: SourceRow | bytes
) -> tuple[Any, ...]:
    """Return a row with a fault: NULL in the table's columns between its ids and its source."""
    digest = hashlib.sha256(original).hexdigest() if isinstance(original, bytes) else row_digest(original)
    return (*ids, *(None,) * (len(table.columns) - len(ids) - 1), source, str(fault), identity, digest)


def row_batches(
    table: Table, read: Callable[..., Iterable[tuple[Any, ...]]], *arguments: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a function returns, each with a value per column, as Arrow batches."""
    schema = arrow_schema(table)
    remaining = iter(read(*arguments))
    while batch := list(islice(remaining, ROWS_PER_BATCH)):
        arrays = [
            pa.array(values, field.type) for values, field in zip(zip(*batch, strict=True), schema, strict=True)
        ]
        yield pa.record_batch(arrays, schema=schema)
