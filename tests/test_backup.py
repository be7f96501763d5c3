"""`restante backup` and `restore` as an operator uses them; and which data each command accepts."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from wormhole_mailbox_server.database import create_channel_db

from restante.mailbox.store.schema import FILE, connect, migrations
from stores.test_schema import thaw
from support.mailbox.clients import Clients
from support.processes import called, restante, run, serving


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with data of the newest version, and a backup of it."""
    monkeypatch.chdir(tmp_path)
    data_of(len(migrations()), tmp_path / "post")
    assert called("backup", "copy.sqlite", "--data", "post").returncode == 0
    return tmp_path


def data_of(version: int, data: Path) -> Path:
    data.mkdir(mode=0o700)
    thaw(version, data / FILE).close()
    return data


# ── the output ───────────────────────────────────────────────────────────────────────────────────


async def test_a_backup_beside_a_running_server_and_a_restore_print_what_they_copied(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "copy.sqlite"
    async with serving(data) as server, Clients() as clients:
        client = await clients.bind(server.url, "app", "a")
        nameplate = (await client.call("allocate"))["nameplate"]
        mailbox = (await client.call("claim", nameplate=nameplate))["mailbox"]
        await client.call("open", mailbox=mailbox)
        await client.call("add", phase="pake", body="00")
        made = restante("backup", file, "--data", data)  # the server is not asked
        assert (made.returncode, made.stderr) == (0, "")
        refused = restante("restore", file, "--data", data)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith("restante: another process is using the data directory")
        await server.stop()
    lines = dict(line.split(maxsplit=1) for line in made.stdout.replace("usage ", "usage-").splitlines()[3:])
    assert made.stdout.splitlines()[0] == f"file          {file}"
    assert lines.pop("last").startswith("commit   20")
    assert lines == {"nameplates": "1", "mailboxes": "1", "messages": "1", "usage-records": "1"}
    found = restante("restore", file, RESTANTE_DATA=str(tmp_path / "new"))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[1:] == made.stdout.splitlines()[1:]
    assert [each.stat().st_mode & 0o777 for each in (tmp_path / "new", tmp_path / "new" / FILE)] == [0o700, 0o600]


@pytest.mark.usefixtures("folder")
def test_json_has_the_same_as_numbers() -> None:
    text = called("restore", "copy.sqlite", "--data", "a")
    numbers = called("restore", "copy.sqlite", "--data", "b", "--json")
    found = json.loads(numbers.stdout)
    assert found["file"] == f"b/{FILE}"
    assert (found["schema"], found["bytes"]) == (len(migrations()), Path("copy.sqlite").stat().st_size)
    shown = [line.split()[-1].replace(",", "") for line in text.stdout.splitlines() if "commit" not in line]
    assert shown[1:] == [str(value) for key, value in found.items() if key not in {"file", "saved"}]


# ── what cannot be done ──────────────────────────────────────────────────────────────────────────

MISUSES = {
    "backup copy.sqlite --data post": "copy.sqlite exists already: name another file, or move it away",
    "backup gone/copy --data post": "there is no directory gone to write copy in",
    "backup post/copy --data post": "post/copy is in the data directory: name a file in another directory",
    "backup post/../post/copy --data post": "post/../post/copy is in the data directory",
    "backup post --data post": "post exists already",
    f"backup {'x' * 300} --data post": f"cannot write {'x' * 300}: File name too long",
    "backup new --data gone": "there is no mailbox server's data in gone (--data names another directory)",
    "backup new --data empty": "there is no mailbox server's data in empty (--data names another directory)",
    "backup new --data copy.sqlite": "there is no mailbox server's data in copy.sqlite (--data names another",
    "status --data copy.sqlite": "there is no mailbox server's data in copy.sqlite (--data names another",
    "restore gone --data new": "there is no file gone",
    "restore post --data new": "post is a directory: name the file of a backup",
    "restore copy.sqlite --data post": "post is not empty: move its files away",
    "restore copy.sqlite --data copy.sqlite": "cannot use the data directory copy.sqlite: Not a directory",
}


@pytest.mark.parametrize("words", MISUSES)
def test_misuse_is_one_sentence_and_exit_code_2(words: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    result = called(*words.split())
    assert (result.returncode, result.stdout) == (2, "")
    [sentence] = result.stderr.splitlines()
    assert sentence.startswith(f"restante: {MISUSES[words]}")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.usefixtures("folder")
def test_a_directory_that_cannot_be_written_is_one_sentence_and_exit_code_1() -> None:
    for words, beginning in (
        ("backup /proc/copy --data post", "restante: cannot write /proc/copy: "),
        ("restore copy.sqlite --data /proc/new", "restante: cannot use the data directory /proc/new: "),
    ):
        result = called(*words.split())
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert result.stderr.startswith(beginning)


@pytest.mark.parametrize("words", ["backup new --data post", "restore post/copy --data new", "status --data post"])
def test_another_user_is_told_what_may_not_be_read(words: str, folder: Path) -> None:
    (folder / "post").chmod(0)
    code = (
        "import contextlib, os, sys; from restante.cli.main import main\n"
        "words, sys.argv[1:] = sys.argv[1:], [word.replace('post', 'gone') for word in sys.argv[1:]]\n"
        "with contextlib.suppress(SystemExit): main()\n"  # imports what another user may not be able to import
        "os.getuid() or os.setuid(65534)\n"  # root may read everything
        "sys.argv[1:] = words; main()"
    )
    result = run(sys.executable, "-c", code, *words.split(), cwd=folder)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("restante: cannot read ")
    assert sentence.endswith(": Permission denied")


# ── which data each command accepts ──────────────────────────────────────────────────────────────

NEWEST = len(migrations())
COMMANDS = (
    "serve --data post --listen 127.0.0.1:0 --admin off",
    "status --data post",
    "backup copy --data post",
    "restore post/restante.sqlite --data new",
    "export usage.sqlite --data post",
    "import --channel relay.sqlite --data post --merge",
)
READING = COMMANDS[1:5]
"""Commands that do not convert the data."""


@pytest.mark.parametrize("words", COMMANDS)
def test_data_of_a_newer_version_is_refused(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = data_of(NEWEST, tmp_path / "post")
    with closing(sqlite3.connect(data / FILE)) as database:
        database.execute(f"PRAGMA user_version = {NEWEST + 1}")
    create_channel_db(str(tmp_path / "relay.sqlite")).close()
    before = (data / FILE).read_bytes()
    result = called(*words.split())
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"restante: post/{FILE} has schema {NEWEST + 1}, this program knows up to {NEWEST}: use the newer restante\n"
    )
    assert (data / FILE).read_bytes() == before
    assert not [name for name in ("copy", "new", "usage.sqlite") if (tmp_path / name).exists()]


@pytest.mark.parametrize("old", range(1, NEWEST + 1))
def test_every_command_reads_older_data(old: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = data_of(old, tmp_path / "post")
    before = (data / FILE).read_bytes()
    for words in READING:
        result = called(*words.split())
        assert (result.returncode, result.stderr) == (0, ""), words
        assert (data / FILE).read_bytes() == before
    assert json.loads(called("status", "--data", "new", "--json").stdout)["mailboxes"] > 0


async def test_a_server_converts_a_restored_backup_of_an_older_version(tmp_path: Path) -> None:
    data = data_of(1, tmp_path / "old")
    assert called("backup", tmp_path / "copy", "--data", data).returncode == 0
    restored = called("restore", tmp_path / "copy", "--data", tmp_path / "new")
    assert "schema        1\n" in restored.stdout
    async with serving(tmp_path / "new") as server, Clients() as clients:
        await server.logged("converting the database", schema=1, to_schema=NEWEST)
        client = await clients.opened(server.url, "x", "b", "box2")
        await client.call("ping", ping="that was all")
        assert client.heard[0]["phase"] == "pake"
        await server.stop()
    with closing(connect(str(tmp_path / "new" / FILE))) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (NEWEST,)
