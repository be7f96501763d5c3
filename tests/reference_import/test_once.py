"""Everything is imported, once, or nothing is."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reference_import.taking import content, refused, rows, state, taking
from restante.common.errors import StoreError
from restante.mailbox.reference_import import importing
from restante.mailbox.store.schema import connect
from restante.mailbox.store.sqlite import open_store
from support.mailbox.givens import mailbox_id
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.mailbox.reference_sources import CHANNEL_V2, Their, alter

TABLES = ("mailboxes", "nameplates", "messages", "usage_nameplates", "usage_mailboxes", "usage_client_versions")


def play(their: Their) -> str:
    """Something of every kind."""
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
    store = open_store(data)
    ledger = Ledger(await store.view())
    ledger.bind("ours")
    ledger.claim("ours", "7")
    ledger.add("ours", mailbox_id(1), b'"our body"')
    ledger.open("ours", "ours")
    ledger.close("ours", "ours")
    await ledger.commit(store)
    await store.close()


# ── twice ────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_content_is_not_imported_twice(their: Their, data: Path) -> None:
    """Also if it is renamed, vacuumed, touched or upgraded; what is new is imported with --merge."""
    play(their)
    taking(data, their.relay)
    refused(data, their.relay, their.usage, merge=True)  # nor is the other file taken then
    taking(data, usage=their.usage, merge=True)
    assert counts(data) == ALL
    recorded = rows(data, "SELECT kind, name, length(digest) FROM imports ORDER BY kind")
    assert recorded == [("channel", "relay.sqlite", 64), ("usage", "usage.sqlite", 64)]
    for merge in (False, True):
        said = refused(data, their.relay, merge=merge)
        assert said.startswith(f"--channel {their.relay} was imported already (20")
        assert said.endswith(" UTC, as relay.sqlite); nothing was changed")
        assert "was imported already" in refused(data, usage=their.usage, merge=merge)
    other = their.relay.with_name("other.sqlite")
    their.relay.rename(other)
    alter(other, *CHANNEL_V2["upgraded"], "UPDATE mailboxes SET updated = 5000")
    with closing(sqlite3.connect(other)) as database:
        database.execute("VACUUM")
    assert "was imported already" in refused(data, other, merge=True)
    their.bind("b", 2000)
    assert taking(data, usage=their.usage, merge=True).imported["usage_client_versions"] == 2


async def test_the_same_content_is_refused_after_all_of_it_has_ended(their: Their, data: Path) -> None:
    mailbox = play(their)
    taking(data, their.relay)
    store = open_store(data)
    ledger = Ledger(await store.view())
    for each in [*ledger.state.mailboxes()]:
        ledger.close("a", each.mailbox_id)
    await ledger.commit(store)
    await store.close()
    assert mailbox not in state(data).app("x").mailboxes
    assert "was imported already" in refused(data, their.relay, merge=True)


# ── into what is there ───────────────────────────────────────────────────────────────────────────


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
    said = refused(data, their.relay, their.usage)
    assert said == f"{data} is not empty: name a new directory with --data, or add to this one with --merge"


async def test_a_server_without_clients_leaves_its_directory_empty(their: Their, data: Path) -> None:
    store = open_store(data)
    ledger = Ledger(await store.view())
    ledger.pass_(1000)
    await ledger.commit(store)
    await store.close()
    play(their)
    taking(data, their.relay, their.usage)
    assert counts(data) == ALL


async def test_a_merge_keeps_both(their: Their, data: Path) -> None:
    await work(data)
    before = picture(state(data))["x"]
    mailbox = play(their)
    their.claim("a", "7", 1000, "y")  # the same name in another app is another
    taking(data, their.relay, their.usage, merge=True)
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
    said = refused(data, their.relay, their.usage, merge=True)
    assert said.startswith(
        f"--channel {their.relay} cannot be merged: 1 of its mailboxes and 1 of its nameplates are in use here too."
    )


# ── the lock ─────────────────────────────────────────────────────────────────────────────────────


def test_no_server_starts_while_an_import_runs(their: Their, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_one(path: str) -> sqlite3.Connection:
        with pytest.raises(StoreError, match="another process is using the data directory"):
            open_store(data)
        return connect(path)

    monkeypatch.setattr(importing, "connect", start_one)
    play(their)
    assert taking(data, their.relay).imported["messages"] == 1


# ── all or nothing ───────────────────────────────────────────────────────────────────────────────


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
        "INSERT OR REPLACE INTO mailboxes",
        "INSERT OR REPLACE INTO nameplates",
        "INSERT INTO messages",
        "INSERT INTO usage_nameplates",
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
    with monkeypatch.context() as patch:
        patch.setattr(importing, "connect", lambda path: sqlite3.connect(path, isolation_level=None, factory=Dying))
        words = r"\Anothing was imported into [^\n]*: database or disk is full\Z"
        if statement == "COMMIT":
            words = r"\Athe commit failed \(database or disk is full\): repeat the import; [^\n]*\Z"
        with pytest.raises(StoreError, match=words):
            taking(data, their.relay, their.usage)
    assert content(data) == []
    shutil.rmtree(data)
    data.with_name("killed").rename(data)
    assert content(data) == []
    taking(data, their.relay, their.usage)  # what was left behind is in nobody's way
    assert counts(data) == ALL
    assert sorted(file.name for file in data.iterdir()) == ["lock", "restante.sqlite"]
