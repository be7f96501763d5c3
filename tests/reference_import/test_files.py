"""Whatever file is named: it is read in a copy and never touched, and what cannot be read is told in one sentence."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reference_import.taking import refused, rows, taking
from restante.common.errors import Misuse
from restante.mailbox.store.schema import connect
from support.disk import crashing
from support.mailbox.reference_sources import CHANNEL_V2, Their, alter, usage_v1

# ── the source stays as it is ────────────────────────────────────────────────────────────────────


def prints(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Everything that a change of a file would show in, of all files of a folder."""
    stats = {file: file.stat() for file in folder.iterdir()}
    return {
        file.name: (file.read_bytes(), stat.st_mtime_ns, stat.st_ino, stat.st_mode) for file, stat in stats.items()
    }


def test_the_source_is_not_touched(their: Their, data: Path) -> None:
    their.add("a", "m", "p", "b", 1000)
    their.bind("a", 1000)
    their.stop()
    before = prints(their.relay.parent)
    taking(data, their.relay, their.usage)
    refused(data, their.relay, their.usage)
    assert prints(their.relay.parent) == before


def test_an_interrupted_transaction_is_rolled_back_in_the_copy(their: Their, data: Path) -> None:
    """The reference server was killed in the middle of it."""
    their.add("a", "m", "whole", "b", 1000)
    their.stop()
    before = their.relay.read_bytes()
    database = sqlite3.connect(their.relay)
    database.execute("PRAGMA cache_size = 1")  # so that pages are written before there is a COMMIT
    database.execute("DELETE FROM messages")
    for number in range(100):
        database.execute("INSERT INTO messages VALUES ('x', 'm', 'a', ?, ?, 2000, NULL)", (str(number), "b" * 1000))
    with crashing(their.relay.parent):
        database.close()
    assert their.relay.read_bytes()[: len(before)] != before  # some of it is in the file
    crashed = prints(their.relay.parent)
    assert "relay.sqlite-journal" in crashed
    taking(data, their.relay)
    assert rows(data, "SELECT phase FROM messages") == [('"whole"',)]
    assert prints(their.relay.parent) == crashed


