"""Views of a lake's tables, and the data dictionary: what each column means, in comments and in the document.

To write the tables of the document anew: PYTHONPATH=src:tests .venv/bin/python -m pipeline.test_views
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path

import duckdb
import pytest

import restante.pipeline
from restante.common.errors import StoreError
from restante.pipeline import views
from restante.pipeline.lake import columns
from restante.pipeline.lake.lake import Lake
from restante.pipeline.schemas import NAMEPLATES, Column, Table
from restante.pipeline.tables import TABLES
from restante.timing.model.phases import ALL_PHASES
from support.documents import ROOT
from support.pipeline.lakes import LATER_LETTERS, add, letter, local, opened, put
from support.pipeline.tables import dicts, rows
from support.processes import run

STARTED = {"id": 1, "started": "2026-11-01T23:59:59.999999", "source": "main"}
[PLATE] = dicts("nameplates", rows("nameplates", [STARTED | {"app_id": 'it\'s "an" app; DROP TABLE x --'}]))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    path = tmp_path / 'l\'ake "x"'
    put(path, [PLATE], NAMEPLATES)
    return path


def test_every_table_has_a_view_with_its_types_and_meanings_even_if_it_is_empty(lake: Path) -> None:
    with Lake.open(lake, write=False) as opened_lake, duckdb.connect() as database:
        script = "".join(views.all_views(opened_lake))
        for _ in range(2):
            database.execute(script)
        database.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            described = database.sql(f'DESCRIBE "{table.name}"').fetchall()
            expected = [(column.name, columns.column_type(column).duckdb) for column in table.columns]
            assert [(name, kind) for name, kind, *_ in described] == expected
            count = database.sql(f'SELECT count(*) FROM "{table.name}"').fetchall()
            assert count == [(1 if table is NAMEPLATES else 0,)]
        names = [column.name for column in NAMEPLATES.columns]
        [row] = database.sql("FROM nameplates").fetchall()
        assert dict(zip(names, row, strict=True)) == PLATE
        comments = database.sql("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal").fetchall()
        assert dict(comments) == {name: f"one row per {table.grain}" for name, table in TABLES.items()}
        columns_ = "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal"
        assert set(database.sql(columns_).fetchall()) == {
            (name, column.name, column.comment) for name, table in TABLES.items() for column in table.columns
        }


def test_a_file_that_may_lack_a_column_and_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with opened(tmp_path, LATER_LETTERS) as table:
        add(table, [letter(1) | {"answered": 0.5}])
        [file] = table.files()
        file.path.write_bytes(b"")
        with pytest.raises(
            StoreError, match=re.escape(f"{file.path} cannot be read (it is not a Parquet file): rest")
        ):
            views.view_statement(table)
        file.path.unlink()
        local(file.path).mkdir()
        with pytest.raises(StoreError, match=re.escape(f"{file.path} cannot be read (Is a directory): restore it")):
            views.view_statement(table)


def test_any_name_and_comment_is_quoted(tmp_path: Path) -> None:
    meaning = """it's "quoted"; DROP VIEW x; --\n''"""
    day = Column("day", "DATE", "")
    columns_ = (Column('a"b', "BIGINT", meaning), Column("select", "STRING", "", null=True), day)
    table = Table('or"der', 'thing that\'s "here"', columns_, ("day",))
    row = {'a"b': 7, "select": None, "day": dt.date(2026, 11, 1)}
    for rows_ in ([], [row]):
        with opened(tmp_path, table) as lake_table:
            if rows_:
                add(lake_table, rows_)
            statement = views.view_statement(lake_table)
        with duckdb.connect() as database:
            database.execute(statement + views.comment_statements(table))
            assert database.sql('FROM "or""der"').fetchall() == [tuple(row.values()) for row in rows_]
            [(of_table,)] = database.sql("SELECT comment FROM duckdb_views() WHERE NOT internal").fetchall()
            assert of_table == 'one row per thing that\'s "here"'
            of_columns = database.sql("SELECT comment FROM duckdb_columns() WHERE NOT internal ORDER BY column_index")
            assert of_columns.fetchall() == [(meaning,), ("",), ("",)]


def test_files_are_those_of_the_newest_version(lake: Path) -> None:
    [old] = restante.pipeline.files(lake, "nameplates")
    assert duckdb.read_parquet(str(old)).count("id").fetchall() == [(1,)]
    put(lake, [PLATE], NAMEPLATES, replace={"day": {"2026-11-01"}})
    [new] = restante.pipeline.files(str(lake), "nameplates")
    assert new != old
    assert old.exists()
    assert restante.pipeline.files(lake, "mailboxes") == []
    new.unlink()
    with pytest.raises(StoreError, match="is missing"):
        restante.pipeline.files(lake, "nameplates")


CODE = """
import sys, restante.pipeline
print(sorted({'deltalake', 'pyspark', 'pyarrow'} & set(sys.modules)))
files = restante.pipeline.files(sys.argv[1], 'nameplates')
import pyspark
print(len(files), pyspark.SparkContext._gateway)
"""


def test_importing_the_pipeline_loads_no_spark_and_reading_a_lake_starts_no_java(lake: Path) -> None:
    assert run(sys.executable, "-c", CODE, lake).stdout == "[]\n1 None\n"


DICTIONARY = ROOT / "docs" / "pipeline" / "tables.md"
SECTION = re.compile(r"^### (\w+)\n\n(One row per .*\n\n(?:\|.*\n)+)?", re.MULTILINE)


def dictionary() -> str:
    """Return the document as it should be: below the heading of each table its grain, partitions and columns."""
    return SECTION.sub(lambda heading: section(TABLES[heading[1]]), DICTIONARY.read_text())


def section(table: Table) -> str:
    partitions = "month" if table.by_month else ", ".join(f"`{name}`" for name in table.partitions)
    head = f"### {table.name}\n\nOne row per {table.grain}. Partitioned by {partitions}.\n\n"
    lines = ["| column | type | NULL | unit | meaning |", "|---|---|---|---|---|"]
    for column in table.columns:
        assert "|" not in column.comment
        null = "yes" if column.null else ""
        lines.append(f"| `{column.name}` | {column.type} | {null} | {column.unit} | {column.meaning} |")
    return head + "\n".join(lines) + "\n"


@pytest.mark.thorough
def test_the_document_is_what_the_schemas_say() -> None:
    page = DICTIONARY.read_text()
    assert page == dictionary(), f"it is out of date: {__doc__}"
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == [*TABLES]
    assert all(f"`{phase}`" in page for phase in ALL_PHASES)


if __name__ == "__main__":
    DICTIONARY.write_text(dictionary())
