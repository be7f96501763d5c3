"""Usage records of both servers: what is read, what is new, what is missed, and what is read again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from restante.common.errors import Misuse
from restante.common.usage_records import ClientVersion
from restante.mailbox.reference_import.importing import import_databases
from restante.pipeline.ingest import read_tasks
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.sources import schema, usage
from restante.pipeline.sources.marks import IdRange, contradiction, mark_after
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import SourceError, SourceSpec, Task, files_by_origin, parse_spec
from support.effort import examples
from support.mailbox.reference_sources import Their, usage_v1
from support.pipeline import servers
from support.pipeline.servers import CONTEXT, NOW, T0, TABLES, client, context_of, mailbox, nameplate, ours
from support.pipeline.source_reads import Marks, read, rows_of
from support.sqlite import alter, select


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def transfers(their: Their, count: int, start: float = T0) -> None:
    """As the reference server sees them: one binds, claims, releases, closes; to every other there comes a second."""
    for number in range(count):
        when = start + 10 * number
        their.bind("canary-side", when)
        box = their.claim("canary-side", str(number), when)
        if number % 2:
            their.claim("canary-other", str(number), when + 2.5)
            their.release("canary-other", str(number), when + 3)
            their.close("canary-other", box, "happy", when + 4)
        their.release("canary-side", str(number), when + 3.5)
        their.close("canary-side", box, "happy", when + 5)


def test_the_records_of_our_server_are_read_as_it_wrote_them(tmp_path: Path, scratch: Path) -> None:
    lonely, visited = nameplate(2, waiting_time=None, result="lonely"), mailbox(3, visitors=2)
    with ours(tmp_path / "data", nameplate(1), lonely, visited, client(4)):
        tables = read(f"north={tmp_path / 'data'}", scratch)
    assert list(tables) == list(TABLES)
    first, second = tables["nameplates"].rows
    assert {**first, "started": first["started"].timestamp()} == {
        "id": 1,
        "origin": "",
        "app_id": "x",
        "started": T0 + 1,
        "waiting_us": 1_500_000,
        "total_us": 4_250_000,
        "result": "happy",
        "blur_us": None,
        "day": date(2023, 11, 14),
        "source": "north",
        "fault": None,
        "identity": None,
        "digest": None,
    }
    assert (second["id"], second["waiting_us"], second["result"]) == (2, None, "lonely")
    [box] = tables["mailboxes"].rows
    columns = ("for_nameplate", "waiting_us", "total_us", "result", "visitors")
    assert [box[name] for name in columns] == [True, None, 9_000_000, "lonely", 2]
    [bind] = tables["client_versions"].rows
    assert (bind["connect_time"].timestamp(), bind["implementation"], bind["version"]) == (T0 + 4, "python", "0.24.0")


def test_the_records_of_the_reference_server_are_read_as_it_wrote_them(tmp_path: Path, scratch: Path) -> None:
    their = Their(tmp_path / "their")
    transfers(their, 2)
    tables = read(f"old={their.usage}", scratch)
    lonely, happy = tables["nameplates"].clean
    assert (lonely["id"], lonely["origin"], lonely["waiting_us"], lonely["result"]) == (1, "", None, "lonely")
    assert (happy["waiting_us"], happy["total_us"], happy["result"]) == (2_500_000, 3_500_000, "happy")
    boxes = [(row["for_nameplate"], row["started"].timestamp()) for row in tables["mailboxes"].clean]
    assert boxes == [(True, T0), (True, T0 + 10)]
    assert [row["implementation"] for row in tables["client_versions"].clean] == ["python"] * 2


def test_older_schemas_are_read_and_not_again_by_a_newer_server(tmp_path: Path, scratch: Path) -> None:
    file, marks = servers.older_schema(tmp_path / "data"), Marks()
    assert read(f"ours={file}", scratch, marks)["nameplates"].ids == [1]
    with ours(tmp_path / "data", nameplate(0.5, blur_time=60.0)):
        newer = read(f"ours={file}", scratch, marks)["nameplates"]
    assert (newer.ids, newer.span.replace, newer.rows[0]["blur_us"]) == ([2], False, 60_000_000)
    usage_v1(tmp_path / "usage.sqlite")
    tables = read(f"theirs={tmp_path / 'usage.sqlite'}", scratch)
    assert (list(tables), tables["nameplates"].ids) == (["nameplates", "mailboxes"], [1])
    [box] = tables["mailboxes"].clean
    assert (box["total_us"], box["visitors"]) == (20_500_000, None)


@pytest.mark.parametrize(
    ("setting", "blurs"),
    [(None, [1, None]), (0, [1, None]), (50, [50, None]), (0.25, [0.25, 0.25]), (3600, [1, None])],
)
def test_a_row_has_its_own_blur_or_the_setting_s(
    setting: float | None, blurs: list[float | None], tmp_path: Path, scratch: Path
) -> None:
    """T0 is a multiple of 50 and of a second, and of no minute."""
    rows = [nameplate(0, blur_time=blur) for blur in (0.0, 0.5, 100.0, None)]
    others = (nameplate(0.25, blur_time=None), mailbox(0, blur_time=100.0), client(0, blur_time=100.0))
    with ours(tmp_path / "data", *rows, *others, servers.current(setting)):
        tables = read(f"a={tmp_path / 'data'}", scratch)
    seconds = {name: [row["blur_us"] and row["blur_us"] / 1e6 for row in tables[name].rows] for name in TABLES}
    assert seconds == {"nameplates": [None, 0.5, 100, *blurs], "mailboxes": [100], "client_versions": [100]}


OLDER = "its last id was {} and is {} now: this is an older copy or another file, or its ids are new"


def test_a_restored_older_copy_is_noticed(tmp_path: Path, scratch: Path) -> None:
    marks: Marks = {}
    file = tmp_path / "data" / schema.MAILBOX_FILE
    with ours(tmp_path / "data", *map(nameplate, range(3))):
        pass
    backup = file.read_bytes()
    with ours(tmp_path / "data", *map(nameplate, range(3, 6))):
        assert len(read(f"a={file}", scratch, marks)["nameplates"].ids) == 6
    file.write_bytes(backup)
    at_once = read(f"a={file}", scratch, dict(marks))["nameplates"]
    assert (at_once.span.replace, at_once.ids, at_once.span.missed) == (True, [1, 2, 3], 0)
    assert at_once.span.reason == OLDER.format(6, 3)
    with ours(tmp_path / "data", *map(nameplate, range(50, 58))):  # ids 4 to 11: more than were read
        later = read(f"a={file}", scratch, marks)["nameplates"]
    assert (later.span.replace, later.ids) == (True, list(range(1, 12)))
    assert later.span.reason.startswith("the row with id 6 has changed")


@pytest.mark.parametrize("deleted", [True, False], ids=["was deleted", "looks the same"])
def test_a_restored_copy_is_noticed_although_the_last_row_that_was_read(
    deleted: bool, tmp_path: Path, scratch: Path
) -> None:
    """A server deletes rows by the time at which they began, and may round times."""
    marks: Marks = {}
    file = tmp_path / "data" / schema.MAILBOX_FILE
    with ours(tmp_path / "data", *map(nameplate, range(1, 4))):
        pass
    backup = file.read_bytes()
    with ours(tmp_path / "data", nameplate(4), nameplate(0)):
        assert len(read(f"a={file}", scratch, marks)["nameplates"].ids) == 5
    file.write_bytes(backup)
    with ours(tmp_path / "data", nameplate(14), nameplate(0), nameplate(16)) as server:
        if deleted:
            server.forget(T0 + 1)
        again = read(f"a={file}", scratch, marks)["nameplates"]
    assert (again.span.replace, again.ids) == (True, [1, 2, 3, 4, 6] if deleted else [1, 2, 3, 4, 5, 6])
    assert again.span.reason.startswith("the row with id 4 has changed")


def test_what_is_done_to_a_file_of_the_reference_server_is_noticed(tmp_path: Path, scratch: Path) -> None:
    their = Their(tmp_path / "their")
    transfers(their, 6)
    marks: Marks = {}
    source = recognise(f"a={their.usage}")
    read(source, scratch, marks)
    alter(their.usage, "DELETE FROM nameplates WHERE rowid <= 2")
    assert read(source, scratch, marks) == {}, "old rows stay in the lake"
    transfers(their, 1, T0 + 5000)
    new = read(source, scratch, marks)["nameplates"]
    assert (new.ids, new.span.replace, new.span.missed) == ([7], False, 0)
    their.stop()
    # SQLite gives new rowids where a table has no index (insert.c, xferOptimization).
    alter(their.usage, "DROP INDEX nameplates_idx", "VACUUM")
    tables = read(source, scratch, marks)
    assert list(tables) == ["nameplates"]
    again = tables["nameplates"]
    assert (again.ids, again.span.replace, again.span.reason) == ([1, 2, 3, 4, 5], True, OLDER.format(7, 5))
    their.usage.rename(tmp_path / "usage-2023.sqlite")
    Their(tmp_path / "their").stop()
    tables = read(source, scratch, marks)
    assert {(new.span.replace, new.span.counted, len(new.rows)) for new in tables.values()} == {(True, 0, 0)}
    assert read(source, scratch, marks) == {}
    transfers(Their(tmp_path / "their"), 2)
    assert {new.span.replace for new in read(source, scratch, marks).values()} == {False}


def imported(tmp_path: Path) -> tuple[Their, Path]:
    """The reference server, and our data directory, where its records are and two of our own."""
    their = Their(tmp_path / "their")
    transfers(their, 4)
    import_databases(tmp_path / "data", None, their.usage, merge=False)
    with ours(tmp_path / "data", nameplate(500), client(500)):
        pass
    return their, tmp_path / "data"


def faults(tables: dict[str, Any]) -> dict[str, Counter[str | None]]:
    return {name: Counter(row["fault"] for row in new.rows) for name, new in tables.items()}


def test_another_file_of_that_name_does_not_make_them_duplicates(tmp_path: Path, scratch: Path) -> None:
    _their, data = imported(tmp_path)
    transfers(south := Their(tmp_path / "south"), 7, T0 + 3)
    sources = [recognise(f"south={south.usage}"), recognise(f"new={data}")]
    messages: list[str] = []
    assert faults(read(sources[1], scratch, context=context_of(*sources), messages=messages))["nameplates"] == {
        None: 5
    }
    assert messages[0] == (
        "source new: nameplates that it imported from usage.sqlite are in no other source,"
        " so they are read from this one"
    )
    transfers(south, 1)  # the same as the other's first
    assert faults(read(sources[1], scratch, context=context_of(*sources)))["nameplates"] == {"duplicate": 4, None: 1}


def test_imported_rows_are_duplicates_once_their_file_is_a_source_itself(tmp_path: Path, scratch: Path) -> None:
    their, data = imported(tmp_path)
    new, old = recognise(f"new={data}"), recognise(f"old={their.usage}")
    marks: Marks = {}
    assert faults(read(new, scratch, marks, context=context_of(new)))["nameplates"] == {None: 5}
    tables = read(new, scratch, marks, context=context_of(new, old))
    assert faults(tables) == {
        "nameplates": {"duplicate": 4, None: 1},
        "mailboxes": {"duplicate": 4},
        "client_versions": {"duplicate": 4, None: 1},
    }
    assert tables["nameplates"].span.replace
    assert tables["nameplates"].span.reason == "another source has the rows that it imported from usage.sqlite"
    assert faults(read(old, scratch, context=context_of(new, old)))["nameplates"] == {None: 4}
    assert read(new, scratch, marks, context=context_of(new)) == {}, "a run without that source remembers it"
    with ours(data, nameplate(501)):
        later = read(new, scratch, marks, context=context_of(new))["nameplates"]
    assert (len(later.clean), later.span.replace) == (1, False)
    assert set(marks["nameplates"]) == {"", "usage.sqlite"}


@examples(25)
@given(st.lists(st.tuples(st.sampled_from(["write", "forget", "vacuum", "read"]), st.integers(0, 5)), max_size=12))
@example(
    [("write", 5), ("read", 0), ("write", 5), ("forget", 3), ("vacuum", 0), ("read", 0), ("write", 2), ("read", 0)]
)
@example([("write", 5), ("forget", 0), ("vacuum", 0), ("read", 0), ("write", 2), ("read", 0)])
def test_each_usage_record_is_read_once_or_counted_as_missed_whenever_one_reads(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Every id is read once, or was dropped before and is missed; and what is read is what stood there."""
    folder = tmp_path_factory.mktemp("split")
    marks: Marks = {}
    seen: list[dict[str, Any]] = []
    missed = written = dropped = 0
    with ours(folder / "data") as server:
        source = recognise(f"a={folder / 'data'}")
        for what, count in [*steps, ("read", 0)]:
            if what == "write":
                server.write(*(nameplate(written + number, total_time=float(number)) for number in range(count)))
                written += count
            elif what == "forget":
                server.forget(T0 + written - count)
                dropped = max(dropped, written - count)
            elif what == "vacuum":
                alter(server.file, "VACUUM")
            for table in read(source, folder / "scratch", marks).values() if what == "read" else ():
                last = len(seen) + missed
                assert (table.span.replace, table.span.missed) == (False, max(0, dropped - last))
                assert (table.span.first_id, table.marks[""].last) == (last + 1, written)
                assert table.span.counted == len(table.rows)
                seen += table.rows
                missed += table.span.missed
        left = read(source, folder / "scratch").get("nameplates")
    ids = [row["id"] for row in seen]
    assert ids == sorted(set(ids))
    assert len(ids) + missed == written
    assert all(row in seen for row in (left.rows if left else []))
    assert all(row["started"].timestamp() == T0 + row["id"] - 1 for row in seen)


