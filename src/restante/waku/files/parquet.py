"""Parquet files of envelopes, for analysis (suffix .parquet; parquet.apache.org).

The types are those that every reader supports: 64-bit integers and byte strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from restante.common.errors import StoreError, plain
from restante.waku import files
from restante.waku.archive.records import Archived

PARQUET_SCHEMA: Final = pa.schema(
    [
        pa.field("hash", pa.binary(), nullable=False),
        pa.field("sent", pa.int64(), nullable=False),
        pa.field("expiry", pa.int64(), nullable=False),
        pa.field("ttl", pa.int64(), nullable=False),
        pa.field("topic", pa.binary(), nullable=False),
        pa.field("arrival", pa.int64(), nullable=False),
        pa.field("arrived", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("raw", pa.binary(), nullable=False),
    ]
)

GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 16 << 20
"""Approximate maximum rows of a row group, and bytes of its `raw`. A reader holds a row group in memory."""

_BATCH_ROWS: Final = 1000

BATCH_BYTES: Final = 8 << 20
"""Bytes of columns with values of a fixed length that are read together."""

MAX_ROWS_PER_BYTE: Final = 100
"""Rows per byte of a file that are plausible. A file may claim any number of rows, and each is counted in the
pipeline's ledger."""

MAX_EXPANSION: Final = 100
"""Bytes of the columns in memory per byte of a file that are plausible. Envelopes are encrypted, so that compression
saves little, but a file of 33 kB can have 1 GiB of zeros, which takes several GB."""

UNSUSPICIOUS_BYTES: Final = 64 << 20
"""Bytes of the columns in memory that any file may have."""

BYTES_COLUMNS: Final = ["raw", "hash", "topic"]
"""Columns of byte strings that are read. They are read as dictionaries, so that a value that a file has once, for
many rows, is in memory once: a file of 500 bytes can have a value of 1 MB for 45,000 rows."""


def write(file: Path, pages: Iterable[list[Archived]]) -> None:
    """Write the envelopes in the given order. Raises OSError, and RlpError if the archive is damaged."""
    with pq.ParquetWriter(file, PARQUET_SCHEMA, compression="zstd", write_page_checksum=True) as output:
        for group in _row_groups(pages):
            output.write_table(_to_table(group), row_group_size=len(group))


def _row_groups(pages: Iterable[list[Archived]]) -> Iterator[list[Archived]]:
    group: list[Archived] = []
    size = 0
    for page in pages:
        group += page
        size += sum(len(row.raw) for row in page)
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _to_table(group: list[Archived]) -> pa.Table:
    envelopes = [row.envelope() for row in group]
    columns = [
        [envelope.hash for envelope in envelopes],
        [envelope.sent for envelope in envelopes],
        [envelope.expiry for envelope in envelopes],
        [envelope.ttl for envelope in envelopes],
        [envelope.topic for envelope in envelopes],
        [row.arrival for row in group],
        [row.arrived for row in group],
        [len(row.raw) for row in group],
        [row.raw for row in group],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PARQUET_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=PARQUET_SCHEMA)