def test_rows_that_are_only_in_the_wal_are_imported(their: Their, data: Path) -> None:
    their.add("a", "m", "p", "b", 1000)
    their.stop()
    database = sqlite3.connect(their.relay, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("UPDATE messages SET phase = 'late'")
    with crashing(their.relay.parent):
        database.close()
    crashed = prints(their.relay.parent)
    assert "relay.sqlite-wal" in crashed
    taking(data, their.relay)
    assert rows(data, "SELECT phase FROM messages") == [('"late"',)]
    assert prints(their.relay.parent) == crashed


def test_rows_in_the_wal_of_a_database_that_a_link_names_are_imported(their: Their, data: Path) -> None:
    their.add("a", "m", "p", "b", 1000)
    their.stop()
    link = their.relay.parent.with_name("link.sqlite")
    link.symlink_to(their.relay)
    with closing(sqlite3.connect(their.relay, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE messages SET phase = 'late'")
        taking(data, link)
    assert rows(data, "SELECT phase FROM messages") == [('"late"',)]


def test_a_source_that_changes_while_it_is_copied_is_refused(
    their: Their, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copyfile

    def copy_meanwhile(*names: Any) -> None:
        copy(*names)
        their.open("a", "m", 1000)

    monkeypatch.setattr(shutil, "copyfile", copy_meanwhile)
    said = refused(data, their.relay)
    assert said == f"--channel {their.relay} was being written: stop the server that uses it, then try again"


def test_the_copies_are_private_and_are_removed(their: Their, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    copy = shutil.copyfile

    def look(here: str, there: str) -> None:
        copy(here, there)
        seen.append((Path(there).parent.stat().st_mode & 0o777, Path(there).stat().st_dev == data.stat().st_dev))

    monkeypatch.setattr(shutil, "copyfile", look)
    taking(data, their.relay, their.usage)
    assert seen == [(0o700, True)] * 2
    assert sorted(file.name for file in data.iterdir()) == ["lock", "restante.sqlite"]


def test_a_database_in_the_folder_of_the_copies_is_refused_and_stays(their: Their, data: Path) -> None:
    their.stop()
    (data / "importing").mkdir(parents=True)
    own = their.usage.rename(data / "importing" / "usage.sqlite")
    link = data.with_name("link.sqlite")
    link.symlink_to(own)
    for path in (own, link):
        with pytest.raises(Misuse, match=r"--usage: .* is in .*importing, .*: move it to another folder"):
            taking(data, usage=path)
    assert own.exists()


def test_a_folder_with_files_of_others_is_refused_and_stays(their: Their, data: Path) -> None:
    theirs = data / "importing" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    with pytest.raises(Misuse, match=r"importing has files that no import makes, like notes\.txt: move"):
        taking(data, their.relay)
    assert sorted(file.name for file in data.iterdir()) == ["importing", "lock"]
    assert theirs.exists()


def test_a_file_may_have_any_name(their: Their, data: Path) -> None:
    their.bind("a", 1000)
    their.stop()
    odd = their.usage.rename(their.usage.with_name(os.fsdecode(b"%?#\xff'\n.db")))
    taking(data, usage=odd)
    assert rows(data, "SELECT origin FROM usage_client_versions") == [("%?#\ufffd'\n.db",)]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def truncated(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript("CREATE TABLE filler (x); INSERT INTO filler VALUES (zeroblob(60000))")
    path.write_bytes(path.read_bytes()[:-8192])


def scribbled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        page = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages_idx'").fetchone()[0]
    content[(page - 1) * size : page * size] = bytes([0x5A]) * size
    path.write_bytes(content)


def ours(path: Path) -> None:
    path.unlink()
    connect(str(path)).close()


def another(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mailboxes (app_id, id, for_nameplate)")


NO_CHANNEL = "is not a channel database of the reference server"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "zero bytes": (
        lambda path: path.write_bytes(b""),
        "is empty: name the file that the reference server has written",
    ),
    "text": (
        lambda path: path.write_bytes(b"Dear Sir or Madam,\n" * 500),
        "is not an SQLite database, or is damaged (file is not a database)",
    ),
    "truncated": (truncated, "damaged (database disk image is malformed)"),
    "scribbled": (scribbled, "is damaged ("),
    "ours": (ours, NO_CHANNEL),
    "another program's": (another, NO_CHANNEL),
    "a column is missing": (
        lambda path: alter(path, "ALTER TABLE messages RENAME COLUMN msg_id TO message_id"),
        NO_CHANNEL,
    ),
    "a view instead of a table": (
        lambda path: alter(path, "ALTER TABLE messages RENAME TO m", "CREATE VIEW messages AS SELECT * FROM m"),
        NO_CHANNEL,
    ),
    "too new": (
        lambda path: alter(path, "UPDATE version SET version = 3"),
        "has version 3, this program knows 1 and 2: use a newer restante",
    ),
    "no version": (lambda path: alter(path, "DELETE FROM version"), NO_CHANNEL),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_incomplete_channel_database_is_refused(their: Their, data: Path, what: str) -> None:
    their.add("a", "m", "p", "b", 1000)
    their.stop()
    spoil, words = REFUSED[what]
    spoil(their.relay)
    before = prints(their.relay.parent)
    said = refused(data, their.relay)
    assert said.startswith(f"--channel {their.relay} ")
    assert words in said
    refused(data, their.relay, their.usage)  # nor is the other file taken then
    assert prints(their.relay.parent) == before


def test_a_usage_database_is_no_channel_database_nor_the_other_way_round(their: Their, data: Path) -> None:
    their.stop()
    said = refused(data, their.usage)
    assert said == f"--channel {their.usage} is a usage database: name it with --usage"
    said = refused(data, usage=their.relay)
    assert said == f"--usage {their.relay} is a channel database: name it with --channel"
    alter(their.relay, *CHANNEL_V2["fresh"])
    assert "is a channel database" in refused(data, usage=their.relay)
    usage_v1(their.relay.with_name("v1"))
    assert "is a usage database" in refused(data, their.relay.with_name("v1"))


@pytest.mark.parametrize("flag", ["channel", "usage"])
def test_a_file_that_cannot_be_opened_is_misuse(tmp_path: Path, data: Path, flag: str) -> None:
    for path, words in ((tmp_path / "gone", "No such file or directory"), (tmp_path, "Is a directory")):
        given = {flag: path}
        assert refused(data, given.get("channel"), given.get("usage"), misuse=True) == (
            f"--{flag}: cannot read {path}: {words}"
        )
    assert not data.exists()
