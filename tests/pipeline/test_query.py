"""`restante pipeline query`: SQL over the lake that can only read, and what strangers' texts may do in its output."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from restante.common.errors import RestanteError, StoreError
from restante.pipeline import query as module
from restante.pipeline.cli import output
from restante.pipeline.lake import columns
from restante.pipeline.lake.lake import Lake
from restante.pipeline.query import Database, QueryResult, ResultColumn, tables_in_sql
from restante.pipeline.tables import TABLES
from support.pipeline.runs import LakeWorld, command
from support.processes import RESTANTE, child, on_a_terminal, run

HOSTILE = '=HYPERLINK("http://e/")', "\x1b[31mred\x9b2J", "a\u202eb", 'x,"y"\nz\tw', ""


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    """Return a lake under a path that SQL has to quote, with a row for each hostile text."""
    (tmp_path / 'it\'s "x" é').mkdir()
    world = LakeWorld(None, tmp_path / 'it\'s "x" é')
    rows = [{"app_id": text, "ended": n, "happy": n, "day": "2026-11-01"} for n, text in enumerate(HOSTILE)]
    world.write("outcomes", *rows)
    plate = {"started": "2026-11-01T23:59:59.5", "waiting_us": None, "total_us": 5, "source": "mailbox"}
    world.write("nameplates", plate)
    return world


def query(lake: LakeWorld, *arguments: str, ends: int = 0) -> str:
    done = command("query", "--lake", lake.path, *arguments, ends=ends)
    if not ends:
        assert done.stderr == ""
        return done.stdout
    assert re.fullmatch(r"restante: [^\n]+\n", done.stderr)
    return done.stderr.removeprefix("restante: ").rstrip("\n")


def test_a_table_is_aligned_and_shows_nulls_and_times_in_utc(lake: LakeWorld) -> None:
    assert query(lake, "SELECT source, started, total_us, waiting_us FROM nameplates").splitlines() == [
        "source    started                  total_us   waiting_us",
        "─" * 56,
        "mailbox   2026-11-01T23:59:59.5Z          5         NULL",
        "(1 row)",
    ]


def test_csv_has_all_rows_and_texts_that_are_no_formulas_and_json_the_exact_texts(lake: LakeWorld) -> None:
    printed = query(lake, "SELECT app_id, -ended AS less, visited FROM outcomes ORDER BY ended", "--format", "csv")
    assert printed.split("\r\n")[1] == '"\'=HYPERLINK(""http://e/"")",0,'
    rows = list(csv.reader(io.StringIO(printed, newline=""), strict=True))
    texts = [f"'{HOSTILE[0]}", *HOSTILE[1:]]
    assert rows == [["app_id", "less", "visited"], *([text, str(-n), ""] for n, text in enumerate(texts))]
    printed = query(lake, "SELECT '' AS empty, NULL AS nothing, '=1' AS \"@x\"", "--format", "csv")
    assert printed == "empty,nothing,'@x\r\n\"\",,'=1\r\n"
    printed = query(lake, "SELECT app_id, day, visited FROM outcomes ORDER BY ended", "--format", "json")
    assert json.loads(printed) == [{"app_id": text, "day": "2026-11-01", "visited": None} for text in HOSTILE]
    assert printed.count("\n") == len(HOSTILE) + 2, "a line for each row"
    assert all(character.isprintable() or character == "\n" for character in printed)
    assert query(lake, "FROM outcomes WHERE false", "--format", "json") == "[]\n"


def test_every_type_of_duckdb_is_printed_in_every_form(lake: LakeWorld) -> None:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    all_types = "FROM test_all_types()"
    [minimum, maximum, null] = json.loads(query(lake, all_types, "--format", "json"), parse_constant=refuse)
    assert minimum["struct"] == {"a": None, "b": None}
    assert set(null.values()) == {None}
    expected = {
        "hugeint": 2**127 - 1,
        "blob": "00000061",
        "interval": "83 years 3 months 999 days 00:16:39.999999",
        "timestamp_ns": "2262-04-11T23:47:16.854775806",
        "timestamp_tz": "294247-01-10T04:00:54.775806Z",
        "double_array": [42, None, None, None, None, -42],
        "map": {"key1": "🦆🦆🦆🦆🦆🦆", "key2": "goose"},
    }
    assert {name: maximum[name] for name in expected} == expected
    rows = list(csv.reader(io.StringIO(query(lake, all_types, "--format", "csv"), newline=""), strict=True))
    assert [len(row) for row in rows] == [len(null)] * 4
    assert dict(zip(rows[0], rows[2], strict=True))["dec_18_6"] == "999999999999.999999"
    assert query(lake, all_types).endswith("(3 rows)\n")


def test_numbers_beside_texts_of_strangers_stay_as_they_are_in_json(lake: LakeWorld) -> None:
    """Only numbers that JSON lacks become null."""
    long = "1234567890123456789012.5"
    struct = f"{{'n': {long}::DECIMAL(38, 1), 'd': [1e0, '-inf'::DOUBLE], 't': '\"NaN, -Infinity'}}"
    printed = query(lake, f"SELECT '[1e400, \"NaN\"]'::JSON AS j, {struct} AS s", "--format", "json")
    assert printed == f'[\n{{"j": [1e400,"NaN"], "s": {{"n":{long},"d":[1.0,null],"t":"\\"NaN, -Infinity"}}}}\n]\n'


def test_a_table_has_a_hundred_rows_and_a_plan_is_printed_as_it_is_drawn(lake: LakeWorld) -> None:
    *rows, note = query(lake, "FROM range(101)").splitlines()
    assert len(rows) == 2 + output.MAX_ROWS
    assert note == "… only the first 100 rows: --format csv or json prints all"
    assert query(lake, "FROM range(100)").splitlines()[-1] == "(100 rows)"
    assert query(lake, "FROM range(101)", "--format", "csv").count("\r\n") == 102
    for sql in ("EXPLAIN FROM outcomes", "explain /* é; */ analyze FROM outcomes;"):
        assert re.search(r"│ Function: +READ_PARQUET", query(lake, sql))


@pytest.mark.parametrize("form", ["table", *(pytest.param(f, marks=pytest.mark.thorough) for f in ("csv", "json"))])
def test_no_text_steers_a_terminal(lake: LakeWorld, form: str) -> None:
    arguments = ("query", "--lake", lake.path, "--format", form, "SELECT app_id FROM outcomes")
    screen = on_a_terminal(*RESTANTE, "pipeline", *arguments)
    assert "31mred" in screen
    assert all(character.isprintable() or character in "\n\t" for character in screen)


def test_long_texts_go_on_below_and_are_cut() -> None:
    columns = [ResultColumn("text", "VARCHAR", is_number=False), ResultColumn("number", "BIGINT", is_number=True)]
    row = ("word " * 5, "9" * 19)
    assert list(output.table_lines(QueryResult(columns, iter([row])), 40)) == [
        "text" + " " * 30 + "number",
        "─" * 40,
        "word word word       9999999999999999999",
        "word word",
        "(1 row)",
    ]
    long = ("日本語" * 200, "1")
    for width, whole, characters in ((80, False, output.MAX_CHARACTERS), (80, True, 600), (None, False, 600)):
        printed = "".join(output.table_lines(QueryResult(columns, iter([long])), width, whole=whole))
        assert sum(printed.count(character) for character in "日本語") == characters
    many = [ResultColumn(f"n{number}", "BIGINT", is_number=True) for number in range(9)]
    printed = "".join(output.table_lines(QueryResult(many, iter([("123456789",) * 9])), 80))
    assert printed.count("123456789") == 9, "no number is cut"


def test_the_columns_of_a_table_are_described(lake: LakeWorld) -> None:
    described = json.loads(query(lake, "--describe", "outcomes", "--format", "json"))
    assert [list(row.values()) for row in described] == [
        [column.name, columns.column_type(column).duckdb, "yes" if column.null else "no", column.comment]
        for column in TABLES["outcomes"].columns
    ]
    for name, sentence in (("outcom", "is it outcomes?"), ("x\x1b", "there are na")):
        error = query(lake, "--describe", name, ends=2)
        assert error.startswith(f"there is no table {name!r}: {sentence}")


@pytest.mark.parametrize(
    "sql",
    [
        "COPY outcomes TO '{lake}/x.csv'",
        "WITH x AS (COPY outcomes TO '{lake}/x.csv') FROM x",
        "EXPLAIN ANALYZE WITH x AS (COPY outcomes TO '{lake}/x.csv') FROM x",
        "SELECT 1) AS x; COPY outcomes TO '{lake}/x.csv' --",
        "EXPLAIN SELECT 1) AS x; COPY outcomes TO '{lake}/x.csv' --",
        "ATTACH '{lake}/x.db'",
        "SET memory_limit = '1TB'",
        "INSTALL httpfs",
        "CALL enable_logging('QueryLog', storage = 'file', storage_path = '{lake}')",
        "FROM enable_logging('QueryLog', storage = 'file', storage_path = '{lake}')",
        "FROM query('DROP VIEW outcomes')",
        "SELECT 1; SELECT 2",
        "FROM read_text('{lake}/../secret')",
        "FROM read_text('{lake}2/secret')",
        "FROM glob('{lake}/../*')",
        "FROM 'https://127.0.0.1/x.parquet'",
        "FROM lake",  # a variable of the program
    ],
)
def test_a_query_writes_nothing_and_reads_nothing_else(lake: LakeWorld, sql: str) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in lake.path.parent.rglob("*") if path.is_file()}

    Path(f"{lake.path}2").mkdir(exist_ok=True)
    for secret in (lake.path.parent / "secret", Path(f"{lake.path}2", "secret")):
        secret.write_text("secret")
    before = contents()
    query(lake, sql.replace("{lake}", str(lake.path).replace("'", "''")), ends=2)
    assert contents() == before


def test_tables_that_the_sql_does_not_name_are_not_opened(lake: LakeWorld) -> None:
    (lake.path / "outcomes" / "_delta_log" / f"{0:020}.json").write_bytes(b"\0")
    assert query(lake, "SELECT count(*) FROM nameplates", "--format", "csv").endswith("\r\n1\r\n")
    assert query(lake, "FROM OutComes", ends=1).startswith("the lake is damaged")
    hidden = "FROM query_table('out' || 'comes')"
    assert not tables_in_sql(hidden)
    assert query(lake, hidden, ends=2).startswith("the SQL cannot be run: write the name of the table outcomes in")


def test_a_query_may_fill_neither_the_memory_nor_the_disk(lake: LakeWorld, tmp_path: Path) -> None:
    sql = "SELECT md5(range::VARCHAR) AS x FROM range(3000000) ORDER BY x"
    with (
        patch.object(module, "MEMORY_LIMIT", "50MB"),
        patch.object(module, "FREE_SHARE", 1e-9),
        Lake.open(lake.path, write=False) as opened,
        Database(opened, sql, tmp_path, ()) as db,
        pytest.raises(StoreError, match=r"^the query needs more than 50MB of the memory, or than half of the room"),
    ):
        list(db.run().rows)


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("; ;", "the SQL is empty: write a query"),
        ("SELECT * FORM outcomes", 'syntax error at or near "outcomes"'),
        ("EXPLAIN SELECT\n nope FROM outcomes", 'Referenced column "nope" not found'),
        ("FROM outcom", 'Table with name outcom does not exist! Did you mean "outcomes"?'),
        ("SELECT app_id::INT FROM outcomes", "Could not convert string"),
        ("SELECT error('\x1b[31m')", "\\x1b[31m"),
        ("SELECT $1", "Values were not provided"),
        ("PIVOT outcomes ON app_id USING sum(ended)", "PIVOT needs the values that become columns"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "Max expression depth limit"),
        ("SELECT 1 /* x", "unterminated /* comment"),
    ],
)
def test_an_error_in_the_sql_is_one_sentence(lake: LakeWorld, sql: str, sentence: str) -> None:
    assert sentence in query(lake, sql, ends=2)


@pytest.mark.parametrize("change", ["vacuum", None, b"", b"PAR1" + bytes(100) + b"PAR1"], ids=str)
def test_a_file_lost_in_a_query_is_one_sentence(lake: LakeWorld, tmp_path: Path, change: str | bytes | None) -> None:
    sql = "SELECT count(app_id) FROM outcomes"
    with (
        Lake.open(lake.path, write=False) as opened,
        Database(opened, sql, tmp_path, tables_in_sql(sql)) as db,
    ):
        [file] = opened.table(TABLES["outcomes"]).files()
        sentence = f"the lake is damaged: {lake.path}/outcomes/"
        if change == "vacuum":
            with lake.run() as run_:
                run_.lake.table(TABLES["outcomes"]).commit(info=lake.info(), replace={})
            command("vacuum", "--lake", lake.path, "--grace", "0")
            assert not file.path.exists()
            sentence = "the table outcomes was changed while the query ran, and `vacuum` removed "
        elif isinstance(change, bytes):
            file.path.write_bytes(change)
        else:
            file.path.unlink()
        with pytest.raises(RestanteError) as caught:
            list(db.run().rows)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("options", "stdin", "code", "output"),
    [
        (("-",), "SELECT 1 AS x", 0, "x\r\n1\r\n"),
        ((), "\ufeffSELECT 1 AS x;\n-- é", 0, "x\r\n1\r\n"),
        ((), "", 2, "restante: the SQL is empty: write a query\n"),
        ((), "SELECT " + " " * module.MAX_SQL_BYTES, 2, "restante: the SQL is longer than 1,048,576 bytes\n"),
        ((), "SELECT '\udcff'", 2, "restante: the SQL is not UTF-8: byte 9 is wrong\n"),
    ],
)
def test_sql_comes_from_stdin(lake: LakeWorld, options: tuple[str, ...], stdin: str, code: int, output: str) -> None:
    raw = io.BytesIO(stdin.encode(errors="surrogateescape"))
    with patch("sys.stdin", io.TextIOWrapper(raw)):
        done = command("query", "--lake", lake.path, "--format", "csv", *options, ends=code)
    assert done.stdout + done.stderr == output


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("--format csv 'FROM range(1000000000000)' | head -n 2", (0, "range\n0\n", "")),
        ("--format json 'FROM range(1000000000000)' | head -n 2", (0, '[\n{"range": 0},\n', "")),
        ("'SELECT 1' > /dev/full", (1, "", "restante: cannot write the result: No space left on device\n")),
    ],
    ids=["a reader of CSV that leaves", "one of JSON", "a full disk"],
)
def test_output_that_cannot_be_written_ends_the_query(lake: LakeWorld, line: str, ends: tuple[int, str, str]) -> None:
    command_line = f"{sys.executable} -m restante pipeline query {line}"
    done = run("sh", "-c", command_line, variables={"RESTANTE_LAKE": str(lake.path)})
    assert (done.returncode, done.stdout, done.stderr) == ends


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
async def test_a_stopped_query_ends_without_files(lake: LakeWorld, tmp_path: Path, number: signal.Signals) -> None:
    """After the first rows DuckDB looks for more of them, and does not return."""
    (tmp_path / "tmp").mkdir()
    sql = "SELECT range AS number FROM range(1000000000000) WHERE range < 3000 OR hash(range) = 0"
    arguments = ("pipeline", "query", "--lake", str(lake.path), "--format", "csv", sql)
    async with child(*RESTANTE, *arguments, TMPDIR=str(tmp_path / "tmp")) as running:
        await running.says("1999")
        running.send(number)
        assert await running.ended() == 128 + number
        assert running.said["stderr"] == "restante: stopped\n"
    assert not list((tmp_path / "tmp").iterdir())
