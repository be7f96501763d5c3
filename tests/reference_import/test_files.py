"""Whatever file is named: it is read in a copy, and never touched. All of it is imported, once, or nothing is."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reference_import.conftest import CHANNEL_V2, content, refused, rows, state, take
from restante.common.errors import Misuse, StoreError
from restante.common.sqlite import Schema
from restante.mailbox.store.sqlite import SqliteStore
from support.disk import crashing
from support.mailbox.givens import mailbox_id
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.mailbox.reference_sources import Their, usage_v1
from support.sqlite import alter, select


def prints(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Everything that a change of a file would show in, of all files of a folder."""
    files = [(file, file.stat()) for file in folder.iterdir()]
    return {file.name: (file.read_bytes(), stat.st_mtime_ns, stat.st_ino, stat.st_mode) for file, stat in files}


@pytest.mark.parametrize(("log", "phase"), [("journal", "whole"), ("wal", "late")])
def test_what_a_killed_server_left_is_recovered_in_the_copy(their: Their, data: Path, log: str, phase: str) -> None:
    """An interrupted transaction is rolled back. Rows that are only in the WAL count. A link names the file."""
    their.add("a", "m", "whole", "b", 1000)
    their.stop()
    link = their.relay.parent.with_name("link.sqlite")
    link.symlink_to(their.relay)
    before = their.relay.read_bytes()
    database = sqlite3.connect(their.relay, isolation_level=None)
    if log == "wal":
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE messages SET phase = 'late'")
    else:
        database.execute("PRAGMA cache_size = 1")  # so that pages are written before there is a COMMIT
        database.execute("BEGIN")
        database.execute("DELETE FROM messages")
        for _ in range(100):
            database.execute("INSERT INTO messages VALUES ('x', 'm', 'a', 'p', ?, 2000, NULL)", ("b" * 1000,))
    with crashing(their.relay.parent):
        database.close()
    assert log == "wal" or their.relay.read_bytes()[: len(before)] != before  # some of it is in the file
    crashed = prints(their.relay.parent)
    assert f"relay.sqlite-{log}" in crashed
    take(data, link)
    assert rows(data, "SELECT phase FROM messages") == [(f'"{phase}"',)]
    assert prints(their.relay.parent) == crashed


def test_an_import_copies_into_a_private_folder_and_refuses_files_that_change_meanwhile(
    their: Their, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, changes = [], True
    copy = shutil.copyfile

    def look(here: str, there: str) -> None:
        copy(here, there)
        seen.append((Path(there).parent.stat().st_mode & 0o777, Path(there).stat().st_dev == data.stat().st_dev))
        if changes:
            their.open("a", "m", 1000)

    monkeypatch.setattr(shutil, "copyfile", look)
    sentence = f"--channel {their.relay} was being written: stop the server that uses it, then try again"
    assert refused(data, their.relay) == sentence
    changes = False
    take(data, their.relay, their.usage)
    assert seen == [(0o700, True)] * 3
    assert sorted(file.name for file in data.iterdir()) == ["lock", "restante.sqlite"]


def test_files_in_the_folder_of_the_copies_that_no_import_made_stay(their: Their, data: Path) -> None:
    their.stop()
    folder = data / "importing"
    folder.mkdir(parents=True)
    own = their.usage.rename(folder / "usage.sqlite")
    link = data.with_name("link.sqlite")
    link.symlink_to(own)
    for path in (own, link):
        with pytest.raises(Misuse, match=r"--usage: .* is in .*importing, .*: move it to another folder"):
            take(data, usage=path)
    own.rename(folder / "notes.txt")
    with pytest.raises(Misuse, match=r"importing has files that no import makes, like notes\.txt: move"):
        take(data, their.relay)
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]
    assert sorted(file.name for file in data.iterdir()) == ["importing", "lock"]


def test_a_file_may_have_any_name(their: Their, data: Path) -> None:
    their.bind("a", 1000)
    their.stop()
    odd = their.usage.rename(their.usage.with_name(os.fsdecode(b"%?#\xff'\n.db")))
    take(data, usage=odd)
    assert rows(data, "SELECT origin FROM usage_client_versions") == [("%?#\ufffd'\n.db",)]


def truncated(path: Path) -> None:
    alter(path, "CREATE TABLE filler (x)", "INSERT INTO filler VALUES (zeroblob(60000))")
    path.write_bytes(path.read_bytes()[:-8192])


