"""Usage records: theirs to ours, and all of ours to a file that their programs read."""

from __future__ import annotations

from pathlib import Path

import pytest
from wormhole_mailbox_server.database import create_or_upgrade_usage_db

from reference_import.taking import rows, taking
from restante.common.errors import Misuse, StoreError
from restante.common.usage_records import CurrentUsage
from restante.mailbox.reference_import.exporting import export_usage
from restante.mailbox.reference_import.importing import RECORDS_PER_CHUNK
from restante.mailbox.store.sqlite import open_store
from support.mailbox.givens import mailbox_id
from support.mailbox.ledger import Ledger
from support.mailbox.reference_sources import Their, alter, select, usage_v1

TABLES = ("nameplates", "mailboxes", "client_versions")


def play(their: Their) -> None:
    """Sessions that end in every way there is."""
    for when, side in enumerate(("a", "b", "c")):
        their.bind(side, 1000.5 + when)
    mailbox = their.claim("a", "4", 1000.5)
    their.claim("b", "4", 1002.25)
    their.release("a", "4", 1003)
    their.release("b", "4", 1004)
    their.close("a", mailbox, "happy", 1005)
    their.close("b", mailbox, "happy", 1006.5)
    for number, mood in enumerate(("lonely", "errory", "scary", None, "unwelcome")):
        their.open("a", f"m{number}", 1010)
        their.close("a", f"m{number}", mood, 1020)
    their.claim("a", "5", 1030, "y")
    their.prune(5000)


def test_usage_records_are_imported_and_exported_unchanged(their: Their, data: Path, tmp_path: Path) -> None:
    play(their)
    their.stop()
    report = taking(data, usage=their.usage)
    assert report.imported == {"usage_nameplates": 2, "usage_mailboxes": 7, "usage_client_versions": 3}
    assert report.skipped == {}
    export = tmp_path / "export.sqlite"
    assert export_usage(data, export) == {"nameplates": 2, "mailboxes": 7, "client_versions": 3}
    for table in TABLES:
        columns = ", ".join(name for (name,) in select(their.usage, f"SELECT name FROM pragma_table_info('{table}')"))
        theirs = select(their.usage, f"SELECT {columns} FROM {table} ORDER BY rowid")
        assert rows(data, f"SELECT {columns} FROM usage_{table} ORDER BY id") == theirs
        assert select(export, f"SELECT * FROM {table} ORDER BY rowid") == theirs
        assert rows(data, f"SELECT DISTINCT origin FROM usage_{table}") == [("usage.sqlite",)]
    types = "SELECT typeof(started), typeof(total_time), typeof(for_nameplate) FROM mailboxes ORDER BY rowid"
    assert select(export, types) == select(their.usage, types)
    assert rows(data, "SELECT DISTINCT address_id FROM usage_client_versions") == [(None,)]
    assert rows(data, "SELECT * FROM usage_current") == []


def test_usage_v1_has_no_client_versions(tmp_path: Path, data: Path) -> None:
    usage_v1(tmp_path / "usage.sqlite")
    report = taking(data, usage=tmp_path / "usage.sqlite")
    assert report.imported == {"usage_nameplates": 1, "usage_mailboxes": 1, "usage_client_versions": 0}
    times = "app_id, started, waiting_time, total_time, result"
    assert rows(data, f"SELECT {times} FROM usage_nameplates") == [("x", 1.5e9, 2.5, 10.25, "happy")]
    assert rows(data, f"SELECT {times}, for_nameplate FROM usage_mailboxes") == [
        ("x", 1.5e9, None, 20.5, "lonely", 1)
    ]


UNUSABLE = {
    "usage_nameplates_unusable": [
        "nameplates VALUES (NULL, 1, 1, 1, 'happy')",
        "nameplates VALUES ('x', NULL, 1, 1, 'happy')",
        "nameplates VALUES ('x', 'noon', 1, 1, 'happy')",
        "nameplates VALUES ('x', 1, 1, NULL, 'happy')",
        "nameplates VALUES ('x', 1, 1, 1, 'odd')",
        "nameplates VALUES ('x', 1, 1, 1, NULL)",
        "nameplates VALUES ('x', 9e999, 1, 1, 'happy')",
    ],
    "usage_mailboxes_unusable": [
        "mailboxes VALUES ('x', NULL, 1, 1, 1, 'happy')",
        "mailboxes VALUES ('x', 1, 1, 1, 1, 'quiet')",
        "mailboxes VALUES ('x', 1, 1, 1, x'00', 'happy')",
    ],
    "usage_client_versions_unusable": [
        "client_versions VALUES ('x', NULL, 1, 'python', '1')",
        "client_versions VALUES ('x', 'a', NULL, 'python', '1')",
        "client_versions VALUES ('x', 'a', 1, x'ff', '1')",
        "client_versions VALUES ('x', 'a', 1, CAST(x'ff' AS TEXT), '1')",
    ],
}


