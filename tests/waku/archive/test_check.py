"""`check`: says nothing of an archive that is whole, and what is wrong with one that is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from restante.waku.archive import checking
from restante.waku.archive.schema import FILE, SCHEMA
from restante.waku.archive.sqlite import Archive, open_archive
from support.waku.archives import reason_of
from support.waku.envelopes import envelope

ROWS = [envelope(number // 3, number, topic=bytes([255 - number % 4] * 4)) for number in range(30)]


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    archive = open_archive(tmp_path)
    await archive.save(ROWS, 1)
    await archive.close()
    return tmp_path


def found(data: Path) -> list[str]:
    with SCHEMA.reading(data) as database:
        return list(checking.check(database, lambda _: None))


async def test_check_finds_nothing_after_prunes(data: Path) -> None:
    archive = open_archive(data)
    assert await archive.prune(ROWS[9].sent, 5) == 5
    assert await archive.prune_bytes((await archive.counts()).bytes - 50, 5) == 3
    await archive.save(ROWS, 2)
    await archive.prune(ROWS[15].sent, 100)
    await archive.close()
    assert found(data) == []


async def test_check_reads_every_row_beside_a_running_server(data: Path) -> None:
    archive = Archive.open(data)
    try:
        await archive.save([envelope(100, number) for number in range(1500)], 2)
        looked: list[int] = []
        with SCHEMA.reading(data) as database:
            wrong: Iterator[str] = checking.check(database, looked.append)
            assert list(wrong) == []
        assert looked == [1000, 530]
    finally:
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
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.items())
def test_damage_is_found_and_named(data: Path, damage: str, sentence: str) -> None:
    assert found(data) == []
    with closing(sqlite3.connect(data / FILE)) as database:
        database.execute(damage)
        database.commit()
    said = found(data)
    assert any(sentence in line for line in said), said
    assert all("\n" not in line for line in said)


def test_an_index_that_has_lost_entries_is_found(data: Path) -> None:
    with closing(sqlite3.connect(data / FILE)) as database:
        database.execute("PRAGMA writable_schema = 1")
        # The index is written as if it had no rows, which only integrity_check can tell.
        database.execute("UPDATE sqlite_schema SET sql = replace(sql, '(topic)', '(arrival)') WHERE type = 'index'")
        database.commit()
    assert any("the database is damaged" in sentence for sentence in found(data))


async def test_an_envelope_with_a_moved_id_is_in_its_place_while_the_collision_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has two envelopes with hashes that begin alike: here ids are made of three bits of the hash."""
    monkeypatch.setattr("restante.waku.archive.ids.home", lambda each: each.sent << 31 | 8 + each.hash[0] % 8)
    archive = open_archive(tmp_path)
    crowd = [envelope(0, number) for number in range(12)]
    await archive.save(crowd, 1)
    await archive.close()
    assert found(tmp_path) == []
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("DELETE FROM envelopes WHERE id = (SELECT max(id) FROM envelopes)")
        database.commit()
    assert any("belong to" in sentence for sentence in found(tmp_path))