TEXT = {"TEXT", "VARCHAR"}


def plant(file: Path, database: sqlite3.Connection) -> None:
    """Put a canary into every text that nothing is to be taken from; into empty tables, too."""
    for (table,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        of_usage = file.name != schema.MAILBOX_FILE or table.startswith("usage_")
        name = table.removeprefix("usage_")
        taken = {"id", *schema.OUR_SHAPE.columns(name)} if of_usage and name in TABLES else set()
        columns = database.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
        values = {column: "canary" if kind in TEXT else 1 for column, kind in columns if column not in taken}
        texts = [column for column, value in values.items() if value == "canary"]
        if not texts or table == "sqlite_sequence":
            continue
        if not database.execute(f"SELECT 1 FROM {table}").fetchone():
            marks = ", ".join("?" * len(values))
            database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
        changes = ", ".join(f"{column} = 'canary'" for column in texts)
        database.execute(f"UPDATE {table} SET {changes}")


def test_no_side_no_nameplate_no_mailbox_and_no_message_leaves_the_copy(tmp_path: Path, scratch: Path) -> None:
    their = Their(tmp_path / "their")
    transfers(their, 3)
    their.stop()
    with ours(tmp_path / "data", nameplate(1), mailbox(1), client(1, side="canary-side")) as server:
        pass
    for file in (server.file, their.usage):
        with closing(sqlite3.connect(file, isolation_level=None)) as database:
            plant(file, database)
        marks: Marks = {}
        messages: list[str] = []
        read_tables = read(f"a={file}", scratch, marks, messages=messages)
        assert sum(len(table.rows) for table in read_tables.values()) >= 3
        assert "canary" not in repr(read_tables).casefold() + repr(marks) + repr(messages)


@pytest.mark.parametrize(
    ("never_reused", "last", "rows", "why"),
    [
        (False, 20, {3: "three", 9: "nine", 20: "twenty"}, ""),
        (True, 9, {9: "nine"}, ""),  # what is old is dropped
        (False, 9, {9: "nine"}, ""),
        (True, 9, {}, ""),
        (True, 20, {20: "twenty"}, ""),
        (False, 20, {3: "three", 20: "twenty"}, "the row with id 9 has changed"),  # no server of theirs drops it
        (False, 8, {3: "three"}, "its last id was 9 and is 8 now"),
        (True, 0, {}, "its last id was 9 and is 0 now"),
        (True, 9, {3: "three", 9: "other"}, "the row with id 9 has changed"),
        (False, 9, {3: "other", 9: "nine"}, "the row with id 3 has changed"),
        (True, 20, {3: "other", 20: "twenty"}, "the row with id 3 has changed"),
        (True, 20, {3: "three", 8: "other", 9: "nine", 20: "twenty"}, "the row with id 8 has changed"),
        (True, 20, {7: "other", 8: "other", 20: "twenty"}, "the row with id 8 has changed"),  # what is old is dropped
        (True, 20, {8: "eight", 20: "twenty"}, ""),
    ],
)
def test_reading_continues_if_marked_rows_are_the_same(
    never_reused: bool, last: int, rows: dict[int, str], why: str
) -> None:
    mark = Mark(last=9, last_digest="nine", first=3, first_digest="three", recent={7: "7", 8: "eight", 9: "nine"})
    text = contradiction(mark, IdRange(min(rows, default=0), last, never_reused), SomeRows(rows))
    assert text.partition(":")[0] == why


class SomeRows(NamedTuple):
    """Rows with these digests."""

    digests: dict[int, str]

    def digest(self, row_id: int) -> str:
        return self.digests.get(row_id, "")

    def recent(self, last_id: int) -> dict[int, str]:
        return {row_id: digest for row_id, digest in self.digests.items() if row_id <= last_id}


def test_a_row_at_an_id_that_had_none_contradicts_the_mark() -> None:
    ids = IdRange(0, 9, never_reused=True)
    mark = mark_after(ids, SomeRows({}))
    assert mark == Mark(9, "", 0, "")
    assert contradiction(mark, ids, SomeRows({})) == ""
    assert contradiction(mark, ids._replace(first_id=9), SomeRows({9: "nine"})).startswith("the row with id 9 has")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A reference server's database with three nameplates, of which none was read."""
    return made("theirs", tmp_path)


def replaced_by_an_older_copy(file: Path) -> None:
    alter(file, "DELETE FROM nameplates WHERE rowid = 3")


def replaced_by_another(file: Path) -> None:
    alter(file, "UPDATE nameplates SET started = started + 1, app_id = 'other'")


@pytest.mark.parametrize("replace", [replaced_by_an_older_copy, replaced_by_another])
def test_a_database_that_is_replaced_while_it_is_read_is_left_to_the_next_run(
    old: Path, scratch: Path, replace: Callable[[Path], None]
) -> None:
    with recognise(f"a={old}").opened(scratch, print, CONTEXT) as opened:
        replace(old)
        with pytest.raises(SourceError, match="source a: it was replaced while it was read: run this again"):
            opened.find_new("nameplates", {})
    assert len(read(f"a={old}", scratch)["nameplates"].rows) == 3 - (replace is replaced_by_an_older_copy)


def test_rows_that_come_after_a_database_was_opened_are_new_for_the_next_run(tmp_path: Path, scratch: Path) -> None:
    with ours(tmp_path / "data", nameplate(0), nameplate(1), mailbox(1)) as server:
        with recognise(f"a={server.file}").opened(scratch, print, CONTEXT) as opened:
            server.write(nameplate(2), mailbox(2))
            server.forget(T0 + 1)
            spans = {name: opened.find_new(name, {}) for name in ("nameplates", "mailboxes")}
            rows = {name: [row["id"] for row in rows_of(span)] for name, span in spans.items() if span}
        assert rows == {"nameplates": [2], "mailboxes": [1]}
        assert [(span.counted, span.missed) for span in spans.values() if span] == [(1, 1), (1, 0)]
        marks = {name: dict(span.marks) for name, span in spans.items() if span}
        assert {name: table.ids for name, table in read(f"a={server.file}", scratch, marks).items()} == {
            "nameplates": [3],
            "mailboxes": [2],
        }


def test_a_database_of_utf_16_texts_is_read(tmp_path: Path, scratch: Path) -> None:
    file = made("theirs", tmp_path)
    with closing(sqlite3.connect(tmp_path / "utf16", isolation_level=None)) as database:
        database.execute("PRAGMA encoding = 'UTF-16'")
        with closing(sqlite3.connect(file)) as original:
            database.executescript("".join(original.iterdump()))
    [read_8, read_16] = [read(f"a={path}", scratch)["nameplates"].rows for path in (file, tmp_path / "utf16")]
    assert read_8 == read_16


@contextmanager
def usage_tasks(data: Path) -> Iterator[list[Task]]:
    with recognise(f"a={data}").opened(data.parent / "scratch", print, CONTEXT) as opened:
        span = opened.find_new("nameplates", {})
        assert span is not None
        yield list(span.tasks)


def test_tasks_have_as_many_rows_wherever_ids_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ours(tmp_path / "data", *map(nameplate, range(20))) as server:
        server.forget(T0 + 2)
        alter(server.file, "DELETE FROM usage_nameplates WHERE id BETWEEN 8 AND 12")
        for rows_per_task, ids in (
            (100, [[*range(3, 8), *range(13, 21)]]),
            (5, [[*range(3, 8)], [*range(13, 18)], [*range(18, 21)]]),
        ):
            monkeypatch.setattr(usage, "ROWS_PER_TASK", rows_per_task)
            with usage_tasks(tmp_path / "data") as tasks:
                assert [[id_ for batch in task() for id_ in batch["id"].to_pylist()] for task in tasks] == ids


def test_tasks_run_in_parallel_and_each_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two cores there are eight of Spark's tasks."""
    monkeypatch.setattr(usage, "ROWS_PER_TASK", 1)
    with ours(tmp_path / "data", *map(nameplate, range(20))), usage_tasks(tmp_path / "data") as tasks:
        for count in (3, 20):
            rows = read_tasks(spark, NAMEPLATES, tasks[:count])
            taken = rows.select("id", spark_partition_id().alias("task")).collect()
            assert sorted(row["id"] for row in taken) == [*range(1, count + 1)]
            assert {row["task"] for row in taken} == {*range(min(count, 8))}


CASES = json.loads((Path(__file__).parent / "drift.json").read_text())["cases"]


def made(kind: str, folder: Path) -> Path:
    if kind == "ours":
        with ours(folder / "data", *map(nameplate, range(3))) as server:
            return server.file
    folder.mkdir(exist_ok=True)
    their = Their(folder / "their")
    for number in range(3):
        their.claim("a", str(number), T0)
        their.release("a", str(number), T0 + 1)
    their.stop()
    return their.usage


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['database']}: {case['did'][-1][:60]}")
def test_a_database_that_was_changed_is_read_or_refused(case: dict[str, Any], tmp_path: Path) -> None:
    file = made(case["database"], tmp_path)
    alter(file, *case["did"])
    messages: list[str] = []
    if "fails" in case:
        with pytest.raises(SourceError) as failure:
            read(f"a={file}", tmp_path / "scratch", messages=messages)
        assert str(failure.value).replace(str(file), "FILE") == case["fails"]
    else:
        new = read(f"a={file}", tmp_path / "scratch", messages=messages)["nameplates"]
        assert [row["id"] for row in new.clean] == case["ids"]
        assert Counter(fault for _, fault in new.faults) == case.get("faults", {})
    assert messages == []
    assert list((tmp_path / "scratch").iterdir()) == []


