"""Files of envelopes, exported by `restante waku export`, and what can be wrong with such files and envelopes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from restante.common.errors import StoreError
from restante.pipeline.clean.envelopes import ENVELOPE_FAULTS, MAX_CLOCK_SKEW_SECONDS, StoredValues, verify
from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.pipeline.schemas import FIRST_DAY
from restante.pipeline.sources import paths
from restante.pipeline.sources.files import read_parquet
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import IngestContext, SourceError
from restante.waku import read_envelopes
from restante.waku.archive import ids
from restante.waku.archive.sqlite import Archive
from restante.waku.envelope import rlp
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.files import UnreadableItem, parquet, rlp_file
from restante.waku.files.archive_files import export
from support.effort import examples
from support.mutation import mutated
from support.pipeline.runs import LakeWorld, command, spark_command
from support.pipeline.servers import CONTEXT, NOW
from support.pipeline.source_reads import Row, SourceRead, read_source, rows_of
from support.waku.archives import ROWS
from support.waku.envelopes import T0, envelope

SOME = ROWS[:6]
BYTES = b"".join(envelope.raw for envelope in SOME)


def read_new(path: Path, before: SourceRead | None = None, context: IngestContext = CONTEXT) -> SourceRead:
    return read_source(f"waku={path}", "archived", path.parent / "scratch", before.marks if before else {}, context)


def hashes(result: SourceRead) -> list[bytes]:
    return [row["hash"] for row in result.clean]


def of(some: Sequence[Envelope]) -> list[bytes]:
    return [envelope.hash for envelope in some]


def exported(folder: Path, *names: str, rows: Sequence[Envelope] = ROWS) -> Path:

    async def save() -> None:
        archive = Archive.open(folder / "archive")
        await archive.save(rows, T0 + 100)
        await archive.close()

    asyncio.run(save())
    (folder / "files").mkdir()
    for name in names:
        export(folder / "archive", folder / "files" / name)
    return folder / "files"


def test_an_exported_file_is_read_like_the_archive_itself(tmp_path: Path) -> None:
    def rows(result: SourceRead) -> list[Row]:
        own = {"source", "file", "source_kind", "arrival", "arrived"}
        return sorted(({name: row[name] for name in row if name not in own} for row in result.clean), key=repr)

    files = exported(tmp_path, "a.rlp", "a.parquet")
    archive = read_new(tmp_path / "archive")
    for name, arrived in (("a.rlp", None), ("a.parquet", archive.clean[0]["arrived"])):
        result = read_new(files / name)
        assert (len(result.rows), len(result.clean)) == (len(ROWS), len(ROWS))
        assert rows(result) == rows(archive), name
        assert sorted(row["arrival"] for row in result.clean) == list(range(len(ROWS)))
        digest = hashlib.sha256((files / name).read_bytes()).hexdigest()
        assert {(row["file"], row["arrived"]) for row in result.clean} == {(digest, arrived)}


def test_a_file_is_read_once_whatever_its_name_and_a_repeated_envelope_counts_once(tmp_path: Path) -> None:
    files = exported(tmp_path, "a.rlp", "b.parquet", rows=SOME)
    (files / "a.rlp").write_bytes(BYTES + SOME[0].raw + SOME[3].raw)
    first = read_new(files)
    assert sorted(hashes(first)) == sorted(of(SOME) * 2)
    assert first.faults == [(f"a.rlp:{len(BYTES)}", "duplicate"), (f"a.rlp:{len(BYTES) + AT}", "duplicate")]
    assert read_new(files, first).span is None
    (files / "a.rlp").rename(files / "z.rlp")
    (files / "copy.rlp").write_bytes((files / "z.rlp").read_bytes())
    assert read_new(files, first).span is None
    (files / "new.rlp").write_bytes(ROWS[7].raw)
    second = read_new(files, first)
    assert hashes(second) == of([ROWS[7]])
    (files / "z.rlp").unlink()
    (files / "copy.rlp").rename(files / "back.rlp")
    assert read_new(files, second).span is None


def test_only_files_that_may_have_changed_are_read(tmp_path: Path) -> None:
    files = exported(tmp_path, "a.rlp", rows=SOME)
    before = (files / "a.rlp").stat()
    soon = CONTEXT._replace(now=4e9)  # when these files are old

    def read_again(last: SourceRead) -> tuple[bool, int]:
        """Return whether anything is new, and how many files were read to know it."""
        with patch.object(paths, "file_digest", wraps=paths.file_digest) as digest:
            return read_new(files, last, soon).span is not None, digest.call_count

    first = read_new(files, context=soon)
    assert read_again(first) == (False, 0)
    (files / "a.rlp").write_bytes(BYTES[:-1] + bytes([BYTES[-1] ^ 1]))
    os.utime(files / "a.rlp", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_again(first) == (True, 1), "it was rewritten in place, though its time was set back"
    new = read_new(files, context=CONTEXT._replace(now=(files / "a.rlp").stat().st_ctime + 1))
    assert read_again(new) == (False, 1), "the time of a file that was written just now proves nothing"
    (files / "b.rlp").write_bytes(ROWS[7].raw)
    assert read_again(read_new(files, new, soon)) == (False, 0)


def test_a_folder_s_unfinished_and_other_files_are_left_out_and_a_glob_reads_what_it_matches(tmp_path: Path) -> None:
    files = exported(tmp_path, "a.rlp", rows=SOME)
    (files / ".hidden.rlp").write_bytes(ROWS[7].raw)
    (files / "b.rlp.x7k2").write_bytes(ROWS[8].raw[:9])
    (files / "notes.txt").write_text("not for you")
    (files / "empty.rlp").touch()
    (files / "folder.rlp").mkdir()
    result = read_new(files)
    assert (hashes(result), result.faults) == (of(SOME), [])
    (files / "c.letters").write_bytes(ROWS[9].raw)
    assert hashes(read_new(files / "*.letters")) == of([ROWS[9]])


AT = len(SOME[0].raw)
REST = "the rest of the file cannot be read"

DAMAGED: dict[str, tuple[bytes, str, int]] = {
    "cut off": (SOME[1].raw[:-1], REST, 1),
    "not a list": (b"\x84abcd" + SOME[1].raw, REST, 1),
    "a length that cannot be": (b"\xff" * 20, REST, 1),
    "a length with a zero in front": (b"\xf9\x00\x03abc", REST, 1),
    "an empty list": (b"\xc0" + SOME[1].raw, "not an envelope", 2),
    "four items": (rlp.encode([1, 2, b"abcd", b""]) + SOME[1].raw, "not an envelope", 2),
    "larger than any": (rlp.encode([bytes(1 << 24)]) + SOME[1].raw, "larger than any envelope", 2),
    "sent after the run": (envelope(int(NOW) - T0 + 21).raw, "sent after it arrived", 1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_envelope_is_reported_with_its_place_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    rest, fault, clean = DAMAGED[name]
    (tmp_path / "\x1b[31m.rlp").write_bytes(SOME[0].raw + rest)
    result = read_new(tmp_path / "\x1b[31m.rlp")
    assert (result.faults, len(result.clean)) == ([(f"\\x1b[31m.rlp:{AT}", fault)], clean)


@given(st.lists(st.sampled_from(ROWS), min_size=1, max_size=6), st.data())
@examples(60)
def test_however_a_file_is_damaged_each_item_is_counted_once(some: list[Envelope], data: st.DataObject) -> None:
    written = data.draw(mutated(st.just(b"".join(envelope.raw for envelope in some))))
    if written[:1] < b"\xc0":
        return
    items, at = set(), 0
    with suppress(rlp.RlpError):
        while at < len(written):
            stop = rlp.item_span(written, at).stop
            items.add(written[at:stop])
            at = stop
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.rlp").write_bytes(written)
        assert {row["raw"] for row in read_new(Path(folder) / "x.rlp").clean} <= items


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(9, 64))
@examples(100)
def test_items_are_found_however_the_file_is_read(sizes: list[int], window: int) -> None:
    wanted = [rlp.encode([bytes(size)]) for size in sizes]
    whole = b"".join(wanted)
    with patch.object(rlp_file, "WINDOW_BYTES", window):
        assert [item.raw for item in rlp_file.split_items(BytesIO(whole), len(whole))] == wanted


def table(rows: Sequence[Envelope] = SOME) -> pa.Table:
    names = {name: [getattr(row, name) for row in rows] for name in ("hash", "topic", "raw")}
    return pa.table({**names, "arrived": pa.array([T0 + 100] * len(rows), pa.int64())})


def changed(column: str, value: object) -> pa.Table:
    whole = table()
    values = whole[column].to_pylist()
    values[2] = value
    at = whole.schema.get_field_index(column)
    return whole.set_column(at, column, pa.array(values, whole.schema.field(column).type))


THIRD = "x.parquet:2"

TABLES: dict[str, tuple[pa.Table, list[tuple[str, str]], int]] = {
    "another hash": (changed("hash", bytes(32)), [(THIRD, "the hash does not match")], 5),
    "no hash": (changed("hash", None), [], 6),
    "another topic": (changed("topic", b"abcd"), [(THIRD, "the topic does not match")], 5),
    "a topic of five bytes": (changed("topic", bytes(5)), [(THIRD, "the topic does not match")], 5),
    "no topic": (changed("topic", None), [], 6),
    "no envelope": (changed("raw", None), [(THIRD, "not an envelope")], 5),
    "came before it was sent": (changed("arrived", T0 - 100), [(THIRD, "sent after it arrived")], 5),
    "came nobody knows when": (changed("arrived", None), [], 6),
    "came before 1970": (changed("arrived", -(1 << 62)), [], 6),
    "only envelopes": (table().select(["raw"]), [], 6),
    "columns of other types": (table().set_column(0, "hash", [["x"] * 6]), [], 6),
    "raw is text": (pa.table({"raw": ["x"] * 2}), [(f"x.parquet:{n}", "not an envelope") for n in range(2)], 0),
    "twice": (pa.concat_tables([table(), table()]), [(f"x.parquet:{n}", "duplicate") for n in range(6, 12)], 6),
    "no rows": (table().slice(0, 0), [], 0),
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_parquet_file_are_compared_with_its_other_columns(name: str, tmp_path: Path) -> None:
    rows, faults, clean = TABLES[name]
    pq.write_table(rows, tmp_path / "x.parquet")
    result = read_new(tmp_path / "x.parquet")
    assert (result.faults, len(result.clean)) == (faults, clean)


def test_rows_that_cannot_be_read_are_counted_one_by_one_and_later_groups_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(ROWS[:40]), path, row_group_size=20, write_page_checksum=True, compression="none")
    at = path.read_bytes().index(ROWS[3].raw)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    result = read_new(path)
    assert result.faults == [(f"x.parquet:{row}", REST) for row in range(20)]
    assert hashes(result) == of(ROWS[20:40])


BYTES_TYPES = [
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()),
    *(pa.dictionary(pa.int32(), kind) for kind in (pa.binary(), pa.string())),
    pa.opaque(pa.binary(), "envelope", "restante"),
]


def typed(column: str, kind: pa.DataType) -> pa.Table:
    whole = table()
    values = pa.array(whole[column].to_pylist(), pa.binary())
    if pa.types.is_dictionary(kind):
        encoded = values.dictionary_encode()
        named = pa.DictionaryArray.from_arrays(encoded.indices, cast(encoded.dictionary, kind.value_type))
    else:
        named = cast(values, kind)
    return whole.set_column(whole.schema.get_field_index(column), column, named)


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, values)
    return pc.cast(values, options=pc.CastOptions(kind, allow_invalid_utf8=True))


@pytest.mark.parametrize("kind", BYTES_TYPES, ids=str)
def test_byte_strings_are_read_whichever_arrow_type_the_file_asks_for(kind: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(typed("raw", kind), path)
    assert pq.read_schema(path).field("raw").type == kind
    result = read_new(path)
    assert (result.faults, hashes(result)) == ([], of(SOME))
    assert list(read_envelopes(path)) == SOME


@pytest.mark.parametrize(
    "kind", [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())], ids=str
)
@pytest.mark.parametrize("column", ["hash", "topic"])
def test_stored_values_are_compared_whatever_their_arrow_type(column: str, kind: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(typed(column, kind), path)
    assert read_new(path).faults == []
    other = SOME[1:] + SOME[:1]
    pq.write_table(pa.table({"raw": table(other)["raw"], column: typed(column, kind)[column]}), path)
    assert {reason for _, reason in read_new(path).faults} == {f"the {column} does not match"}


def test_indices_that_the_dictionary_of_a_damaged_file_does_not_have_are_not_followed(tmp_path: Path) -> None:
    """Arrow's reader does not check them, and its cast reads what is in memory there."""
    path = tmp_path / "x.parquet"
    written = pa.array([SOME[n % 5].raw for n in range(64)], pa.binary()).dictionary_encode()
    pq.write_table(pa.table({"raw": written}), path, compression="none", write_statistics=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset + column.total_compressed_size - 1)
        file.write(b"\xff")
    indices = pq.read_table(path)["raw"].chunk(0).indices
    assert max(indices.to_pylist()) > 4
    assert read_new(path).faults == [(f"x.parquet:{row}", REST) for row in range(64)]
    unreadable: list[UnreadableItem] = []
    assert list(read_envelopes(path, on_unreadable=unreadable.append)) == []
    assert [item.where for item in unreadable] == ["row 0"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(1 << 18)], ids=str)
