"""Files of envelopes and of ranges: what is whole is read, what is damaged is named; export, import and check."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restante.common.errors import InUse, Misuse, StoreError
from restante.common.extras import how_to_install
from restante.waku import open_archive, read_envelopes
from restante.waku.archive.records import Archived
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope, make, parse
from restante.waku.envelope.rlp import RlpError
from restante.waku.files import UnreadableItem, archive_files, leveldb, missing_ranges, parquet, rlp_file
from restante.waku.files.archive_files import export, import_files
from restante.waku.files.missing_ranges import MAX_FILE_BYTES, MAX_RANGES, MAX_TOPICS, MissingRange, MissingRanges
from restante.waku.protocol.packets import MAX_ENVELOPE_BYTES
from support.disk import no_file_beyond
from support.processes import RESTANTE, called, on_a_terminal, restante
from support.sqlite import alter
from support.waku import leveldbs
from support.waku.archives import ROWS, archive_of, raws_of, rows_of
from support.waku.envelopes import T0, envelope

A, B, C = ROWS[:3]


def archived(rows: list[Envelope]) -> list[Archived]:
    return [Archived(number, 1000 + number, row.raw) for number, row in enumerate(rows, 1)]


def reason_of(raw: bytes) -> str:
    with pytest.raises(RlpError) as refusal:
        parse(raw)
    return str(refusal.value)


def test_a_large_item_is_left_out_and_reading_ends_at_an_impossible_length(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert list(rlp_file.read(file)) == []
    large = UnreadableItem("byte 0", rlp_file.ITEM_TOO_LARGE)
    start = rlp.encode(bytes(rlp_file.MAX_ITEM_BYTES)) + A.raw
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
    pq.write_table(pa.table({"raw": [1]}), file)
    with pytest.raises(StoreError, match="has no column raw of byte strings"):
        list(parquet.read(file))
    pq.write_table(pa.table({"raw": [A.raw]}), file)
    assert list(parquet.read(file)) == [A]


def test_text_in_the_column_raw_is_no_envelope(tmp_path: Path) -> None:
    not_utf8 = pa.array([b"\xff\xfe"]).view(pa.string())
    pq.write_table(
        pa.table({"raw": pa.chunked_array([not_utf8, pa.array(["Dear Sir or Madam,"])])}), tmp_path / "file"
    )
    assert list(parquet.read(tmp_path / "file")) == [
        UnreadableItem(f"row {row}", reason_of(raw)) for row, raw in enumerate([b"\xff\xfe", b"Dear Sir or Madam,"])
    ]


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
        with pytest.raises(InUse, match="a program is using"):
            list(leveldb.read(folder))
        process.communicate()
    with (folder / "LOCK").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as goleveldb does
        with pytest.raises(InUse, match="a program is using"):
            list(leveldb.read(folder))
    assert len(list(leveldb.read(folder))) == len(ROWS)


def test_without_the_library_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(Misuse) as missing:
        list(leveldb.read(tmp_path))
    assert str(missing.value) == f"a LevelDB archive needs the extra 'leveldb': {how_to_install('leveldb')}"


RANGE: dict[str, Any] = {"from": 10, "to": 20, "topics": ["01020304"], "missing": 3, "holders": ["west"]}
RANGES: dict[str, Any] = {
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
    assert [missing.describe() for missing in ranges] == ["10 to 20, 2 topics", "30 to 30, all topics"]
    topics = tuple(f"{number:08x}" for number in range(MAX_TOPICS))
    largest = MissingRange(lower=1, upper=2**32 - 1, topics=topics, missing=2**53, holders=("west",))
    for written in (ranges, (largest,) * 100):
        whole = MissingRanges(mailserver="east", missing=3, ranges=written)
        file.write_bytes(missing_ranges.write(whole))
        assert missing_ranges.read(file) == whole
    assert file.stat().st_size < MAX_FILE_BYTES // 5
    file.write_text(json.dumps({**RANGES, "more": 1, "ranges": [{**RANGE, "more": [{}]}]}))  # keys that are not known
    assert missing_ranges.read(file).ranges[0].topics == ("01020304",)


def with_range(**changes: Any) -> dict[str, Any]:
    return {**RANGES, "ranges": [{**RANGE, **changes}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not a file of `restante pipeline gaps`"),
        ("[" * 100_000, "is not a file of `restante pipeline gaps`"),
        ('{"known": {}, "recent": {}}', "missing required field `format`"),
        (" " * (MAX_FILE_BYTES + 1), "is larger than any file of ranges, which has 16 MiB"),
        (RANGES | {"version": 2}, "was made by a newer version of Restante: use that version, or a newer one"),
        (RANGES | {"format": "\x1b[31m"}, "Invalid enum value"),
        (RANGES | {"mailserver": "\x1b[31m"}, "Expected `str` matching regex"),
        (RANGES | {"ranges": [RANGE] * (MAX_RANGES + 1)}, f"Expected `array` of length <= {MAX_RANGES}"),
        (with_range(**{"from": -1}), "Expected `int` >= 0"),
        (with_range(to=2**32), "Expected `int` <= 4294967295"),
        (with_range(to=9), "range 1 ends before it begins"),
        (with_range(**{"from": 0, "to": 0}), "range 1 ends before it begins, or in 1970"),
        (with_range(topics=[]), "Expected `array` of length >= 1"),
        (with_range(topics=["01020304"] * (MAX_TOPICS + 1)), f"Expected `array` of length <= {MAX_TOPICS}"),
        (with_range(topics=["0102030g"]), "Expected `str` matching regex"),
        (with_range(holders=["we\nst"]), "Expected `str` matching regex"),
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


RAWS = [row.raw for row in ROWS]
SUFFIXES = pytest.mark.parametrize("suffix", [".rlp", ".parquet"])
waku = partial(called, "waku")


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.stdout == ""
    [sentence] = result.stderr.splitlines()
    return sentence


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return archive_of(tmp_path / "data")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_files, "BATCH_ENVELOPES", 7)
    monkeypatch.setattr("restante.waku.archive.statements.MAX_PAGE_ROWS", 9)


@SUFFIXES
@pytest.mark.usefixtures("small_batches")
def test_exported_envelopes_are_imported_in_the_order_of_arrival(tmp_path: Path, data: Path, suffix: str) -> None:
    file = tmp_path / f"all{suffix}"
    exported = waku("export", file, "--data", data)
    assert (exported.returncode, exported.stdout) == (0, "exported 50 envelopes\n")
    imported = waku("import", file, RESTANTE_WAKU_DATA=str(tmp_path / "new"))
    assert imported.returncode == 0, imported.stderr
    assert [line.split()[-1] for line in imported.stdout.splitlines()] == ["50", "50", "0", "0"]
    assert raws_of(tmp_path / "new") == RAWS
    assert list(read_envelopes(file)) == list(read_envelopes(str(data))) == ROWS
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert waku("check", "--data", tmp_path / "new").returncode == 0


@pytest.mark.leveldb
@pytest.mark.usefixtures("small_batches")
def test_a_repeated_import_from_any_kind_of_file_changes_nothing(tmp_path: Path, data: Path) -> None:
    export(data, tmp_path / "all.rlp")
    export(data, tmp_path / "all.parquet")
    folder = leveldbs.of(tmp_path / "waku", ROWS)
    report = import_files(tmp_path / "new", [folder])
    assert (report.read, report.new, report.refused) == (len(ROWS), len(ROWS), {})
    before = rows_of(tmp_path / "new")
    assert sorted(row.raw for row in before) == sorted(RAWS)
    report = import_files(tmp_path / "new", [folder, tmp_path / "all.parquet", tmp_path / "all.rlp"])
    assert (report.read, report.new, report.already_stored) == (3 * len(ROWS), 0, 3 * len(ROWS))
    assert rows_of(tmp_path / "new") == before


@SUFFIXES
def test_an_envelope_that_fits_no_packet_is_refused(tmp_path: Path, suffix: str) -> None:
    head = len(envelope(1, size=1_000_000).raw) - 1_000_000
    largest, larger = (envelope(number, size=MAX_ENVELOPE_BYTES - head + number) for number in (0, 1))
    assert (len(largest.raw), len(larger.raw)) == (MAX_ENVELOPE_BYTES, MAX_ENVELOPE_BYTES + 1)
    file = tmp_path / f"all{suffix}"
    export(archive_of(tmp_path / "data", [larger, largest]), file)
    report = import_files(tmp_path / "new", [file])
    assert (report.read, report.new, report.already_stored) == (2, 1, 0)
    assert report.refused == {"too large for a packet of 1 MiB": 1}
    assert report.unreadable == [f"{file}, envelope {larger.hash.hex()}: too large for a packet of 1 MiB"]
    assert raws_of(tmp_path / "new") == [largest.raw]


@pytest.mark.usefixtures("small_batches")
def test_an_import_counts_every_item_once_names_refused_ones_and_fails(tmp_path: Path) -> None:
    data, file = archive_of(tmp_path / "data", ROWS[:10]), tmp_path / "some.rlp"
    bad = RAWS[12][:-1] + b"\0"  # a number with a leading zero
    content = [*RAWS[5:12], bad, RAWS[13], RAWS[13], b"A", b"\xf9\xff"]
    file.write_bytes(b"".join(content))
    imported = waku("import", file, "--data", data)
    reasons = [reason_of(bad), reason_of(b"A"), "the data ends inside an item; the rest of the file cannot be read"]
    offsets = [sum(map(len, content[:number])) for number in (7, 10, 11)]
    assert imported.returncode == 1
    for at, reason in zip(offsets, reasons, strict=True):
        assert f"{file}, byte {at}: {reason}\n" in imported.stderr
    assert imported.stdout.splitlines() == [
        "read                     12",
        "new                       3",
        "already stored            6",
        "refused                   3",
        *(f"  1: {reason}" for reason in reasons),
    ]
    assert raws_of(data) == [*RAWS[:12], RAWS[13]]


def test_an_import_reports_how_many_envelopes_a_server_will_remove_and_how_to_keep_them(tmp_path: Path) -> None:
    day, now = 86400, int(time.time())
    letters = [make(now - age * day + 50, 50, b"abcd", b"", age) for age in (0, 29, 31, 400)]
    (tmp_path / "all.rlp").write_bytes(b"".join(letter.raw for letter in letters))
    for _ in range(2):
        imported = waku("import", tmp_path / "all.rlp", "--data", tmp_path / "new")
        assert imported.returncode == 0
        assert "2 envelopes sent more than 30 days ago: " in imported.stderr
        assert "unless --retention is 0 or more days" in imported.stderr
    (tmp_path / "new.rlp").write_bytes(letters[0].raw)
    assert "days ago" not in waku("import", tmp_path / "new.rlp", "--data", tmp_path / "new").stderr


def test_an_import_that_fills_the_disk_keeps_saved_envelopes_and_continues_next_time(tmp_path: Path) -> None:
    rows = [envelope(number, number, size=2000) for number in range(3000)]
    (tmp_path / "all.rlp").write_bytes(b"".join(row.raw for row in rows))
    with no_file_beyond(4_000_000), pytest.raises(StoreError, match=r"\A[^\n]+\Z"):
        import_files(tmp_path / "data", [tmp_path / "all.rlp"])
    report = import_files(tmp_path / "data", [tmp_path / "all.rlp"])
    assert report.already_stored == 1000
    assert raws_of(tmp_path / "data") == [row.raw for row in rows]


@SUFFIXES
def test_an_export_file_appears_only_when_it_is_complete(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(1)  # so that it cannot be compressed
    data = archive_of(tmp_path / "data", [make(T0 + 50, 50, b"\1\2\3\4", dice.randbytes(2000)) for _ in range(200)])
    with no_file_beyond(100_000), pytest.raises(StoreError, match=r"\Acannot write [^\n]+File too large\Z"):
        export(data, tmp_path / f"all{suffix}")
    alter(data / ARCHIVE_FILE, "DELETE FROM arrivals WHERE arrival = 7")
    lost = r"counts 200 envelopes, and 199 of them can be found: run `restante waku check`"
    with pytest.raises(StoreError, match=lost):
        export(data, tmp_path / f"all{suffix}")
    monkeypatch.setattr(rlp_file, "write", lambda *_: signal.raise_signal(signal.SIGTERM))
    stopped = waku("export", tmp_path / "all.rlp", "--data", data)
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_export_ends_with_the_last_arrival_before_its_start(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = iter([[envelope(100, number) for number in range(20)]])

    async def prune() -> None:
        archive = open_archive(data)
        assert await archive.prune(T0 + 3, 1000) > 0
        await archive.close()

    def advance(_items: int) -> None:
        for rows in later:
            archive_of(data, rows)
            asyncio.run(prune())

    monkeypatch.setattr("restante.waku.archive.statements.MAX_PAGE_ROWS", 9)
    monkeypatch.setattr("restante.waku.files.archive_files.progress", lambda *_: nullcontext(advance))
    monkeypatch.setattr("restante.waku.archive.sqlite.BUSY_TIMEOUT_SECONDS", 0.01)  # the log stays while it is read
    assert export(data, tmp_path / "all.rlp") == len(ROWS)
    assert (tmp_path / "all.rlp").read_bytes() == b"".join(RAWS)
    assert len(raws_of(data)) == sum(row.sent >= T0 + 3 for row in ROWS) + 20


def test_check_prints_that_all_is_well_or_each_error(data: Path) -> None:
    size = sum(map(len, RAWS))
    well = waku("check", "--data", data)
    assert (well.returncode, well.stdout) == (0, f"50 envelopes, {size:,} bytes, 5 topics: no errors\n")
    assert well.stderr.splitlines()[-1] == "check: 50 of 50"
    screen = on_a_terminal(*RESTANTE, "waku", "check", "--data", data, streams=["stderr"])
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in screen
    assert "of" not in screen
    alter(data / ARCHIVE_FILE, "UPDATE totals SET bytes = 7")
    wrong = waku("check", "--data", data)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert f"the count of bytes is 7, but there are {size}\n" in wrong.stderr


async def test_all_but_imports_are_possible_beside_a_running_server(tmp_path: Path) -> None:
    archive = open_archive(tmp_path / "data")
    await archive.save(ROWS, 1)
    for command in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
        result = await asyncio.to_thread(restante, "waku", *command, "--data", tmp_path / "data")
        assert result.returncode == 0, result.stderr
    with pytest.raises(StoreError, match="another process is using"):
        await asyncio.to_thread(import_files, tmp_path / "data", [tmp_path / "all.rlp"])
    await archive.close()
    assert await asyncio.to_thread(raws_of, tmp_path / "copy") == RAWS


MISUSES = {
    "export all.csv --data data": "all.csv: the name must end in .rlp or .parquet",
    "export THERE.rlp --data data": "THERE.rlp exists already: name another file",
    "export all.rlp --data nowhere": "there is no Waku mailserver's data in nowhere",
    f"export {'x' * 300}.rlp --data data": f"cannot write {'x' * 300}.rlp: File name too long",
    "export nowhere/all.rlp --data data": "there is no directory nowhere",
    "import gone.rlp --data new": "there is no gone.rlp",
    "import letter.txt --data new": "letter.txt is not an .rlp or .parquet file",
    "backup data --data data": "data exists already and is not an empty directory",
    "backup letter.txt --data data": "letter.txt exists already and is not an empty directory",
}


@pytest.mark.usefixtures("data")
def test_misuse_is_one_sentence_and_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "THERE.rlp").write_text("mine")
    (tmp_path / "letter.txt").touch()
    for command, sentence in MISUSES.items():
        result = waku(*command.split())
        assert result.returncode == 2
        assert only_line(result).startswith(f"restante: {sentence}")
    assert (tmp_path / "THERE.rlp").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["THERE.rlp", "data", "letter.txt"]


def test_a_foreign_file_is_reported_in_one_sentence_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "letter.parquet").write_text("Dear Sir or Madam,")
    (tmp_path / "folder").mkdir()
    for name in ("letter.parquet", "folder"):
        result = waku("import", tmp_path / name, "--data", tmp_path / "new")
        assert result.returncode == 1
        assert only_line(result).startswith(f"restante: {tmp_path / name} ")
    (tmp_path / ARCHIVE_FILE).write_bytes(b"not a database at all, but long enough to be one" * 99)
    for command in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
        result = waku(*command, "--data", tmp_path)
        assert result.returncode == 1
        assert only_line(result) == f"restante: cannot read {tmp_path / ARCHIVE_FILE}: file is not a database"


async def test_an_archive_that_is_open_is_read_as_it_was(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    try:
        await archive.save(ROWS[:2], 1)
        envelopes = read_envelopes(tmp_path)
        assert next(envelopes) == ROWS[0]
        await archive.save(ROWS[2:], 2)
        assert list(envelopes) == ROWS[1:2]
        assert list(read_envelopes(tmp_path)) == ROWS
    finally:
        await archive.close()


def test_what_is_no_envelope_is_an_error_or_the_program_s(tmp_path: Path) -> None:
    file, data = tmp_path / "file.rlp", archive_of(tmp_path / "data", ROWS[:3])
    file.write_bytes(RAWS[0] + b"\x07" + RAWS[1])
    alter(data / ARCHIVE_FILE, "UPDATE envelopes SET raw = x'07' WHERE arrival = 2")
    for path, text in (
        (file, rf"file\.rlp, byte {len(RAWS[0])}: "),
        (data, "data, arrival 2: an envelope is a list"),
    ):
        envelopes = read_envelopes(path)
        assert next(envelopes) == ROWS[0]
        with pytest.raises(StoreError, match=text):
            next(envelopes)
    with pytest.raises(Misuse, match="there is no"):
        list(read_envelopes(tmp_path / "none.rlp"))
    unreadable: list[UnreadableItem] = []
    assert list(read_envelopes(file, on_unreadable=unreadable.append)) == ROWS[:2]
    assert [item.where for item in unreadable] == [f"byte {len(RAWS[0])}"]
