"""The SQLite schema: how it grows, what it refuses, and what is said when it is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import restante.waku.archive
from restante.common.errors import StoreBusy, StoreDamaged, StoreError
from restante.waku.archive.records import Counts
from restante.waku.archive.schema import APPLICATION_ID, FILE, SCHEMA
from restante.waku.archive.sqlite import Archive, open_archive
from support.sqlite_schema import schema, version
from support.waku.archives import FROZEN, thaw
from support.waku.envelopes import T0, envelope, everything, held

VERSIONS = range(1, len(SCHEMA.migrations()) + 1)


def test_migrations_are_numbered_from_one_and_each_schema_is_frozen_here() -> None:
    folder = Path(restante.waku.archive.__file__).parent / "sql"
    wanted = [f"sqlite-{number:04}.sql" for number in VERSIONS]
    assert sorted(file.name for file in folder.iterdir()) == wanted
    assert sorted(file.name for file in FROZEN.iterdir()) == wanted


@pytest.mark.parametrize("old", VERSIONS)
async def test_every_old_archive_opens_with_all_rows_and_the_schema_of_a_new_one(old: int, tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    thaw(old, tmp_path / "old" / FILE)
    upgraded, new = Archive.open(tmp_path / "old"), Archive.open(tmp_path / "new")
    try:
        assert schema(upgraded.database) == schema(new.database)
        assert version(upgraded.database) == version(new.database) == (APPLICATION_ID, len(VERSIONS))
        assert [(row.arrival, row.arrived, row.raw) for row in await everything(upgraded)] == [
            (2, T0 + 100, envelope(5, 2, topic=b"\xff\xee\xdd\xcc").raw),
            (3, T0 + 200, envelope(3, 3).raw),
        ]
        assert await upgraded.counts() == Counts(2, 44, 2, T0 + 3, T0 + 5, 4)
        await upgraded.save([envelope(3, 3), envelope(0, 1)], T0)
        assert [row.arrival for row in await everything(upgraded)] == [2, 3, 4]
    finally:
        await upgraded.close()
        await new.close()


def newer(path: Path) -> None:
    SCHEMA.connect(str(path)).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 1000")


def somebody_elses(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE envelopes (id)")


def no_database(path: Path) -> None:
    path.write_text("Dear Sir or Madam,\n" * 500)


REFUSED = {
    newer: "use the newer restante",
    somebody_elses: "not a database of this Waku mailserver",
    no_database: "not a database",
}


@pytest.mark.parametrize("make", REFUSED)
def test_a_foreign_database_is_refused_in_one_sentence_and_not_changed(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / FILE)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(StoreError, match=REFUSED[make]) as refusal:
        open_archive(tmp_path)
    assert not isinstance(refusal.value, StoreBusy)
    assert "\n" not in str(refusal.value)
    assert str(tmp_path / FILE) in str(refusal.value)
    with pytest.raises(StoreError, match=r"\A[^\n]+\Z"), SCHEMA.reading(tmp_path):
        pass
    assert (tmp_path / FILE).read_bytes() == before


async def test_a_data_directory_has_one_process(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    with pytest.raises(StoreError, match="another process is using"):
        open_archive(tmp_path)
    await archive.close()
    await open_archive(tmp_path).close()


async def test_damage_is_reported_in_one_sentence(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path)
    await archive.save([envelope(number, number, size=500) for number in range(100)], 1)
    await archive.close()
    archive = Archive.open(tmp_path)
    with (tmp_path / FILE).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 4096 * 12)
    archive.database.execute("PRAGMA shrink_memory")
    with pytest.raises(StoreDamaged, match=r"\A[^\n]*malformed[^\n]*\Z"):
        await held(archive)
    with pytest.raises(StoreError, match=r"\A[^\n]*malformed[^\n]*\Z") as refusal:
        await archive.save([envelope(1000, 1000)], 1)
    assert not isinstance(refusal.value, StoreBusy)
    await archive.close()
    with pytest.raises(StoreError, match=r"\Athe archive is damaged \([^\n]*malformed\): restore a backup[^\n]*\Z"):
        open_archive(tmp_path)


def test_a_start_on_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(sqlite3.Connection):
        def execute(self, *_: object) -> sqlite3.Cursor:
            failure = sqlite3.OperationalError("disk I/O error")
            failure.sqlite_errorcode = sqlite3.SQLITE_IOERR | 4 << 8  # the shared memory cannot be made larger
            raise failure

    free = 0
    monkeypatch.setattr("restante.common.sqlite.sqlite3.connect", partial(sqlite3.connect, factory=Full))
    monkeypatch.setattr("restante.common.sqlite.shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(StoreError, match=f"the disk is full; make room in {tmp_path}, and try again"):
        SCHEMA.connect(str(tmp_path / FILE))
    free = 1 << 30
    with pytest.raises(StoreError, match="disk I/O error"):
        SCHEMA.connect(str(tmp_path / FILE))