def test_a_value_that_a_file_has_once_for_many_rows_is_in_memory_once(kind: pa.DataType, tmp_path: Path) -> None:
    repeated = pa.table({"raw": pa.array([bytes(1 << 18)] * 500, kind)})
    pq.write_table(repeated, tmp_path / "x.parquet", compression="zstd")
    before = pa.total_allocated_bytes()
    for batch in read_parquet(tmp_path / "x.parquet", int(T0)):
        assert len(set(map(id, batch.raws))) == 1
        assert pa.total_allocated_bytes() - before < 64 << 20
    assert len(read_new(tmp_path / "x.parquet").faults) == 500
    assert sum(1 for _ in parquet.read(tmp_path / "x.parquet")) == 500


def misnamed() -> bytes:
    file = BytesIO()
    pq.write_table(table().append_column("qqqq", [[1] * 6]), file, store_schema=False)
    return file.getvalue().replace(b"qqqq", b"q\xff\xfeq")


UNUSABLE: dict[str, tuple[pa.Table | bytes, str]] = {
    "no column raw": (table().select(["hash"]), "has no column raw of byte strings"),
    "numbers": (pa.table({"raw": [1] * 6}), "has no column raw of byte strings"),
    "two columns raw": (pa.table([table()["raw"]] * 2, names=["raw", "raw"]), "has no column raw of byte strings"),
    "a name that is not UTF-8": (misnamed(), "cannot be read as Parquet: the name of a column is not UTF-8"),
    "four bytes": (b"PAR1", "cannot be read as Parquet: "),
    "no footer": (b"PAR1" + bytes(100) + b"PAR1", "cannot be read as Parquet: "),
    "zeros": (
        pa.table({"raw": [bytes(1 << 27)]}),
        r"cannot be read as Parquet: it has 4,\d+ bytes and claims 134,\d+,\d+ bytes without compression: remove it,",
    ),
}


