"""Export, import, check and reading, as commands and in the library: an archive comes back whole, however often."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from restante.common.errors import Misuse, StoreError
from restante.waku import UnreadableItem, read_envelopes
from restante.waku import open_archive as open_library_archive
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import make
from restante.waku.files import importing, rlp_file
from restante.waku.files.exporting import export
from restante.waku.files.importing import take_in
from restante.waku.protocol.packets import MAX_ENVELOPE_BYTES
from support.disk import no_file_beyond
from support.processes import RESTANTE, called, on_a_terminal, restante
from support.waku import leveldbs
from support.waku.archives import ROWS, archive_of, raws_of, reason_of, rows_of
from support.waku.envelopes import T0, envelope

RAWS = [row.raw for row in ROWS]
SUFFIXES = pytest.mark.parametrize("suffix", [".rlp", ".parquet"])


def waku(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Do what a command does in this process."""
    return called("waku", *words, **environment)


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence of a command that could not do it."""
    assert result.stdout == ""
    [sentence] = result.stderr.splitlines()
    return sentence


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return archive_of(tmp_path / "data")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BATCH_ENVELOPES", 7)
    monkeypatch.setattr("restante.waku.archive.reading.MAX_PAGE_ROWS", 9)


# ── export and import ────────────────────────────────────────────────────────────────────────────


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
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert waku("check", "--data", tmp_path / "new").returncode == 0


@pytest.mark.leveldb
@pytest.mark.usefixtures("small_batches")
def test_a_repeated_import_from_any_kind_of_file_changes_nothing(tmp_path: Path, data: Path) -> None:
    export(data, tmp_path / "all.rlp")
    export(data, tmp_path / "all.parquet")
    folder = leveldbs.of(tmp_path / "waku", ROWS)
    report = take_in(tmp_path / "new", [folder])
    assert (report.read, report.new, report.refused) == (len(ROWS), len(ROWS), {})
    before = rows_of(tmp_path / "new")
    assert sorted(row.raw for row in before) == sorted(RAWS)
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
def test_an_import_counts_every_item_once_names_refused_ones_and_fails(tmp_path: Path) -> None:
    data, file = archive_of(tmp_path / "data", ROWS[:10]), tmp_path / "some.rlp"
    bad = RAWS[12][:-1] + b"\0"  # a number with a leading zero
    content = [*RAWS[5:12], bad, RAWS[13], RAWS[13], b"A", b"\xf9\xff"]
    file.write_bytes(b"".join(content))
    imported = waku("import", file, "--data", data)
    reasons = [
        reason_of(bad),
        reason_of(b"A"),
        "the data ends inside an item; the rest of the file cannot be read",
    ]
    places = [sum(map(len, content[:number])) for number in (7, 10, 11)]
    assert imported.returncode == 1
    for at, reason in zip(places, reasons, strict=True):
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
        take_in(tmp_path / "data", [tmp_path / "all.rlp"])
    report = take_in(tmp_path / "data", [tmp_path / "all.rlp"])
    assert report.known == 1000
    assert raws_of(tmp_path / "data") == [row.raw for row in rows]


@SUFFIXES
def test_an_export_file_appears_only_when_it_is_complete(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(1)  # so that it cannot be compressed
    data = archive_of(tmp_path / "data", [make(T0 + 50, 50, b"\1\2\3\4", dice.randbytes(2000)) for _ in range(200)])
    with no_file_beyond(100_000), pytest.raises(StoreError, match=r"\Acannot write [^\n]+File too large\Z"):
        export(data, tmp_path / f"all{suffix}")
    with closing(sqlite3.connect(data / FILE, isolation_level=None)) as database:
        database.execute("DELETE FROM arrivals WHERE arrival = 7")
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
    assert (tmp_path / "all.rlp").read_bytes() == b"".join(RAWS)
    assert len(raws_of(data)) == sum(row.sent >= T0 + 3 for row in ROWS) + 20


# ── the commands ─────────────────────────────────────────────────────────────────────────────────


def test_check_prints_that_all_is_well_or_each_error(data: Path) -> None:
    size = sum(map(len, RAWS))
    well = waku("check", "--data", data)
    assert (well.returncode, well.stdout) == (0, f"50 envelopes, {size:,} bytes, 5 topics: no errors\n")
    assert well.stderr.splitlines()[-1] == "check: 50 of 50"
    shown = on_a_terminal(*RESTANTE, "waku", "check", "--data", data, streams=["stderr"])
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown
    assert "of" not in shown
    with closing(sqlite3.connect(data / FILE)) as database:
        database.execute("UPDATE totals SET bytes = 7")
        database.commit()
    wrong = waku("check", "--data", data)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert f"the count of bytes is 7, but there are {size}\n" in wrong.stderr


async def test_all_but_imports_are_possible_beside_a_running_server(tmp_path: Path) -> None:
    archive = open_archive(tmp_path / "data")
    await archive.save(ROWS, 1)
    for words in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
        result = await asyncio.to_thread(restante, "waku", *words, "--data", tmp_path / "data")
        assert result.returncode == 0, result.stderr
    with pytest.raises(StoreError, match="another process is using"):
        await asyncio.to_thread(take_in, tmp_path / "data", [tmp_path / "all.rlp"])
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
    "backup new --data nowhere": "there is no Waku mailserver's data in nowhere",
}


@pytest.mark.usefixtures("data")
def test_misuse_is_one_sentence_and_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "THERE.rlp").write_text("mine")
    (tmp_path / "letter.txt").touch()
    for words, sentence in MISUSES.items():
        result = waku(*words.split())
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
    (tmp_path / FILE).write_bytes(b"not a database at all, but long enough to be one" * 99)
    for words in (["check"], ["export", tmp_path / "all.rlp"], ["backup", tmp_path / "copy"]):
        result = waku(*words, "--data", tmp_path)
        assert result.returncode == 1
        assert only_line(result) == f"restante: cannot read {tmp_path / FILE}: file is not a database"


# ── `read_envelopes` of the library ──────────────────────────────────────────────────────────────


def test_files_and_a_data_directory_have_the_same_envelopes(tmp_path: Path, data: Path) -> None:
    for name in ("file.rlp", "file.parquet"):
        export(data, tmp_path / name)
        assert list(read_envelopes(tmp_path / name)) == ROWS
    assert list(read_envelopes(str(data))) == ROWS


async def test_an_archive_that_is_open_is_read_as_it_was(tmp_path: Path) -> None:
    archive = open_library_archive(tmp_path)
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
    with closing(sqlite3.connect(data / FILE)) as database, database:
        database.execute("UPDATE envelopes SET raw = x'07' WHERE arrival = 2")
    for path, text in (
        (file, rf"file\.rlp, byte {len(RAWS[0])}: "),
        (data, "data, arrival 2: an envelope is a list"),
    ):
        envelopes = read_envelopes(path)
        assert next(envelopes) == ROWS[0]
        with pytest.raises(StoreError, match=text):
            next(envelopes)
    unreadable: list[UnreadableItem] = []
    assert list(read_envelopes(file, on_unreadable=unreadable.append)) == ROWS[:2]
    assert [item.where for item in unreadable] == [f"byte {len(RAWS[0])}"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file.txt").touch()
    for name, text in (
        ("none.rlp", "there is no"),
        ("", r"no file CURRENT|the extra 'leveldb'"),
        ("file.txt", r"is not an \.rlp or \.parquet file"),
    ):
        with pytest.raises((Misuse, StoreError), match=text):
            list(read_envelopes(tmp_path / name))
