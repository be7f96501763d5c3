"""`restante pipeline query`: SQL over the lake, in DuckDB."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from restante.common.errors import Misuse, StoreError
from restante.common.texts import counted, visible
from restante.pipeline.cli.options import DEFAULT_LAKE, LakeAddress

if TYPE_CHECKING:
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.query import Database

app = typer.Typer()


EXAMPLE: Final = "SELECT day, sum(happy) FROM outcomes GROUP BY day ORDER BY day"
"""A query for those who want to write one."""


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@app.command()
def query(
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="[SQL]", help="Query in DuckDB's SQL; - or none: read it from standard input.", show_default=False
        ),
    ] = None,
    lake: LakeAddress = DEFAULT_LAKE,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="How to print rows: the first 100, aligned for people; or all of them, as CSV or JSON."
        ),
    ] = Format.TABLE,
    describe: Annotated[
        bool,
        typer.Option(
            "--describe", help="Print the tables and what they mean, or the columns of the table that follows."
        ),
    ] = False,
) -> None:
    """Run an SQL query over the tables of the lake. Spark is not started, and nothing is written to the lake.

    For example: restante pipeline query "SELECT day, sum(happy) FROM outcomes GROUP BY day ORDER BY day"
    """
    if sys.stdout is None:
        raise StoreError("cannot write the result: standard output is closed")
    from restante.pipeline.cli.output import lake_to_read

    with lake_to_read(lake) as (opened, temporary):
        from restante.pipeline.query import Database, tables_in_sql

        text = description_sql(opened, sql or "") if describe else _read_sql(sql)
        with Database(opened, text, temporary, () if describe else tables_in_sql(text)) as database:
            _print_result(database, form, describe=describe)


def _print_result(database: Database, form: Format, *, describe: bool) -> None:
    from restante.pipeline.cli import output

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    result = database.run(as_json=form is Format.JSON)
    if form is Format.CSV:
        lines = output.csv_lines(result)
        lines = (visible(line.removesuffix("\r\n")) + "\n" for line in lines) if terminal else lines
    elif form is Format.JSON:
        lines = output.json_lines(result)
    else:
        lines = (f"{line}\n" for line in output.table_lines(result, width, whole=describe))
    output.write_output_lines(lines, "result")


def _read_sql(argument: str | None) -> str:
    """Return the SQL of the argument or of standard input. Raises Misuse."""
    from restante.common.terminal import command_line
    from restante.pipeline.query import MAX_SQL_BYTES

    if argument not in {None, "-"}:
        raw = os.fsencode(str(argument))
    elif sys.stdin is None or (argument is None and sys.stdin.isatty()):
        raise Misuse(f"write a query: {command_line('pipeline', 'query', EXAMPLE)}; --describe lists the tables")
    else:
        raw = sys.stdin.buffer.read(MAX_SQL_BYTES + 1)
    if len(raw) > MAX_SQL_BYTES:
        raise Misuse(f"the SQL is longer than {counted(MAX_SQL_BYTES, 'byte')}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Misuse(f"the SQL is not UTF-8: byte {error.start + 1} is wrong") from error


def description_sql(lake: Lake, name: str) -> str:
    """Return a query whose rows describe all tables, or the columns of one. Raises Misuse, StoreError."""
    from restante.pipeline.lake import columns
    from restante.pipeline.query import rows_as_sql
    from restante.pipeline.tables import TABLES

    if not name:
        return rows_as_sql(
            ("table", "rows", "meaning"),
            [
                (table.name, sum(file.rows for file in lake.table(table).files()), f"one row per {table.grain}")
                for table in TABLES.values()
            ],
        )
    if name not in TABLES:
        similar = difflib.get_close_matches(name.lower(), TABLES)
        hint = f"is it {' or '.join(similar)}?" if similar else f"there are {', '.join(TABLES)}"
        raise Misuse(f"there is no table {name!r}: {hint}")
    return rows_as_sql(
        ("column", "type", "null", "meaning"),
        [(c.name, columns.column_type(c).duckdb, "yes" if c.null else "no", c.comment) for c in TABLES[name].columns],
    )