def test_invalid_usage_rows_are_skipped_and_counted(their: Their, data: Path) -> None:
    play(their)
    alter(their.usage, *(f"INSERT INTO {rows}" for statements in UNUSABLE.values() for rows in statements))
    report = taking(data, usage=their.usage)
    assert report.skipped == {kind: len(statements) for kind, statements in UNUSABLE.items()}
    assert report.imported == {"usage_nameplates": 2, "usage_mailboxes": 7, "usage_client_versions": 3}


def test_more_records_than_are_held_in_memory_at_a_time(their: Their, data: Path) -> None:
    count = 2 * RECORDS_PER_CHUNK + 1
    alter(
        their.usage,
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        " INSERT INTO mailboxes SELECT 'x', 1, i, 1, 1, CASE i % 2 WHEN 0 THEN 'happy' ELSE 'odd' END FROM n",
    )
    report = taking(data, usage=their.usage)
    assert (report.imported["usage_mailboxes"], report.skipped) == (
        RECORDS_PER_CHUNK,
        {"usage_mailboxes_unusable": RECORDS_PER_CHUNK + 1},
    )
    assert rows(data, "SELECT count(*), min(started), max(started) FROM usage_mailboxes") == [
        (RECORDS_PER_CHUNK, 2.0, 2.0 * RECORDS_PER_CHUNK)
    ]


# ── export ───────────────────────────────────────────────────────────────────────────────────────


async def test_exported_records_are_read_by_the_reference_and_its_munin_plugins(tmp_path: Path, data: Path) -> None:
    """Beside a running server, whose store is open here."""
    store = open_store(data)
    try:
        ledger = Ledger(await store.view(), wall=1_700_000_000.5)
        ledger.bind("a")
        ledger.claim("a", "4")
        ledger.pass_(2.0)
        ledger.release("a", "4")
        ledger.close("a", mailbox_id(1), "errory")
        ledger.note(CurrentUsage(1_699_999_000.0, 1_700_000_002.5, None, 3))
        await ledger.commit(store)
        export_usage(data, tmp_path / "export.sqlite")
    finally:
        await store.close()
    database = create_or_upgrade_usage_db(str(tmp_path / "export.sqlite"))
    [nameplate] = database.execute("SELECT * FROM nameplates")
    assert dict(nameplate) == {
        "app_id": "x",
        "started": 1_700_000_000.5,
        "waiting_time": None,
        "total_time": 2.0,
        "result": "lonely",
    }
    [client] = database.execute("SELECT implementation, version FROM client_versions")
    assert dict(client) == {"implementation": "python", "version": "0.24.0"}
    database.close()
    # as misc/munin/wormhole_event_rate asks
    assert select(tmp_path / "export.sqlite", "SELECT `updated`,`rebooted` FROM `current`") == [
        (1_700_000_002.5, 1_699_999_000)
    ]
    for result, count in (("errory", 1), ("happy", 0)):
        counting = f"SELECT COUNT() FROM `mailboxes` WHERE `result` = '{result}'"
        assert select(tmp_path / "export.sqlite", counting) == [(count,)]


def test_an_export_overwrites_nothing_and_leaves_nothing_if_it_fails(
    tmp_path: Path, data: Path, their: Their
) -> None:
    taking(data, usage=their.usage)
    there = tmp_path / "there.sqlite"
    there.write_text("something dear")
    with pytest.raises(Misuse, match="exists already"):
        export_usage(data, there)
    assert there.read_text() == "something dear"
    alter(data / "restante.sqlite", "DROP TABLE usage_client_versions")
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match=r"\Acannot export to [^\n]*\Z"):
        export_usage(data, tmp_path / "out" / "export.sqlite")
    assert list((tmp_path / "out").iterdir()) == []
