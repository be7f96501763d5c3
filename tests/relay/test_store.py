"""Saved records are on disk, all or nothing; what the disk refuses can be saved later; a key of address ids ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.saving import CURRENT, DAY, KEY, NOW, record, traffic
from restante.common.data_directory import LOCK_FILE
from restante.common.errors import InUse, StoreBusy, StoreDamaged, StoreError, StoreFull
from restante.common.transfer_records import TransferRecord
from restante.relay.store.backup import back_up, restore
from restante.relay.store.schema import FILE, SCHEMA
from restante.relay.store.sqlite import ROWS_PER_CHECKPOINT, Store
from support.disk import no_file_beyond
from support.effort import examples
from support.processes import environment
from support.sqlite import LOCK, alter, beside, select

KEY_OF_NEXT_DAY = bytes(range(100, 132))


def advance(_pages: int) -> None:
    pass


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.open(tmp_path / "data")
    yield store
    await store.close()


def rows(data: Path, columns: str = "*") -> list[tuple[Any, ...]]:
    return select(data / FILE, f"SELECT {columns} FROM transfers ORDER BY id")


async def test_what_was_saved_is_read_after_a_restart(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    assert (store.traffic, store.day_key) == (None, b"")
    lonely = TransferRecord(NOW, None, 60.0, 0, "lonely")
    saved = traffic(day_bytes=1500, month_bytes=9000, a1=1000, b2=500)
    await store.save([record(), lonely], saved, KEY, CURRENT)
    await store.close()
    store = Store.open(tmp_path)
    assert (store.traffic, store.day_key) == (saved, KEY)
    await store.save([record(2000)], saved, KEY, CURRENT)
    await store.close()
    assert rows(tmp_path) == [
        (1, "", NOW, 0.5, 2.5, 1000, "happy", "a1", 0.0),
        (2, "", NOW, None, 60.0, 0, "lonely", None, None),
        (3, "", NOW, 0.5, 2.5, 2000, "happy", "a1", 0.0),
    ]
    assert select(tmp_path / FILE, "SELECT * FROM current") == [(1, NOW - 100, NOW, 4, 1, 5000)]


@given(st.lists(st.tuples(st.integers(0, 1), st.dictionaries(st.sampled_from("abc"), st.integers(0, 3))), max_size=6))
@examples(50)
def test_the_bytes_of_addresses_are_those_of_the_last_save(saves: list[tuple[int, dict[str, int]]]) -> None:
    store = Store(SCHEMA.connect(":memory:"), ExitStack())
    for day, address_bytes in saves:
        store._save([], traffic(DAY + day, **address_bytes), bytes([day]), CURRENT)
        stored = store.database.execute("SELECT address_id, bytes FROM address_bytes").fetchall()
        assert dict(stored) == address_bytes
    store._close()


async def test_the_key_of_a_day_is_in_no_file_after_it_and_in_no_backup(store: Store, tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"

    def files_with_key() -> set[str]:
        return {file.name for file in (*data.iterdir(), backup) if file.is_file() and KEY in file.read_bytes()}

    for number in range(3):
        await store.save([record()], traffic(month_bytes=5, a1=number), KEY, CURRENT)
    back_up(data, backup, advance)
    assert files_with_key() == {FILE, f"{FILE}-wal"}
    assert select(backup, "SELECT month_bytes, length(day_key) FROM traffic") == [(5, 0)]
    assert select(backup, "SELECT * FROM address_bytes") == []
    backup.unlink()
    await store.save([], traffic(DAY + 1), KEY_OF_NEXT_DAY, CURRENT)
    back_up(data, backup, advance)
    assert files_with_key() == set()


async def test_a_full_disk_or_another_writer_loses_nothing_that_is_saved_again(store: Store, tmp_path: Path) -> None:
    data, records = tmp_path / "data", [record()] * 2000
    await store.save([record()], traffic(a1=1), KEY, CURRENT)
    pages = store.database.execute("PRAGMA page_count").fetchone()[0]
    store.database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFull):
        await store.save(records, traffic(a1=2, b2=1), KEY, CURRENT)
    store.database.execute(f"PRAGMA max_page_count = {1 << 30}")
    store.database.execute("PRAGMA busy_timeout = 0")
    with beside(data / FILE, LOCK), pytest.raises(StoreBusy) as refusal:
        await store.save(records, traffic(a1=2, b2=1), KEY, CURRENT)
    assert type(refusal.value) is StoreBusy
    with no_file_beyond(0), pytest.raises(StoreError):
        await store.save(records, traffic(a1=2, b2=1), KEY, CURRENT)
    assert rows(data, "count(*)") == [(1,)]
    await store.save(records, traffic(a1=2, b2=1), KEY, CURRENT)
    assert rows(data, "count(*)") == [(2001,)]
    assert select(data / FILE, "SELECT * FROM address_bytes") == [("a1", 2), ("b2", 1)]


async def test_old_records_are_deleted_in_steps(store: Store, tmp_path: Path) -> None:
    records = [record(started=NOW - age) for age in range(10)]
    await store.save(records, traffic(), KEY, CURRENT)
    assert [await store.forget_records(NOW - 2.5, 4) for _ in range(3)] == [4, 3, 0]
    assert rows(tmp_path / "data", "started") == [(NOW,), (NOW - 1,), (NOW - 2,)]
    await store.save([record()], traffic(), KEY, CURRENT)
    assert rows(tmp_path / "data", "max(id)") == [(11,)], "no id is used twice"


async def test_the_log_does_not_grow(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "data" / f"{FILE}-wal"
    await store.save([], traffic(), KEY, CURRENT)
    sizes = []
    for _ in range(5):
        await store.save([record()] * ROWS_PER_CHECKPOINT, traffic(), KEY, CURRENT)
        sizes.append(log.stat().st_size)
    assert max(sizes) < 2 * sizes[0]


async def test_one_process_uses_the_directory_and_a_newer_or_damaged_database_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(InUse, match="another process is using the data directory"):
        Store.open(tmp_path)
    await store.save([record()], traffic(), KEY, CURRENT)
    await store.close()
    alter(tmp_path / FILE, "DROP TABLE address_bytes")
    with pytest.raises(StoreError, match=r"cannot read .*relay\.sqlite: no such table"):
        Store.open(tmp_path)
    alter(tmp_path / FILE, "PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="has schema 99, this program knows up to 1"):
        Store.open(tmp_path)
    alter(tmp_path / FILE, "PRAGMA application_id = 7")
    with pytest.raises(StoreError, match="is not a database of this transit relay; nothing was changed"):
        Store.open(tmp_path)


async def test_a_damaged_database_is_not_backed_up(store: Store, tmp_path: Path) -> None:
    await store.save([record()], traffic(), KEY, CURRENT)
    alter(
        tmp_path / "data" / FILE,
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'current')"
        " WHERE name = 'transfers_started'",
    )
    with pytest.raises(StoreDamaged, match=r"\Ano backup was made, because [^\n]+\Z"):
        back_up(tmp_path / "data", tmp_path / "backup", advance)
    assert not (tmp_path / "backup").exists()


def test_a_backup_beside_a_relay_shows_one_moment_and_a_killed_relay_leaves_what_it_saved(tmp_path: Path) -> None:
    """Each record is in the bytes of the month."""
    data, backup, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    consistent = "SELECT total(total_bytes), (SELECT month_bytes FROM traffic) FROM transfers"
    command = [sys.executable, "-m", "relay.saving", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as relay:
        assert relay.stdout is not None
        for _ in range(20):
            saved = int(relay.stdout.readline())
        contents = back_up(data, backup, advance)
        line = relay.stdout.readline()
        relay.kill()
        saved_last = int((line + relay.stdout.read()).split()[-1])
    assert contents.usage_records >= saved
    [(total, month)] = select(backup, consistent)
    assert (total, month) == (5 * contents.usage_records, contents.month_bytes)
    assert restore(backup, restored, advance).usage_records == contents.usage_records
    assert {file.name for file in restored.iterdir()} == {LOCK_FILE, FILE}
    [(total, month)] = select(data / FILE, consistent)
    assert total == month >= 5 * saved_last
    store = Store.open(data)
    assert store.traffic is not None
    assert store.traffic.month_bytes == month
    store._close()
