"""Reads Parquet files with envelopes in a column `raw`, and optional columns with their properties.

The columns are those of `restante waku export` (restante.waku.files.parquet); others are ignored. That module's
`read` parses each envelope by itself and takes 0.72 s for a file of 100,000, which takes 0.3 s here. It also does
not limit the bytes of a batch, and skips the rows of a damaged group, which must be counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from restante.pipeline.clean.envelopes import StoredValues
from restante.pipeline.clean.fields import Numbers
from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.pipeline.sources.archived import BATCH_BYTES, BATCH_ENVELOPES, UNREADABLE_REST, EnvelopeBatch
from restante.waku.envelope.envelope import TOPIC
from restante.waku.files import parquet

PARQUET_MAGIC: Final = b"PAR1"
"""The first bytes of a Parquet file (parquet.apache.org, "File Format")."""


def count_rows(path: Path) -> int:
    """Return the number of rows. Raises StoreError, whose text is to follow the file's name, if it is no table."""
    with parquet.open_table(path) as table:
        return table.metadata.num_rows  # type: ignore[no-any-return]


def read_envelopes(path: Path, latest: int) -> Iterator[EnvelopeBatch]:
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
