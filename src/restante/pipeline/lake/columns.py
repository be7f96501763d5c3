"""The lake's types, by the names that each of its readers uses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.pipeline.schemas import Column, Table

if TYPE_CHECKING:
    import pyarrow as pa


class Type(NamedTuple):
    """The names of one of Spark's types in Delta tables (Delta protocol, "Primitive Types") and in DuckDB."""

    delta: str
    duckdb: str


TYPES: Final = {
    "BIGINT": Type("long", "BIGINT"),
    "BINARY": Type("binary", "BLOB"),
    "BOOLEAN": Type("boolean", "BOOLEAN"),
    "DATE": Type("date", "DATE"),
    "DOUBLE": Type("double", "DOUBLE"),
    "INT": Type("integer", "INTEGER"),
    "STRING": Type("string", "VARCHAR"),
    "TIMESTAMP": Type("timestamp", "TIMESTAMP WITH TIME ZONE"),  # a moment, in all three
}
"""The types that a column may have, in Spark's DDL."""


def of(column: Column) -> Type:
    """Return a column's type."""
    return TYPES[column.type]


def arrow(table: Table) -> pa.Schema:
    """Return the schema of a table's files, in Arrow's types. They do not have the partition columns."""
    import pyarrow as pa

    types = {
        "BIGINT": pa.int64(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "DATE": pa.date32(),
        "DOUBLE": pa.float64(),
        "INT": pa.int32(),
        "STRING": pa.string(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(each.name, types[each.type]) for each in table.columns if each.name not in table.partitions])


def schema(table: Table, *, nulls: bool = False) -> str:
    """Return a table's schema as JSON, in the form that Spark and Delta tables share.

    A column's comment is in its metadata, where Spark reads it (StructField.getComment). With `nulls` the schema is
    that of rows in Spark: there is no month, every column may be NULL and none has a comment, because Spark loses
    the comments of partition columns.
    """
    fields = [
        {
            "name": column.name,
            "type": of(column).delta,
            "nullable": nulls or column.null,
            "metadata": {} if nulls else {"comment": column.comment},
        }
        for column in (table.columns if nulls else table.stored)
    ]
    return json.dumps({"type": "struct", "fields": fields})