def refused(spec: str, tmp_path: Path) -> str:
    with pytest.raises(SourceError) as failure:
        read(spec, tmp_path / "scratch")
    assert "\n" not in str(failure.value)
    assert list(tmp_path.glob("scratch/*")) == []
    return str(failure.value)


def damage(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + 64] = b"\xa5" * 64
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "at"), [("ours", 16), ("ours", "usage_nameplates"), ("theirs", 100), ("theirs", "nameplates")]
)
def test_a_damaged_database_is_reported_as_damaged(kind: str, at: int | str, tmp_path: Path) -> None:
    file = made(kind, tmp_path)
    damage(file, at if isinstance(at, int) else root_of(file, at))
    assert "damaged" in refused(f"a={file}", tmp_path)


def root_of(file: Path, name: str) -> int:
    """Return the offset of a table's or an index's first page."""
    [(page, size)] = select(
        file, f"SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = '{name}'"
    )
    assert isinstance(page, int)
    return int((page - 1) * size)


def test_damage_is_reported_by_the_run_that_meets_it(tmp_path: Path) -> None:
    """Reading what is new does not read what is old."""
    marks: Marks = {}
    with ours(tmp_path / "data", *(nameplate(number, app_id="a" * 60) for number in range(900))) as server:
        read(f"a={server.file}", tmp_path / "scratch", marks)
        server.write(nameplate(900))
    content = server.file.read_bytes()
    damage(server.file, content.index(b"a" * 60))
    assert read(f"a={server.file}", tmp_path / "scratch", marks)["nameplates"].ids == [901]
    # The page of the first rows is the first that has one, and its cells fill it from its end.
    damage(server.file, content.index(b"a" * 60) // 4096 * 4096)
    assert "damaged" in refused(f"a={server.file}", tmp_path)


def test_a_file_that_is_no_database_is_not_taken_for_one(tmp_path: Path) -> None:
    file = tmp_path / "usage.sqlite"
    for content in (b"\xa5" * 8192, b"SQLite format 2", b"hello"):
        file.write_bytes(content)
        assert refused(f"a={file}", tmp_path).startswith(f"source a: {file} is not a source of usage records")
    file.write_bytes(b"SQLite format 3\0" + b"\xa5" * 8192)
    assert "damaged or encrypted" in refused(f"a={file}", tmp_path)


def test_an_interrupted_commit_is_left_to_its_server(tmp_path: Path) -> None:
    file, cut = made("theirs", tmp_path), tmp_path / "usage.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN")
        database.executemany("INSERT INTO nameplates VALUES (?, 1, 1, 1, 'happy')", [("x" * 5000,)] * 50)
        for name in ("usage.sqlite", "usage.sqlite-journal"):
            (tmp_path / name).write_bytes(file.with_name(name).read_bytes())
    content = cut.read_bytes()
    assert refused(f"a={cut}", tmp_path) == (
        f"source a: {cut} was left in the middle of a commit: start its server, which repairs that, then try again"
    )
    assert cut.read_bytes() == content


