"""What runs take from the extracts of other hosts, whatever these hosts, or those that copy the files, do to them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from restante.pipeline.build.sources import build_sources
from restante.pipeline.cli.options import read_extracts
from restante.pipeline.ingest import IngestResult
from restante.pipeline.ingest_extracts import ingest_extracts
from restante.pipeline.lake import url_path
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import CLEAN_TABLES, LIVE, NAMEPLATES
from restante.pipeline.sources import extracts
from restante.pipeline.sources.extract_files import EXTRACT_FORMAT, parse_path
from restante.pipeline.sources.source import SourceError
from restante.pipeline.spark import small_jobs
from restante.pipeline.tables import BUILDS
from support.pipeline.archives import Keeping
from support.pipeline.extracts import files_of, info_of, write_extracts, write_file
from support.pipeline.relays import our_relay, reference_relay, transfer
from support.pipeline.runs import LakeWorld, Row, command, no_spark, spark_command
from support.pipeline.servers import CONTEXT, DAY, Ours, client, current, mailbox, nameplate, ours
from support.sqlite import alter
from support.waku.envelopes import T0, envelope


class Host:
    """A mailbox server whose extracts go to the folder of all."""

    def __init__(self, world: LakeWorld, server: Ours) -> None:
        self.world, self.server, self.name = world, server, server.data.name
        self.spec = f"{self.name}={server.data}"

    def extract(self, *numbers: int, day: str = DAY, hour: int | None = None) -> list[Path]:
        """Write nameplates, and an extract of them."""
        self.server.write(*map(nameplate, numbers))
        return write_extracts(self.spec, folder(self.world), self.world.folder / "scratch", day, hour=hour)


def folder(world: LakeWorld) -> Path:
    return world.folder / "extracts"


def west_day(world: LakeWorld, day: str) -> Path:
    """Make the folder of a day of the only generation of west's nameplates."""
    [generation] = (folder(world) / "west/nameplates").iterdir()
    (generation / day).mkdir(exist_ok=True)
    return generation / day


def take(world: LakeWorld, *, plan: bool = False) -> list[IngestResult]:
    folder(world).mkdir(exist_ok=True)
    with world.run() as run:
        return ingest_extracts(run, folder(world), plan=plan)


def failures(world: LakeWorld) -> list[str]:
    """Take the extracts; return why some were not taken."""
    return [result.failure for result in take(world) if result.failure]


def cut_off(name: str, properly: Any = LakeTable.commit) -> Any:
    """Return a method that interrupts the commit of a table."""

    def commit(table: LakeTable, *staged: Any, **others: Any) -> Any:
        if table.table.name == name:
            raise KeyboardInterrupt
        return properly(table, *staged, **others)

    return commit


def ids(world: LakeWorld, table: str = "nameplates") -> list[tuple[str, int]]:
    return sorted((row["source"], row["id"]) for row in world.rows(table))


def seconds(world: LakeWorld) -> list[float]:
    """Return when the nameplates began."""
    return sorted(row["started"].timestamp() - T0 for row in world.rows("nameplates"))


@pytest.fixture
def west(world: LakeWorld, tmp_path: Path) -> Any:
    with ours(tmp_path / "west") as server:
        yield Host(world, server)


