"""The archive's file: how its schema grows, what is said of damage, what `check` finds, and backups."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from restante.common import database_copy
from restante.common.errors import StoreBusy, StoreDamaged, StoreError
from restante.waku.archive import backup, checking
from restante.waku.archive.records import Counts
from restante.waku.archive.schema import APPLICATION_ID, FILE, SCHEMA
from restante.waku.archive.sqlite import open_archive
from support.disk import no_file_beyond
from support.sqlite_schema import schema, version
from support.waku.archives import archive_of, raws_of, reason_of, thaw
from support.waku.envelopes import T0, envelope, everything, held

VERSIONS = range(1, len(SCHEMA.migrations()) + 1)


@pytest.mark.parametrize("old", VERSIONS)
async def test_every_old_archive_opens_with_all_rows_and_the_schema_of_a_new_one(old: int, tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    thaw(old, tmp_path / "old" / FILE)
    upgraded, new = open_archive(tmp_path / "old"), open_archive(tmp_path / "new")
    try:
        assert schema(upgraded.database) == schema(new.database)
        assert version(upgraded.database) == version(new.database) == (APPLICATION_ID, len(VERSIONS))
        assert [(row.arrival, row.arrived, row.raw) for row in await everything(upgraded)] == [
            (2, T0 + 100, envelope(5, 2, topic=b"\xff\xee\xdd\xcc").raw),
            (3, T0 + 200, envelope(3, 3).raw),
        ]
        assert await upgraded.counts() == Counts(2, 44, 2, T0 + 3, T0 + 5, 4)
        await upgraded.save([envelope(3, 3), envelope(0, 1)], T0)
        assert [row.arrival for row in await everything(upgraded)] == [2, 3, 4]
        pragmas = ("journal_mode", "synchronous", "locking_mode", "busy_timeout", "wal_autocheckpoint")
        settings = [new.database.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
        assert settings == ["wal", 2, "normal", 5000, 0]  # 2: FULL (sqlite.org/pragma.html#pragma_synchronous)
    finally:
        await upgraded.close()
        await new.close()


async def test_damage_is_reported_in_one_sentence(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    await archive.save([envelope(number, number, size=500) for number in range(100)], 1)
    await archive.close()
    archive = open_archive(tmp_path)
    with (tmp_path / FILE).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 4096 * 12)
    archive.database.execute("PRAGMA shrink_memory")
    with pytest.raises(StoreDamaged, match=r"\A[^\n]*malformed[^\n]*\Z"):
        await held(archive)
    with pytest.raises(StoreError, match=r"\A[^\n]*malformed[^\n]*\Z") as refusal:
        await archive.save([envelope(1000, 1000)], 1)
    assert not isinstance(refusal.value, StoreBusy)
    await archive.close()
    with pytest.raises(StoreError, match=r"\Athe archive is damaged \([^\n]*malformed\): restore a backup[^\n]*\Z"):
        open_archive(tmp_path)


# ── `check`: says nothing of an archive that is whole, and what is wrong with one that is not ────

ROWS = [envelope(number // 3, number, topic=bytes([255 - number % 4] * 4)) for number in range(30)]


def problems(data: Path, advance: Callable[[int], None] = lambda _: None) -> list[str]:
    with SCHEMA.reading(data) as database:
        return list(checking.check(database, advance))


async def test_check_finds_nothing_after_prunes_and_reads_every_row_beside_a_running_server(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    await archive.save(ROWS, 1)
    assert await archive.prune(ROWS[9].sent, 5) == 5
    assert await archive.prune_bytes((await archive.counts()).bytes - 50, 5) == 3
    await archive.save(ROWS, 2)
    await archive.prune(ROWS[15].sent, 100)
    await archive.save([envelope(100, number) for number in range(1500 - 15)], 3)
    looked: list[int] = []
    assert problems(tmp_path, looked.append) == []
    assert looked == [1000, 500]
    await archive.close()


DAMAGE = {
    "UPDATE envelopes SET raw = CAST(x'00' || substr(raw, 2) AS BLOB) WHERE arrival = 5": reason_of(
        b"\0" + ROWS[4].raw[1:]
    ),
    "UPDATE envelopes SET raw = CAST(substr(raw, 1, 21) || x'07' AS BLOB) WHERE arrival = 5": "belong to",
    "UPDATE envelopes SET id = id + 1 WHERE arrival = 5": "belong to",
    "UPDATE envelopes SET topic = 7 WHERE arrival = 5": "its topic is",
    "DELETE FROM envelopes WHERE arrival = 5": "the count of envelopes is 30, but there are 29",
    "UPDATE totals SET bytes = bytes + 1": "the count of bytes is",
    "UPDATE totals SET next_arrival = 30": "the next arrival number, 30, was given already",
    "UPDATE topics SET count = count - 1 WHERE topic = -1": "the counts of topic ffffffff are wrong",
    "UPDATE topics SET last = last + 1 WHERE topic = -1": "the counts of topic ffffffff are wrong",
    "INSERT INTO topics VALUES (7, 1, 1, 1)": "the counts of topic 00000007 are wrong",
    "DELETE FROM topics WHERE topic = -1": "the counts of topic ffffffff are wrong",
    "DELETE FROM arrivals WHERE arrival = 5": "has no arrival",
    "INSERT INTO arrivals VALUES (29000, 5, 1)": "arrival 29000 has no envelope",
    # The index is written as if it had no rows, which only integrity_check can tell.
    "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = replace(sql, '(topic)', '(arrival)')"
    " WHERE type = 'index'": "the database is damaged",
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.items())
def test_damage_is_found_and_named(tmp_path: Path, damage: str, sentence: str) -> None:
    archive_of(tmp_path, ROWS)
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript(damage)
    lines = problems(tmp_path)
    assert any(sentence in line for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_an_envelope_with_a_moved_id_is_in_its_place_while_the_collision_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has two envelopes with hashes that begin alike: here ids are made of three bits of the hash."""
    monkeypatch.setattr("restante.waku.archive.ids.home", lambda kind: kind.sent << 31 | 8 + kind.hash[0] % 8)
    archive_of(tmp_path, [envelope(0, number) for number in range(12)])
    assert problems(tmp_path) == []
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("DELETE FROM envelopes WHERE id = (SELECT max(id) FROM envelopes)")
        database.commit()
    assert any("belong to" in sentence for sentence in problems(tmp_path))


