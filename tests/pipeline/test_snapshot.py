"""Copies of databases that are being written to: of one moment, without a wait, and gone when their run ends."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from restante.common.errors import StoreError
from restante.pipeline.sources import snapshot as snapshots
from restante.pipeline.sources.scratch import SCRATCH_PREFIX, scratch
from restante.pipeline.sources.snapshot import PACE_OF_EACH_TRY, PACES, snapshot
from restante.pipeline.sources.source import SourceError


def filled(folder: Path, rows: int, *, wal: bool = False) -> sqlite3.Connection:
    """A table of pairs whose halves are always alike, as if a server had it open."""
    database = sqlite3.connect(folder / "d", isolation_level=None, check_same_thread=False)
    if wal:
        database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE pairs (one INTEGER, other INTEGER, padding TEXT)")
    database.execute("BEGIN")
    database.executemany("INSERT INTO pairs VALUES (0, 0, ?)", [("p" * 1000,)] * rows)
    database.execute("COMMIT")
    return database


def halves(copy: Path) -> tuple[int, int, int]:
    with closing(sqlite3.connect(copy)) as database:
        sums: tuple[int, int, int] = database.execute("SELECT count(*), sum(one), sum(other) FROM pairs").fetchone()
        return sums


def timed(patch: pytest.MonkeyPatch, seconds: float) -> None:
    clock = itertools.count()
    patch.setattr(time, "monotonic", lambda: next(clock) * seconds)


def test_while_the_copy_rests_the_database_is_free_and_a_write_restarts_it(tmp_path: Path) -> None:
    with closing(filled(tmp_path, 2000)) as server:
        server.execute("PRAGMA busy_timeout = 0")
        rests: list[float] = []

        def write_twice(seconds: float) -> None:
            rests.append(seconds)
            server.execute("BEGIN EXCLUSIVE")
            if len(rests) in {2, 3}:
                server.execute("UPDATE pairs SET one = one + 1, other = other + 1")
            server.execute("COMMIT")

        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=write_twice) as copy:
            assert halves(copy) == (2000, 4000, 4000)
        rests.clear()
        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=rests.append) as copy:
            assert halves(copy) == (2000, 4000, 4000)
        assert 5 <= len(rests) <= 10  # 2 MB in steps of 256 KiB


ALWAYS = "UPDATE pairs SET one = one + 1 WHERE rowid = 1"


@pytest.mark.parametrize(
    ("first", "later", "tries", "sentence"),
    [
        (ALWAYS, ALWAYS, len(PACE_OF_EACH_TRY), "its server wrote to it during each of 22 attempts to copy it"),
        ("BEGIN EXCLUSIVE", "SELECT 1", 3, "has locked it for 5 s"),
    ],
    ids=["written", "locked"],
)
def test_copying_a_constantly_written_or_locked_database_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, later: str, tries: int, sentence: str
) -> None:
    timed(monkeypatch, 1.0)  # a disk as slow as that
    rests: list[float] = []
    with closing(filled(tmp_path, 10_000)) as server:

        def work(seconds: float) -> None:
            server.execute(later if rests else first)
            rests.append(seconds)

        with pytest.raises(SourceError) as failure, snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=work):
            pass
    assert sentence in str(failure.value)
    assert "\n" not in str(failure.value)
    assert len(rests) == tries
    assert list((tmp_path / "s").iterdir()) == []


def test_a_small_database_is_copied_while_it_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 0.0005)
    with closing(filled(tmp_path, 5_000)) as server:

        def write(_seconds: float) -> None:
            server.execute("UPDATE pairs SET one = one + 1, other = other + 1")

        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=write) as copy:
            rows, one, other = halves(copy)
    assert rows == 5_000
    assert one == other > 5_000


def test_a_writer_with_a_write_ahead_log_disturbs_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path, 10_000, wal=True)) as server:
        rests: list[float] = []
        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=rests.append) as copy:
            assert halves(copy) == (10_000, 0, 0)
        assert 1 <= len(rests) <= 4  # 11 MB; with a rollback journal more than 40
        monkeypatch.setattr(snapshots, "WAL_STEP_BYTES", snapshots.FIRST_STEP_BYTES)
        rests.clear()

        def write(seconds: float) -> None:
            rests.append(seconds)
            server.execute("UPDATE pairs SET one = one + 1 WHERE rowid % 5 = 0")

        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=write) as copy:
            assert halves(copy) == (10_000, 0, 0)
        assert 30 <= len(rests) <= 50
        assert list((tmp_path / "s").iterdir()) == []


def test_the_copy_rests_longer_than_a_step_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 1.0)
    rests: list[float] = []
    with closing(filled(tmp_path, 1000)), snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=rests.append):
        pass
    assert set(rests) == {PACES[0].rest}


def test_without_room_or_a_folder_no_copy_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path, 2000)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=60 << 20))
        with pytest.raises(SourceError) as failure, snapshot(tmp_path / "d", tmp_path / "s", "a"):
            pass
        assert str(failure.value) == (
            f"source a: its copy needs 65 MiB in {tmp_path / 's'}, where 60 MiB are free: make room there"
        )
        assert list((tmp_path / "s").iterdir()) == []
        (tmp_path / "file").touch()
        with (
            pytest.raises(SourceError, match="cannot make a folder"),
            snapshot(tmp_path / "d", tmp_path / "file", "a"),
        ):
            pass


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