@pytest.mark.parametrize(
    ("small", "build"),
    [
        pytest.param(True, False, id="small jobs, clean tables of usage"),
        pytest.param(True, True, id="small jobs", marks=pytest.mark.thorough),
        pytest.param(False, True, id="large jobs", marks=pytest.mark.thorough),
    ],
)
def test_all_tables_are_the_same_from_databases_and_from_their_extracts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool, build: bool
) -> None:
    by_databases, by_extracts = (LakeWorld(spark, tmp_path / name) for name in ("by databases", "by extracts"))
    for world in (by_databases, by_extracts):
        world.folder.mkdir()
    if not small:
        monkeypatch.setattr(small_jobs, "MAX_SMALL_JOB_ROWS", -1)
    relay = our_relay(tmp_path / "relay", transfer(1), transfer(2), transfer(3))
    alter(relay, "UPDATE transfers SET total_bytes = 9223372036854775807 WHERE id = 2")
    specs = [f"{name}={tmp_path / name}" for name in ("mailbox", "west", "relay", *(["waku"] if build else []))]
    with (
        ours(tmp_path / "mailbox", *map(nameplate, range(9)), mailbox(2), client(3), current(None)) as mailbox_server,
        ours(tmp_path / "west", nameplate(2, blur_time=60.0), client(4), current(None)),
        Keeping(tmp_path / "waku", *(envelope(number, number) for number in range(9))) as archive,
    ):
        archive.save(envelope(30, 30), arrived=T0 + 9)
        for round_ in range(2):
            by_databases.ingest(*specs)
            for spec in specs:
                write_extracts(spec, folder(by_extracts), tmp_path / "scratch")
            assert failures(by_extracts) == []
            mailbox_server.write(*(nameplate(number + 20, result="pruney") for number in range(3)), client(40))
            archive.save(envelope(40 + round_, 40))
            assert len(by_extracts.infos("nameplates")) == round_ + 1
    for world in (by_databases, by_extracts) if build else ():
        world.build()
        with world.run() as run:
            build_sources(run)
    for name in (*CLEAN_TABLES, *BUILDS, "sources"):
        assert by_databases.rows(name) == by_extracts.rows(name)
    assert len(by_extracts.rows("quarantine")) == len(specs) - 2


def test_three_hosts_are_one_commit_per_table(world: LakeWorld, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        with ours(tmp_path / name, client(1)) as server:
            Host(world, server).extract(1, 2)
    planned = {
        (result.source, result.table): result.span and result.span.counted for result in take(world, plan=True)
    }
    assert planned == {(name, table): n for table, n in (("nameplates", 2), ("client_versions", 1)) for name in "abc"}
    assert world.version("nameplates") is None
    results = take(world)
    assert {(result.source, result.table): result.ledger and result.ledger.clean for result in results} == planned
    for table in ("nameplates", "client_versions"):
        [info] = world.infos(table)
        assert set(info.sources) == {"a", "b", "c"}
    assert ids(world) == [(name, number) for name in "abc" for number in (1, 2)]
    world.spark = no_spark
    assert take(world) == []


def test_a_file_that_another_one_contains_is_not_read_twice(world: LakeWorld, west: Host) -> None:
    """Two crons ran at once, the second a little later; and a third did not see the second's file."""
    [first] = west.extract(1, 2)
    take(world)
    [second] = west.extract(3, hour=5)
    moved = second.rename(world.folder / "moved")
    [longer] = west.extract(4, hour=5)
    shutil.copy(moved, second)
    take(world)
    assert ids(world) == [("west", number) for number in (1, 2, 3, 4)]
    for path in (first, second, longer):
        path.unlink()
    [path] = west.extract(5, hour=6)  # from the beginning, as a new generation: the folder was empty
    assert path.name.startswith("0000000000000000001-")
    [ledger] = [result.ledger for result in take(world)]
    assert ledger is not None
    assert (ledger.read, ledger.clean) == (1, 1)
    assert ids(world) == [("west", number) for number in (1, 2, 3, 4, 5)]


def test_files_behind_a_missing_one_wait_for_it(world: LakeWorld, west: Host) -> None:
    late = [path for number in (1, 2) for path in west.extract(number, day=f"2023-11-{10 + number}")][1]
    for day in range(13, 20):
        west.extract(day, day=f"2023-11-{day}")
    late = late.rename(world.folder / "late")
    take(world)
    assert ids(world) == [("west", 1)]
    [text] = [text for text in world.messages if "have not arrived" in text]
    assert text.startswith("source west: nameplates with ids 2 to 2 of generation 20231115T000000Z have not")
    late.rename(west_day(world, "2023-10-01") / "0000000000000000002-0000000000000000002.parquet")
    take(world)
    assert ids(world) == [("west", number) for number in range(1, 10)]


def test_a_host_whose_clock_was_far_ahead_is_read_on(
    world: LakeWorld, west: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extracts, "READ_DAYS", 1)
    west.extract(1, day="9999-12-30")
    west.extract(2, day="9999-12-31")
    for number in range(3, 6):
        west.extract(number, day=(date(2023, 11, 1) + timedelta(number)).isoformat())
        take(world)
    assert len(ids(world)) == 5


def damaged(path: Path) -> None:
    """Overwrite the first pages."""
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)


