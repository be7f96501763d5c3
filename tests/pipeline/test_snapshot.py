"""Copies of databases that are being written to: nobody waits, what is copied stood there at one moment, and no copy
outlives its run."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import namedtuple
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from restante.common.errors import StoreError
from restante.pipeline.sources import snapshot as snapshots
from restante.pipeline.sources import usage
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.scratch import SCRATCH_PREFIX, scratch
from restante.pipeline.sources.snapshot import PACE_OF_EACH_TRY, PACES, snapshot
from restante.pipeline.sources.source import SourceError
from support.mailbox.reference_sources import Their
from support.pipeline.servers import CONTEXT, T0, Ours, mailbox, nameplate
from support.processes import run


def filled(file: Path, rows: int, *, wal: bool = False) -> sqlite3.Connection:
    """A table of pairs whose halves are always alike, as if a server had it open."""
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    if wal:
        database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE pairs (one INTEGER, other INTEGER, padding TEXT)")
    database.execute("BEGIN")
    database.executemany("INSERT INTO pairs VALUES (0, 0, ?)", [("p" * 1000,)] * rows)
    database.execute("COMMIT")
    return database


def halves(copy: Path) -> tuple[int, int, int]:
    with closing(sqlite3.connect(copy)) as database:
        found: tuple[int, int, int] = database.execute("SELECT count(*), sum(one), sum(other) FROM pairs").fetchone()
        return found


def test_while_the_copy_rests_the_database_is_free_and_a_write_restarts_it(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "d", 2000)) as server:
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


def test_copying_a_constantly_written_database_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path / "d", 10_000)) as server:
        rests = []

        def write(seconds: float) -> None:
            rests.append(seconds)
            server.execute("UPDATE pairs SET one = one + 1 WHERE rowid = 1")

        clock = iter(range(100_000))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))  # a disk as slow as that
        with pytest.raises(SourceError) as failure, snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=write):
            pass
    assert "its server wrote to it during each of 22 attempts to copy it" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert len(rests) == len(PACE_OF_EACH_TRY)
    assert list((tmp_path / "s").iterdir()) == []


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each step take half a millisecond, however busy the machine is."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 2000)


@pytest.mark.usefixtures("fast_disk")
def test_a_small_database_is_copied_however_often_it_is_written_to(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "d", 5_000)) as server:

        def write(_seconds: float) -> None:
            server.execute("UPDATE pairs SET one = one + 1, other = other + 1")

        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=write) as copy:
            rows, one, other = halves(copy)
    assert rows == 5_000
    assert one == other > 5_000


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy also a database with a write-ahead log in small steps."""
    monkeypatch.setattr(snapshots, "WAL_STEP_BYTES", snapshots.FIRST_STEP_BYTES)


def test_with_a_write_ahead_log_the_copy_rests_rarely(tmp_path: Path) -> None:
    rests: list[float] = []
    with (
        closing(filled(tmp_path / "d", 10_000, wal=True)),
        snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=rests.append) as copy,
    ):
        assert halves(copy) == (10_000, 0, 0)
    assert 1 <= len(rests) <= 4  # 11 MB; with a rollback journal more than 40


@pytest.mark.usefixtures("small_steps")
def test_with_a_write_ahead_log_a_writer_does_not_disturb_the_copy(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "d", 2000, wal=True)) as server:
        rests = []

        def write(seconds: float) -> None:
            rests.append(seconds)
            server.execute("UPDATE pairs SET one = one + 1")

        with snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=write) as copy:
            assert halves(copy) == (2000, 0, 0)
        assert 5 <= len(rests) <= 10
        assert [file.name for file in copy.parent.parent.iterdir()] == []


def test_the_copy_rests_longer_than_a_step_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    rests: list[float] = []
    with closing(filled(tmp_path / "d", 1000)), snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=rests.append):
        pass
    assert set(rests) == {PACES[0].rest}  # a step a second, by this clock


def test_copying_a_locked_database_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path / "d", 2000)) as server:
        clock = iter(range(1000))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
        begun: list[bool] = []

        def seize(_seconds: float) -> None:
            if not begun:
                server.execute("BEGIN EXCLUSIVE")
                begun.append(True)

        with (
            pytest.raises(SourceError, match="has locked it for 5 s"),
            snapshot(tmp_path / "d", tmp_path / "s", "a", sleep=seize),
        ):
            pass


Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - shutil's


def test_without_room_for_the_copy_it_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path / "d", 2000)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 0, 60 << 20))
        with pytest.raises(SourceError) as failure, snapshot(tmp_path / "d", tmp_path / "s", "a"):
            pass
    assert str(failure.value) == (
        f"source a: its copy needs 65 MiB in {tmp_path / 's'}, where 60 MiB are free: make room there"
    )
    assert list((tmp_path / "s").iterdir()) == []


