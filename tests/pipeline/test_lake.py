from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from deltalake import write_deltalake

import restante.pipeline
from restante.common import lock_file
from restante.common.errors import Misuse, RestanteError, StoreError
from restante.pipeline.lake.commit_info import State
from restante.pipeline.lake.lake import FIRST_DAY, LOCK_FILE, Lake
from support.pipeline.lakes import LETTERS

ONE_SENTENCE = r"\A\S[^\n]+\Z"


def make(path: Path, first_day: date = FIRST_DAY) -> Path:
    with Lake.open(path, write=True, make=True, first_day=first_day):
        return path


def test_a_lake_is_made_once_and_keeps_its_first_day(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lake"
    make(path, date(2020, 2, 29))
    make(path, date(2021, 1, 1))
    with Lake.open(path, write=False) as lake:
        assert (lake.path, lake.first_day) == (path, date(2020, 2, 29))


def test_an_interrupted_creation_of_a_lake_is_finished(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "lake.json.x81").touch()
    make(tmp_path)


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "lock").unlink()
    before = sorted(tmp_path.rglob("*"))
    with Lake.open(tmp_path, write=False) as lake:
        table = lake.table(LETTERS)
        assert (table.version, table.point, table.state, table.files()) == (None, None, State(), [])
        assert lake.tables() == []
    assert restante.pipeline.files(tmp_path, "nameplates") == []
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(Misuse, match="there is no lake"), Lake.open(tmp_path / "other", write=False):
        pass
    with Lake.open(tmp_path / "other", write=False, make=True) as planned:
        assert planned.table(LETTERS).version is None
    assert not (tmp_path / "other").exists()


def test_one_run_writes_others_are_refused_and_a_reader_sees_it_and_takes_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make(tmp_path / "lake")
    with Lake.open(lake, write=False) as reader:
        before = lake.stat().st_mtime_ns, (lake / LOCK_FILE).stat().st_mtime_ns
        assert not reader.is_written_by_another()
        with Lake.open(lake, write=True) as own:
            assert reader.is_written_by_another()
            assert not own.is_written_by_another()
            with pytest.raises(Misuse, match=ONE_SENTENCE) as refused, Lake.open(lake, write=True):
                pass
            assert "wait until it is done" in str(refused.value)
        with monkeypatch.context() as patched:  # a lock that is held for a moment would make a writer fail
            for name in ("flock", "lockf", "fcntl"):
                patched.setattr(fcntl, name, lambda *_: pytest.fail("a lock was asked for"))
            assert not reader.is_written_by_another()
        assert (lake.stat().st_mtime_ns, (lake / LOCK_FILE).stat().st_mtime_ns) == before
        with monkeypatch.context() as patched:
            patched.setattr(lock_file, "LOCKS", tmp_path / "none")
            with Lake.open(lake, write=True):
                assert not reader.is_written_by_another(), "the system does not tell"
        (lake / LOCK_FILE).unlink()
        assert not reader.is_written_by_another()
        assert not (lake / LOCK_FILE).exists()


def test_a_killed_writer_holds_no_lock(tmp_path: Path) -> None:
    make(tmp_path)
    code = (
        "import sys; from pathlib import Path; from restante.pipeline.lake.lake import Lake\n"
        "with Lake.open(Path(sys.argv[1]), write=True): print('open', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(Misuse), Lake.open(tmp_path, write=True):
            pass
        with Lake.open(tmp_path, write=False) as reader:
            assert reader.is_written_by_another()
        writer.kill()
    with Lake.open(tmp_path, write=False) as reader:
        assert not reader.is_written_by_another()
    with Lake.open(tmp_path, write=True):
        pass


def test_the_lock_does_not_outlive_an_error(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "lake.json").write_text("{")
    with pytest.raises(StoreError), Lake.open(tmp_path, write=True):
        pass
    held = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "damaged"),
        ("[1]", "damaged"),
        ('{"format": "1", "first_day": "2020-01-01"}', "damaged"),
        ('{"format": 1}', "damaged"),
        ('{"format": 1, "first_day": "2020-02-30"}', "damaged"),
        ('{"first_day": "2020-01-01"}', "damaged"),
        ('{"format": 5, "anything": ["else"]}', "newer version of Restante"),
        ('{"format": 5, "first_day": "2020-01-01"}', "newer version of Restante"),
        ('{"format": 3, "first_day": "2020-01-01"}', "name a new folder with --lake, and run ingest and build again"),
    ],
)
def test_a_lake_that_cannot_be_understood_is_reported_in_one_sentence(tmp_path: Path, said: str, words: str) -> None:
    make(tmp_path)
    (tmp_path / "lake.json").write_text(said)
    for write in (False, True):
        with pytest.raises(RestanteError, match=ONE_SENTENCE) as refused, Lake.open(tmp_path, write=write):
            pass
        assert words in str(refused.value)
        assert str(tmp_path) in str(refused.value)


def test_a_folder_that_is_no_lake_is_refused_and_not_changed(tmp_path: Path) -> None:
    import pyarrow as pa

    (tmp_path / "file").write_text("x")
    (tmp_path / "full" / "of").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    write_deltalake(tmp_path / "foreign", pa.table({"x": [1]}))
    write_deltalake(make(tmp_path / "lake") / "letters", pa.table({"x": [1]}))
    before = sorted(tmp_path.rglob("*"))
    for name, make_it, words in (
        ("file", True, "is not a folder"),
        ("file", False, "is not a folder"),
        ("file/within", True, "file is not a folder"),
        ("file/within", False, "file is not a folder"),
        ("full", True, "contains other files, such as of"),
        ("full", False, "there is no lake"),
        ("empty", False, "there is no lake"),
        ("nowhere", False, "there is no lake"),
        ("foreign", True, "is a Delta table"),
        ("foreign", False, "is a Delta table"),
        ("foreign/_delta_log/x", True, "is a Delta table"),
        ("lake/letters", True, "is a Delta table"),
    ):
        with (
            pytest.raises(RestanteError, match=ONE_SENTENCE) as refused,
            Lake.open(tmp_path / name, write=make_it, make=make_it),
        ):
            pass
        assert words in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("url", ["s3://bucket/lake", "hdfs://host:8020/lake", "file:///lake"])
def test_a_url_is_refused_and_no_folder_of_its_name_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = url.replace(":///", "://")
    words = rf"--lake {shown}: this is a URL; .* have no lock"
    with pytest.raises(Misuse, match=words), Lake.open(Path(url), write=True, make=True):
        pytest.fail("it was opened")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["a*b", "a?b", "a[b", "a]b", "a{b", "a}b", "a\\b", "a%20b", "day=1", "a\nb", "a\x7fb"]
)
def test_a_path_that_other_programs_misread_is_refused(tmp_path: Path, name: str) -> None:
    for made in (False, True):
        if made:
            (tmp_path / name).mkdir()
            make(tmp_path / "good")
            (tmp_path / "good" / "lake.json").rename(tmp_path / name / "lake.json")
        with (
            pytest.raises(Misuse, match="must not contain"),
            Lake.open(tmp_path / name / "lake", write=True, make=True),
        ):
            pass
        assert not (tmp_path / name / "lake").exists()


@pytest.mark.parametrize("name", ["nowhere", "NAMEPLATES", "", "..", "nameplates/_delta_log"])
def test_the_error_for_an_unknown_table_lists_all_tables(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    with pytest.raises(Misuse, match=r"there are addresses, archived, .*nameplates"):
        restante.pipeline.files(tmp_path, name)
