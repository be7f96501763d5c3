"""The archive's commands: their output and exit code, of some also in a process of their own."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from restante.common.extras import how_to_install
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import make
from support.processes import RESTANTE, called, on_a_terminal, restante, run
from support.rows import every
from support.waku import leveldbs
from support.waku.archives import ROWS, archive_of, raws_of, reason_of


def waku(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Do what a command does in this process."""
    return called("waku", *words, **environment)


def process(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return restante("waku", *words, **environment)


def said(result: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence of a command that could not do it."""
    assert result.stdout == ""
    [sentence] = result.stderr.splitlines()
    return sentence


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive_of(tmp_path_factory.mktemp("archive") / "data")


@pytest.mark.parametrize(("suffix", "do"), [(".rlp", process), (".parquet", waku)])
def test_export_and_import(tmp_path: Path, data: Path, suffix: str, do: Callable[..., Any]) -> None:
    file = tmp_path / f"all{suffix}"
    exported = do("export", file, "--data", data)
    assert (exported.returncode, exported.stdout) == (0, "exported 50 envelopes\n")
    imported = do("import", file, RESTANTE_WAKU_DATA=str(tmp_path / "new"))
    assert imported.returncode == 0, imported.stderr
    assert [line.split()[-1] for line in imported.stdout.splitlines()] == ["50", "50", "0", "0"]
    assert raws_of(tmp_path / "new") == [each.raw for each in ROWS]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.leveldb
def test_an_import_reads_a_leveldb_archive_and_a_file_together(tmp_path: Path, data: Path) -> None:
    waku("export", tmp_path / "all.rlp", "--data", data)
    folder = leveldbs.of(tmp_path / "waku", ROWS)
    imported = waku("import", folder, tmp_path / "all.rlp", "--data", tmp_path / "new")
    assert imported.returncode == 0, imported.stderr
    assert [line.split()[-1] for line in imported.stdout.splitlines()] == ["100", "50", "50", "0"]


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
    async def serve() -> None:
        archive = open_archive(tmp_path / "data")
        try:
            await archive.save(ROWS, 1)
            for words in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
                result = await asyncio.to_thread(process, *words, "--data", tmp_path / "data")
                assert result.returncode == 0, result.stderr
            refused = await asyncio.to_thread(process, "import", tmp_path / "all.rlp", "--data", tmp_path / "data")
            assert refused.returncode == 1
            assert said(refused).startswith("restante: another process is using the data directory")
        finally:
            await archive.close()

    asyncio.run(serve())
    assert raws_of(tmp_path / "copy") == [each.raw for each in ROWS]


MISUSES = {
    "export all.csv --data DATA": "all.csv: the name must end in .rlp or .parquet",
    "export THERE.rlp --data DATA": "THERE.rlp exists already: name another file",
    "export all.rlp --data nowhere": "there is no Waku mailserver's data in nowhere",
    f"export {'x' * 300}.rlp --data DATA": f"cannot write {'x' * 300}.rlp: File name too long",
    "import gone.rlp --data new": "there is no gone.rlp",
    "import letter.txt --data new": "letter.txt is not an .rlp or .parquet file",
    "check --data nowhere": "there is no Waku mailserver's data in nowhere",
    "backup DATA --data DATA": "DATA exists already and is not an empty directory",
}


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder that has an archive and some files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").symlink_to(data)
    (tmp_path / "THERE.rlp").touch()
    (tmp_path / "letter.txt").touch()


@pytest.mark.usefixtures("folder")
@every("words", MISUSES)
def test_misuse_is_one_sentence_and_exit_code_2(words: str) -> None:
    result = waku(*words.split())
    assert result.returncode == 2
    assert said(result).startswith(f"restante: {MISUSES[words]}")


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


def test_an_export_that_is_stopped_leaves_no_unfinished_file(tmp_path: Path, data: Path) -> None:
    (tmp_path / "files").mkdir()
    code = (
        "import os, signal, sys\n"
        "from restante.cli.main import main\n"
        "from restante.waku.files import rlp_file\n"
        "rlp_file.write = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main()"
    )
    words = ["waku", "export", str(tmp_path / "files" / "all.rlp"), "--data", str(data)]
    result = run(sys.executable, "-c", code, *words)
    assert (result.returncode, result.stdout) == (130, "")
    assert list((tmp_path / "files").iterdir()) == []


def test_without_the_extra_its_name_is_printed(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'coincurve' else find(name, *rest)\n"
        f"sys.argv[1:] = ['waku', 'check', '--data', {str(tmp_path)!r}]\n"
        "from restante.cli.main import main; main()"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 2
    assert said(result) == f"restante: this command needs the extra 'waku': {how_to_install('waku')}"