@pytest.mark.parametrize(
    "spec", ["", "x", "=x", "a=", "A=x", "a b=x", "-a=x", "a/b=x", "a@=x", "a@B=x", "@b=x", f"{'a' * 64}=x"]
)
def test_a_source_has_a_name_that_a_folder_can_have(spec: str) -> None:
    with pytest.raises(Misuse, match="--source"):
        parse_spec(spec)


def test_a_name_ends_at_the_first_equals_sign_and_what_it_names_is_no_url() -> None:
    assert parse_spec("a.b-c_1@north=x=y@z") == SourceSpec("a.b-c_1", "north", Path("x=y@z"))
    for url in ("s3://bucket/folder", "https://host/file.rlp", "file:///folder"):
        with pytest.raises(Misuse, match=f"--source a={url}: this is a URL; name a file or folder of this machine"):
            parse_spec(f"a={url}")


def test_a_server_is_named_by_its_directory_or_its_file(tmp_path: Path) -> None:
    file = made("ours", tmp_path)
    ours = [recognise(f"a={path}") for path in (file, file.parent)]
    assert [(source.path, source.kind, source.origins) for source in ours] == [
        (file, "mailbox server's database", ())
    ] * 2
    theirs = [recognise(f"{name}={made('theirs', tmp_path / name)}") for name in ("a", "b")]
    assert files_by_origin([*theirs, *ours]) == {"usage.sqlite": [source.path for source in theirs]}


