"""The folder for copies: each run has its own, and what killed runs left goes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from restante.pipeline.scratch import scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


LAKE = Path("/somewhere/lake")


def test_it_is_gone_with_the_run(temporary: Path) -> None:
    with scratch(LAKE) as place:
        (place / "copy").touch()
        assert place.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_a_run_beside_another_leaves_it_its_copies() -> None:
    with scratch(LAKE) as one:
        (one / "copy").touch()
        with scratch(LAKE) as other:
            assert other != one
        assert (one / "copy").exists()


def test_what_a_killed_run_left_goes_and_another_lake_s_stays(temporary: Path) -> None:
    program = f"""
import os, pathlib, tempfile
tempfile.tempdir = {str(temporary)!r}
from restante.pipeline.scratch import scratch
for lake in ("/somewhere/lake", "/another/lake"):
    kept = scratch(pathlib.Path(lake))
    (kept.__enter__() / "copy").touch()
    globals()[lake] = kept
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert len(list(temporary.iterdir())) == 2
    with scratch(LAKE):
        assert len(list(temporary.iterdir())) == 2
    assert len(list(temporary.iterdir())) == 1


def test_a_link_of_that_name_is_nobody_s_scratch(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with scratch(LAKE) as place:
        name = place.name
    (temporary / f"{name}x").symlink_to(tmp_path / "precious")
    with scratch(LAKE):
        pass
    assert (tmp_path / "precious").is_dir()
    assert (temporary / f"{name}x").is_symlink()
