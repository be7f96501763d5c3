"""Envelopes from files and archives of every kind, as the library yields them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from restante.common.errors import Misuse, StoreError
from restante.waku import UnreadableItem, open_archive, read_envelopes
from restante.waku.files.exporting import export
from support.waku import leveldbs
from support.waku.archives import ROWS, archive_of


def test_files_and_a_data_directory_have_the_same_envelopes(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data")
    for name in ("file.rlp", "file.parquet"):
        export(data, tmp_path / name)
        assert list(read_envelopes(tmp_path / name)) == ROWS
    assert list(read_envelopes(str(data))) == ROWS


@pytest.mark.leveldb
def test_a_directory_of_status_go(tmp_path: Path) -> None:
    found = list(read_envelopes(leveldbs.of(tmp_path / "db", ROWS)))
    assert sorted(each.hash for each in found) == sorted(each.hash for each in ROWS)


async def test_an_archive_that_is_open_is_read_as_it_was(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    try:
        await archive.save(ROWS[:2], 1)
        found = read_envelopes(tmp_path)
        assert next(found) == ROWS[0]
        await archive.save(ROWS[2:], 2)
        assert list(found) == ROWS[1:2]
        assert list(read_envelopes(tmp_path)) == ROWS
    finally:
        await archive.close()


def test_what_is_no_envelope_is_an_error_or_the_program_s(tmp_path: Path) -> None:
    file = tmp_path / "file.rlp"
    file.write_bytes(ROWS[0].raw + b"\x07" + ROWS[1].raw)
    found = read_envelopes(file)
    assert next(found) == ROWS[0]
    with pytest.raises(StoreError, match=rf"file\.rlp, byte {len(ROWS[0].raw)}: "):
        next(found)
    unreadable: list[UnreadableItem] = []
    assert list(read_envelopes(file, on_unreadable=unreadable.append)) == ROWS[:2]
    assert [each.where for each in unreadable] == [f"byte {len(ROWS[0].raw)}"]


def test_a_damaged_row_of_an_archive_is_named_by_its_arrival(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", ROWS[:3])
    with closing(sqlite3.connect(data / "archive.sqlite")) as database, database:
        database.execute("UPDATE envelopes SET raw = x'07' WHERE arrival = 2")
    with pytest.raises(StoreError, match=r"data, arrival 2: an envelope is a list"):
        list(read_envelopes(data))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for name, words in (("none.rlp", "there is no"), ("", r"no file CURRENT|the extra 'leveldb'")):
        with pytest.raises((Misuse, StoreError), match=words):
            list(read_envelopes(tmp_path / name))
    (tmp_path / "file.txt").touch()
    with pytest.raises(Misuse, match=r"neither \.rlp nor \.parquet"):
        list(read_envelopes(tmp_path / "file.txt"))
