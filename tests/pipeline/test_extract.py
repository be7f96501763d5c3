"""`restante extract`: what it writes of real databases, how it goes on, and what a damaged folder does to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, date, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, SubTreeFileSystem

from pipeline.test_archive import SOME
from pipeline.test_ingest import add, claimed
from restante.common import extras
from restante.common.errors import InUse, Misuse, StoreError
from restante.mailbox.core import model
from restante.pipeline import extract as extracting
from restante.pipeline.extract import extract, recognise
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources import extract_files
from restante.pipeline.sources.extract_files import (
    DRAFT,
    INFO_KEY,
    ExtractFile,
    ExtractFolder,
    ExtractInfo,
    parse_path,
)
from restante.pipeline.sources.rows import arrow_schema
from restante.pipeline.sources.source import SourceError
from support.documents import Document
from support.mailbox.reference_sources import Their
from support.pipeline.archives import Keeping
from support.pipeline.relays import our_relay, reference_relay, transfer
from support.pipeline.servers import NOW, T0, Ours, client, current, mailbox, nameplate, ours
from support.pipeline.source_reads import Row, read, read_source
from support.ports import held_port
from support.processes import called, run
from support.s3 import s3_server
from support.sqlite import alter
from support.tools import MissingError

HOUR = 3600
BEGUN = "20231115T221320Z"
Rows = dict[str, list[Row]]


class World:
    """A folder of extracts, and a clock that shows whole hours after NOW."""

    def __init__(self, path: Path) -> None:
        self.out, self.scratch = path / "out", path / "scratch"
        self.messages: list[str] = []

    def run(self, *specs: str, hour: float = 0, out: str | ExtractFolder | None = None) -> list[Any]:
        self.scratch.mkdir(exist_ok=True)
        folder = out if isinstance(out, ExtractFolder) else ExtractFolder(out or str(self.out))
        return list(extract(specs, folder, self.scratch, NOW + HOUR * hour, self.messages.append))

    def files(self, table: str = "nameplates") -> dict[ExtractFile, tuple[ExtractInfo, list[Row]]]:
        paths = sorted(path.relative_to(self.out).as_posix() for path in self.out.rglob("*.parquet"))
        files = {extract: stored(self.out / path) for path in paths if (extract := parse_path(path))}
        return {extract: file for extract, file in files.items() if extract.table == table}

    def ids(self, table: str = "nameplates") -> list[tuple[int, int, int, int]]:
        """Return a number of the generation, first and last id, and number of rows of the files of a table."""
        files = self.files(table)
        numbers = {name: number for number, name in enumerate(sorted({file.generation for file in files}), 1)}
        return [(numbers[file.generation], file.first, file.last, len(rows)) for file, (_, rows) in files.items()]


def stored(path: Path) -> tuple[ExtractInfo, list[Row]]:
    table = pq.read_table(path)
    assert table.schema.remove_metadata() == arrow_schema(CLEAN_TABLES[path.parents[2].name])
    return msgspec.json.decode(table.schema.metadata[INFO_KEY], type=ExtractInfo), table.to_pylist()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Ours]:
    """A server with five nameplates."""
    with ours(tmp_path / "data", *map(nameplate, range(5))) as server:
        yield server


def test_extracts_have_the_rows_that_a_run_would_read(world: World, tmp_path: Path) -> None:
    bad = nameplate(2, result="odd")
    with ours(tmp_path / "data", nameplate(1), bad, nameplate(3), mailbox(3), client(4), current(None)):
        results = world.run(f"north={tmp_path / 'data'}")
        tables = read(f"north={tmp_path / 'data'}", world.scratch)
        live = read_source(f"north={tmp_path / 'data'}", "live", world.scratch)
    assert [result[1:] for result in results] == [
        ("live", 1, 1, 0, 0),
        ("nameplates", 1, 3, 1, 0),
        ("mailboxes", 1, 1, 0, 0),
        ("client_versions", 1, 1, 0, 0),
    ]
    for table, expected in {**tables, "live": live}.items():
        [(file, (info, rows))] = world.files(table).items()
        assert rows == expected.rows
        assert (file.source, file.generation, file.day, file.first) == ("north", BEGUN, date(2023, 11, 15), 1)
        assert info == ExtractInfo(
            format=1,
            written=NOW,
            rows=len(rows),
            rejected=len(expected.faults),
            missed=0,
            mark=expected.marks[""],
            before="",
            replaced=False,
            complete=table == "client_versions",
        )
    assert world.messages == []


def reference(path: Path) -> Path:
    their = Their(path)
    their.bind("canary-side", T0)
    box = their.claim("canary-side", "4", T0)
    their.release("canary-side", "4", T0 + 3)
    their.close("canary-side", box, "happy", T0 + 4)
    return their.usage


def test_databases_of_relays_and_of_reference_servers_are_extracted(world: World, tmp_path: Path) -> None:
    results = world.run(
        f"relay={our_relay(tmp_path / 'relay', transfer(1), transfer(2))}",
        f"their-relay={reference_relay(tmp_path / 'their-relay.sqlite')}",
        f"their={reference(tmp_path / 'their')}",
    )
    assert [(result.source, result.table, result.rows) for result in results] == [
        ("relay", "relay_transfers", 2),
        ("their-relay", "relay_transfers", 3),
        ("their", "nameplates", 1),
        ("their", "mailboxes", 1),
        ("their", "client_versions", 1),
    ]
    assert b"canary" not in b"".join(path.read_bytes() for path in world.out.rglob("*.parquet"))


def test_a_run_goes_on_behind_the_last_id_and_writes_no_file_without_rows(world: World, server: Ours) -> None:
    spec = f"a={server.data}"
    world.run(spec)
    server.write(*map(nameplate, (10, 11, 12)))
    server.forget(T0 + 10.5)  # id 6 is deleted before it was read
    world.run(spec, hour=1)
    assert world.run(spec, hour=2) == ["a: nothing new"]
    server.write(nameplate(20))
    world.run(spec, hour=30)
    assert world.ids() == [(1, 1, 5, 5), (1, 6, 8, 2), (1, 9, 9, 1)]
    assert [info.missed for info, _ in world.files().values()] == [0, 1, 0]
    assert [str(file.day) for file in world.files()] == ["2023-11-15", "2023-11-15", "2023-11-17"]
    assert world.messages == []


def test_files_of_a_source_are_written_once_an_hour(world: World, server: Ours) -> None:
    spec = f"a={server.data}"
    assert datetime.fromtimestamp(NOW, UTC).strftime("%H:%M") == "22:13"
    world.run(spec)
    server.write(nameplate(10), mailbox(11))
    assert world.run(spec, hour=0.5) == ["a: written in this hour; what is new is written after 23:00 UTC"]
    assert [result.table for result in world.run(spec, hour=0.8)] == ["nameplates", "mailboxes"]


def test_what_a_run_has_failed_to_write_the_next_one_tries_in_the_same_hour(world: World, server: Ours) -> None:
    spec = f"a={server.data}"
    for number in (1, 2):
        server.write(mailbox(number))
        world.run(spec, hour=number)
    *_, last = world.files("mailboxes")
    (world.out / last.path).write_bytes(b"damaged")
    for minute in (1, 2):
        server.write(nameplate(10 + minute))
        written, error = world.run(spec, hour=3 + minute / 60)
        assert (written.table, written.rows) == ("nameplates", 1)
        assert f"{last.path} exists already" in str(error)
    (world.out / last.path).unlink()
    assert [result.table for result in world.run(spec, hour=3.1)] == ["mailboxes"]
    assert "written in this hour" in world.run(spec, hour=3.2)[0]


def test_a_database_that_was_replaced_begins_a_generation(world: World, server: Ours, tmp_path: Path) -> None:
    world.run(f"a={server.data}")
    with ours(tmp_path / "new", *map(nameplate, range(20, 22))):
        world.run(f"a={tmp_path / 'new'}", hour=1)
        assert (
            "nameplates is written again from the beginning, as generation 20231115T231320Z: its last"
            in world.messages[0]
        )
        assert world.run(f"a={tmp_path / 'new'}", hour=2) == ["a: nothing new"]
    world.run(f"a={server.data}", hour=3)
    assert world.ids() == [(1, 1, 5, 5), (2, 1, 2, 2), (3, 1, 5, 5)]
    assert [info.replaced for info, _ in world.files().values()] == [False, True, True]


def test_a_database_that_was_emptied_begins_a_generation_with_its_first_row(
    world: World, server: Ours, tmp_path: Path
) -> None:
    world.run(f"a={server.data}")
    with ours(tmp_path / "new") as new:
        assert world.run(f"a={new.data}", hour=1) == ["a: nothing new"]
        new.write(nameplate(20))
        world.run(f"a={new.data}", hour=2)
    assert world.ids() == [(1, 1, 5, 5), (2, 1, 1, 1)]


def test_each_extract_of_what_is_live_is_complete_and_has_the_next_number(world: World, server: Ours) -> None:
    spec = f"a={server.data}"
    server.write(current(None))
    add(server, claimed(1, 10.0), claimed(2, 20.0))
    world.run(spec)
    server.write(model.NameplateGone(claimed(1, 10.0)))
    world.run(spec, hour=1)
    world.run(spec, hour=2)
    kinds = [[row["kind"] for row in rows] for _, rows in world.files("live").values()]
    assert kinds == [["listener", "nameplate", "nameplate"], ["listener", "nameplate"]]
    assert [ids[:3] for ids in world.ids("live")] == [(1, 1, 1), (1, 2, 2)]


def test_when_nothing_is_live_any_more_an_extract_without_rows_says_so(world: World, server: Ours) -> None:
    add(server, claimed(1, 10.0))
    server.write(current(None))
    world.run(f"a={server.data}")
    server.write(model.NameplateGone(claimed(1, 10.0)))
    alter(server.file, "DELETE FROM usage_current")
    world.run(f"a={server.data}", hour=1)
    assert [ids[1:] for ids in world.ids("live")] == [(1, 1, 2), (2, 2, 0)]


def test_envelopes_of_an_archive_are_extracted_once(world: World, tmp_path: Path) -> None:
    with Keeping(tmp_path / "data", *SOME[:6]) as archive:
        world.run(f"waku={archive.data}")
        archive.save(*SOME[6:])
        archive.prune(8)
        world.run(f"waku={archive.data}", hour=1)
    assert world.ids("archived") == [(1, 1, 6, 6), (1, 7, 10, 2)]
    raws = [row["raw"] for _, rows in world.files("archived").values() for row in rows]
    assert raws == [envelope.raw for envelope in (*SOME[:6], *SOME[8:])]
    assert len({row["file"] for _, rows in world.files("archived").values() for row in rows}) == 1


def small_batches(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("restante.pipeline.sources.rows.ROWS_PER_BATCH", rows)


def test_many_rows_are_written_to_several_files_and_a_run_goes_on_after_any_of_them(
    world: World, server: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_batches(monkeypatch, 2)
    monkeypatch.setattr(extracting, "MAX_ROWS", 2)
    [totals] = world.run(f"a={server.data}")
    assert totals[2:] == (3, 5, 0, 0)
    assert world.ids() == [(1, 1, 2, 2), (1, 3, 4, 2), (1, 5, 5, 1)]
    *_, last = world.files()
    (world.out / last.path).unlink()  # as if the run had been killed before it
    world.run(f"a={server.data}", hour=1)
    assert world.ids() == [(1, 1, 2, 2), (1, 3, 4, 2), (1, 5, 5, 1)]
    assert world.messages == []


def test_envelopes_of_many_bytes_are_written_to_several_files(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("restante.pipeline.sources.archived.BATCH_ENVELOPES", 1)
    monkeypatch.setattr(extracting, "MAX_BYTES", 3000)
    with Keeping(tmp_path / "data", *SOME) as archive:
        world.run(f"waku={archive.data}")
        world.run(f"waku={archive.data}", hour=1)
    ids = world.ids("archived")
    assert len(ids) > 2
    assert [first for _, first, _, _ in ids] == [1, *(last + 1 for _, _, last, _ in ids[:-1])]
    assert sum(rows for *_, rows in ids) == 10


KILLED = """
import os, signal, sys
from pathlib import Path
from restante.pipeline.extract import extract
from restante.pipeline.sources import extract_files
from restante.pipeline.sources.extract_files import ExtractFolder, give_name

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Killed(ExtractFolder):
    def add(self, content, extract):
        extract_files.give_name = give_name if extract.table != "mailboxes" else kill
        super().add(content, extract)