def rewritten(change: Callable[[Row], Row] = dict, **fields: Any) -> Callable[[Path], None]:
    """Return the function that changes the rows of a file, or what it says about itself."""

    def write(path: Path) -> None:
        rows, info = pq.read_table(path), replace(info_of(path), **fields)
        changed = pa.Table.from_pylist([change(row) for row in rows.to_pylist()], rows.schema)
        root = path.parents[4]
        file = parse_path(path.relative_to(root).as_posix())
        assert file is not None
        write_file(root, file, changed, info)

    return write


def dropped(column: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pq.write_table(pq.read_table(path).drop_columns([column]), path)

    return write


def not_utf_8(path: Path) -> None:
    """Give app ids a byte that no UTF-8 text has."""
    root, rows = path.parents[4], pq.read_table(path)
    file = parse_path(path.relative_to(root).as_posix())
    assert file is not None
    column = rows.schema.get_field_index("app_id")
    texts = pa.Array.from_buffers(pa.string(), rows.num_rows, pa.array([b"\xff"] * rows.num_rows).buffers())
    write_file(root, file, rows.set_column(column, "app_id", texts), info_of(path))


FAULTY: Row = {"fault": "x", "identity": "1", "digest": "d"}

DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-20]), "is not complete"),
    "empty": (lambda path: path.write_bytes(b""), "is not complete"),
    "damaged": (
        damaged,
        "Spark cannot read its extracts of nameplates, from .* If one is damaged, copy the file again",
    ),
    "another-program": (lambda path: pq.write_table(pa.table({"id": [1]}), path), "is no extract"),
    "newer": (rewritten(format=EXTRACT_FORMAT + 1), "is of a later version of Restante"),
    "other-columns": (dropped("result"), "does not have the columns of nameplates"),
    "another-name": (rewritten(mark=Mark(3, "", 0, "")), "is no extract of that name"),
    "a-great-id": (rewritten(mark=Mark(2, "", 0, "", recent={1 << 63: ""})), "is no extract:"),
    "a-long-mark": (rewritten(mark=Mark(2, "x" * (16 << 10), 0, "")), "is no extract:"),
    "more-rows": (rewritten(rows=3), "the counts of .* are wrong"),
    "fewer-faults": (rewritten(rejected=1), "2 rows, 1 with a fault, but 2 were read, 0 with a fault"),
    "a-broken-rule": (rewritten(lambda row: row | {"app_id": None}), "a value is missing in a row of its extracts"),
}

BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "another-source": (rewritten(lambda row: row | {"source": "east"}), "it is of another source"),
    "an-id-of-another-file": (rewritten(lambda row: row | {"id": 3}), "its id is not in the file's name"),
    "a-missing-value": (rewritten(lambda row: row | {"app_id": None}), "a value is missing"),
    "no-id": (rewritten(lambda row: row | {"id": None}), "its id is not in the file's name"),
    "an-ancient-day": (rewritten(lambda row: row | {"day": date(1, 1, 1)}), "a day is out of range"),
    "an-ancient-time": (
        rewritten(lambda row: row | {"started": row["started"].replace(year=1)}),
        "a day is out of range",
    ),
    "a-later-day": (rewritten(lambda row: row | {"day": date(2024, 1, 1)}), "a day is out of range"),
    "a-long-text": (rewritten(lambda row: row | {"app_id": "x" * 129}), "a text is too long"),
    "a-nul": (rewritten(lambda row: row | {"app_id": "x\0"}), "a text has NUL or is not UTF-8"),
    "no-utf-8": (not_utf_8, "a text has NUL or is not UTF-8"),
    "a-great-number": (rewritten(lambda row: row | {"total_us": 1 << 62}), "a number is out of range"),
    "a-negative-number": (rewritten(lambda row: row | {"waiting_us": -1}), "a number is out of range"),
    "an-unknown-result": (rewritten(lambda row: row | {"result": "canary"}), "a value is not known"),
    "a-fault-without-a-digest": (rewritten(lambda row: row | FAULTY | {"digest": None}), "its fault is not complete"),
    "a-duplicate": (
        rewritten(lambda row: row | FAULTY | {"fault": "duplicate"}, rejected=2),
        "its fault is not complete",
    ),
    "a-long-fault": (rewritten(lambda row: row | FAULTY | {"fault": "x" * 129}, rejected=2), "a text is too long"),
}


