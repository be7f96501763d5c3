"""The schema of a table in the form of each of its readers. All of them follow from one Arrow schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from restante.pipeline.schemas import Column, Table

if TYPE_CHECKING:
    from deltalake import Schema
    from pyspark.sql.types import StructType


class ColumnType(NamedTuple):
    """One of Spark's types in Arrow, and its name in DuckDB."""

    arrow: pa.DataType
    duckdb: str


COLUMN_TYPES: Final = {
    "BIGINT": ColumnType(pa.int64(), "BIGINT"),
    "BINARY": ColumnType(pa.binary(), "BLOB"),
    "BOOLEAN": ColumnType(pa.bool_(), "BOOLEAN"),
    "DATE": ColumnType(pa.date32(), "DATE"),
    "DOUBLE": ColumnType(pa.float64(), "DOUBLE"),
    "INT": ColumnType(pa.int32(), "INTEGER"),
    "STRING": ColumnType(pa.string(), "VARCHAR"),
    "TIMESTAMP": ColumnType(pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE"),  # a moment, in both
}
"""The types that a column may have, in Spark's DDL. Arrow's dates are days, and its timestamps microseconds, both
since 1970."""


def column_type(column: Column) -> ColumnType:
    """Return a column's type."""
    return COLUMN_TYPES[column.type]


def delta_arrow_schema(table: Table) -> pa.Schema:
    """Return the schema of a Delta table: its columns, whether each may be NULL, and its meaning as metadata.

    Spark (StructField.getComment) and DuckDB call the meaning the column's comment.
    """
    fields = [
        pa.field(column.name, column_type(column).arrow, nullable=column.null, metadata={"comment": column.comment})
        for column in table.stored
    ]
    return pa.schema(fields)


def row_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema of rows outside of a Delta table: each column may be NULL, and none has a comment."""
    return pa.schema([pa.field(column.name, column_type(column).arrow) for column in columns])


def file_schema(table: Table) -> pa.Schema:
    """Return the schema of a table's files, which do not have the partition columns."""
    return row_schema(column for column in table.columns if column.name not in table.partitions)


def delta_schema(table: Table) -> Schema:
    """Return the schema of a Delta table, as `deltalake` has it."""
    from deltalake import Schema

    return Schema.from_arrow(delta_arrow_schema(table))


def spark_schema(table: Table) -> StructType:
    """Return the schema of a table's rows in Spark, which loses the comments of partition columns.

    Spark reads the JSON of Delta's schemas (Delta protocol, "Schema Serialization Format").
    """
    from deltalake import Schema
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(Schema.from_arrow(row_schema(table.columns)).to_json()))
