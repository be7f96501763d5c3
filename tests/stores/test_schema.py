"""The SQLite schemas of both servers: how they grow, what they refuse, and how damage is reported."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from restante.common.errors import StoreBusy, StoreError
from restante.common.sqlite import Schema
from restante.mailbox.store.schema import APPLICATION_ID, FILE, connect, migrations
from restante.mailbox.store.schema import SCHEMA as MAILBOX
from restante.mailbox.store.sqlite import SqliteStore
from restante.waku.archive.schema import SCHEMA as ARCHIVE
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.sqlite import alter
from support.waku.archives import FROZEN as ARCHIVE_FROZEN

FROZEN = Path(__file__).parent / "frozen"


def schema(database: sqlite3.Connection) -> dict[str, Any]:
    """Return tables, columns and indexes; comments and white space are no part of a schema."""
    names = database.execute("SELECT type, name, tbl_name FROM sqlite_schema ORDER BY type, name").fetchall()
    tables = [name for kind, name, _ in names if kind == "table"]
    return {
        "names": names,
        "columns": {table: database.execute(f"PRAGMA table_xinfo({table})").fetchall() for table in tables},
        "options": sorted(row[1:6] for row in database.execute("PRAGMA table_list") if row[1] in tables),
        "indexes": [
            database.execute(f"PRAGMA index_xinfo({name})").fetchall() for kind, name, _ in names if kind == "index"
        ],
    }


def version(database: sqlite3.Connection) -> list[int]:
    return [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]


def thaw(version: int, path: str | Path = ":memory:") -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript((FROZEN / f"sqlite-{version:04}.sql").read_text())
    return database


@pytest.mark.parametrize(("kind", "frozen"), [(MAILBOX, FROZEN), (ARCHIVE, ARCHIVE_FROZEN)])
def test_migrations_are_numbered_from_one_and_each_schema_is_frozen_here(kind: Schema, frozen: Path) -> None:
    folder = Path(str(resources.files(kind.package))) / "sql"
    wanted = [f"sqlite-{number:04}.sql" for number in range(1, len(kind.migrations()) + 1)]
    assert sorted(file.name for file in folder.glob("sqlite-*.sql")) == wanted
    assert sorted(file.name for file in frozen.iterdir()) == wanted
    assert kind.migrations() == [(folder / name).read_text() for name in wanted]


async def opened(folder: Path, old: int) -> tuple[dict[str, Any], dict[str, list[tuple[Any, ...]]]]:
    """Use a database of this version a little; return what is live then, and the records."""
    folder.mkdir()  # noqa: ASYNC240 - of a test
    thaw(old, folder / FILE).close()
    store = SqliteStore.open(folder)
    try:
        assert store.service == 78.25
        ledger = Ledger(await store.view(), service=store.service)
        ledger.bind("c")
        ledger.close("a", "half", "scary")  # ends it: b has closed it already
        await ledger.commit(store)
        highest = store.database.execute("SELECT max(id) FROM usage_mailboxes").fetchone()
        assert highest == (10,)  # 7, 8 and 9 were used before, and forgotten
        records = {
            table: store.database.execute(f"SELECT * FROM {table} WHERE rowid < 10 ORDER BY 1").fetchall()
            for table in ("usage_nameplates", "usage_mailboxes", "usage_client_versions", "usage_current")
        }
        return picture(await store.view()), records
    finally:
        await store.close()


@pytest.mark.parametrize("old", range(1, len(migrations()) + 1))
async def test_every_old_database_opens_with_all_rows(old: int, tmp_path: Path) -> None:
    """As in frozen/, written once more by hand; and its schema becomes that of a new one."""
    live, records = await opened(tmp_path / "old", old)
    with closing(connect(str(tmp_path / "old" / FILE))) as upgraded, closing(connect(":memory:")) as new:
        assert schema(upgraded) == schema(new)
        assert version(upgraded) == version(new)
    assert live == (await opened(tmp_path / "new", len(migrations())))[0]
    assert set(live["x"]["mailboxes"]) == {"box1", "box2", "m'é"}
    assert set(live["y"]["mailboxes"]) == {"box3"}
    assert (live["x"]["allocated"], live["x"]["counts_by_length"]) == ({"a": ["1"]}, {1: 2})
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


@pytest.mark.parametrize("kind", [MAILBOX, ARCHIVE])
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("newer", "use the newer restante"),
        ("somebody else's", "not a database of this (mailbox server|Waku mailserver)"),
        ("no database", "not a database"),
    ],
)
def test_a_foreign_database_is_refused_and_unchanged(what: str, sentence: str, kind: Schema, tmp_path: Path) -> None:
    path = tmp_path / kind.file
    if what == "newer":
        kind.connect(str(path)).close()
        alter(path, "PRAGMA user_version = 1000")
    elif what == "no database":
        path.write_text("Dear Sir or Madam,\n" * 500)
    else:
        alter(path, "CREATE TABLE mailboxes (id)", "CREATE TABLE envelopes (id)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=sentence) as refusal:
        kind.connect(str(path))
    assert not isinstance(refusal.value, StoreBusy)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
    with pytest.raises(StoreError, match=r"\A[^\n]+\Z"), kind.reading(tmp_path):
        pass
    assert path.read_bytes() == before


def test_a_start_on_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(sqlite3.Connection):
        def execute(self, *_: object) -> sqlite3.Cursor:
            failure = sqlite3.OperationalError("disk I/O error")
            failure.sqlite_errorcode = sqlite3.SQLITE_IOERR | 4 << 8  # the shared memory cannot be made larger
            raise failure

    free = 0
    monkeypatch.setattr("restante.common.sqlite.sqlite3.connect", partial(sqlite3.connect, factory=Full))
    monkeypatch.setattr("restante.common.sqlite.shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(StoreError, match=f"the disk is full; make room in {tmp_path}, and try again"):
        connect(str(tmp_path / FILE))
    free = 1 << 30
    with pytest.raises(StoreError, match="disk I/O error"):
        connect(str(tmp_path / FILE))


def test_an_empty_database_file_is_logged(tmp_path: Path) -> None:
    """A file that was cut to nothing is a new database to SQLite."""
    with capture_logs() as logged:
        connect(str(tmp_path / "new")).close()
        assert not logged
        (tmp_path / FILE).touch()
        connect(str(tmp_path / FILE)).close()
    assert [line["event"] for line in logged] == ["the database file was empty: creating a new database in it"]


def test_an_interrupted_first_start_does_not_prevent_the_next(tmp_path: Path) -> None:
    alter(tmp_path / FILE, "PRAGMA journal_mode = WAL")  # what comes first; the schema is one transaction after it
    with closing(connect(str(tmp_path / FILE))) as database:
        assert version(database) == [APPLICATION_ID, len(migrations())]
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert database.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        assert database.execute("SELECT * FROM service").fetchall() == [(1, 0.0, 0.0, None)]


DAMAGE = {
    "a message of no mailbox": "UPDATE messages SET mailbox = 1000 WHERE sequence = 1",
    "a nameplate of another app": "UPDATE nameplates SET app_id = 'y' WHERE name = '4'",
    "a nameplate without a name": "UPDATE nameplates SET name = '' WHERE name = '4'",
    "sides that are no JSON": "UPDATE mailboxes SET sides = '[{\"side\"' WHERE mailbox_id = 'box2'",
    "sides of a wrong shape": "UPDATE mailboxes SET sides = '[{\"side\": 5}]' WHERE mailbox_id = 'box2'",
    "a nameplate's sides that are no JSON": "UPDATE nameplates SET sides = '' WHERE name = '4'",
    "text that is no text": "UPDATE mailboxes SET app_id = CAST(x'ff' AS TEXT) WHERE mailbox_id = 'box2'",
    "a table that is lost": "DROP TABLE nameplates",
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_reported_in_one_sentence(tmp_path: Path, damage: str) -> None:
    thaw(len(migrations()), tmp_path / FILE).close()
    store = SqliteStore.open(tmp_path)
    store.database.execute(DAMAGE[damage])
    with pytest.raises(StoreError, match=r"\Athe database is damaged \([^\n]+\); restore a backup[^\n]*\Z") as error:
        await store.view()
    assert not isinstance(error.value, StoreBusy)
    await store.close()