def other_host(path: Path, source: str) -> Path:
    """Write the same rows as an extract of another host."""
    root, rows = path.parents[4], pq.read_table(path)
    file = parse_path(path.relative_to(root).as_posix())
    assert file is not None
    names = pa.array([source] * rows.num_rows)
    rows = rows.set_column(rows.schema.get_field_index("source"), "source", names)
    return write_file(root, file._replace(source=source), rows, info_of(path))


def test_every_rule_that_a_row_breaks_is_named(world: LakeWorld, west: Host) -> None:
    [path] = west.extract(1, 2)
    new = []
    for source, (change, _) in BROKEN.items():
        change(other_host(path, source))
        found, _ = extracts.find_new(folder(world), source, NAMEPLATES, None, CONTEXT, 1)
        new += [found] if found else []
    spark = small_jobs.session_for(world.spark(), small_jobs.JobSize(0))
    rows = extracts.read(spark, NAMEPLATES, new, CONTEXT).select("extract", "broken").collect()
    assert {(file.partition("/")[0], broken) for file, broken in rows} == {
        (source, rule) for source, (_, rule) in BROKEN.items()
    }


def test_sources_with_bad_files_are_left_out_and_the_others_are_read(world: LakeWorld, west: Host) -> None:
    [path] = west.extract(1, 2)
    paths = {"west": path} | {source: other_host(path, source) for source in ("a", *DAMAGE, "z")}
    intact = {source: path.read_bytes() for source, path in paths.items()}
    for source, (damage, _) in DAMAGE.items():
        damage(paths[source])
    refused = {result.source: result.failure for result in take(world) if result.failure}
    assert refused.keys() == DAMAGE.keys()
    for source, (_, sentence) in DAMAGE.items():
        assert re.fullmatch(f"source {source}: .*{sentence}.*", refused[source])
    assert ids(world) == [(source, number) for source in ("a", "west", "z") for number in (1, 2)]
    assert world.rows("quarantine") == []
    for source, path in paths.items():
        path.write_bytes(intact[source])
    assert failures(world) == []
    assert ids(world) == [(source, number) for source in sorted(paths) for number in (1, 2)]