def open_table(file: Path) -> pq.ParquetFile:
    """Open a table with a column `raw` of byte strings.

    Raises StoreError, whose text is to follow the file's name, if the content is not such a table; OSError if the
    system cannot read the file.
    """
    try:
        with pq.ParquetFile(file) as table:
            metadata, schema = table.metadata, table.schema_arrow
            _check_plausible(metadata, file.stat().st_size)
            shared = [name for name in BYTES_COLUMNS if has_byte_strings(schema, name)]
        if "raw" not in shared:
            raise StoreError("has no column raw of byte strings, which would hold envelopes")
        return pq.ParquetFile(file, metadata=metadata, read_dictionary=shared, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        if is_system_error(error):
            raise
        raise StoreError(f"cannot be read as Parquet: {_first_line(error)}") from error
    except UnicodeDecodeError as error:
        raise StoreError("cannot be read as Parquet: the name of a column is not UTF-8") from error


def _check_plausible(metadata: pq.FileMetaData, size: int) -> None:
    """Raise StoreError if a file claims more rows, or more bytes in memory, than one with envelopes can have."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    if sum(rows) != metadata.num_rows or metadata.num_rows > MAX_ROWS_PER_BYTE * size or min(rows, default=0) < 0:
        claim = f"{metadata.num_rows:,} rows"
    else:
        # Not the sizes of single columns: pyarrow 26 ends the process if a damaged footer contradicts itself there.
        expanded = sum(group.total_byte_size for group in groups)
        if expanded <= max(MAX_EXPANSION * size, UNSUSPICIOUS_BYTES):
            return
        claim = f"{expanded:,} bytes without compression"
    raise StoreError(
        f"cannot be read as Parquet: it has {size:,} bytes and claims {claim}: remove it, or write it anew"
    )


def is_system_error(error: Exception) -> bool:
    """Return whether an error is the system's. pyarrow also raises OSError about the content of a file."""
    return isinstance(error, OSError) and error.errno is not None


def has_byte_strings(schema: pa.Schema, name: str) -> bool:
    """Return whether a table has one column of this name, and `byte_strings` can return its values."""
    if schema.names.count(name) != 1:
        return False
    try:
        pa.nulls(0, schema.field(name).type).cast(pa.large_binary())
    except pa.ArrowException:
        return False
    return True


def byte_strings(column: pa.Array) -> list[bytes | None]:
    """Return the values of a column of byte strings, whose Arrow type may be any that has them.

    Equal ones are one object. The type is what the file's writer had in memory, such as a view, a dictionary or text:
    it is in the file's metadata (`ARROW:schema`, https://arrow.apache.org/docs/cpp/parquet.html, "Serialization
    details"), and pyarrow restores it. Raises pa.ArrowException if an index into a dictionary is out of bounds.
    """
    encoded = column if pa.types.is_dictionary(column.type) else column.cast(pa.large_binary()).dictionary_encode()
    used = encoded.indices.dictionary_encode()
    # The indices are the file's, and `cast` of the column follows them unchecked. `take` checks them.
    values = [*encoded.dictionary.take(used.dictionary).cast(pa.large_binary()).to_pylist(), None]
    return [values[index] for index in used.indices.fill_null(len(values) - 1).to_pylist()]


def batches(table: pq.ParquetFile, group: int, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield at most so many rows of a group at a time, fewer if their columns have long values of a fixed length.

    These are not read as dictionaries, so that each row of a batch takes memory.
    """
    fixed = sum(max(column.length, 0) for column in table.schema if column.path in columns)
    yield from table.iter_batches(min(rows, BATCH_BYTES // max(fixed, 1)) or 1, row_groups=[group], columns=columns)


def read(file: Path) -> files.FileItems:
    """Yield each row's `raw` as an envelope, or as an unreadable item if the row has another `hash`.

    The rest of a row group that cannot be read is skipped. Raises StoreError if the file is not such a table.
    """
    try:
        table = open_table(file)
    except StoreError as error:
        raise StoreError(f"{file} {error}") from error
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {plain(error)}") from error
    with table:
        columns = [name for name in ("raw", "hash") if has_byte_strings(table.schema_arrow, name)]
        first_row = 0
        for group in range(table.num_row_groups):
            yield from _read_group(table, group, columns, first_row)
            first_row += table.metadata.row_group(group).num_rows


def _read_group(table: pq.ParquetFile, group: int, columns: list[str], first_row: int) -> files.FileItems:
    row = first_row
    try:
        for batch in batches(table, group, columns, _BATCH_ROWS):
            values = {name: byte_strings(batch.column(name)) for name in columns}
            for raw, stored in zip(values["raw"], values.get("hash", [None] * batch.num_rows), strict=True):
                yield _parse_row(raw, stored, f"row {row}")
                row += 1
    except (pa.ArrowException, OSError) as error:
        yield files.UnreadableItem(f"row {row}", f"the rest of its group cannot be read: {_first_line(error)}")


def _parse_row(raw: bytes | None, stored: bytes | None, where: str) -> files.FileItem:
    if raw is None:
        return files.UnreadableItem(where, "raw is not a byte string")
    item = files.parse_item(raw, where)
    if not isinstance(item, files.UnreadableItem) and stored not in (None, item.hash):
        return files.UnreadableItem(where, "the hash does not match")
    return item


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
