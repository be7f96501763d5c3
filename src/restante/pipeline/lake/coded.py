"""Rows of a table in memory whose texts are coded: each text of a dictionary once, and a number in each row.

Clients choose some texts. Parquet stores a text that is repeated once, so a small file may have rows whose texts take
gigabytes in memory. Coded, they take at most the size that the file's footer has. The rows are decoded in small
parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from restante.pipeline.lake import columns, data_files
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.writer import PART_BYTES
from restante.pipeline.schemas import Table

if TYPE_CHECKING:
    import numpy as np

CODE: Final = pa.int32()
"""The type of a text's number: pyarrow reads dictionaries with it."""

MAX_PART_ROWS: Final = 1 << 16
"""Rows of a part, as many as pyarrow reads at once by itself: fewer would make the work on each part slower."""

_PLAIN: Final = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BIT_PACKED"})
"""The encodings in which each text is stored as a whole. In others, texts that begin alike share bytes, so they may
take any number of times more in memory (parquet.apache.org, "Encodings")."""


def coded_size(file: DataFile, table: Table) -> int | None:
    """Return the bytes that a file's coded rows take in memory at most; None if its footer does not show it.

    Raises StoreError if the file cannot be read.
    """
    with data_files.open_parquet(file.path) as parquet:
        footer = parquet.metadata
    types = {field.name: _coded_type(field.type) for field in columns.file_schema(table)}
    total = _fixed_size(types.values(), footer.num_rows)
    texts = {name for name, type_ in types.items() if pa.types.is_dictionary(type_)}
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            if chunk.path_in_schema in texts:
                if chunk.physical_type != "BYTE_ARRAY" or not _PLAIN.issuperset(chunk.encodings):
                    return None
                total += chunk.total_uncompressed_size
    return total


def _fixed_size(types: Iterable[pa.DataType], rows: int) -> int:
    """Return the bytes of rows without their texts: each value, and a bit that says whether it is NULL."""
    bits: int = sum(type_.bit_width + 1 for type_ in types)
    return rows * bits // 8


def read_coded(files: Sequence[DataFile], table: Table) -> pa.RecordBatch:
    """Return the coded rows of files. A column that one lacks, because it was added later (Column.added), is NULL.

    Raises StoreError if a file cannot be read.
    """
    rows = pa.concat_tables([_coded_rows(file, table) for file in files]).unify_dictionaries()
    arrays = [column.combine_chunks() for column in rows.columns]
    return pa.RecordBatch.from_arrays(arrays, names=rows.column_names)


def _coded_rows(file: DataFile, table: Table) -> pa.Table:
    schema = columns.file_schema(table)
    stored_names = data_files.column_names(file)
    names = [name for name in schema.names if name in stored_names]
    texts = [name for name in names if pa.types.is_dictionary(_coded_type(schema.field(name).type))]
    with data_files.open_parquet(file.path, texts) as parquet:
        rows = parquet.read(names)
        arrays = [
            _cast(rows.column(field.name), _coded_type(field.type))
            if field.name in stored_names
            else pa.nulls(rows.num_rows, _coded_type(field.type))
            for field in schema
        ]
    return pa.table(arrays, names=schema.names)


def _coded_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column whose texts are coded."""
    text = pa.types.is_string(type_) or pa.types.is_binary(type_)
    return pa.dictionary(CODE, type_) if text else type_


def _cast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return a column with its table's type, which a file by another program may not have."""
    if column.type == type_ or not pa.types.is_dictionary(type_):
        return column.cast(type_)
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(type_.value_type))
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, type_)


def sorted_positions(rows: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return the positions of coded rows, sorted by columns."""
    keys = {name: _sort_key(rows.column(name)) for name in names}
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in names])


def _sort_key(column: pa.Array) -> pa.Array:
    """Return numbers that are in the order of a column's values."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pc.rank(column.dictionary, tiebreaker="dense").take(column.indices)


def decode(rows: pa.RecordBatch, schema: pa.Schema, positions: pa.Array | None = None) -> Iterator[pa.RecordBatch]:
    """Yield rows with their texts, in the order of `positions`, in parts of PART_BYTES or one row."""
    import numpy as np

    sizes = _sizes(rows)
    ends = np.cumsum(sizes if positions is None else sizes[positions.to_numpy()])
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + PART_BYTES, side="right"))
        end = max(start + 1, min(fitting, start + MAX_PART_ROWS))
        count = end - start
        part = rows.slice(start, count) if positions is None else rows.take(positions.slice(start, count))
        arrays = [
            array.dictionary_decode() if pa.types.is_dictionary(array.type) else array for array in part.columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        start = end


def _sizes(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of each row, decoded."""
    import numpy as np

    sizes = np.full(rows.num_rows, _fixed_size(rows.schema.types, 1) + 1, dtype=np.int64)
    for column in rows.columns:
        if pa.types.is_dictionary(column.type) and len(column.dictionary):
            lengths = pc.binary_length(column.dictionary).fill_null(0).to_numpy(zero_copy_only=False)
            codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
            sizes += np.where(column.is_valid(), lengths[codes], 0)
    return sizes