def test_no_damage_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    """At some pyarrow does (26.0.1: RowGroupMetaData.column): at eight bytes if they are 67, at four if 54."""
    path = tmp_path / "x.parquet"
    pq.write_table(table(), path, store_schema=False)
    intact = path.read_bytes()
    footer_bytes = int.from_bytes(intact[-8:-4], "little") + 8
    for offset in range(footer_bytes):
        for value in (54, 67):
            content = bytearray(intact)
            content[-1 - offset] = value
            path.write_bytes(content)
            with suppress(StoreError):
                parquet.open_table(path).close()


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_file_without_a_usable_column_fails_in_every_run_until_it_changes(name: str, tmp_path: Path) -> None:
    content, reason = UNUSABLE[name]
    path = tmp_path / "\x1b[31m.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path, compression="zstd", write_statistics=False)
    for _ in range(2):
        with pytest.raises(SourceError) as failure:
            read_new(path)
        assert re.match(re.escape(f"source waku: {tmp_path}/\\x1b[31m.parquet ") + reason, str(failure.value))
        assert "\n" not in str(failure.value)
    pq.write_table(table(), path)
    assert hashes(read_new(path)) == of(SOME)


def test_the_other_files_of_a_folder_are_read_and_the_run_fails(spark: SparkSession, tmp_path: Path) -> None:
    files = exported(tmp_path, "a.rlp", rows=SOME[:2])
    pq.write_table(table().select(["hash"]), files / "b.parquet")
    (files / "c.parquet").write_bytes(b"PAR1")
    words = ("ingest", "--lake", tmp_path / "lake", "--source", f"waku={files}")
    told = f"restante: source waku: {files}/b.parquet has no column raw of byte strings, which would hold envelopes"

    assert spark_command(spark, *words, ends=1).stderr.splitlines()[-1] == f"{told}; nor can 1 other file be read"
    lake = LakeWorld(spark, tmp_path)
    assert sorted(row["hash"] for row in lake.rows("archived")) == sorted(of(SOME[:2]))
    assert lake.rows("quarantine") == []
    assert command(*words, ends=1).stderr == f"{told}; nor can 1 other file be read\n", "nothing else is new"


