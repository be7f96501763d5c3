"""Usage records of the reference relay become ours, and ours become a database that it can use."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from wormhole_mailbox_server.database import create_or_upgrade_usage_db
from wormhole_transit_relay.database import get_db
from wormhole_transit_relay.usage import DatabaseUsageRecorder, UsageTracker

from relay.saving import CURRENT, KEY, NOW, record, traffic
from restante.common.errors import Misuse, StoreError
from restante.common.reference_database import ImportReport
from restante.relay.reference_import.exporting import export_usage
from restante.relay.reference_import.importing import RECORDS_PER_CHUNK, import_usage
from restante.relay.store.schema import FILE
from restante.relay.store.sqlite import Store
from support.disk import no_file_beyond
from support.sqlite import alter, select

RESULTS = ("happy", "lonely", "redundant", "errory", "impatient", "empty")


@pytest.fixture
def their(tmp_path: Path) -> Path:
    """A database that the reference relay has written."""
    file = tmp_path / "their.sqlite"
    with closing(get_db(str(file))) as database:
        tracker = UsageTracker(blur_usage=60)
        tracker.add_backend(DatabaseUsageRecorder(database))
        for number, result in enumerate(RESULTS):
            partner = NOW + 2 if result == "happy" else None
            tracker.record(NOW + number, partner, result, 1500, 20_000)
        tracker.update_stats(NOW - 50, NOW, 4, 1, 5000)
        database.commit()
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def take(data: Path, file: Path, *, merge: bool = False) -> ImportReport:
    return import_usage(data, file, merge=merge)


COLUMNS = "started, total_time, waiting_time, total_bytes, result"


def test_records_are_imported_and_exported_unchanged(their: Path, data: Path, tmp_path: Path) -> None:
    theirs = select(their, f"SELECT {COLUMNS} FROM usage ORDER BY rowid")
    assert (theirs[0][0], theirs[0][3]) == (NOW - NOW % 60, 30_000), "they are blurred"
    report = take(data, their)
    assert (report.imported, report.skipped) == ({"transfers": 6}, {})
    assert select(data / FILE, f"SELECT {COLUMNS} FROM transfers ORDER BY id") == theirs
    origins = select(data / FILE, "SELECT DISTINCT origin, address_id, blur_time FROM transfers")
    assert origins == [("their.sqlite", None, None)]
    assert export_usage(data, tmp_path / "export.sqlite") == 6
    assert select(tmp_path / "export.sqlite", "SELECT * FROM usage ORDER BY rowid") == theirs


async def test_the_reference_relay_goes_on_with_an_export(data: Path, tmp_path: Path) -> None:
    store = Store.open(data)
    await store.save([record(), record(2000, NOW + 0.5)], traffic(), KEY, CURRENT)
    export_usage(data, tmp_path / "export.sqlite")  # the relay is running
    await store.close()
    with closing(get_db(str(tmp_path / "export.sqlite"))) as database:
        DatabaseUsageRecorder(database).record_usage(NOW + 9, 1.0, None, 0, "lonely")
        rows = database.execute("SELECT * FROM usage").fetchall()
        current = database.execute("SELECT * FROM current").fetchall()
    assert [tuple(row.values()) for row in rows] == [
        (NOW, 2.5, 0.5, 1000, "happy"),
        (NOW + 0.5, 2.5, 0.5, 2000, "happy"),
        (NOW + 9, 1, None, 0, "lonely"),
    ]
    assert current == [
        {"rebooted": NOW - 100, "updated": NOW, "connected": 4, "waiting": 1, "incomplete_bytes": 5000}
    ]
    with pytest.raises(Misuse, match="exists already"):
        export_usage(data, tmp_path / "export.sqlite")


def test_the_same_records_are_not_imported_twice_and_others_only_with_merge(their: Path, data: Path) -> None:
    take(data, their)
    alter(their, "UPDATE current SET updated = 5", "VACUUM")
    for merge in (False, True):
        with pytest.raises(StoreError, match=r"was imported already \(20.* UTC, as their\.sqlite\); nothing was"):
            take(data, their, merge=merge)
    alter(their, "DELETE FROM usage WHERE result != 'happy'")
    with pytest.raises(StoreError, match=f"{data} is not empty: name a new directory with --data, or add to this"):
        take(data, their)
    assert take(data, their, merge=True).imported == {"transfers": 1}
    assert select(data / FILE, "SELECT count(*) FROM transfers") == [(7,)]


UNUSABLE = (
    *("NULL, 1, 1, 1, 'happy'", "'noon', 1, 1, 1, 'happy'", "9e999, 1, 1, 1, 'happy'", "1e300, 1, 1, 1, 'happy'"),
    *("1, NULL, 1, 1, 'happy'", "1, 1, x'00', 1, 'happy'", "1, 1, 1, 2.5, 'happy'", "1, 1, 1, -1, 'happy'"),
    *("1, 1, 1, 9223372036854775807, 'happy'", "1, 1, 1, 1e300, 'happy'", "1, 1, 1, NULL, 'happy'"),
    *("1, 1, 1, 1, NULL", "1, 1, 1, 1, 'jilted'", "1, 1, 1, 1, CAST(x'ff' AS TEXT)", "1, 1, 1, 1, zeroblob(9)"),
)


def test_rows_of_wrong_types_are_skipped_and_counted(their: Path, data: Path) -> None:
    alter(their, *(f"INSERT INTO usage VALUES ({row})" for row in UNUSABLE))
    report = take(data, their)
    assert (report.imported, report.skipped) == ({"transfers": 6}, {"transfers_unusable": len(UNUSABLE)})


def test_more_records_than_are_in_memory_at_once(their: Path, data: Path) -> None:
    count = 2 * RECORDS_PER_CHUNK + 1
    alter(
        their,
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        " INSERT INTO usage SELECT i, 1, 1, 1, 'happy' FROM n",
    )
    assert take(data, their).imported == {"transfers": 6 + count}


def mailbox_usage(file: Path) -> None:
    file.unlink()
    create_or_upgrade_usage_db(str(file)).close()


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def truncate(file: Path) -> None:
    alter(file, "INSERT INTO usage SELECT u.* FROM usage u, usage v, usage w, usage x")
    os.truncate(file, file.stat().st_size - 8192)


def in_the_folder_of_copies(file: Path) -> None:
    folder = file.parent / "data" / "importing"
    folder.mkdir(parents=True)
    file.rename(folder / "usage.sqlite")
    file.symlink_to(folder / "usage.sqlite")


OTHER = "is not a usage database of the reference relay"
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no bytes": (lambda file: file.write_bytes(b""), "is empty: name the file that the reference relay has written"),
    "text": (lambda file: file.write_text("Dear Sir,\n" * 500), "is not an SQLite database, or is damaged ("),
    "truncated": (truncate, "damaged (database disk image is malformed)"),
    "a usage database of a mailbox server": (mailbox_usage, OTHER),
    "no version": (lambda file: alter(file, "DELETE FROM version"), OTHER),
    "a missing column": (lambda file: alter(file, "ALTER TABLE usage DROP COLUMN waiting_time"), OTHER),
    "a view": (lambda file: alter(file, "ALTER TABLE usage RENAME TO u", "CREATE VIEW usage AS SELECT 1"), OTHER),
    "a newer version": (
        lambda file: alter(file, "UPDATE version SET version = 2"),
        "has version 2, this program knows 1: use a newer restante",
    ),
    "a huge value": (
        lambda file: alter(file, "INSERT INTO usage VALUES (1, 1, 1, 1, zeroblob(100000000))"),
        "is damaged (string or blob too big): restore an undamaged copy",
    ),
    "a pipe": (pipe, "is a pipe or a device: name a file"),
    "a directory": (directory, "Is a directory"),
    "no file": (Path.unlink, "No such file or directory"),
    "a link into the folder of copies": (in_the_folder_of_copies, "which an import removes: move it to another"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_another_file_is_refused_in_one_sentence(their: Path, data: Path, what: str) -> None:
    spoil, reason = REFUSED[what]
    spoil(their)
    with pytest.raises((Misuse, StoreError), match=r"\A--usage[^\n]+\Z") as refusal:
        take(data, their)
    assert reason in str(refusal.value)
    assert not (data / FILE).exists()


@pytest.mark.parametrize("fault", ["cannot be copied to", "nothing was imported into|the commit failed"])
def test_an_import_without_room_imports_nothing(their: Path, data: Path, fault: str) -> None:
    """There is no room for the copy; or for the copy, and not for our rows, which are larger."""
    take(data, their)
    alter(their, "INSERT INTO usage SELECT u.* FROM usage u, usage v, usage w, usage x")
    alter(their, "DROP INDEX usage_started_index", "DROP INDEX usage_result_index", "VACUUM")
    size = 20_000 if "copied" in fault else their.stat().st_size
    with no_file_beyond(size), pytest.raises(StoreError, match=rf"\A[^\n]*({fault})[^\n]+\Z"):
        take(data, their, merge=True)
    assert select(data / FILE, "SELECT count(*) FROM transfers") == [(6,)]
    assert take(data, their, merge=True).imported == {"transfers": 6 + 6**4}