def test_a_scratch_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with (
        closing(filled(tmp_path / "d", 1)),
        pytest.raises(SourceError, match="cannot make a folder"),
        snapshot(tmp_path / "d", tmp_path / "s", "a"),
    ):
        pass


# ── beside live servers ──────────────────────────────────────────────────────────────────────────


def their_usage(folder: Path) -> Their:
    """Return the reference server on a usage database of over 4 MiB; nobody waits for a lock of it."""
    Their(folder).stop()
    with closing(sqlite3.connect(folder / "usage.sqlite")) as database:
        row = "INSERT INTO client_versions VALUES (?, 'side', ?, 'python', '0.24.0')"
        database.executemany(row, ((f"app-{'x' * 300}-{number}", T0 + number) for number in range(6_000)))
        database.commit()
    assert (folder / "usage.sqlite").stat().st_size > 4 << 20
    their = Their(folder)
    their._usage_db.execute("PRAGMA busy_timeout = 0")
    return their


@pytest.mark.usefixtures("fast_disk")
def test_whenever_a_copy_rests_the_reference_server_commits_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    their, commits = their_usage(tmp_path), itertools.count(1)
    monkeypatch.setattr(
        usage, "snapshot", partial(snapshot, sleep=lambda _: their.bind("side", T0 + 10_000 + next(commits)))
    )
    with recognise(f"a={tmp_path / 'usage.sqlite'}").opened(tmp_path / "s", print, CONTEXT) as opened:
        span = opened.find_new("client_versions", {})
    done = next(commits) - 1
    assert 2 <= done <= len(PACE_OF_EACH_TRY)  # each made the copy begin anew
    assert span
    assert span.counted == 6_000 + done
    their.stop()


@pytest.mark.usefixtures("small_steps")
def test_whenever_a_copy_rests_our_server_commits_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, commits = Ours(tmp_path / "data"), itertools.count(1)
    server.write(*(mailbox(number, app_id="x" * 300) for number in range(6_000)))
    monkeypatch.setattr(usage, "snapshot", partial(snapshot, sleep=lambda _: server.write(nameplate(next(commits)))))
    with recognise(f"a={tmp_path / 'data'}").opened(tmp_path / "s", print, CONTEXT) as opened:
        mailboxes, nameplates = opened.find_new("mailboxes", {}), opened.find_new("nameplates", {})
    done = next(commits) - 1
    assert done >= 5  # 2 MB in steps of 256 KiB
    assert mailboxes
    assert mailboxes.counted == 6_000
    assert nameplates is None, "the copy is of the moment at which it was begun"
    server.close()


# ── the folder for copies ─────────────────────────────────────────────────────────────────────────


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


def test_the_next_run_removes_the_scratch_folder_of_a_killed_one(temporary: Path) -> None:
    program = f"""
import os, tempfile
tempfile.tempdir = {str(temporary)!r}
from restante.common.errors import StoreError
from restante.pipeline.sources.scratch import SCRATCH_PREFIX, scratch
kept = scratch()
(kept.__enter__() / "copy").touch()
os.kill(os.getpid(), 9)
"""
    assert run(sys.executable, "-c", program).returncode == -9
    assert [path.name for path in temporary.glob("*/*")] == ["copy"]
    with scratch():
        assert list(temporary.glob("*/*")) == []


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("when", ["before it is opened", "before it is locked"])
def test_a_scratch_folder_that_another_run_removes_is_created_again(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    make, lock = tempfile.mkdtemp, fcntl.flock

    def made(*, prefix: str) -> str:
        place = Path(make(prefix=prefix))
        if not taken and when == "before it is opened":
            taken.append(place)
            place.rmdir()
        return str(place)

    def locked(held: int, how: int) -> None:
        if not taken and when == "before it is locked":
            taken.append(Path(f"/proc/self/fd/{held}").readlink())
            taken[0].rmdir()
        lock(held, how)

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    monkeypatch.setattr(fcntl, "flock", locked)
    with scratch() as place:
        assert place.is_dir()
        assert taken != [place]


def test_a_scratch_folder_that_cannot_be_created_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match=r"cannot make a folder for copies of sources: .*TMPDIR"), scratch():
        pass


def test_a_link_with_the_name_of_a_scratch_folder_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    link = temporary / f"{SCRATCH_PREFIX}xxxxxxxx"
    link.symlink_to(tmp_path / "precious")
    with scratch():
        pass
    assert (tmp_path / "precious").is_dir()
    assert link.is_symlink()


def test_a_folder_of_the_user_with_such_a_name_stays(temporary: Path) -> None:
    names = [f"{SCRATCH_PREFIX}{name}" for name in ("mylake", "my_notes", "empty")]
    for name in names:
        (temporary / name).mkdir(mode=0o700)
    for name in names[:2]:
        (temporary / name / "thesis.txt").touch()
    with scratch():
        pass
    assert sorted(temporary.iterdir()) == [temporary / name for name in sorted(names)]
    assert len([*temporary.glob("*/thesis.txt")]) == 2
