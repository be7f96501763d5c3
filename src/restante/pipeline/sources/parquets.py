"""Reads Parquet files with envelopes in a column `raw`, and optional columns with their properties.

The columns are those of `restante waku export` (restante.waku.files.parquet); others are ignored. That module's
reader parses each envelope by itself and takes 0.72 s for a file of 100,000, which takes 0.10 s here. It also does
not limit the bytes of a batch, and skips the rows of a damaged group, which must be counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from restante.pipeline.clean.envelopes import Stored
from restante.pipeline.clean.fields import Numbers
from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.pipeline.sources.archived import BATCH_BYTES, BATCH_ENVELOPES, UNREADABLE_REST, FoundEnvelopes
from restante.waku.envelope.envelope import TOPIC

PARQUET_MAGIC: Final = b"PAR1"
"""The first bytes of a Parquet file (parquet.apache.org, "File Format")."""

NO_RAW_COLUMN: Final = "no table with a column raw"

MAX_ROWS_PER_BYTE: Final = 100
"""Rows per byte of a file that are plausible. A file may claim any number of rows, and each is counted in the
ledger."""

_BYTES_TYPES: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


def count(path: Path) -> int:
    """Return the number of rows. A file that is no table counts as one fault."""
    with _table(path) as table:
        return 1 if table is None else table.metadata.num_rows


def found(path: Path, latest: int) -> Iterator[FoundEnvelopes]:
    """Yield the rows as envelopes that arrived by `latest`; a row that cannot be read has a fault."""
    with _table(path) as table:
        if table is None:
            yield _faulty(0, 1, NO_RAW_COLUMN)
            return
        columns = [name for name in ("raw", "hash", "topic", "arrived") if _usable(table.schema_arrow, name)]
        first = 0
        for group in range(table.num_row_groups):
            rows: int = table.metadata.row_group(group).num_rows
            yield from _group(table, group, columns, first, first + rows, latest)
            first += rows


@contextmanager
def _table(path: Path) -> Iterator[pq.ParquetFile | None]:
    try:
        table = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        _must_be_damage(error)
        yield None
        return
    with table:
        size = path.stat().st_size
        groups = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        believed = sum(groups) == table.metadata.num_rows <= MAX_ROWS_PER_BYTE * size and min(groups, default=0) >= 0
        yield table if believed and _usable(table.schema_arrow, "raw") else None


def _must_be_damage(error: Exception) -> None:
    """Raise an error of the system, but not one about the file's content, for which pyarrow also raises OSError."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _usable(schema: pa.Schema, name: str) -> bool:
    if schema.names.count(name) != 1:
        return False
    kind = schema.field(name).type
    return pa.types.is_int64(kind) if name == "arrived" else any(test(kind) for test in _BYTES_TYPES)


def _group(
    table: pq.ParquetFile, group: int, columns: list[str], first: int, stop: int, latest: int
) -> Iterator[FoundEnvelopes]:
    """Yield the rows of a group. From the first that cannot be read on, each has a fault."""
    rows = max(
        1,
        min(BATCH_ENVELOPES, BATCH_BYTES * (stop - first) // max(table.metadata.row_group(group).total_byte_size, 1)),
    )
    try:
        for batch in table.iter_batches(rows, row_groups=[group], columns=columns):
            yield _found(batch, first, latest)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        _must_be_damage(error)
    while first < stop:
        count = min(BATCH_ENVELOPES, stop - first)
        yield _faulty(first, count, UNREADABLE_REST)
        first += count


def _found(batch: pa.RecordBatch, first: int, latest: int) -> FoundEnvelopes:
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    came = np.array([_time(said, latest) for said in columns.get("arrived", [None] * batch.num_rows)], np.int64)
    topics = np.array([_topic(said) for said in columns["topic"]], np.int64) if "topic" in columns else None
    return FoundEnvelopes(
        raws=[raw or b"" for raw in columns["raw"]],
        arrivals=np.arange(first, first + batch.num_rows),
        arrived=came,
        stored=Stored(np.where(came < 0, latest, came), columns.get("hash"), topics),
    )


def _time(said: int | None, latest: int) -> int:
    return said if said is not None and 0 <= said <= latest + SECONDS_PER_DAY else -1


def _topic(said: bytes | None) -> int:
    """Return a topic as a number: -1 if there is none, and a number that no topic has if the length is wrong."""
    if said is None:
        return -1
    return int.from_bytes(said) if len(said) == TOPIC else 1 << 32


def _faulty(first: int, count: int, fault: str) -> FoundEnvelopes:
    arrivals: Numbers = np.arange(first, first + count)
    return FoundEnvelopes([b""] * count, arrivals, None, Stored(arrivals), faults=dict.fromkeys(range(count), fault))
