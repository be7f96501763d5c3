"""The SQLite schema: how it grows, what it refuses, and what is said when it is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from restante.common.errors import StoreBusy, StoreError
from restante.mailbox.store.schema import APPLICATION_ID, FILE, connect, migrations
from restante.mailbox.store.sqlite import Store, open_store
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.sqlite_schema import schema, version

FROZEN = Path(__file__).parent / "frozen"


def thaw(version: int, path: str | Path = ":memory:") -> sqlite3.Connection:
    """Make a database as the program of that schema left it."""
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript((FROZEN / f"sqlite-{version:04}.sql").read_text())
    return database


# ── migrations ───────────────────────────────────────────────────────────────────────────────────


def test_migrations_are_numbered_from_one_and_each_schema_is_frozen_here() -> None:
    import restante.mailbox.store

    folder = Path(restante.mailbox.store.__file__).parent / "sql"
    wanted = [f"sqlite-{number:04}.sql" for number in range(1, len(migrations()) + 1)]
    assert sorted(file.name for file in folder.glob("sqlite-*.sql")) == wanted
    assert sorted(file.name for file in FROZEN.iterdir()) == wanted
    assert migrations() == [(folder / name).read_text() for name in wanted]


def test_an_empty_database_becomes_the_current_version(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "new"))) as database:
        assert version(database) == (APPLICATION_ID, len(migrations()))
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert database.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        assert database.execute("SELECT * FROM service").fetchall() == [(1, 0.0, 0.0, None)]
        before = schema(database)
    with closing(connect(str(tmp_path / "new"))) as database:  # and stays so
        assert schema(database) == before


@pytest.mark.parametrize("old", range(1, len(migrations()) + 1))
def test_every_old_database_ends_with_the_schema_of_a_new_one(old: int, tmp_path: Path) -> None:
    thaw(old, tmp_path / "old").close()
    with closing(connect(str(tmp_path / "old"))) as upgraded, closing(connect(":memory:")) as new:
        assert schema(upgraded) == schema(new)
        assert version(upgraded) == version(new)


async def opened(folder: Path, old: int) -> tuple[dict[str, Any], dict[str, list[tuple[Any, ...]]]]:
    """Use a database of this version a little; return what is live then, and the records."""
    folder.mkdir()  # noqa: ASYNC240 - of a test
    thaw(old, folder / FILE).close()
    store = open_store(folder)
    try:
        assert store.service == 78.25
        ledger = Ledger(await store.view(), service=store.service)
        ledger.bind("c")
        ledger.close("a", "half", "scary")  # ends it: b has closed it already
        await ledger.commit(store)
        [given] = store.database.execute("SELECT id FROM usage_mailboxes ORDER BY id DESC LIMIT 1").fetchone()
        assert given == 10  # 7, 8 and 9 were given before, and forgotten
        records = {
            table: store.database.execute(f"SELECT * FROM {table} WHERE rowid < 10 ORDER BY 1").fetchall()
            for table in ("usage_nameplates", "usage_mailboxes", "usage_client_versions", "usage_current")
        }
        return picture(await store.view()), records
    finally:
        await store.close()


@pytest.mark.parametrize("old", range(1, len(migrations()) + 1))
async def test_every_old_database_opens_with_all_rows(old: int, tmp_path: Path) -> None:
    """As in frozen/, told once more by hand."""
    live, records = await opened(tmp_path / "old", old)
    assert live == (await opened(tmp_path / "new", len(migrations())))[0]
    assert set(live["x"]["mailboxes"]) == {"box1", "box2", "m'é"}
    assert set(live["y"]["mailboxes"]) == {"box3"}
    assert (live["x"]["allocated"], live["x"]["taken"]) == ({"a": ["1"]}, {1: 2})
    nameplate, box = live["x"]["nameplates"]["4"], live["x"]["mailboxes"]["box2"]
    sides = [(side.side, side.added, side.claimed, side.allocated) for side in nameplate["sides"]]
    assert sides == [("a", 1700000001.5, False, False), ("b", 1700000003.75, True, False)]
    assert (nameplate["mailbox_id"], nameplate["crowded"]) == ("box2", True)
    assert [(side.side, side.opened, side.mood) for side in box["sides"]] == [("a", True, None), ("b", True, None)]
    assert (box["for_nameplate"], box["crowded"], box["touched"], box["nameplate"]) == (True, True, 13.25, "4")
    first, second = (message.wire for message in box["messages"])
    assert first == b'{"type":"message","side":"a","phase":"pake","body":"61","server_rx":1700000003.75,"id":"id1"'
    assert b'"phase":{"n": 123456789012345678901234567890},"body":12.50,' in second
    exact = 0.0 if old >= 4 else None
    assert records == {
        "usage_nameplates": [(1, "", "y", 1700000068.75, None, 0.0, "lonely", exact)],
        "usage_mailboxes": [
            (1, "", "y", 0, 1700000008.75, None, 60.0, "lonely", 1 if old >= 3 else None, exact),
            (6, "usage.sqlite", "x", 1, 1600000000.0, 12.5, 100.25, "happy", None, None),
        ],
        "usage_client_versions": [
            (1, "", "x", "a", 1700000000.5, "python", "0.24.0", None, exact),
            (2, "", "x", "b", 1700000000.5, "python", "0.24.0", None, exact),
            (3, "", "y", "gone", 1700000000.5, "python", "0.24.0", "Zm9v" if old >= 2 else None, exact),
        ],
        "usage_current": [(1, 1699999000.0, 1700000068.0, 60.0, 2)],
    }


# ── what is not ours ─────────────────────────────────────────────────────────────────────────────


def assert_refused(path: Path, match: str) -> None:
    """It is one sentence, and the file is left as it is."""
    before = path.read_bytes()
    with pytest.raises(StoreError, match=match) as refusal:
        connect(str(path))
    assert not isinstance(refusal.value, StoreBusy)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == before


def test_a_conversion_is_announced(tmp_path: Path) -> None:
    thaw(1, tmp_path / FILE).close()
    with capture_logs() as logged:
        connect(str(tmp_path / FILE)).close()
        connect(str(tmp_path / FILE)).close()  # it is converted already
    [line] = logged
    newest = len(migrations())
    assert (line["event"], line["schema"], line["to_schema"]) == ("converting the database", 1, newest)


def test_an_empty_database_file_is_logged(tmp_path: Path) -> None:
    """A file that was cut to nothing is a new database to SQLite."""
    with capture_logs() as logged:
        connect(str(tmp_path / "new")).close()
        assert not logged
        (tmp_path / FILE).touch()
        connect(str(tmp_path / FILE)).close()
    assert [line["event"] for line in logged] == ["the database file was empty: creating a new database in it"]


def test_an_interrupted_first_start_does_not_prevent_the_next(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # what comes first; the schema is one transaction after it
    with closing(connect(str(tmp_path / FILE))) as database:
        assert version(database) == (APPLICATION_ID, len(migrations()))


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    with closing(thaw(1, tmp_path / "newer")) as database:
        database.execute("PRAGMA user_version = 1000")
    assert_refused(tmp_path / "newer", "use the newer restante")


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other")) as database:
        database.execute("CREATE TABLE mailboxes (id)")
    assert_refused(tmp_path / "other", "not a database of this mailbox server")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear Sir or Madam,\n" * 500)
    assert_refused(tmp_path / "text", "cannot open")


async def test_a_data_directory_has_one_process(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match="another process is using"):
        open_store(tmp_path)
    await store.close()
    await open_store(tmp_path).close()


# ── damage ───────────────────────────────────────────────────────────────────────────────────────

DAMAGE = {
    "a message of no mailbox": "UPDATE messages SET mailbox = 1000 WHERE sequence = 1",
    "a mailbox that is lost": "DELETE FROM mailboxes WHERE mailbox_id = 'box2'",
    "a nameplate of no mailbox": "UPDATE nameplates SET mailbox_id = 'nowhere' WHERE name = '4'",
    "a nameplate of another app": "UPDATE nameplates SET app_id = 'y' WHERE name = '4'",
    "a nameplate without a name": "UPDATE nameplates SET name = '' WHERE name = '4'",
    "sides that are no JSON": "UPDATE mailboxes SET sides = '[{\"side\"' WHERE mailbox_id = 'box2'",
    "sides of a wrong shape": "UPDATE mailboxes SET sides = '[{\"side\": 5}]' WHERE mailbox_id = 'box2'",
    "sides that are no list": "UPDATE mailboxes SET sides = '{}' WHERE mailbox_id = 'box2'",
    "a nameplate's sides that are no JSON": "UPDATE nameplates SET sides = '' WHERE name = '4'",
    "a nameplate's sides of a wrong shape": "UPDATE nameplates SET sides = '[null]' WHERE name = '4'",
    "text that is no text": "UPDATE mailboxes SET app_id = CAST(x'ff' AS TEXT) WHERE mailbox_id = 'box2'",
    "a table that is lost": "DROP TABLE nameplates",
}


@pytest.fixture
async def thawed() -> AsyncIterator[Store]:
    store = Store(connect(":memory:"))
    with closing(thaw(len(migrations()))) as database:
        database.backup(store.database)
    yield store
    await store.close()


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_reported_in_one_sentence(thawed: Store, damage: str) -> None:
    thawed.database.execute(DAMAGE[damage])
    with pytest.raises(
        StoreError, match=r"\Athe database is damaged \([^\n]+\); restore a backup[^\n]*\Z"
    ) as refusal:
        await thawed.view()
    assert not isinstance(refusal.value, StoreBusy)