@pytest.mark.parametrize(
    ("name", "changed"),
    [("a.rlp", BYTES + SOME[0].raw), ("a.rlp", BYTES[:-1] + b"\x7f"), ("a.parquet", b"PAR1")],
    ids=["longer", "as long", "overwritten"],
)
def test_a_file_that_changes_before_it_is_read_is_refused(tmp_path: Path, name: str, changed: bytes) -> None:
    path = exported(tmp_path, name, rows=SOME) / name
    with recognise(f"waku={path}").opened(tmp_path / "scratch", print, CONTEXT) as opened:
        span = opened.find_new("archived", {})
        assert span is not None
        path.write_bytes(changed.ljust(path.stat().st_size, b"\0"))
        os.utime(path, (NOW, NOW))
        with pytest.raises(SourceError, match=f"{name} changed while it was read: ingest it again"):
            rows_of(span)


ARRIVED = 1_700_000_000
FIRST = (FIRST_DAY - date(1970, 1, 1)).days * SECONDS_PER_DAY


def letter(sent: int = ARRIVED, ttl: int = 50) -> Envelope:
    return make(sent + ttl, ttl, b"abcd", b"sealed")


def stored(some: list[Envelope], latest: int = ARRIVED, **changes: Any) -> StoredValues:
    fields = {
        "latest": np.full(len(some), latest),
        "hashes": of(some),
        "topics": np.array([int.from_bytes(letter.topic) for letter in some], np.int64),
        "ids": np.array([ids.home(letter) for letter in some], np.int64),
    }
    return StoredValues(**{**fields, **changes})


