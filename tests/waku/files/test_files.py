"""Readers of files: what is whole is given, what is damaged is named by its place, and the rest goes on."""

from __future__ import annotations

import fcntl
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restante.common.errors import Misuse, StoreError
from restante.common.extras import how_to_install
from restante.waku.archive.records import Archived
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope
from restante.waku.files import UnreadableItem, leveldb, missing_ranges, parquet, rlp_file, rlp_items
from restante.waku.files.missing_ranges import MAX_FILE_BYTES, MAX_RANGES, MAX_TOPICS, MissingRange, MissingRanges
from support.disk import no_file_beyond
from support.waku import leveldbs
from support.waku.archives import ROWS, reason_of
from support.waku.envelopes import envelope

A, B, C = ROWS[:3]


def archived(rows: list[Envelope]) -> list[Archived]:
    return [Archived(number, 1000 + number, each.raw) for number, each in enumerate(rows, 1)]


def test_a_large_item_is_left_out_and_reading_ends_at_an_impossible_length(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert list(rlp_file.read(file)) == []
    large = UnreadableItem("byte 0", rlp_items.ITEM_TOO_LARGE)
    start = rlp.encode(bytes(rlp_items.MAX_ITEM_BYTES)) + A.raw
    for tail in (b"\xf8\x01", b"\xff" * 20, A.raw[:-1], b"\xb8", b"\x81\x05"):
        file.write_bytes(start + tail)
        *before, unreadable = rlp_file.read(file)
        assert before == [large, A]
        assert isinstance(unreadable, UnreadableItem)
        assert unreadable.where == f"byte {len(start)}"
        assert unreadable.reason.endswith("the rest of the file cannot be read")


def test_a_parquet_file_has_every_known_value_of_each_envelope(tmp_path: Path) -> None:
    names = ("hash", "sent", "expiry", "ttl", "topic", "arrival", "arrived", "size", "raw")
    parquet.write(tmp_path / "file", [archived([A, B])])
    assert pq.read_table(tmp_path / "file").to_pylist() == [
        dict(zip(names, (e.hash, e.sent, e.expiry, e.ttl, e.topic, at, 1000 + at, len(e.raw), e.raw), strict=True))
        for at, e in ((1, A), (2, B))
    ]
    assert list(parquet.read(tmp_path / "file")) == [A, B]
    parquet.write(tmp_path / "none", [])
    assert list(parquet.read(tmp_path / "none")) == []


def test_row_groups_are_bounded_in_rows_and_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1000)
    large = envelope(0, 1, size=1000)
    pages = [archived(rows) for rows in ([A, B], [C, A], [B], [large], [C])]
    parquet.write(tmp_path / "file", pages)
    metadata = pq.ParquetFile(tmp_path / "file").metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [4, 2, 1]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert list(parquet.read(tmp_path / "file")) == [A, B, C, A, B, large, C]


def test_a_row_whose_hash_is_another_s_or_whose_raw_is_no_envelope_is_named(tmp_path: Path) -> None:
    table = pa.table(
        {
            "raw": [A.raw, b"\xc0", B.raw, None, C.raw],
            "hash": [A.hash, A.hash, A.hash, A.hash, C.hash],
            "else": [1] * 5,
        }
    )
    pq.write_table(table, tmp_path / "file")
    assert list(parquet.read(tmp_path / "file")) == [
        A,
        UnreadableItem("row 1", reason_of(b"\xc0")),
        UnreadableItem("row 2", "the hash does not match"),
        UnreadableItem("row 3", "raw is not a byte string"),
        C,
    ]


def test_a_damaged_row_group_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 1)
    parquet.write(tmp_path / "file", [archived([row]) for row in (A, B, C)])
    column = pq.ParquetFile(tmp_path / "file").metadata.row_group(1).column(8)
    with (tmp_path / "file").open("r+b") as file:
        start = column.dictionary_page_offset or column.data_page_offset
        file.seek(start + column.total_compressed_size - 5)
        file.write(b"\0\0\0\0")
    first, unreadable, last = parquet.read(tmp_path / "file")
    assert (first, last) == (A, C)
    assert isinstance(unreadable, UnreadableItem)
    assert unreadable.where == "row 1"
    assert unreadable.reason.startswith("the rest of its group cannot be read")