DAY = 86_400


def bind(number: float, address: str | None, app_id: str = "x") -> ClientVersion:
    return client(0, connect_time=T0 + number, address_id=address, app_id=app_id)


def new(path: Path, tmp_path: Path, marks: Marks | None = None) -> list[tuple[bool | None, bool | None]]:
    """Return whether a bind is the first from its address, of the day and of the day and application."""
    found = read(f"mailbox={path}", tmp_path / "scratch", marks).get("client_versions")
    return [(row["new_address"], row["new_address_of_app"]) for row in (found.clean if found else [])]


def test_the_first_bind_of_a_day_from_an_address_is_marked(tmp_path: Path) -> None:
    """Midnight is 6,400 seconds after T0."""
    binds = [
        *(bind(0, "aa"), bind(1, "aa"), bind(2, "bb"), bind(3, "aa", "y"), bind(4, None)),
        *(bind(6399, "bb", "y"), bind(6400, "aa"), bind(5, "bb")),
    ]
    with ours(tmp_path / "data", *binds):
        found = new(tmp_path / "data", tmp_path)
    first, of_app, again = (True, True), (False, True), (False, False)
    assert found == [first, again, first, of_app, (None, None), of_app, first, again]


def test_the_address_of_a_row_of_another_server_or_from_before_schema_2_is_not_known(tmp_path: Path) -> None:
    their = Their(tmp_path / "their")
    their.bind("side", T0)
    import_databases(tmp_path / "data", None, their.usage, merge=False)
    assert new(their.usage, tmp_path) == new(tmp_path / "data", tmp_path) == [(None, None)]
    file = servers.older_schema(tmp_path / "older")
    alter(file, f"INSERT INTO usage_client_versions VALUES (1, '', 'x', 's', {T0}, NULL, NULL)")
    assert new(file, tmp_path) == [(None, None)]