def test_at_a_url_extracts_have_the_rows_and_the_errors_of_a_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder by its URL, which needs no connector. test_masters.py has a bucket."""
    monkeypatch.setattr(url_path, "SCHEMES", ("file",))
    here, there = (LakeWorld(spark, tmp_path / name) for name in ("here", "there"))
    for world in (here, there):
        world.folder.mkdir()
    sources = ("a", "truncated", "empty", "newer", "more-rows")
    for name in sources:
        with ours(tmp_path / name) as server:
            host = Host(here, server)
            host.extract(1, 2)
            [path] = host.extract(3)
        if name in DAMAGE:
            DAMAGE[name][0](path)
    url = folder(here).as_uri()
    texts = []
    for world, address in ((here, str(folder(here))), (there, url)):
        root = read_extracts(address)
        assert root is not None
        with world.run() as run:
            paths = (root, root / "none", root / "a" / "nameplates")
            results = [result for below in paths for result in ingest_extracts(run, below)]
        texts.append([result.failure.replace(url, str(folder(here))) for result in results if result.failure])
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(sources) - 1 + 2
    assert here.rows("nameplates") == there.rows("nameplates")
    assert ids(there) == [("a", 1), ("a", 2), ("a", 3)]


def test_a_damaged_file_of_the_only_source_does_not_fail_the_run(world: LakeWorld, west: Host) -> None:
    [path] = west.extract(1)
    damaged(path)
    [failure] = failures(world)
    assert failure.startswith("source west: Spark cannot read its extracts of nameplates")


def test_no_damage_of_a_footer_stops_the_run(plain: LakeWorld, tmp_path: Path) -> None:
    """At some pyarrow ends the process (26.0.1: RowGroupMetaData.column)."""
    with ours(tmp_path / "west") as server:
        [path] = Host(plain, server).extract(*range(1, 101))
    intact, dice = path.read_bytes(), Random(5)
    footer_bytes = int.from_bytes(intact[-8:-4], "little") + 8
    for _ in range(500):
        content = bytearray(intact)
        offset, value = dice.randrange(footer_bytes), dice.randrange(256)
        content[-1 - offset] = value
        path.write_bytes(content)
        with suppress(SourceError):
            extracts.find_new(folder(plain), "west", NAMEPLATES, None, CONTEXT, 10)


@pytest.mark.parametrize("field", [{"missed": 1 << 63}, {"mark": Mark(1 << 63, "", 0, "")}], ids=str)
def test_numbers_beyond_any_id_are_refused(field: dict[str, Any], plain: LakeWorld, tmp_path: Path) -> None:
    with ours(tmp_path / "west", current(None)) as server:
        [path] = Host(plain, server).extract()
    rewritten(**field)(path)
    with pytest.raises(SourceError, match=r"the counts of \S* are wrong|is no extract"):
        extracts.find_new(folder(plain), "west", LIVE, None, CONTEXT, 10)


def test_only_regular_files_with_names_of_extracts_are_read(world: LakeWorld, west: Host) -> None:
    [path] = west.extract(1)
    for name in ("x.parquet", path.name.replace("-", "_"), f".{path.name}.Ab12", "1-1.parquet"):
        shutil.copy(path, path.with_name(name))
    second = "0000000000000000002-0000000000000000002.parquet"
    path.with_name(second).symlink_to(path)
    (folder(world) / "west/nameplates/../secrets").mkdir()
    (folder(world) / "Über/nameplates/20231115T000000Z").mkdir(parents=True)
    assert failures(world) == []
    assert ids(world) == [("west", 1)]


def test_rows_of_a_database_that_was_replaced_are_replaced(world: LakeWorld, west: Host, tmp_path: Path) -> None:
    west.extract(1, 2, 3)
    take(world)
    (tmp_path / "other").mkdir()
    with ours(tmp_path / "other" / "west") as server:
        Host(world, server).extract(7)
    [result] = take(world)
    assert result.ledger is not None
    assert result.ledger.replaced
    assert seconds(world) == [7]
    assert [text for text in world.messages if "again" in text] == [
        "source west: nameplates is read again from the beginning, and its rows replaced: its database was replaced"
    ]
    shutil.rmtree(max((folder(world) / "west/nameplates").iterdir()))
    [failure] = failures(world)
    assert re.search(
        r"the lake has nameplates of generation \w+ of its extracts, and the newest in .* is \w+: put", failure
    )


@pytest.mark.parametrize("everywhere", [False, True], ids=["on its host", "here, too"])
def test_a_new_database_of_a_host_without_extracts_does_not_continue_or_replace_the_old_one(
    world: LakeWorld, west: Host, tmp_path: Path, everywhere: bool
) -> None:
    """Its host did not see that it is another one. When it gets its extracts back, it does."""
    west.extract(1, 2, 3)
    take(world)
    before = folder(world).rename(tmp_path / "before")
    (tmp_path / "other").mkdir()
    with ours(tmp_path / "other" / "west") as server:
        Host(world, server).extract(7, 8, 9, 10)
        if not everywhere:
            shutil.copytree(before, folder(world), dirs_exist_ok=True)
        [failure] = failures(world)
        assert "does not show that it continues the rows of nameplates that the lake has up to id 3" in failure
        assert "copy its other extracts from here to its host's folder" in failure
        assert len(world.rows("nameplates")) == 3
        shutil.rmtree(folder(world))
        shutil.copytree(before, folder(world))
        Host(world, server).extract()
    assert failures(world) == []
    assert seconds(world) == [7, 8, 9, 10]


def test_a_host_that_has_lost_its_extracts_and_whose_database_was_restored_is_refused(
    world: LakeWorld, west: Host, tmp_path: Path
) -> None:
    """The database begins with the same rows, and has given the ids of others a second time."""
    west.extract(1, 2, 3)
    backup = shutil.copytree(west.server.data, tmp_path / "backup" / "west")
    west.extract(4, 5)
    take(world)
    today = folder(world).rename(tmp_path / "today")
    with ours(backup) as server:
        restored = Host(world, server)
        for further in ((14,), (15,), (16, 17)):  # fewer rows than the lake has, as many, and more
            restored.extract(*further)
            [failure] = failures(world)
            assert "does not show that it continues the rows of nameplates that the lake has up to id 5" in failure
            shutil.rmtree(folder(world))
        assert ids(world) == [("west", number) for number in range(1, 6)]
        shutil.copytree(today, folder(world))
        restored.extract()
    assert failures(world) == []
    assert seconds(world) == [1, 2, 3, 14, 15, 16, 17]


def test_of_a_host_that_has_lost_its_extracts_and_deleted_rows_the_last_one_left_is_compared(
    world: LakeWorld, west: Host
) -> None:
    west.extract(1, 3, 2)
    take(world)
    shutil.rmtree(folder(world))
    west.server.forget(T0 + 2.5)
    west.extract(4)
    assert failures(world) == []
    assert seconds(world) == [1, 2, 3, 4]
    shutil.rmtree(folder(world))
    west.server.forget(T0 + 4.5)
    west.extract(5)
    [failure] = failures(world)
    assert "or it has deleted these rows: remove this file and later ones here and there, and copy" in failure


def test_of_two_files_of_one_hour_the_second_is_refused_if_the_host_was_restored_between(
    world: LakeWorld, west: Host, tmp_path: Path
) -> None:
    west.extract(1)
    backups = [shutil.copytree(path, tmp_path / "backup" / path.name) for path in (folder(world), west.server.data)]
    west.extract(2, 3, hour=5)
    take(world)
    shutil.rmtree(folder(world))
    shutil.copytree(backups[0], folder(world))
    with ours(backups[1]) as server:
        Host(world, server).extract(12, 13, 14, hour=5)
        [failure] = failures(world)
    assert "0000000000000000002-0000000000000000004.parquet does not show that it continues" in failure


@pytest.mark.parametrize("further", [(), (9,)], ids=["the same number of rows", "more rows"])
def test_extracts_of_a_host_that_was_restored_from_a_backup_are_refused(
    world: LakeWorld, west: Host, tmp_path: Path, further: tuple[int, ...]
) -> None:
    """Its database and its extracts are of yesterday, and here are those of today."""
    west.extract(1, 2, 3)
    shutil.copytree(folder(world), tmp_path / "backup")
    shutil.copytree(west.server.data, tmp_path / "restored" / "west")
    west.extract(4, 5)
    take(world)
    today = folder(world).rename(tmp_path / "today")
    shutil.copytree(tmp_path / "backup", folder(world))
    with ours(tmp_path / "restored" / "west") as server:
        restored = Host(world, server)
        restored.extract(14, 15, *further)
        restored.extract(16)
        shutil.copytree(today, folder(world), dirs_exist_ok=True)
        [failure] = failures(world)
        assert "does not show that it continues the rows of nameplates that the lake has up to id 5" in failure
        assert len(ids(world)) == 5
        shutil.rmtree(folder(world))
        shutil.copytree(today, folder(world))
        restored.extract()
    assert failures(world) == []
    assert seconds(world) == sorted([1, 2, 3, 14, 15, *further, 16])


def test_rows_of_an_archive_that_was_replaced_stay(world: LakeWorld, tmp_path: Path) -> None:
    for name, numbers in (("old", (1, 2)), ("new", (2, 3))):
        with Keeping(tmp_path / name, *(envelope(number, number) for number in numbers)):
            write_extracts(f"waku={tmp_path / name}", folder(world), tmp_path / "scratch")
            take(world) if name == "old" else None
    for lake in ("lake", "lake of both"):
        world.path = tmp_path / lake
        assert failures(world) == []
        assert sorted(row["hash"] for row in world.rows("archived")) == sorted(
            envelope(number, number).hash for number in (1, 2, 2, 3)
        )
    assert len({file.generation for file in files_of(folder(world))}) == 2


def test_rows_with_a_fault_are_in_quarantine_and_bad_rows_nowhere(
    world: LakeWorld, west: Host, tmp_path: Path
) -> None:
    """A run that is cut off before its rows are committed has put them into quarantine already."""
    west.server.write(nameplate(1))
    alter(west.server.file, "UPDATE usage_nameplates SET result = 'canary'")
    west.extract(2)
    with ours(tmp_path / "east") as server:
        [path] = Host(world, server).extract(1)
    rewritten(lambda row: row | {"app_id": "x" * 129})(path)
    with patch.object(LakeTable, "commit", cut_off("nameplates")), pytest.raises(KeyboardInterrupt):
        take(world)
    assert (len(world.rows("quarantine")), len(world.rows("nameplates"))) == (1, 0)
    [failure] = failures(world)
    assert (
        "source east: a text is too long in a row of its extracts of nameplates, so none of them was taken" in failure
    )
    assert ids(world) == [("west", 2)]
    [row] = world.rows("quarantine")
    assert (row["source"], row["table"], row["identity"], row["reason"]) == (
        "west",
        "nameplates",
        "1",
        "unknown result",
    )


def test_an_extract_of_an_older_version_may_lack_a_later_column(world: LakeWorld, tmp_path: Path) -> None:
    with ours(tmp_path / "west", client(1)) as server:
        [path] = Host(world, server).extract()
    pq.write_table(pq.read_table(path).drop_columns(["new_address"]), path)
    assert failures(world) == []
    assert [row["new_address"] for row in world.rows("client_versions")] == [None]


def test_of_what_is_live_only_the_newest_file_is_read(world: LakeWorld, west: Host) -> None:
    for number in range(3):
        west.server.write(current(None))
        west.extract(number)
    assert [file.last for file in files_of(folder(world), table="live")] == [1, 2, 3]
    for file in files_of(folder(world), table="live")[:2]:
        (folder(world) / file.path).write_bytes(b"not read")
    [live] = [result.ledger for result in take(world) if result.table == "live"]
    assert live is not None
    assert (live.read, live.replaced, len(world.rows("live"))) == (1, True, 1)
    west.extract(4)
    take(world)
    assert len(world.rows("live")) == 1


def test_a_run_that_is_killed_has_committed_all_sources_of_a_table_or_none(world: LakeWorld, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with ours(tmp_path / name, client(1)) as server:
            Host(world, server).extract(1, 2)
    with patch.object(LakeTable, "commit", cut_off("client_versions")), pytest.raises(KeyboardInterrupt):
        take(world)
    assert (len(world.rows("nameplates")), world.rows("client_versions")) == (4, [])
    assert [(result.source, result.table) for result in take(world)] == [
        ("a", "client_versions"),
        ("b", "client_versions"),
    ]
    assert (len(world.rows("nameplates")), len(world.rows("client_versions"))) == (4, 2)


def test_a_source_may_change_from_its_database_to_extracts_and_back(world: LakeWorld, west: Host) -> None:
    west.server.write(nameplate(1), nameplate(2))
    world.ingest(west.spec)
    west.extract(3)
    assert failures(world) == []
    west.server.write(nameplate(4))
    world.ingest(west.spec)
    west.extract(5)
    assert failures(world) == []
    assert ids(world) == [("west", number) for number in (1, 2, 3, 4, 5)]
    assert not [text for text in world.messages if "again" in text]


def test_rows_of_every_kind_that_were_read_in_place_are_known_again_in_extracts(
    world: LakeWorld, west: Host, tmp_path: Path
) -> None:
    """Also those whose values cleaning changes."""
    west.server.write(
        nameplate(1, app_id="\0é" * 100, waiting_time=None, total_time=-1.0),
        mailbox(1),
        client(1, implementation=None, version=None),
    )
    relay, reference = our_relay(tmp_path / "relay", transfer(1)), reference_relay(tmp_path / "reference")
    specs = (west.spec, f"relay={relay}", f"reference={reference}")
    world.ingest(*specs)
    west.server.write(nameplate(2), mailbox(2), client(2))
    our_relay(tmp_path / "relay", transfer(2))
    reference_relay(tmp_path / "reference")
    for spec in specs:
        write_extracts(spec, folder(world), tmp_path / "scratch")
    assert failures(world) == []
    expected = {"nameplates": 2, "mailboxes": 2, "client_versions": 2, "relay_transfers": 2 + 6}
    assert {table: len(world.rows(table)) for table in expected} == expected


def test_extracts_of_a_database_that_was_restored_do_not_continue_what_was_read_in_place_before(
    world: LakeWorld, west: Host, tmp_path: Path
) -> None:
    west.server.write(nameplate(1))
    restored = shutil.copytree(west.server.data, tmp_path / "restored" / "west")
    west.server.write(nameplate(2), nameplate(3))
    world.ingest(west.spec)
    with ours(restored) as server:
        host = Host(world, server)
        host.extract(12, 13, 14)
        [failure] = failures(world)
        assert "does not show that it continues the rows of nameplates that the lake has up to id 3" in failure
        assert "it has deleted these rows: read it with --source once more, write an extract, and run this" in failure
        assert len(ids(world)) == 3
        world.ingest(host.spec)
        host.extract(15)
    assert failures(world) == []
    assert seconds(world) == [1, 12, 13, 14, 15]


@pytest.mark.parametrize("restored", [False, True])
def test_an_archive_may_change_to_extracts_unless_it_was_restored(
    restored: bool, world: LakeWorld, tmp_path: Path
) -> None:
    data = tmp_path / "waku"
    with Keeping(data, envelope(1, 1)):
        pass
    shutil.copytree(data, tmp_path / "restored" / "waku")
    with Keeping(data, envelope(2, 2)):
        world.ingest(f"waku={data}")
    with Keeping(tmp_path / "restored" / "waku" if restored else data) as archive:
        archive.save(envelope(3, 3), envelope(4, 4), arrived=T0 + 9)
        write_extracts(f"waku={archive.data}", folder(world), tmp_path / "scratch")
    assert bool(failures(world)) is restored
    assert len(world.rows("archived")) == (2 if restored else 4)


def test_a_name_that_has_rows_of_another_kind_is_refused(world: LakeWorld, west: Host, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    our_relay(tmp_path / "r" / "west", transfer(1))
    world.ingest(f"west={tmp_path / 'r' / 'west'}")
    west.extract(1)
    [failure] = failures(world)
    assert "the lake has relay_transfers of it, and its extracts are of another kind: rename its folder" in failure


def test_the_command_reads_extracts_beside_sources(world: LakeWorld, west: Host, tmp_path: Path) -> None:
    west.extract(1)
    [file] = files_of(folder(world))
    DAMAGE["truncated"][0](folder(world) / file.path)
    options = ("--lake", tmp_path / "lake", "--extracts", folder(world))
    done = command("ingest", *options, "--plan", ends=1)
    assert DAMAGE["truncated"][1] in done.stderr
    done = spark_command(world.spark(), "ingest", *options, "--source", west.spec, ends=1)
    assert "source west: it has extracts, and --source names it, too: leave one of them out" in done.stderr
    shutil.rmtree(folder(world) / "west")
    done = command("ingest", *options, ends=1)
    assert "there are no extracts: name the folder that has a folder for each source" in done.stderr
    done = command("ingest", "--lake", tmp_path / "lake", "--extracts", tmp_path / "none", ends=1)
    assert "there is no such folder" in done.stderr
    for url in ("s3://bucket/x?key=canary", "s3://canary:canary@bucket/x"):
        refused = command("ingest", "--extracts", url, ends=2).stderr
        assert re.search(r"--extracts s3://\S*bucket/x: leave out what is no part of a path; credentials go", refused)
        assert "canary" not in refused
    assert "--extracts '': name a folder" in command("ingest", "--extracts", "", ends=2).stderr
    assert "there is nothing to read" in command("ingest", ends=2).stderr


def test_files_of_a_run_are_bounded(world: LakeWorld, west: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 4):
        west.extract(number)
    monkeypatch.setattr(extracts, "MAX_FILES", 2)
    take(world)
    assert ids(world) == [("west", 1), ("west", 2)]
    assert "source west: 1 more extracts of nameplates are read by the next run" in world.messages
    take(world)
    assert ids(world) == [("west", 1), ("west", 2), ("west", 3)]
    monkeypatch.setattr(extracts, "MAX_ENTRIES", 2)
    [failure] = failures(world)
    assert "has more than 2 entries: remove what is no extract" in failure