def test_a_file_that_is_no_parquet_or_has_no_column_raw_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content in (b"", b"PAR1", b"PAR1" * 100):
        file.write_bytes(content)
        with pytest.raises(StoreError, match=r"\A[^\n]+cannot be read as Parquet: [^\n]+\Z"):
            list(parquet.read(file))
    pq.write_table(pa.table({"cats": ["Mia"]}), file)
    with pytest.raises(StoreError, match="has no column raw"):
        list(parquet.read(file))
    pq.write_table(pa.table({"raw": [A.raw]}), file)
    assert list(parquet.read(file)) == [A]


def by_key(rows: list[Envelope]) -> list[Envelope]:
    return sorted(rows, key=leveldbs.key)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.leveldb
def test_keys_of_40_bytes_and_old_ones_of_36_are_read_and_the_database_is_not_changed(tmp_path: Path) -> None:
    folder = leveldbs.of(tmp_path / "waku", ROWS)
    before = contents(folder)
    assert any(name.endswith((".ldb", ".sst")) for name in before)
    assert list(leveldb.read(folder)) == by_key(ROWS)
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["waku"]
    # Observed at a real one, but for its topic, which is not trusted: the envelope's bytes, its hash and its key.
    raw = bytes.fromhex("d0845f5e103232840102030483aabbcc07")
    key = "5f5e1000bc108395e2ddb56e842740b16a5ffac50e27b95a65fa1ff5dcc6cfff9ebb1655"
    [envelope] = leveldb.read(leveldbs.write(tmp_path / "other", [(bytes.fromhex(key + "deadbeef"), raw)]))
    assert isinstance(envelope, Envelope)
    assert leveldbs.key(envelope).hex() == key + "01020304"


@pytest.mark.leveldb
def test_an_entry_that_differs_from_its_key_is_named(tmp_path: Path) -> None:
    entries = {
        (A.sent + 1).to_bytes(4, "big") + A.hash + A.topic: (A.raw, "the key does not match"),
        A.sent.to_bytes(4, "big") + B.hash + A.topic: (A.raw, "the key does not match"),
        leveldbs.key(C): (C.raw + b"\0", reason_of(C.raw + b"\0")),
        b"status": (b"1", "a key has 36 or 40 bytes"),
    }
    whole = [(leveldbs.key(row), row.raw) for row in ROWS[5:9]]
    folder = leveldbs.write(tmp_path / "waku", [*((name, raw) for name, (raw, _) in entries.items()), *whole])
    items = list(leveldb.read(folder))
    assert [item for item in items if isinstance(item, Envelope)] == by_key(ROWS[5:9])
    assert {item.where: item.reason for item in items if isinstance(item, UnreadableItem)} == {
        f"key {name.hex()}": reason for name, (_, reason) in entries.items()
    }