def faults(raws: list[bytes], values: StoredValues) -> list[str]:
    return [ENVELOPE_FAULTS[fault] for fault in verify(raws, values).fault.tolist()]


def fault(letter: Envelope, **changes: Any) -> str:
    [only] = faults([letter.raw], stored([letter], **changes))
    return only


HASH, TOPIC = "the hash does not match", "the topic does not match"


def test_the_time_of_sending_must_be_plausible() -> None:
    latest = ARRIVED + MAX_CLOCK_SKEW_SECONDS
    for sent in (ARRIVED, latest, FIRST):
        assert fault(letter(sent)) == ""
    assert fault(letter(latest + 1)) == "sent after it arrived"
    assert fault(letter(FIRST - 1)) == fault(letter(0)) == "sent before the lake's first day"
    assert [fault(letter(ARRIVED, ttl)) for ttl in (0, 0xFFFFFFFF - ARRIVED)] == ["", ""]


def test_the_stored_hash_topic_and_id_must_be_the_envelope_s_own() -> None:
    some = letter()
    assert fault(some, hashes=[bytes(32)]) == fault(some, hashes=[some.hash[:31] + b"\0"]) == HASH
    for topic in (int.from_bytes(b"abce"), 1 << 32):
        assert fault(some, topics=np.array([topic])) == TOPIC
    for more, name in ((1, HASH), (-1, ""), (1 - ids.PROBES, ""), (-ids.PROBES, HASH), (-(1 << 31), HASH)):
        assert fault(some, ids=np.array([ids.home(some) + more])) == name, "a collision makes an id lower"
    assert fault(some, ids=np.array([ids.home(some) ^ 1 << 30])) == HASH
    early = letter(FIRST - 1)
    assert fault(early, hashes=[bytes(32)], topics=np.array([0])) == HASH, "the first of several faults"
    assert faults([b"\xc0"], stored([early], hashes=[bytes(32)])) == ["not an envelope"]
    nothing, missing = StoredValues(np.array([ARRIVED])), StoredValues(np.array([ARRIVED]), [None], np.array([-1]))
    assert faults([some.raw], nothing) == faults([some.raw], missing) == [""]


def test_an_envelope_whose_length_takes_four_bytes_is_one_too() -> None:
    some = make(ARRIVED + 50, 50, b"abcd", bytes(1 << 24), 7)
    verified = verify([some.raw, b""], StoredValues(np.array([ARRIVED, ARRIVED])))
    assert verified.fault.tolist() == [0, ENVELOPE_FAULTS.index("not an envelope")]
    assert (verified.pow[0], verified.sent[0], verified.topic[0]) == (some.pow(), ARRIVED, int.from_bytes(b"abcd"))