data, out, scratch, now = sys.argv[1:]
folder = Killed(out)
list(extract([f"a={data}"], folder, Path(scratch), float(now), print))
"""


def test_a_killed_run_leaves_a_draft_that_the_next_run_removes(world: World, server: Ours) -> None:
    server.write(mailbox(1))
    world.scratch.mkdir()
    arguments = (server.data, world.out, world.scratch, NOW)
    assert run(sys.executable, "-c", KILLED, *map(str, arguments)).returncode == -signal.SIGKILL
    assert (world.out / "a" / DRAFT).exists()
    assert (world.ids(), world.ids("mailboxes")) == ([(1, 1, 5, 5)], [])
    assert [result.table for result in world.run(f"a={server.data}", hour=1)] == ["mailboxes"]
    assert not (world.out / "a" / DRAFT).exists()


def test_two_runs_of_one_source_do_not_write_at_once(world: World, server: Ours) -> None:
    folder = ExtractFolder(str(world.out))
    with folder.locked("a"):
        (world.out.parent / "other").mkdir()
        with ours(world.out.parent / "other" / "b", nameplate(1)) as other:
            error, others, *_ = world.run(f"a={server.data}", f"b={other.data}")
        assert isinstance(error, InUse)
        assert "another process is writing the extracts of a" in str(error)
        assert others.source == "b"
    assert world.run(f"a={server.data}")[0].rows == 5


def test_a_damaged_extract_does_not_count_and_stays(world: World, server: Ours) -> None:
    spec = f"a={server.data}"
    world.run(spec, hour=-2)
    server.write(nameplate(10))
    world.run(spec, hour=-1)
    _, second = world.files()
    damaged = (world.out / second.path).read_bytes()[:-9]
    (world.out / second.path).write_bytes(damaged)
    [error] = world.run(spec, hour=0)
    assert f"{second.path} exists already: if it is damaged, remove it" in str(error)
    [message] = world.messages
    assert f"{second.path} is damaged and does not count" in message
    server.write(nameplate(11))
    world.run(spec, hour=1)
    assert (world.out / second.path).read_bytes() == damaged
    (world.out / second.path).unlink()
    assert world.ids() == [(1, 1, 5, 5), (1, 6, 7, 2)]


@pytest.mark.parametrize("key", ["mark", "format"])
def test_an_extract_that_contradicts_its_name_is_damaged_and_one_of_a_later_version_is_not_read(
    key: str, world: World, server: Ours
) -> None:
    world.run(f"a={server.data}")
    [(file, (info, _))] = world.files().items()
    other: Mapping[str, Any] = {"mark": msgspec.structs.replace(info.mark, last=9), "format": 2}
    changed = msgspec.structs.replace(info, **{key: other[key]})
    table = pq.read_table(world.out / file.path).replace_schema_metadata({INFO_KEY: msgspec.json.encode(changed)})
    pq.write_table(table, world.out / file.path)
    [result] = world.run(f"a={server.data}", hour=1)
    if key == "format":
        assert "of a later version of Restante: use that version here, too" in str(result)
    else:
        assert result.rows == 5, "as a generation of its own"


def test_what_is_no_extract_is_left_alone(world: World, server: Ours, tmp_path: Path) -> None:
    spec = f"a={server.data}"
    world.run(spec)
    folder = next(iter(world.files()))
    day = (world.out / folder.path).parent
    name = "9" * 19 + "-" + "9" * 19
    os.close(os.open(os.fsencode(day) + b"/\xff\n\x1b.parquet", os.O_CREAT))
    (day / f"{name}.parquet").touch()  # greater than any id
    (day / "0000000000000000007-0000000000000000006.parquet").touch()
    os.mkfifo(day / "0000000000000000001-0000000000000000099.parquet")
    (day / "0000000000000000001-0000000000000000098.parquet").mkdir()
    (day / "loop").symlink_to(world.out)
    server.write(nameplate(10))
    before = sorted(os.walk(os.fsencode(world.out)))
    assert [result.rows for result in world.run(spec, hour=1)] == [1]
    assert [ascii(text) for text in world.messages if "is damaged" not in text] == []
    assert len(world.messages) == 1, "of the named pipe"
    (day / "0000000000000000006-0000000000000000006.parquet").unlink()
    assert sorted(os.walk(os.fsencode(world.out))) == before


def test_the_last_number_of_what_is_live_is_refused(world: World, server: Ours) -> None:
    server.write(current(None))
    day = world.out / "a" / "live" / BEGUN / "2023-11-15"
    day.mkdir(parents=True)
    (day / f"{(1 << 63) - 1}-{(1 << 63) - 1}.parquet").touch()
    [error] = world.run(f"a={server.data}")
    assert "an extract of live has the last number: remove it" in str(error)


def test_a_folder_that_cannot_be_used_is_refused(world: World, server: Ours, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, text in {
        tmp_path / "none" / "out": f"there is no folder {tmp_path / 'none'} to make out in",
        tmp_path / "file": "file is no folder: name another one",
        tmp_path / "file" / "out": "out is no folder: name another one",
    }.items():
        with pytest.raises(Misuse, match=f"{text}$"):
            world.run(f"a={server.data}", out=str(out))
    (world.out / "a").mkdir(parents=True)
    (world.out / "a" / ".lock").symlink_to(tmp_path / "none" / "lock")
    [error] = world.run(f"a={server.data}")
    assert isinstance(error, StoreError)
    assert re.search(r"cannot write .*/a \(No such file or directory\): check its permissions", str(error))


def test_a_source_that_is_no_database_of_a_server_is_refused(world: World, server: Ours, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[]")
    for path in ("log", "none"):
        with pytest.raises(SourceError, match=r"^source a: "):
            recognise(f"a={tmp_path / path}")
    results = world.run(f"a={server.data}", f"b={server.file}")
    assert ["would be counted twice" in str(result) for result in results] == [True, True]
    world.run(f"a={server.data}")
    [error] = world.run(f"a={our_relay(tmp_path / 'relay', transfer(1))}", hour=1)
    assert "is of another kind (transit relay's database) than the extracts of that name" in str(error)


def test_rows_are_not_taken_for_faulty_because_the_clock_was_set_back(world: World, server: Ours) -> None:
    spec = f"a={server.data}"
    world.run(spec)
    server.write(nameplate(3 * 86_400))
    [error] = world.run(spec, hour=-100)
    assert "out of range, perhaps only by this machine's clock" in str(error)
    world.run(spec, hour=72)
    assert world.ids() == [(1, 1, 5, 5), (1, 6, 6, 1)]


def test_without_the_extra_for_waku_an_archive_is_refused_and_usage_records_are_not(
    world: World, server: Ours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Keeping(tmp_path / "waku", *SOME):
        pass
    monkeypatch.setitem(sys.modules, "coincurve", None)
    with pytest.raises(SourceError, match="If it is a Waku archive, this command needs the extra 'waku': "):
        recognise(f"w={tmp_path / 'waku'}")
    assert world.run(f"a={server.data}")[0].rows == 5


WITHOUT = """
import sys
from restante.cli.main import main
sys.modules |= dict.fromkeys(["py4j", "duckdb", *sys.argv.pop().split()])
try: main()
finally: print(*sys.modules)
"""


def test_the_command_needs_neither_spark_nor_the_lake_nor_a_server(server: Ours, tmp_path: Path) -> None:
    with Keeping(tmp_path / "waku", *SOME):
        pass
    arguments = (
        "extract",
        "--source",
        f"a={server.data}",
        "--source",
        f"w={tmp_path / 'waku'}",
        "-o",
        tmp_path / "out",
    )
    others = " ".join(chain(*(extras.MODULES[extra] for extra in ("server", "pipeline", "leveldb"))))
    done = run(sys.executable, "-c", WITHOUT, *map(str, arguments), others)
    *lines, modules = done.stdout.splitlines()
    assert (lines, done.stderr) == (
        ["a: nameplates: 5 rows written: 5 clean", "w: archived: 10 rows written: 10 clean"],
        "",
    )
    unneeded = ("pyspark.", "py4j.", "deltalake.", "duckdb.", "restante.pipeline.lake.lake")
    assert [module for module in modules.split() if module.startswith(unneeded)] == []


def test_the_command_says_which_source_failed_and_writes_the_others(server: Ours, tmp_path: Path) -> None:
    sources = ("--source", f"a={server.data}", "--source", f"b={tmp_path / 'none'}")
    done = called("extract", *sources, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "a: nameplates: 5 rows written: 5 clean\n")
    assert done.stderr.startswith("restante: source b: cannot read ")
    for arguments in ((), ("-o", "x"), ("--source", "a=b")):
        assert called("extract", *arguments).returncode == 2


def test_the_command_of_the_guide_writes_extracts(tmp_path: Path) -> None:
    with ours(tmp_path / "restante-data", nameplate(1)):
        our_relay(tmp_path / "relay-data", transfer(1))
        [line] = Document("docs/pipeline/operating.md").lines("extract")
        with contextlib.chdir(tmp_path):
            done = called(*line.split()[1:])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "north: nameplates: 1 row written: 1 clean",
        "relay: relay_transfers: 1 row written: 1 clean",
    ]


def test_a_url_of_files_is_the_folder_of_that_path(world: World, server: Ours) -> None:
    world.run(f"a={server.data}", out=world.out.as_uri())
    assert ExtractFolder("file:///").path_text("a") == "file:///a"


def test_at_a_url_whose_files_appear_before_they_are_complete_a_draft_is_renamed(world: World, server: Ours) -> None:
    """HDFS is such a file system. Here it is a folder by Arrow's functions for all file systems."""
    folder = ExtractFolder(str(world.out))
    folder._local, folder._fs = None, SubTreeFileSystem("/", LocalFileSystem())
    spec = f"a={server.data}"
    world.run(spec, hour=-2, out=folder)
    assert world.run(spec, hour=-2, out=folder) == ["a: written in this hour; what is new is written after 21:00 UTC"]
    server.write(nameplate(10))
    [(file, _)] = world.files().items()
    draft = (world.out / file.path).parent / DRAFT
    draft.write_bytes(b"of a run that was killed")
    world.run(spec, hour=-1, out=folder)
    assert world.ids() == [(1, 1, 5, 5), (1, 6, 6, 1)]
    assert not draft.exists()
    _, last = world.files()
    (world.out / last.path).write_bytes(b"PAR1")
    [error] = world.run(spec, hour=0, out=folder)
    assert "exists already" in str(error)
    assert (world.out / last.path).read_bytes() == b"PAR1"


