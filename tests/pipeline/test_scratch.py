"""The folder for copies: each run has its own, and what killed runs left goes."""

from __future__ import annotations

import fcntl
import sys
import tempfile
from pathlib import Path

import pytest

from restante.common.errors import StoreError
from restante.pipeline.sources.scratch import SCRATCH_PREFIX, scratch
from support.processes import run


@pytest.fixture(autouse=True)
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
