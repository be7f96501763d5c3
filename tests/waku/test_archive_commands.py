"""The archive's commands: their output and exit code."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from restante.common.extras import how_to_install
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import make
from restante.waku.files import rlp_file
from support.processes import RESTANTE, called, on_a_terminal, restante
from support.waku.archives import ROWS, archive_of, raws_of, reason_of


def waku(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Do what a command does in this process."""
    return called("waku", *words, **environment)


def said(result: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence of a command that could not do it."""
    assert result.stdout == ""
    [sentence] = result.stderr.splitlines()
    return sentence


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive_of(tmp_path_factory.mktemp("archive") / "data")


@pytest.mark.parametrize("suffix", [".rlp", ".parquet"])
def test_export_and_import(tmp_path: Path, data: Path, suffix: str) -> None:
    file = tmp_path / f"all{suffix}"
    exported = waku("export", file, "--data", data)
    assert (exported.returncode, exported.stdout) == (0, "exported 50 envelopes\n")
    command = ("waku", "import", file)
    do = restante if suffix == ".rlp" else called
    imported = do(*command, RESTANTE_WAKU_DATA=str(tmp_path / "new"))
    assert imported.returncode == 0, imported.stderr
    assert [line.split()[-1] for line in imported.stdout.splitlines()] == ["50", "50", "0", "0"]
    assert raws_of(tmp_path / "new") == [envelope.raw for envelope in ROWS]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_an_import_reports_how_many_envelopes_a_server_will_remove_and_how_to_keep_them(tmp_path: Path) -> None:
    day, now = 86400, int(time.time())
    letters = [make(now - age * day + 50, 50, b"abcd", b"", age) for age in (0, 29, 31, 400)]
    (tmp_path / "all.rlp").write_bytes(b"".join(each.raw for each in letters))
    for _ in range(2):
        imported = waku("import", tmp_path / "all.rlp", "--data", tmp_path / "new")
        assert imported.returncode == 0
        assert "2 envelopes sent more than 30 days ago: " in imported.stderr
        assert "unless --retention is 0 or more days" in imported.stderr
    (tmp_path / "new.rlp").write_bytes(letters[0].raw)
    assert "days ago" not in waku("import", tmp_path / "new.rlp", "--data", tmp_path / "new").stderr


def test_an_import_names_refused_items_and_fails(tmp_path: Path) -> None:
    (tmp_path / "some.rlp").write_bytes(ROWS[0].raw + b"A" + ROWS[1].raw)
    imported = waku("import", tmp_path / "some.rlp", "--data", tmp_path / "new")
    assert imported.returncode == 1
    assert f"{tmp_path / 'some.rlp'}, byte {len(ROWS[0].raw)}: {reason_of(b'A')}\n" in imported.stderr
    assert raws_of(tmp_path / "new") == [ROWS[0].raw, ROWS[1].raw]


def test_check_prints_that_all_is_well_or_each_error(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data")
    size = sum(len(each.raw) for each in ROWS)
    well = waku("check", "--data", data)
    assert (well.returncode, well.stdout) == (0, f"50 envelopes, {size:,} bytes, 5 topics: no errors\n")
    with closing(sqlite3.connect(data / FILE)) as database:
        database.execute("UPDATE totals SET bytes = 7")
        database.commit()
    wrong = waku("check", "--data", data)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert f"the count of bytes is 7, but there are {size}\n" in wrong.stderr


def test_check_export_and_backup_beside_a_running_server(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data")

    async def serve() -> None:
        archive = open_archive(data)
        try:
            for words in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
                result = await asyncio.to_thread(restante, "waku", *words, "--data", data)
                assert result.returncode == 0, result.stderr
        finally:
            await archive.close()

    asyncio.run(serve())
    assert raws_of(tmp_path / "copy") == [envelope.raw for envelope in ROWS]


MISUSES = {
    "export all.csv --data DATA": "all.csv: the name must end in .rlp or .parquet",
    "export THERE.rlp --data DATA": "THERE.rlp exists already: name another file",
    "export all.rlp --data nowhere": "there is no Waku mailserver's data in nowhere",
    f"export {'x' * 300}.rlp --data DATA": f"cannot write {'x' * 300}.rlp: File name too long",
    "export nowhere/all.rlp --data DATA": "there is no directory nowhere",
    "import gone.rlp --data new": "there is no gone.rlp",
    "import letter.txt --data new": "letter.txt is not an .rlp or .parquet file",
    "backup DATA --data DATA": "DATA exists already and is not an empty directory",
}


@pytest.mark.parametrize(("words", "sentence"), MISUSES.items(), ids=range(len(MISUSES)))
def test_misuse_is_one_sentence_and_exit_code_2(
    words: str, sentence: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").symlink_to(data)
    (tmp_path / "THERE.rlp").write_text("mine")
    (tmp_path / "letter.txt").touch()
    result = waku(*words.split())
    assert result.returncode == 2
    assert said(result).startswith(f"restante: {sentence}")
    assert (tmp_path / "THERE.rlp").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["DATA", "THERE.rlp", "letter.txt"]


def test_a_foreign_file_is_reported_in_one_sentence_with_exit_code_1(tmp_path: Path, data: Path) -> None:
    (tmp_path / "letter.parquet").write_text("Dear Sir or Madam,")
    (tmp_path / "folder").mkdir()
    for name in ("letter.parquet", "folder"):
        result = waku("import", tmp_path / name, "--data", tmp_path / "new")
        assert result.returncode == 1
        assert said(result).startswith(f"restante: {tmp_path / name} ")
    (tmp_path / FILE).write_bytes(b"not a database at all, but long enough to be one" * 99)
    for words in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
        result = waku(*words, "--data", tmp_path)
        assert result.returncode == 1
        assert said(result) == f"restante: cannot read {tmp_path / FILE}: file is not a database"


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(tmp_path: Path, data: Path) -> None:
    lines = waku("check", "--data", data).stderr.splitlines()
    assert lines[-1] == "check: 50 of 50"
    shown = on_a_terminal(*RESTANTE, "waku", "check", "--data", data, streams=["stderr"])
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown
    assert "of" not in shown


def test_an_export_that_is_stopped_leaves_no_unfinished_file(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlp_file, "write", lambda *_: signal.raise_signal(signal.SIGTERM))
    result = waku("export", tmp_path / "all.rlp", "--data", data)
    assert (result.returncode, result.stdout) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_its_name_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "coincurve" else find(name, *rest)
    )
    result = waku("check", "--data", tmp_path)
    assert result.returncode == 2
    assert said(result) == f"restante: this command needs the extra 'waku': {how_to_install('waku')}"