# ── a backup: a data directory with the archive as it was ────────────────────────────────────────

LARGE = [envelope(number, number, size=2000) for number in range(300)]


async def test_a_backup_is_of_one_moment_can_be_served_and_delays_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_copy, "PAGES_PER_STEP", 5)
    archive = open_archive(tmp_path / "data")
    await archive.save(LARGE, 1)
    steps: list[int] = []
    loop = asyncio.get_running_loop()

    def write(pages: int) -> None:
        steps.append(pages)
        if len(steps) <= 10:  # the next step waits until this is on disk
            more = [envelope(1000 + len(steps), number) for number in range(50)]
            asyncio.run_coroutine_threadsafe(archive.save(more, 2), loop).result(30)

    await asyncio.to_thread(backup.backup, tmp_path / "data", tmp_path / "copy", write)
    assert len(steps) > 30
    assert (await archive.counts()).envelopes == len(LARGE) + 500
    await archive.close()
    copy = open_archive(tmp_path / "copy")
    assert await held(copy) == [row.raw for row in LARGE]
    await copy.save([envelope(1000, 1000)], 2)
    await copy.close()
    assert problems(tmp_path / "copy") == []


def test_a_backup_without_room_is_reported_in_one_sentence_and_leaves_no_archive(tmp_path: Path) -> None:
    archive_of(tmp_path / "data", LARGE)
    with no_file_beyond(100_000), pytest.raises(StoreError, match=r"\Acannot copy the database: [^\n]+\Z"):
        backup.backup(tmp_path / "data", tmp_path / "copy", lambda _: None)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["lock"]
    (tmp_path / "empty").mkdir()
    backup.backup(tmp_path / "data", tmp_path / "empty", lambda _: None)
    assert raws_of(tmp_path / "empty") == [row.raw for row in LARGE]