@pytest.mark.parametrize("seed", range(3))
def test_binds_are_marked_however_they_are_read(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one run and one task, in tasks of a few rows, and in several runs; some of the times are no times."""
    dice = Random(seed)
    times = [dice.choice((0, 1, DAY, -DAY)) + dice.random() for _ in range(40)]
    binds = [bind(at, dice.choice(("aa", "bb", "cc", None)), dice.choice("xy")) for at in times]
    binds[7] = client(0, connect_time=float("inf"), address_id="aa")
    binds[9] = client(0, connect_time=-1.5, address_id="aa")
    binds[11] = client(0, connect_time=NOW + 5 * DAY, address_id="aa")
    marks: Marks = {}
    several = []
    with ours(tmp_path / "data") as server:
        for begin in range(0, 40, 8):
            server.write(*binds[begin : begin + 8])
            several += new(tmp_path / "data", tmp_path, marks)
        together = new(tmp_path / "data", tmp_path)
        monkeypatch.setattr(usage, "ROWS_PER_TASK", 3)
        assert new(tmp_path / "data", tmp_path) == together
    assert several == together
    assert len(together) == 37
    days = {(at + T0) // DAY for at in times}
    assert sum(first is True for first, _ in together) <= 3 * (len(days) + 1)


def test_no_hash_of_an_address_leaves_the_copy(tmp_path: Path) -> None:
    texts: list[str] = []
    marks: Marks = {}
    digests = []
    for address in ("canary", "other"):
        binds = bind(0, address), client(0, connect_time=-1.0, address_id=address)
        with ours(tmp_path / address, *binds) as server:
            alter(server.file, "UPDATE usage_client_versions SET side = 'canary'")
            source = recognise(f"mailbox={tmp_path / address}")
            found = read(source, tmp_path / "scratch", marks if address == "canary" else None, messages=texts)
        rows = found["client_versions"].rows
        assert [row["fault"] for row in rows] == [None, "out of range"]
        digests.append(rows[1]["digest"])
        assert "canary" not in repr(found) + repr(marks) + repr(texts)
    assert digests[0] == digests[1], "it is not made from the hash"
