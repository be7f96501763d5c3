"""Databases read while others write to them, and the copies of new rows, which are gone when their run ends."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from restante.common.errors import StoreError
from restante.pipeline.sources import databases
from restante.pipeline.sources.databases import FIRST_STEP_ROWS, MIN_REST_SECONDS, copy_file, open_sqlite, reading
from restante.pipeline.sources.scratch import SCRATCH_PREFIX, scratch
from restante.pipeline.sources.source import SourceError
from support.sqlite import beside

ROWS = "SELECT id, text FROM main.rows WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"


@contextmanager
def database_of(folder: Path, ids: range, journal: str = "DELETE") -> Iterator[sqlite3.Connection]:
    """Make a database with rows of these ids, as if a server had it open that waits for nobody."""
    with closing(sqlite3.connect(folder / "d", isolation_level=None)) as server:
        server.execute(f"PRAGMA journal_mode = {journal}")
        server.execute("PRAGMA busy_timeout = 0")
        server.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT)")
        server.execute("BEGIN")
        server.executemany("INSERT INTO rows VALUES (?, 'row ' || ?1)", [(number,) for number in ids])
        server.execute("COMMIT")
        yield server


def copied(folder: Path, first_id: int, last_id: int, sleep: Callable[[float], None]) -> list[tuple[int, str]]:
    """Copy a range of ids, and return the copied rows."""
    with copy_file(folder / "s", "a") as copies, open_sqlite(folder / "d", copies, sleep=sleep) as database:
        database.execute("CREATE TABLE copy.rows (id INTEGER PRIMARY KEY, text)")
        count = database.copy_range("rows", ROWS, first_id, last_id)
        rows = database.execute("SELECT * FROM copy.rows ORDER BY id").fetchall()
    assert (list((folder / "s").iterdir()), len(rows)) == ([], count)
    return rows


def steps_of(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let a clock show that each statement takes so long."""
    clock = itertools.count()
    patch.setattr(time, "monotonic", lambda: next(clock) * seconds)


def test_between_two_statements_a_server_commits_and_the_rows_of_the_range_are_copied(tmp_path: Path) -> None:
    rests: list[float] = []
    with database_of(tmp_path, range(1, 2001)) as server:

        def commit(seconds: float) -> None:
            rests.append(seconds)
            server.execute("BEGIN EXCLUSIVE")
            server.execute("DELETE FROM rows WHERE id IN (1, 2000)")
            server.execute("INSERT INTO rows (text) VALUES ('new')")
            server.execute("COMMIT")

        rows = copied(tmp_path, 1, 2000, commit)
    assert rows == [(number, f"row {number}") for number in range(1, 2000)]
    assert 1 <= len(rests) <= 2000 // FIRST_STEP_ROWS


@pytest.mark.parametrize("seconds", [0.00001, 0.1])
def test_statements_become_as_large_as_their_duration_allows_and_rests_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    steps_of(monkeypatch, seconds)
    rests: list[float] = []
    with database_of(tmp_path, range(1, 2001)):
        assert len(copied(tmp_path, 1, 2000, rests.append)) == 2000
    sizes = {0.00001: [256, 1024, 720], 0.1: [256, 2, *[1] * 1742]}[seconds]
    assert rests == [pytest.approx(max(seconds, MIN_REST_SECONDS))] * (len(sizes) - 1)


def test_with_a_write_ahead_log_are_no_rests(tmp_path: Path) -> None:
    rests: list[float] = []
    with database_of(tmp_path, range(1, 2001), "WAL"):
        assert len(copied(tmp_path, 1, 2000, rests.append)) == 2000
    assert rests == []


def test_a_wide_gap_between_ids_makes_no_statement_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(monkeypatch, 1.0)
    rests: list[float] = []
    with database_of(tmp_path, range(1, 2**62, 2**55)):
        assert len(copied(tmp_path, 2, 2**62, rests.append)) == 127
        assert copied(tmp_path, 2, 2**55, rests.append) == []
    assert rests == []


def test_the_greatest_id_that_sqlite_has_is_the_last(tmp_path: Path) -> None:
    last = 2**63 - 1
    with database_of(tmp_path, range(last - FIRST_STEP_ROWS + 1, last + 1)):
        assert copied(tmp_path, 1, last, time.sleep)[-1] == (last, f"row {last}")


def test_a_database_that_another_program_has_locked_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT", 0.01)
    with database_of(tmp_path, range(3)):
        pass
    with beside(tmp_path / "d", "BEGIN EXCLUSIVE"), pytest.raises(SourceError) as failure:
        copied(tmp_path, 0, 3, time.sleep)
    assert str(failure.value).startswith(
        "source a: another program has locked it for 0 s: stop that program, or ingest"
    )
    assert list((tmp_path / "s").iterdir()) == []


def test_without_room_nothing_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=60 << 20))
    with pytest.raises(SourceError) as failure, copy_file(tmp_path, "a") as copies:
        copies.require_space(1 << 20)
    assert str(failure.value) == (
        f"source a: the copy of its new rows needs 65 MiB in {tmp_path}, where 60 MiB are free: make room there"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_schema_that_is_no_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rows (id INTEGER)")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE TAB\xffE"))
    with pytest.raises(SourceError, match="/d is damaged or encrypted"), reading(path, "a") as database:
        database.execute("SELECT * FROM rows").fetchall()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_each_run_has_a_private_folder_which_is_removed_with_it(temporary: Path) -> None:
    tempfile.mkdtemp(prefix=SCRATCH_PREFIX)  # of a run that was killed before it locked it
    with scratch() as one:
        (one / "copy").touch()
        assert one.stat().st_mode & 0o077 == 0
        with scratch() as other:
            assert other != one
        assert (one / "copy").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("when", ["before it is opened", "before it is locked"])
def test_a_folder_that_another_run_removes_is_created_again(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    make, lock = tempfile.mkdtemp, fcntl.flock

    def remove(now: str) -> None:
        if len(folders) == 1 and when == now:
            folders[0].rmdir()

    def made(*, prefix: str) -> str:
        folders.append(Path(make(prefix=prefix)))
        remove("before it is opened")
        return str(folders[-1])

    def locked(file: int, how: int) -> None:
        remove("before it is locked")
        lock(file, how)

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    monkeypatch.setattr(fcntl, "flock", locked)
    with scratch() as folder:
        assert folder.is_dir()
        assert folders == [folders[0], folder]


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match=r"cannot make a folder for copies of sources: .*TMPDIR"), scratch():
        pass


def test_a_folder_or_link_of_the_user_with_such_a_name_stays(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (temporary / f"{SCRATCH_PREFIX}xxxxxxxx").symlink_to(tmp_path / "precious")
    names = [f"{SCRATCH_PREFIX}{name}" for name in ("mylake", "my_notes", "empty")]
    for name in names:
        (temporary / name).mkdir(mode=0o700)
    for name in names[:2]:
        (temporary / name / "thesis.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    with scratch():
        pass
    assert sorted(tmp_path.rglob("*")) == before
