"""Writes SQL that makes a DuckDB view of every table of the lake, with comments that explain the columns.

A view lists the files of one version. It keeps returning the rows of that version after newer commits, until
`restante pipeline vacuum` removes its files. To read the newest version, make the views again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from restante.pipeline.lake import columns, data_files
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import path_below
from restante.pipeline.schemas import Column, Table
from restante.pipeline.tables import TABLES


def all_views(lake: Lake) -> Iterator[str]:
    """Yield the statements of each table. Raises StoreError if the lake is damaged."""
    for table in TABLES.values():
        yield f"{view_statement(lake.table(table))}{comment_statements(table)}"


def comment_statements(table: Table) -> str:
    """Return the statements that comment a view and its columns (duckdb_views(), duckdb_columns())."""
    view = sql_name(table.name)
    statements = [f"COMMENT ON VIEW {view} IS {sql_text(f'one row per {table.grain}')};\n"]
    statements += [f"COMMENT ON COLUMN {view}.{sql_name(c.name)} IS {sql_text(c.comment)};\n" for c in table.columns]
    return "".join(statements)


def view_statement(table: LakeTable) -> str:
    """Return the statement that makes a table's view. The view of a table without files has no rows."""
    files = data_files.existing_files(table.files())
    create = f"CREATE OR REPLACE VIEW {sql_name(table.table.name)} AS"
    if not files:
        names = {column.name for column in table.table.columns}
        return f"{create}\nSELECT {_selected_columns(table.table.columns, names)}\nWHERE false;\n"
    types = [
        f"{sql_text(column.name)}: {columns.column_type(column).duckdb}"
        for column in table.table.columns
        if column.name in table.table.partitions
    ]
    # Of the partitions only columns of the table are read from the paths: not the month.
    partitions = (
        f"hive_partitioning = true, hive_types = {{{', '.join(types)}}}" if types else "hive_partitioning = false"
    )
    selects = []
    for missing, group in _file_groups(table, files):
        paths = ",\n".join(f"    {sql_text(str(file.path))}" for file in group)
        select = f"SELECT {_selected_columns(table.table.columns, missing)}\n"
        selects.append(f"{select}FROM read_parquet([\n{paths}\n], {partitions})")
    return "\n".join([create, "\nUNION ALL\n".join(selects)]) + ";\n"


def registered_view(table: Table, files: str) -> str:
    """Return the statement that makes a table's view of what is registered as `files`."""
    return (
        f"CREATE OR REPLACE TEMP VIEW {sql_name(table.name)} AS\n"
        f"SELECT {_selected_columns(table.columns, ())}\nFROM {sql_name(files)};\n"
    )


def unreadable_view(table: Table) -> str:
    """Return the statement that makes a view whose columns are those of a table and which cannot be read."""
    names = {column.name for column in table.columns}
    reason = f"write the name of the table {table.name} in the SQL, which tells which tables to open"
    return (
        f"CREATE OR REPLACE VIEW {sql_name(table.name)} AS\nSELECT {_selected_columns(table.columns, names)}\n"
        f"WHERE CAST(error({sql_text(reason)}) AS BOOLEAN);\n"
    )


def _file_groups(table: LakeTable, files: Iterable[DataFile]) -> Iterator[tuple[frozenset[str], list[DataFile]]]:
    """Yield files that one scan can read, with the columns that they lack, which were added later (Column.added).

    DuckDB can find out itself (`union_by_name`), but it then opens all files for each query. It takes partitions from
    folders, so those of runs are read apart from others.
    """
    added = {column.name for column in table.table.columns if column.added}
    groups: dict[tuple[frozenset[str], bool], list[DataFile]] = {}
    for file in files:
        missing = added - data_files.column_names(file) if added else added
        of_run = data_files.is_of_run(path_below(file.path, table.folder))
        groups.setdefault((frozenset(missing), of_run), []).append(file)
    return ((missing, group) for (missing, _), group in groups.items())


def _selected_columns(selected: Iterable[Column], missing: Collection[str]) -> str:
    """Return the columns of a SELECT; those that are missing are NULL."""
    null = "CAST(NULL AS {}) AS {}"
    return ", ".join(
        null.format(columns.column_type(c).duckdb, sql_name(c.name)) if c.name in missing else sql_name(c.name)
        for c in selected
    )


def sql_name(identifier: str) -> str:
    """Return an identifier of SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def sql_text(literal: str) -> str:
    """Return a text literal of SQL."""
    return "'" + literal.replace("'", "''") + "'"
