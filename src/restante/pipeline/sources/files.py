"""Reads files of envelopes as `restante waku export` writes them: RLP, or Parquet with a column `raw`.

A file is read once, completely, and identified by its digest from then on, whatever its name. An envelope that occurs
twice in it counts once. Of Parquet's columns those of `restante waku export` are read.

The functions `read` of restante.waku.files parse each envelope by itself: they take 0.72 s for a Parquet file of
100,000, which takes 0.3 s here. They also do not limit the bytes of a batch, and skip the rows of a damaged group of
Parquet, which must be counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from restante.common.errors import StoreError
from restante.common.texts import counted
from restante.pipeline.clean.envelopes import Numbers, StoredValues
from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import ARCHIVED, SOURCE_KIND_FILES
from restante.pipeline.sources import archived, paths
from restante.pipeline.sources.archived import (
    BATCH_BYTES,
    BATCH_ENVELOPES,
    UNREADABLE_REST,
    EnvelopeBatch,
    Origin,
    group_rows,
)
from restante.pipeline.sources.paths import SourceFile
from restante.pipeline.sources.source import (
    IngestContext,
    PathPreview,
    Say,
    Source,
    SourceError,
    SourceSpec,
    Span,
    Task,
)
from restante.waku.envelope.envelope import TOPIC
from restante.waku.files import parquet
from restante.waku.files.rlp_file import split_items

ENVELOPE_SUFFIXES: Final = frozenset({".rlp", ".parquet"})
"""The suffixes that `restante waku export` gives complete files; other files of a folder are ignored."""

PARQUET_MAGIC: Final = b"PAR1"
"""The first bytes of a Parquet file (parquet.apache.org, "File Format")."""

RLP_LIST_TAG: Final = 0xC0
"""The smallest first byte of an RLP list."""


def recognise(spec: SourceSpec, preview: PathPreview) -> Source | None:
    """Return the source if the path is a file of envelopes, or a folder or glob with one. Raises SourceError."""
    if preview.sqlite:
        return None
    files = paths.find_files(spec.path, ENVELOPE_SUFFIXES)
    if not any(_is_envelopes(paths.read_head(file)) for file in files):
        return None
    spec.refuse_server(f"{spec.path} has envelopes")
    opened = partial(_opened, spec.path, spec.name)
    return Source(spec.name, "envelope files", spec.path, (ARCHIVED,), paths.inodes(files), opened, is_database=False)


def _is_envelopes(head: bytes) -> bool:
    return head.startswith(PARQUET_MAGIC) or (head != b"" and head[0] >= RLP_LIST_TAG)


@contextmanager
def _opened(path: Path, name: str, scratch: Path, say: Say, context: IngestContext) -> Iterator[OpenedFiles]:  # noqa: ARG001 - nothing is copied
    """Find the files. A file that changes later is rejected. Raises SourceError.

    Files that are no tables of envelopes are left out. At the end they raise SourceError, when the rows of the others
    are committed.
    """
    opened = OpenedFiles(name, paths.files_to_read(name, path, say, ENVELOPE_SUFFIXES), context)
    yield opened
    if opened.left_out:
        others = len(opened.left_out) - 1
        and_others = f"; nor can {counted(others, 'other file')} be read" if others else ""
        raise SourceError(f"source {name}: {opened.left_out[0]}{and_others}")


class OpenedFiles:
    """Files as they were found."""

    tables = (ARCHIVED,)

    def __init__(self, name: str, files: list[SourceFile], context: IngestContext) -> None:
        self._name, self._context = name, context
        self._files = [file for file in files if file.size]
        self.left_out: list[str] = []
        """Why new files are no tables of envelopes, as `find_new` found them."""

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Return what is new, or None if nothing is. Raises SourceError."""
        self.left_out = []
        return paths.find_new_files(table, self._files, marks, self._context.now, self._count_readable, self._task)

    def _count_readable(self, file: SourceFile) -> int | None:
        """Return the number of items in a file. Leave it out if it is no table of envelopes."""
        try:
            return _count_items(file)
        except StoreError as error:
            self.left_out.append(f"{paths.path_text(file.path)} {error}")
            return None

    def _task(self, file: SourceFile, digest: str) -> Task:
        """Return the task that reads a whole file, because its duplicates must be found."""
        origin = Origin(self._name, SOURCE_KIND_FILES, digest, file.printable_name)
        return partial(read_file, file, origin, int(self._context.latest))


def _count_items(file: SourceFile) -> int:
    """Return the number of items to read.

    Raises StoreError, whose text is to follow the file's name, if it is no table of envelopes; SourceError if it
    cannot be read.
    """
    with paths.open_unchanged(file) as data:
        if _is_parquet(data):
            with parquet.open_table(file.path) as table:
                return table.metadata.num_rows  # type: ignore[no-any-return]
        return sum(1 for _ in split_items(data, file.size, lists=True))