def test_an_error_of_a_url_names_no_secret(world: World) -> None:
    for url in ("s3://canary-id:canary-key@bucket/x?no-option=canary", "s3a://canary:canary@bucket/x?canary=canary"):
        with pytest.raises(Misuse) as refused:
            ExtractFolder(url)
        assert str(refused.value).startswith(f"{url.partition(':')[0]}://***@bucket/x is no URL of a folder: write ")
        assert "canary" not in str(refused.value)


def test_requests_to_google_are_repeated_for_a_limited_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_files, "GCS_SECONDS", 1)
    with held_port() as nobody_listens:
        url = f"gs://anonymous@bucket/x?scheme=http&endpoint_override=127.0.0.1:{nobody_listens}"
        with pytest.raises(StoreError, match="bucket/x"):
            ExtractFolder(url).files("a")


@pytest.mark.thorough
def test_extracts_are_objects_in_a_bucket(world: World, server: Ours) -> None:
    with ExitStack() as stack:
        try:
            host = stack.enter_context(s3_server())
        except MissingError as missing:
            pytest.skip(str(missing))
        options = f"endpoint_override={host}&scheme=http&region=us-east-1"
        url = f"s3://canary-id:canary-key@extracts/hosts?{options}"
        [error] = world.run(f"a={server.data}", out=url)
        assert isinstance(error, StoreError)
        assert re.search(r"s3://\*\*\*@extracts/hosts/a/nameplates/\S* \(.*NO_SUCH_BUCKET", str(error))
        assert "canary" not in str(error)
        store, _ = FileSystem.from_uri(f"s3://canary-id:canary-key@extracts?{options}&allow_bucket_creation=true")
        store.create_dir("extracts")
        assert world.run(f"a={server.data}", out=url, hour=-2)[0].rows == 5
        assert "written in this hour" in world.run(f"a={server.data}", out=url, hour=-2)[0]
        server.write(nameplate(10))
        assert world.run(f"a={server.data}", out=url, hour=-1)[0].rows == 1

        def paths() -> list[str]:
            objects = store.get_file_info(FileSelector("extracts/hosts", recursive=True))
            return [item.path for item in objects if item.is_file]

        folder = "extracts/hosts/a/nameplates/20231115T201320Z/2023-11-15/"
        assert paths() == [f"{folder}{'0' * 18}1-{'0' * 18}5.parquet", f"{folder}{'0' * 18}6-{'0' * 18}6.parquet"]
        with store.open_output_stream(paths()[1]) as damaged:
            damaged.write(b"PAR1")
        [error] = world.run(f"a={server.data}", out=url, hour=0)
        assert "exists already" in str(error)
        server.write(nameplate(11))
        assert world.run(f"a={server.data}", out=url, hour=1)[0].rows == 2
        assert len(paths()) == 3
        table = pq.read_table(paths()[2], filesystem=store)
        assert table.column("id").to_pylist() == [6, 7]
