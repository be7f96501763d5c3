"""Runs one SQL query over the tables of the lake, in a DuckDB in memory that cannot write and reads only the lake.

The values of a result are texts that DuckDB makes. Python's types do not have all of DuckDB's values: years above
9999, months of an interval, nanoseconds.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import duckdb
import msgspec

from restante.common.errors import Misuse, StoreError
from restante.pipeline import views
from restante.pipeline.lake import data_files
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import LakePath, UrlPath, error_text
from restante.pipeline.schemas import Table
from restante.pipeline.tables import TABLES

MAX_SQL_BYTES: Final = 1 << 20
"""Length of a query. People and programs write some KiB; DuckDB's parser takes seconds for many MiB."""

MEMORY_LIMIT: Final = "20%"
"""Share of the memory of the process that a query may use. Servers and a run of the pipeline may be on the same
machine."""

FREE_SHARE: Final = 0.5
"""Share of the free space on the disk of temporary files that a query may use. A query that sorts more than fits into
its memory writes to this disk, and servers on the same disk need space, too."""


ROWS_PER_FETCH: Final = 2000
"""Rows that are in Python's memory at a time. With fewer, the calls take most of the time."""

_NON_TEXT_TYPES: Final = ("BOOLEAN", "DATE", "TIME", "INTERVAL", "BLOB", "BIT", "UUID")
"""The types, beside numbers, whose values are no texts of strangers. A type's name begins with one of these:
TIMESTAMP with TIME."""

_TEXT_OR_NO_NUMBER: Final = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")|-?(?:NaN|Infinity)')
"""What DuckDB's JSON may have: texts, and numbers that JSON does not have."""


class ResultColumn(NamedTuple):
    """A column of a result."""

    name: str
    type: str
    """DuckDB's name of it."""
    is_number: bool

    @property
    def is_text(self) -> bool:
        """Return whether its values may be texts of strangers, and no numbers or times."""
        return not self.is_number and (not self.type.startswith(_NON_TEXT_TYPES) or self.type.endswith("]"))


ResultRow = tuple[str | None, ...]


class QueryResult(NamedTuple):
    """The rows of a query, which are computed while they are read."""

    columns: Sequence[ResultColumn]
    rows: Iterator[ResultRow]
    is_plan: bool = False
    """Whether it is the result of EXPLAIN, whose last column is a drawing."""