def scribbled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    [(size,)] = select(path, "PRAGMA page_size")
    [(page,)] = select(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'messages_idx'")
    content[(page - 1) * size : page * size] = bytes([0x5A]) * size
    path.write_bytes(content)


NO_CHANNEL = "is not a channel database of the reference server"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "zero bytes": (lambda path: path.write_text(""), "is empty: name the file that the reference server has written"),
    "text": (
        lambda path: path.write_text("Dear Sir or Madam,\n" * 500),
        "is not an SQLite database, or is damaged (file is not a database)",
    ),
    "truncated": (truncated, "damaged (database disk image is malformed)"),
    "scribbled": (scribbled, "is damaged ("),
    "a column is missing": (lambda path: alter(path, "ALTER TABLE messages DROP COLUMN msg_id"), NO_CHANNEL),
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
    spoil, reason = REFUSED[what]
    spoil(their.relay)
    before = prints(their.relay.parent)
    sentence = refused(data, their.relay)
    assert sentence.startswith(f"--channel {their.relay} ")
    assert reason in sentence
    refused(data, their.relay, their.usage)  # nor is the other file taken then
    assert prints(their.relay.parent) == before


def test_a_usage_database_is_no_channel_database_nor_the_other_way_round(their: Their, data: Path) -> None:
    their.stop()
    assert refused(data, their.usage) == f"--channel {their.usage} is a usage database: name it with --usage"
    sentence = f"--usage {their.relay} is a channel database: name it with --channel"
    assert refused(data, usage=their.relay) == sentence
    alter(their.relay, *CHANNEL_V2["fresh"])
    assert "is a channel database" in refused(data, usage=their.relay)
    usage_v1(their.relay.with_name("v1"))
    assert "is a usage database" in refused(data, their.relay.with_name("v1"))


def test_a_file_that_cannot_be_opened_is_misuse(tmp_path: Path, data: Path) -> None:
    with pytest.raises(Misuse, match=rf"\A--channel: cannot read {tmp_path}: Is a directory\Z"):
        take(data, channel=tmp_path)
    with pytest.raises(Misuse, match=rf"\A--usage: cannot read {tmp_path}/gone: No such file or directory\Z"):
        take(data, usage=tmp_path / "gone")
    assert not data.exists()


TABLES = ("mailboxes", "nameplates", "messages", "usage_nameplates", "usage_mailboxes", "usage_client_versions")


def play(their: Their) -> str:
    their.bind("a", 1000)
    mailbox = their.claim("a", "4", 1000)
    their.add("a", mailbox, "pake", "aa", 1001)
    their.claim("a", "5", 1002)
    their.release("a", "5", 1003)
    their.open("b", "m", 1003)
    their.close("b", "m", "happy", 1004)
    return mailbox


def counts(data: Path) -> list[int]:
    return [rows(data, f"SELECT count(*) FROM {table}")[0][0] for table in (*TABLES, "imports")]


ALL = [2, 1, 1, 1, 1, 1, 2]


async def work(data: Path) -> None:
    """Our own server has had visitors: one mailbox lives, one has ended."""
    store = SqliteStore.open(data)
    ledger = Ledger(await store.view())
    ledger.bind("ours")
    ledger.claim("ours", "7")
    ledger.add("ours", mailbox_id(1), b'"our body"')
    ledger.open("ours", "ours")
    ledger.close("ours", "ours")
    await ledger.commit(store)
    await store.close()


def test_the_same_content_is_not_imported_twice(their: Their, data: Path) -> None:
    """Also if it is renamed, vacuumed, touched or upgraded; what is new is imported with --merge."""
    play(their)
    take(data, their.relay)
    refused(data, their.relay, their.usage, merge=True)  # nor is the other file taken then
    take(data, usage=their.usage, merge=True)
    assert counts(data) == ALL
    recorded = rows(data, "SELECT kind, name, length(digest) FROM imports ORDER BY kind")
    assert recorded == [("channel", "relay.sqlite", 64), ("usage", "usage.sqlite", 64)]
    for merge in (False, True):
        sentence = refused(data, their.relay, merge=merge)
        assert sentence.startswith(f"--channel {their.relay} was imported already (20")
        assert sentence.endswith(" UTC, as relay.sqlite); nothing was changed")
        assert "was imported already" in refused(data, usage=their.usage, merge=merge)
    other = their.relay.with_name("other.sqlite")
    their.relay.rename(other)
    alter(other, *CHANNEL_V2["upgraded"], "UPDATE mailboxes SET updated = 5000", "VACUUM")
    assert "was imported already" in refused(data, other, merge=True)
    their.bind("b", 2000)
    assert take(data, usage=their.usage, merge=True).imported["usage_client_versions"] == 2


@pytest.mark.parametrize(
    "row",
    [
        "mailboxes VALUES (9, 'y', 'm', 0, 0, 0.0, '[]', 0)",
        "nameplates VALUES (9, 'y', '9', 'm', 0, '[]')",
        "messages VALUES (9, 9, 'a', '\"p\"', '\"\"', 'null', 1.0)",
        "usage_nameplates VALUES (9, '', 'y', 1.0, 1.0, 1.0, 'happy', NULL)",
        "usage_mailboxes VALUES (9, '', 'y', 1, 1.0, 1.0, 1.0, 'happy', NULL, NULL)",
        "usage_client_versions VALUES (9, '', 'y', 'a', 1.0, NULL, NULL, NULL, NULL)",
    ],
)
def test_a_target_that_is_not_empty_needs_merge(their: Their, data: Path, row: str) -> None:
    data.mkdir()
    rows(data, f"INSERT INTO {row}")
    play(their)
    sentence = f"{data} is not empty: name a new directory with --data, or add to this one with --merge"
    assert refused(data, their.relay, their.usage) == sentence


async def test_a_server_without_clients_leaves_its_directory_empty(their: Their, data: Path) -> None:
    store = SqliteStore.open(data)
    ledger = Ledger(await store.view())
    ledger.pass_(1000)
    await ledger.commit(store)
    await store.close()
    play(their)
    take(data, their.relay, their.usage)
    assert counts(data) == ALL
    assert {mailbox.touched for mailbox in state(data).mailboxes()} == {1000.0}, "they start their full idle time"


async def test_a_merge_keeps_both(their: Their, data: Path) -> None:
    await work(data)
    before = picture(state(data))["x"]
    mailbox = play(their)
    their.claim("a", "7", 1000, "y")  # the same name in another app is another
    take(data, their.relay, their.usage, merge=True)
    after = picture(state(data))
    for kind in ("mailboxes", "nameplates"):
        for name, row in before[kind].items():
            assert after["x"][kind][name] == row
    assert set(after["x"]["nameplates"]) == {"4", "7"}
    assert after["x"]["nameplates"]["4"]["mailbox_id"] == mailbox
    assert set(after["y"]["nameplates"]) == {"7"}
    assert rows(data, "SELECT sequence, side FROM messages ORDER BY 1") == [(1, "ours"), (2, "a")]
    keys = rows(data, "SELECT key FROM mailboxes UNION ALL SELECT key FROM nameplates")
    assert len(keys) == len(set(keys)) == sum(counts(data)[:2])
    assert rows(data, "SELECT origin FROM usage_mailboxes ORDER BY id") == [("",), ("usage.sqlite",)]


async def test_a_merge_refuses_names_that_are_in_use_here(their: Their, data: Path) -> None:
    await work(data)
    their.claim("a", "7", 1000)
    their.open("a", mailbox_id(1), 1000)
    sentence = f"--channel {their.relay} cannot be merged: 1 of its mailboxes and 1 of its nameplates are in use here"
    assert refused(data, their.relay, their.usage, merge=True).startswith(sentence)


class Dying(sqlite3.Connection):
    """Fails at a statement, and keeps what was in the data directory then."""

    at = ""
    data = Path()

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        self._look(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        self._look(sql)
        return super().executemany(sql, parameters)

    def _look(self, sql: str) -> None:
        if sql.startswith(self.at):
            shutil.copytree(self.data, self.data.with_name("killed"))
            raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO imports",
        "INSERT OR REPLACE INTO nameplates",
        "INSERT INTO messages",
        "INSERT INTO usage_client_versions",
        "UPDATE service",
        "COMMIT",
    ],
)
def test_an_import_that_fails_or_is_killed_imports_nothing(
    their: Their, data: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The disk is full at this statement; or a SIGKILL has left what was on disk then."""
    play(their)
    data.mkdir()
    state(data)
    monkeypatch.setattr(Dying, "at", statement)
    monkeypatch.setattr(Dying, "data", data)

    def connect_dying(_: Schema, path: str) -> sqlite3.Connection:
        with pytest.raises(StoreError, match="another process is using the data directory"):
            SqliteStore.open(data)  # no server starts while an import runs
        return sqlite3.connect(path, isolation_level=None, factory=Dying)

    with monkeypatch.context() as patch:
        patch.setattr(Schema, "connect", connect_dying)
        sentence = r"\Anothing was imported into [^\n]*: database or disk is full\Z"
        if statement == "COMMIT":
            sentence = r"\Athe commit failed \(database or disk is full\): repeat the import; [^\n]*\Z"
        with pytest.raises(StoreError, match=sentence):
            take(data, their.relay, their.usage)
    assert content(data) == []
    shutil.rmtree(data)
    data.with_name("killed").rename(data)
    assert content(data) == []
    take(data, their.relay, their.usage)  # what was left behind is in nobody's way
    assert counts(data) == ALL
    assert sorted(file.name for file in data.iterdir()) == ["lock", "restante.sqlite"]
