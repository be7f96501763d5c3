"""A digest of rows that does not depend on their order, nor on the files that they are in.

Each row is hashed to 64 bits, NULLs included, and the hashes are added up. Rows that were lost, changed or doubled by
accident give another sum, but for one case in 2**64. It is no protection against somebody who chooses the rows.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
"""The factors of splitmix64, which spreads each bit over all 64."""

_NULL: Final = 0x9E3779B97F4A7C15
"""The hash of NULL."""


def digest(rows: pa.Table) -> int:
    """Return the digest of rows, from 0 to 2**64 - 1. That of the rows of two tables is their sum, modulo 2**64."""
    import numpy as np

    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for column in rows.columns:
        hashes = _mixed(hashes * np.uint64(_FIRST) + _hashes(column))
    return int(hashes.sum(dtype=np.uint64))


def _hashes(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a hash of each value."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        coded = pc.cast(column, pa.binary()).combine_chunks().dictionary_encode()
        hashes = np.array([_hash(value) for value in coded.dictionary.to_pylist()], dtype=np.uint64)
        indices = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        values = hashes[indices] if len(hashes) else np.zeros(len(column), dtype=np.uint64)
    elif pa.types.is_floating(column.type):  # by their bits: -0.0 and NaN are values as any other
        values = column.fill_null(0.0).to_numpy().view(np.uint64)
    else:
        narrow = pa.int32() if pa.types.is_date32(column.type) else column.type
        integers = pc.cast(pc.cast(column, narrow), pa.int64())
        values = integers.fill_null(0).to_numpy().view(np.uint64)
    nulls = column.is_null().to_numpy()
    return np.where(nulls, np.uint64(_NULL), _mixed(values + np.uint64(1)))


def _hash(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest())


def _mixed(numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the numbers with each of their bits spread over all 64 (splitmix64)."""
    import numpy as np

    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(_FIRST)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(_SECOND)
    return numbers ^ (numbers >> np.uint64(31))