def _is_parquet(data: BinaryIO) -> bool:
    head = data.read(len(PARQUET_MAGIC))
    data.seek(0)
    return head == PARQUET_MAGIC


def read_file(file: SourceFile, origin: Origin, latest: int) -> Iterator[pa.RecordBatch]:
    """Yield a file's envelopes, verified. All arrived before `latest`, the time in seconds since 1970."""
    seen: set[bytes] = set()
    with paths.open_unchanged(file) as data:
        for batch in _envelope_batches(file, data, latest):
            yield archived.verify_batch(batch, origin, seen)


def _envelope_batches(file: SourceFile, data: BinaryIO, latest: int) -> Iterator[EnvelopeBatch]:
    if not _is_parquet(data):
        yield from _rlp_batches(data, file.size, latest)
        return
    try:
        yield from read_parquet(file.path, latest)
    except StoreError as error:  # it was a table when its rows were counted
        raise paths.changed_error(file.path) from error


def _rlp_batches(data: BinaryIO, size: int, latest: int) -> Iterator[EnvelopeBatch]:
    """Yield the lists in a file as envelopes that arrived by `latest`. Raises OSError."""
    position = 0
    for items in group_rows(split_items(data, size, lists=True), lambda item: len(item.raw)):
        yield EnvelopeBatch(
            raws=[item.raw for item in items],
            arrivals=np.arange(position, position + len(items)),
            arrived=None,
            stored=StoredValues(np.full(len(items), latest)),
            positions=[item.at for item in items],
            faults={
                at: UNREADABLE_REST if item.is_last else item.fault for at, item in enumerate(items) if item.fault
            },
        )
        position += len(items)


def read_parquet(path: Path, latest: int) -> Iterator[EnvelopeBatch]:
    """Yield the rows as envelopes that arrived by `latest`; a row that cannot be read has a fault."""
    with parquet.open_table(path) as table:
        columns = [name for name in ("raw", "hash", "topic", "arrived") if _usable(table.schema_arrow, name)]
        first_row = 0
        for group in range(table.num_row_groups):
            rows: int = table.metadata.row_group(group).num_rows
            yield from _read_group(table, group, columns, first_row, first_row + rows, latest)
            first_row += rows


def _usable(schema: pa.Schema, name: str) -> bool:
    """Return whether a column is read. A hash or topic that is text is something else than the bytes of one."""
    if name == "arrived":
        return schema.names.count(name) == 1 and bool(pa.types.is_int64(schema.field(name).type))
    return parquet.has_byte_strings(schema, name) and (name == "raw" or not _is_text(schema.field(name).type))


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _read_group(
    table: pq.ParquetFile, group: int, columns: list[str], first_row: int, stop: int, latest: int
) -> Iterator[EnvelopeBatch]:
    """Yield the rows of a group. From the first that cannot be read on, each has a fault."""
    group_bytes = max(table.metadata.row_group(group).total_byte_size, 1)
    rows = max(1, min(BATCH_ENVELOPES, BATCH_BYTES * (stop - first_row) // group_bytes))
    try:
        for batch in parquet.batches(table, group, columns, rows):
            yield _envelope_batch(batch, columns, first_row, latest)
            first_row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if parquet.is_system_error(error):
            raise
    while first_row < stop:
        count = min(BATCH_ENVELOPES, stop - first_row)
        yield _faulty(first_row, count, UNREADABLE_REST)
        first_row += count


def _envelope_batch(batch: pa.RecordBatch, columns: list[str], first_row: int, latest: int) -> EnvelopeBatch:
    values = {name: parquet.byte_strings(batch.column(name)) for name in columns if name != "arrived"}
    times = batch.column("arrived").to_pylist() if "arrived" in columns else [None] * batch.num_rows
    arrival_times = np.array([_time(value, latest) for value in times], np.int64)
    topics = np.array([_topic(value) for value in values["topic"]], np.int64) if "topic" in values else None
    return EnvelopeBatch(
        raws=[raw or b"" for raw in values["raw"]],
        arrivals=np.arange(first_row, first_row + batch.num_rows),
        arrived=arrival_times,
        stored=StoredValues(np.where(arrival_times < 0, latest, arrival_times), values.get("hash"), topics),
    )


def _time(seconds: int | None, latest: int) -> int:
    return seconds if seconds is not None and 0 <= seconds <= latest + SECONDS_PER_DAY else -1


def _topic(topic: bytes | None) -> int:
    """Return a topic as a number: -1 if there is none, and a number that no topic has if the length is wrong."""
    if topic is None:
        return -1
    return int.from_bytes(topic) if len(topic) == TOPIC else 1 << 32


def _faulty(first_row: int, count: int, fault: str) -> EnvelopeBatch:
    arrivals: Numbers = np.arange(first_row, first_row + count)
    return EnvelopeBatch(
        [b""] * count, arrivals, None, StoredValues(arrivals), faults=dict.fromkeys(range(count), fault)
    )
