"""The lake's types, as each of its readers calls them."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from restante.pipeline.schemas import Column, Table


class Type(NamedTuple):
    """What Delta tables (Delta protocol, "Primitive Types") and DuckDB call one of Spark's types."""

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
"""The types that a table may have, in Spark's DDL."""


def of(column: Column) -> Type:
    """Give a column's type."""
    return TYPES[column.type]


def schema(table: Table, *, nulls: bool = False) -> str:
    """Return a table's schema as JSON, which Spark and Delta tables write alike.

    A column's comment is in its metadata, where Spark has it (StructField.getComment). With `nulls` it is the schema
    of rows in Spark: each column may be NULL and none has a comment, since Spark loses those of partitions.
    """
    fields = [
        {
            "name": column.name,
            "type": of(column).delta,
            "nullable": nulls or column.null,
            "metadata": {} if nulls else {"comment": column.comment},
        }
        for column in table.columns
    ]
    return json.dumps({"type": "struct", "fields": fields})
