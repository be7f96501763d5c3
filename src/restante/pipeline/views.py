"""Writes SQL that makes a DuckDB view of every table of the lake, with comments that explain the columns.

A view lists the files of one version. It keeps returning the rows of that version after newer commits, until
`restante pipeline vacuum` removes its files. To read the newest version, make the views again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from restante.common.errors import Misuse
from restante.pipeline.lake import columns, data_files
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Column, Table
from restante.pipeline.tables import TABLES


def views(lake: Lake, tables: Iterable[Table] = tuple(TABLES.values())) -> Iterator[str]:
    """Yield the statements of each table. Raises StoreError if the lake is damaged."""
    for table in tables:
        found = lake.table(table)
        yield f"{view(found)}{comments(found.table)}"


def comments(table: Table) -> str:
    """Return the statements that comment a view and its columns (duckdb_views(), duckdb_columns())."""
    view = name(table.name)
    said = [f"COMMENT ON VIEW {view} IS {text(f'one row per {table.grain}')};\n"]
    said += [f"COMMENT ON COLUMN {view}.{name(c.name)} IS {text(c.comment)};\n" for c in table.columns]
    return "".join(said)


def view(table: LakeTable) -> str:
    """Return the statement that makes a table's view. The view of a table without files has no rows."""
    files = data_files.existing_files(table.files())
    create = f"CREATE OR REPLACE VIEW {name(table.table.name)} AS"
    if not files:
        every = {each.name for each in table.table.columns}
        return f"{create}\nSELECT {_selected(table.table.columns, every)}\nWHERE false;\n"
    types = [
        f"{text(each.name)}: {columns.column_type(each).duckdb}"
        for each in table.table.columns
        if each.name in table.table.partitions
    ]
    # Of the partitions only columns of the table are read from the paths: not the month.
    partitions = (
        f"hive_partitioning = true, hive_types = {{{', '.join(types)}}}" if types else "hive_partitioning = false"
    )
    selects = [
        f"SELECT {_selected(table.table.columns, lacking)}\nFROM read_parquet([\n{_listed(group)}\n], {partitions})"
        for lacking, group in _grouped(table.table, files).items()
    ]
    return "\n".join([create, "\nUNION ALL\n".join(selects)]) + ";\n"


def unread(table: Table) -> str:
    """Return the statement that makes a view whose columns are those of a table and which cannot be read."""
    every = {each.name for each in table.columns}
    why = f"write the name of the table {table.name} in the SQL, which tells which tables to open"
    return (
        f"CREATE OR REPLACE VIEW {name(table.name)} AS\nSELECT {_selected(table.columns, every)}\n"
        f"WHERE CAST(error({text(why)}) AS BOOLEAN);\n"
    )


def _grouped(table: Table, files: Iterable[DataFile]) -> dict[frozenset[str], list[DataFile]]:
    """Return the files by the columns that they lack, because the columns were added later (Column.added).

    DuckDB can find out itself (`union_by_name`), but it then opens all files for each query.
    """
    added = {column.name for column in table.columns if column.added}
    found: dict[frozenset[str], list[DataFile]] = {}
    for file in files:
        lacking = added - data_files.column_names(file) if added else added
        found.setdefault(frozenset(lacking), []).append(file)
    return found


def _selected(of: Iterable[Column], lacking: Collection[str]) -> str:
    """Return the columns of a SELECT; those that are lacking are NULL."""
    null = "CAST(NULL AS {}) AS {}"
    return ", ".join(
        null.format(columns.column_type(each).duckdb, name(each.name)) if each.name in lacking else name(each.name)
        for each in of
    )


def _listed(files: Iterable[DataFile]) -> str:
    return ",\n".join(f"    {text(str(file.path))}" for file in files)


def name(of: str) -> str:
    """Return an identifier of SQL."""
    return '"' + of.replace('"', '""') + '"'


def text(of: str) -> str:
    """Return a text literal of SQL."""
    return "'" + of.replace("'", "''") + "'"


def files(lake: Path, table: str) -> list[Path]:
    """Return the current files of a table.

    Raises Misuse if there is no lake or no such table, StoreError if the lake is damaged.
    """
    if table not in TABLES:
        raise Misuse(f"there is no table {table!r}: there are {', '.join(sorted(TABLES))}")
    with Lake.open(lake, write=False) as opened:
        return [file.path for file in data_files.existing_files(opened.table(TABLES[table]).files())]