@pytest.mark.leveldb
def test_a_damaged_table_is_an_unreadable_item_and_a_lack_of_room_for_the_copy_an_error(tmp_path: Path) -> None:
    folder = leveldbs.of(tmp_path / "waku", [envelope(n, n, size=3000) for n in range(40)])
    with no_file_beyond(100), pytest.raises(StoreError, match=r"\Acannot make a copy of [^\n]+: File too large\Z"):
        list(leveldb.read(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["waku"]
    [table] = [file for file in folder.iterdir() if file.suffix in {".ldb", ".sst"}]
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(content)
    *rows, unreadable = leveldb.read(folder)
    assert rows
    assert isinstance(unreadable, UnreadableItem)
    assert unreadable.reason.startswith("the rest cannot be read: Corruption: ")
    assert not re.search(rf"b['\"]|{re.escape(str(folder))}\.", unreadable.reason), "it names what the user named"


@pytest.mark.leveldb
def test_a_directory_that_is_no_leveldb_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a LevelDB database: it has no file CURRENT"):
        list(leveldb.read(tmp_path))
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(StoreError, match=r"\A[^\n]+cannot be opened as a LevelDB database: [^\n]+\Z") as refused:
        list(leveldb.read(tmp_path))
    assert "b'" not in str(refused.value)
    assert f"{tmp_path}." not in str(refused.value), "it names what the user named"


@pytest.mark.leveldb
def test_a_database_that_is_in_use_is_refused(tmp_path: Path) -> None:
    folder = leveldbs.of(tmp_path / "waku", ROWS)
    holder = "import plyvel, sys; database = plyvel.DB(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holder, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        with pytest.raises(Misuse, match="a program is using"):
            list(leveldb.read(folder))
        process.communicate()
    with (folder / "LOCK").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as goleveldb does
        with pytest.raises(Misuse, match="a program is using"):
            list(leveldb.read(folder))
    assert len(list(leveldb.read(folder))) == len(ROWS)


def test_without_the_library_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(Misuse) as missing:
        list(leveldb.read(tmp_path))
    assert str(missing.value) == f"a LevelDB archive needs the extra 'leveldb': {how_to_install('leveldb')}"


# ── files of ranges ──────────────────────────────────────────────────────────────────────────────

RANGE: dict[str, Any] = {"from": 10, "to": 20, "topics": ["01020304"], "missing": 3, "holders": ["west"]}
FILE: dict[str, Any] = {
    "format": "restante missing ranges",
    "version": 1,
    "mailserver": "east",
    "missing": 3,
    "ranges": [RANGE],
}


def test_ranges_are_read_as_they_are_written_up_to_the_largest_file(tmp_path: Path) -> None:
    file = tmp_path / "east.json"
    ranges = (
        MissingRange(lower=10, upper=20, topics=("01020304", "ffffffff"), missing=3, holders=("north", "west")),
        MissingRange(lower=30, upper=30, topics=None, missing=0, holders=()),
    )
    assert [each.shown() for each in ranges] == ["10 to 20, 2 topics", "30 to 30, all topics"]
    topics = tuple(f"{number:08x}" for number in range(MAX_TOPICS))
    largest = MissingRange(lower=1, upper=2**32 - 1, topics=topics, missing=2**53, holders=("west",))
    for written in (ranges, (largest,) * 100):
        whole = MissingRanges(mailserver="east", missing=3, ranges=written)
        file.write_bytes(missing_ranges.write(whole))
        assert missing_ranges.read(file) == whole
    assert file.stat().st_size < MAX_FILE_BYTES // 5
    file.write_text(json.dumps({**FILE, "more": 1, "ranges": [{**RANGE, "more": [{}]}]}))  # keys that are not known
    assert missing_ranges.read(file).ranges[0].topics == ("01020304",)


def with_range(**changes: Any) -> dict[str, Any]:
    return {**FILE, "ranges": [{**RANGE, **changes}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not a file of `restante pipeline gaps`"),
        ("[" * 100_000, "is not a file of `restante pipeline gaps`"),
        ('{"known": {}, "recent": {}}', "missing required field `format`"),
        (" " * (MAX_FILE_BYTES + 1), "is larger than any file of ranges, which has 16 MiB"),
        (FILE | {"version": 2}, "was made by a newer version of Restante: use that version, or a newer one"),
        (FILE | {"version": 0}, "Expected `int` >= 1"),
        (FILE | {"format": "\x1b[31m"}, "Invalid enum value"),
        (FILE | {"mailserver": "\x1b[31m"}, "Expected `str` matching regex"),
        (FILE | {"ranges": [RANGE] * (MAX_RANGES + 1)}, f"Expected `array` of length <= {MAX_RANGES}"),
        (with_range(**{"from": -1}), "Expected `int` >= 0"),
        (with_range(to=2**32), "Expected `int` <= 4294967295"),
        (with_range(to=9), "range 1 ends before it begins"),
        (with_range(**{"from": 0, "to": 0}), "range 1 ends before it begins, or in 1970"),
        (with_range(topics=[]), "Expected `array` of length >= 1"),
        (with_range(topics=["01020304"] * (MAX_TOPICS + 1)), f"Expected `array` of length <= {MAX_TOPICS}"),
        (with_range(topics=["0102030g"]), "Expected `str` matching regex"),
        (with_range(holders=["we\nst"]), "Expected `str` matching regex"),
        (with_range(missing=-1), "Expected `int` >= 0"),
    ],
    ids=itertools.count(1),
)
def test_what_is_no_file_of_ranges_is_refused_in_one_sentence(
    content: str | dict[str, Any], text: str, tmp_path: Path
) -> None:
    file = tmp_path / "east.json"
    file.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode("latin-1"))
    with pytest.raises(Misuse) as refusal:
        missing_ranges.read(file)
    sentence = str(refusal.value)
    assert text in sentence
    assert str(file) in sentence
    assert sentence.isprintable()
    assert len(sentence) < 400


def test_a_file_of_ranges_that_cannot_be_read_is_reported() -> None:
    for path in ("/nowhere", "/", "x" * 300):
        with pytest.raises(Misuse, match=r"cannot read .* \(--ranges\)"):
            missing_ranges.read(Path(path))