class Database:
    """A DuckDB with a view of each table."""

    def __init__(self, lake: Lake, sql: str, scratch: Path, tables: Iterable[Table]) -> None:
        """Make the views, and then forbid everything but reading the lake.

        `sql` is the query to run, and `tables` are those that it may read: the files of no others are looked up.
        `scratch` is a folder for temporary files. Raises StoreError if a table is damaged, Misuse if the lake cannot
        be used.
        """
        self._lake: Final = lake
        self._sql: Final = sql
        self._tables: Final = [lake.table(table) for table in tables]
        self._database: Final = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        execute = self._database.execute
        execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            execute(views.unreadable_view(table))
        for lake_table in self._tables:
            with self._errors():  # it reads the columns of the first file
                if isinstance(lake.path, UrlPath):
                    files = f"{lake_table.table.name}_files"
                    self._database.register(files, lake_table.dataset())
                    execute(views.registered_view(lake_table.table, files))
                else:
                    execute(views.view_statement(lake_table))
        self._set_limits(scratch)
        execute("SET python_enable_replacements = false")  # a variable of ours is no table
        execute("SET autoload_known_extensions = false")
        execute("SET errors_as_json = true")
        if not isinstance(lake.path, UrlPath):
            execute(f"SET allowed_directories = [{views.sql_text(str(lake.path))}]")
        execute("SET enable_external_access = false")
        execute("SET lock_configuration = true")

    def _set_limits(self, scratch: Path) -> None:
        self._database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        self._database.execute(f"SET temp_directory = {views.sql_text(str(scratch / 'duckdb'))}")
        disk = int(shutil.disk_usage(scratch).free * FREE_SHARE)
        self._database.execute(f"SET max_temp_directory_size = '{disk}B'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the views and temporary files."""
        self._database.close()

    def run(self, *, as_json: bool = False) -> QueryResult:
        """Run the query. `as_json`: each value is JSON.

        Raises Misuse if the query is wrong or is no query; StoreError if a file is missing or damaged, or the query
        needs too much memory. Reading the rows raises the same.
        """
        explain, query = self._parse()
        # Within a subquery DuckDB allows only what reads: not COPY and INSERT in a WITH clause, which it counts as
        # SELECT. The query is a statement of its own, so no bracket in it closes the subquery.
        select, end = "SELECT * FROM (\n", "\n) AS restante_result"
        if explain:
            columns = self._execute(f"{explain} {select}{query}{end}")
            return QueryResult(columns, self._rows(), is_plan=True)
        columns = self._execute(f"{select}{query}{end} LIMIT 0")
        aliases = [f"c{number}" for number in range(len(columns))]
        form = _json_sql if as_json else _text_sql
        values = ", ".join(form(alias, column.type) for alias, column in zip(aliases, columns, strict=True))
        self._execute(f"SELECT {values} FROM (\n{query}{end}({', '.join(aliases)})")  # noqa: S608 - they are our names
        rows = self._rows()
        return QueryResult(columns, (tuple(map(_finite, row)) for row in rows) if as_json else rows)

    def fetch(self, sql: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Run a query of ours with named parameters. Return all rows, with Python's values.

        Raises StoreError if a file is missing or damaged, or the query needs too much memory.
        """
        with self._errors():
            return self._database.execute(sql, dict(parameters)).fetchall()

    def _execute(self, sql: str) -> list[ResultColumn]:
        """Begin a statement. Return its columns."""
        with self._errors():
            result = self._database.execute(sql)
            return [
                ResultColumn(name, str(type_).strip('"'), type_ == duckdb.NUMBER)  # type: ignore[attr-defined]
                for name, type_, *_ in result.description or ()
            ]

    def _parse(self) -> tuple[str, str]:
        """Return EXPLAIN, EXPLAIN ANALYZE or "", and the query after it.

        Raises Misuse if it is no query, or more than one.
        """
        with self._errors():
            statements = self._database.extract_statements(self._sql)
        if len(statements) != 1:
            raise Misuse("write one query, not several" if statements else "the SQL is empty: write a query")
        encoded = self._sql.encode()
        tokens = [position for position, kind in duckdb.tokenize(self._sql) if kind != duckdb.token_type.comment]
        end = len(encoded)
        while encoded[tokens[-1] :].startswith(b";"):
            end = tokens.pop()
        if statements[0].type != duckdb.StatementType.EXPLAIN:
            _refuse_changes(statements)
            return "", encoded[:end].decode()
        analyze = encoded[tokens[1] :].lower().startswith(b"analyze")
        query = encoded[tokens[2 if analyze else 1] : end].decode()
        with self._errors():
            _refuse_changes(self._database.extract_statements(query))
        return "EXPLAIN ANALYZE" if analyze else "EXPLAIN", query

    def _rows(self) -> Iterator[ResultRow]:
        while True:
            with self._errors():
                rows: list[ResultRow] = self._database.fetchmany(ROWS_PER_FETCH)
            if not rows:
                return
            yield from rows

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise DuckDB's errors as ours."""
        try:
            yield
        except duckdb.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: duckdb.Error) -> Misuse | StoreError:
        message = _error_message(error)
        if isinstance(error, duckdb.OutOfMemoryException):
            return StoreError(
                f"the query needs more than {MEMORY_LIMIT} of the memory, or than half of the room for temporary"
                f" files ({message}): choose fewer days or columns, or name another folder for them (TMPDIR)"
            )
        if "the stream registered as" in message:  # a dataset, in place of the files
            return StoreError(
                f"cannot read the lake {self._lake.path} ({error_text(OSError(message))}): if `vacuum` removed a file"
                " while the query ran, run it again; else check the network and the credentials, or restore the file"
            )
        tables = () if isinstance(self._lake.path, UrlPath) else self._tables
        for table in tables:
            for file in table.files():
                if not file.path.exists():
                    return self._missing_file(table, file.path)
                if str(file.path) in message:
                    return data_files.unreadable_file(file.path, message.replace(str(file.path), "the file"))
        if isinstance(error, duckdb.InternalException | duckdb.FatalException):
            return StoreError(f"DuckDB failed: {message}")
        return Misuse(f"the SQL cannot be run: {message}")

    def _missing_file(self, table: LakeTable, path: LakePath) -> StoreError:
        """Return the error for a file that existed when the query began."""
        if path in {file.path for file in self._lake.table(table.table).files()}:
            return data_files.unreadable_file(path, "it is missing")
        return StoreError(
            f"the table {table.table.name} was changed while the query ran, and `vacuum` removed {path}: run it again"
        )


def tables_in_sql(sql: str) -> list[Table]:
    """Return the tables whose names are words of the SQL. To open all tables of a large lake takes seconds."""
    sql_words = set(re.findall(r"\w+", sql.lower()))
    return [table for name, table in TABLES.items() if name in sql_words]


def _refuse_changes(statements: Sequence[duckdb.Statement]) -> None:
    """Raise Misuse unless all statements are queries. DuckDB also counts DESCRIBE, SHOW and SUMMARIZE as SELECT."""
    kinds = {statement.type for statement in statements}
    if kinds == {duckdb.StatementType.MULTI}:
        raise Misuse("PIVOT needs the values that become columns: PIVOT … ON column IN (value, …)")
    if kinds != {duckdb.StatementType.SELECT}:
        raise Misuse(
            "the lake can only be read: write a query that begins with SELECT, WITH, FROM, VALUES, DESCRIBE,"
            " SUMMARIZE, SHOW or EXPLAIN"
        )


def rows_as_sql(names: Sequence[str], rows: Iterable[Sequence[str | int]]) -> str:
    """Return a query whose result is these rows."""
    values = [f"({', '.join(views.sql_text(v) if isinstance(v, str) else str(v) for v in row)})" for row in rows]
    described = f"described({', '.join(map(views.sql_name, names))})"
    return f"SELECT * FROM (VALUES {', '.join(values)}) AS {described}"  # noqa: S608 - they are quoted


def _text_sql(column: str, kind: str) -> str:
    """Return the SQL of a value's text."""
    if kind == "BLOB":
        return f"lower(hex({column}))"
    text = f"CAST({column} AS VARCHAR)"
    if kind.startswith("TIMESTAMP") and not kind.endswith("]"):
        # ISO 8601. Before year 1 there is "(BC)" after the date.
        joined = f"regexp_replace({text}, '^([0-9-]+) ([0-9])', '\\1T\\2')"
        return f"regexp_replace({joined}, '[+]00$', 'Z')"
    return text


def _json_sql(column: str, kind: str) -> str:
    """Return the SQL of a value as JSON. NULL stays NULL."""
    if kind == "NULL":
        return "NULL"
    text = _text_sql(column, kind)
    if kind in {"FLOAT", "DOUBLE"}:
        return f"CASE WHEN isfinite({column}) THEN {text} END"
    if kind.startswith("DECIMAL") and not kind.endswith("]"):
        return text  # to_json makes a DOUBLE of it
    return f"CAST(to_json({column if text.startswith('CAST') else text}) AS VARCHAR)"


def _finite(value: str | None) -> str | None:
    """Return JSON in which NaN and infinity, as DuckDB writes them in lists and structs, are null."""
    if value is None or ("NaN" not in value and "Infinity" not in value):
        return value
    return _TEXT_OR_NO_NUMBER.sub(lambda match: match["text"] or "null", value)


class _DuckDBError(msgspec.Struct):
    """An error as DuckDB writes it (errors_as_json)."""

    exception_message: str


def _error_message(error: duckdb.Error) -> str:
    """Return DuckDB's message as one line."""
    kind, _, text = str(error).partition(": ")
    try:
        data = msgspec.json.decode(text, type=_DuckDBError)
    except msgspec.DecodeError:
        return next((line.strip() for line in text.splitlines() if line.strip()), kind)
    return " ".join(line.strip() for line in data.exception_message.splitlines() if line.strip())
