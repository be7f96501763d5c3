"""Export, import and reading: an archive comes back whole, however often; nothing is half there."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from restante.common.errors import Misuse, StoreError
from restante.waku import UnreadableItem, read_envelopes
from restante.waku import open_archive as open_library_archive
from restante.waku.archive import checking
from restante.waku.archive.schema import FILE, SCHEMA
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.files import importing
from restante.waku.files.exporting import export
from restante.waku.files.importing import take_in
from restante.waku.protocol.packets import MAX_ENVELOPE_BYTES
from support.disk import no_file_beyond
from support.waku import leveldbs
from support.waku.archives import ROWS, archive_of, raws_of, reason_of, rows_of
from support.waku.envelopes import T0, envelope

SUFFIXES = pytest.mark.parametrize("suffix", [".rlp", ".parquet"])


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BATCH_ENVELOPES", 7)
    monkeypatch.setattr("restante.waku.archive.reading.MAX_PAGE_ROWS", 9)


@SUFFIXES
@pytest.mark.usefixtures("small_batches")
def test_exported_envelopes_are_imported_in_the_order_of_arrival(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"all{suffix}"
    assert export(archive_of(tmp_path / "data"), file) == len(ROWS)
    report = take_in(tmp_path / "new", [file])
    assert (report.read, report.new, report.known, report.refused) == (len(ROWS), len(ROWS), 0, {})
    assert raws_of(tmp_path / "new") == [each.raw for each in ROWS]
    with SCHEMA.reading(tmp_path / "new") as database:
        assert list(checking.check(database, lambda _: None)) == []


@pytest.mark.leveldb
@pytest.mark.usefixtures("small_batches")
def test_a_repeated_import_from_any_kind_of_file_changes_nothing(tmp_path: Path) -> None:
    export(archive_of(tmp_path / "data"), tmp_path / "all.rlp")
    export(tmp_path / "data", tmp_path / "all.parquet")
    folder = leveldbs.of(tmp_path / "waku", ROWS)
    report = take_in(tmp_path / "new", [folder])
    assert (report.read, report.new, report.refused) == (len(ROWS), len(ROWS), {})
    before = rows_of(tmp_path / "new")
    assert sorted(row.raw for row in before) == sorted(row.raw for row in ROWS)
    report = take_in(tmp_path / "new", [folder, tmp_path / "all.parquet", tmp_path / "all.rlp"])
    assert (report.read, report.new, report.known) == (3 * len(ROWS), 0, 3 * len(ROWS))
    assert rows_of(tmp_path / "new") == before


@SUFFIXES
def test_an_envelope_that_fits_no_packet_is_refused(tmp_path: Path, suffix: str) -> None:
    """It could be handed to nobody."""
    head = len(envelope(1, size=1_000_000).raw) - 1_000_000
    largest, larger = (envelope(number, size=MAX_ENVELOPE_BYTES - head + number) for number in (0, 1))
    assert (len(largest.raw), len(larger.raw)) == (MAX_ENVELOPE_BYTES, MAX_ENVELOPE_BYTES + 1)
    file = tmp_path / f"all{suffix}"
    export(archive_of(tmp_path / "data", [larger, largest]), file)
    report = take_in(tmp_path / "new", [file])
    assert (report.read, report.new, report.known) == (2, 1, 0)
    assert report.refused == {"too large for a packet of 1 MiB": 1}
    assert report.unreadable == [f"{file}, envelope {larger.hash.hex()}: too large for a packet of 1 MiB"]
    assert raws_of(tmp_path / "new") == [largest.raw]


@pytest.mark.usefixtures("small_batches")
def test_every_item_is_counted_once_and_refused_ones_are_named(tmp_path: Path) -> None:
    data, file = archive_of(tmp_path / "data", ROWS[:10]), tmp_path / "some.rlp"
    bad = ROWS[12].raw[:-1] + b"\0"  # a number with a leading zero
    content = [*(row.raw for row in ROWS[5:12]), bad, ROWS[13].raw, ROWS[13].raw, b"A", b"\xf9\xff"]
    file.write_bytes(b"".join(content))
    report = take_in(data, [file])
    assert (report.read, report.new, report.known, report.refused.total()) == (12, 3, 6, 3)
    reasons = [
        reason_of(bad),
        reason_of(b"A"),
        "the data ends inside an item; the rest of the file cannot be read",
    ]
    places = [sum(map(len, content[:number])) for number in (7, 10, 11)]
    assert report.unreadable == [f"{file}, byte {at}: {reason}" for at, reason in zip(places, reasons, strict=True)]
    assert importing.render(report).splitlines() == [
        "read                     12",
        "new                       3",
        "already stored            6",
        "refused                   3",
        *(f"  1: {reason}" for reason in reasons),
    ]


async def test_an_import_is_refused_while_a_server_runs(tmp_path: Path) -> None:
    (tmp_path / "none.rlp").touch()
    archive = open_archive(tmp_path / "data")
    with pytest.raises(StoreError, match="another process is using"):
        await asyncio.to_thread(take_in, tmp_path / "data", [tmp_path / "none.rlp"])
    await archive.close()


def test_an_import_that_fills_the_disk_keeps_saved_envelopes_and_continues_next_time(tmp_path: Path) -> None:
    rows: list[Envelope] = [envelope(number, number, size=2000) for number in range(3000)]
    (tmp_path / "all.rlp").write_bytes(b"".join(each.raw for each in rows))
    with no_file_beyond(4_000_000), pytest.raises(StoreError, match=r"\A[^\n]+\Z"):
        take_in(tmp_path / "data", [tmp_path / "all.rlp"])
    report = take_in(tmp_path / "data", [tmp_path / "all.rlp"])
    assert report.known == 1000
    assert raws_of(tmp_path / "data") == [each.raw for each in rows]


@SUFFIXES
def test_an_export_file_appears_only_when_it_is_complete(tmp_path: Path, suffix: str) -> None:
    dice = random.Random(1)  # so that it cannot be compressed
    data = archive_of(tmp_path / "data", [make(T0 + 50, 50, b"\1\2\3\4", dice.randbytes(2000)) for _ in range(200)])
    with no_file_beyond(100_000), pytest.raises(StoreError, match=r"\Acannot write [^\n]+File too large\Z"):
        export(data, tmp_path / f"all{suffix}")
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_an_export_ends_with_the_last_arrival_before_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive_of(tmp_path / "data")
    later = iter([[envelope(100, number) for number in range(20)]])

    async def prune() -> None:
        archive = open_archive(data)
        assert await archive.prune(T0 + 3, 1000) > 0
        await archive.close()

    @contextmanager
    def busy(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
        """A server starts after the first page, takes in more, and prunes."""

        def advance(_items: int) -> None:
            for rows in later:
                archive_of(data, rows)
                asyncio.run(prune())

        yield advance

    monkeypatch.setattr("restante.waku.archive.reading.MAX_PAGE_ROWS", 9)
    monkeypatch.setattr("restante.waku.files.exporting.progress", busy)
    monkeypatch.setattr("restante.waku.archive.sqlite.BUSY_TIMEOUT_SECONDS", 0.01)  # the log stays while it is read
    assert export(data, tmp_path / "all.rlp") == len(ROWS)
    assert (tmp_path / "all.rlp").read_bytes() == b"".join(each.raw for each in ROWS)
    assert len(raws_of(data)) == sum(each.sent >= T0 + 3 for each in ROWS) + 20


@SUFFIXES
def test_an_archive_that_lost_an_arrival_is_not_exported(tmp_path: Path, suffix: str) -> None:
    data = archive_of(tmp_path / "data")
    with closing(sqlite3.connect(data / FILE, isolation_level=None)) as database:
        database.execute("DELETE FROM arrivals WHERE arrival = 7")
    with pytest.raises(
        StoreError, match=r"counts 50 envelopes, and 49 of them can be found: run `restante waku check`"
    ):
        export(data, tmp_path / f"all{suffix}")
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


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
    archive = open_library_archive(tmp_path)
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
    with pytest.raises(Misuse, match=r"is not an \.rlp or \.parquet file"):
        list(read_envelopes(tmp_path / "file.txt"))
