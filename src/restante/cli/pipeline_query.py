"""`restante pipeline query`: SQL over the lake, in DuckDB."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import shutil
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from restante.cli.pipeline_options import DEFAULT_LAKE, LakeDir
from restante.common.errors import Misuse, StoreError, plain
from restante.common.plural import counted
from restante.common.texts import visible

if TYPE_CHECKING:
    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.query import Database

app = typer.Typer()


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
    lake: LakeDir = DEFAULT_LAKE,
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
    from restante.common.signals import ending_at_once

    if sys.stdout is None:
        raise StoreError("cannot write the result: standard output is closed")
    with contextlib.ExitStack() as stack:
        place: list[Path] = []
        stack.enter_context(ending_at_once(lambda: _stopped(place)))  # before a library starts threads

        from restante.pipeline.lake.lake import Lake
        from restante.pipeline.query import database, named
        from restante.pipeline.sources.scratch import scratch

        text = "" if describe else _sql(sql)
        place.append(stack.enter_context(scratch()))
        opened = stack.enter_context(Lake.open(lake, write=False))
        if describe:
            text = described(opened, sql or "")
        tables = () if describe else named(text)
        _print(stack.enter_context(database(opened, text, place[0], tables)), form, describe=describe)


def _print(database: Database, form: Format, *, describe: bool) -> None:
    from restante.cli import query_output

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    result = database.run(as_json=form is Format.JSON)
    if form is Format.CSV:
        lines = query_output.csv(result)
        _write((visible(line.removesuffix("\r\n")) + "\n" for line in lines) if terminal else lines)
    elif form is Format.JSON:
        _write(query_output.as_json(result))
    else:
        lines = (query_output.described if describe else query_output.table)(result, width)
        _write(f"{line}\n" for line in lines)


def _write(lines: Iterable[str]) -> None:
    """Write lines to standard output, in UTF-8 whatever the locale is. Raises StoreError."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # nobody reads the rest; typer ends the process without a word
    except OSError as error:
        raise StoreError(f"cannot write the result: {plain(error)}") from error


def _stopped(places: Iterable[Path]) -> None:
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    os.write(2, b"restante: stopped\n")


def _sql(given: str | None) -> str:
    """Return the SQL of the argument or of standard input. Raises Misuse."""
    from restante.pipeline.query import MAX_SQL_BYTES

    if given not in {None, "-"}:
        raw = os.fsencode(str(given))
    elif sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise Misuse(
            'write a query: restante pipeline query "SELECT day, sum(happy) FROM outcomes GROUP BY day"; --describe'
            " lists the tables"
        )
    else:
        raw = sys.stdin.buffer.read(MAX_SQL_BYTES + 1)
    if len(raw) > MAX_SQL_BYTES:
        raise Misuse(f"the SQL is longer than {counted(MAX_SQL_BYTES, 'byte')}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Misuse(f"the SQL is not UTF-8: byte {error.start + 1} is wrong") from error


def described(lake: Lake, name: str) -> str:
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
        there = f"is it {' or '.join(similar)}?" if similar else f"there are {', '.join(TABLES)}"
        raise Misuse(f"there is no table {name!r}: {there}")
    return rows_as_sql(
        ("column", "type", "null", "meaning"),
        [(c.name, columns.of(c).duckdb, "yes" if c.null else "no", c.comment) for c in TABLES[name].columns],
    )
