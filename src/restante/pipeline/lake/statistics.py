"""The statistics of a file's columns: from its footer to the table's log, where readers use them to skip files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MAX_VALUE_CHARACTERS: Final = 128
"""Characters of the longest text in the log. Longer texts select few files, and every reader of the table reads the
log as a whole."""

MILLISECOND: Final = timedelta(milliseconds=1)
"""The precision of timestamps in Delta tables' statistics."""

Value = date | datetime | int | str
"""A least or greatest value. There is none of doubles, because a NaN is in no statistic, so that a reader could skip
a file that has one; nor of bytes, because Delta tables have none."""


class Range(NamedTuple):
    """The values of a column in a file."""

    least: Value | None
    """None if all values are NULL."""
    greatest: Value | None
    nulls: int
    """The number of NULLs."""

    @property
    def only(self) -> Value | None:
        """Return the value that all rows have, or None."""
        return self.least if self.least == self.greatest and not self.nulls else None


def ranges(footer: pq.FileMetaData) -> dict[str, Range]:
    """Return the ranges of a file's columns; of a column without exact statistics there is none."""
    found: dict[str, Range] = {}
    for at in range(footer.num_columns):
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
        if (range_ := _range([chunk.statistics for chunk in chunks], footer.num_rows)) is not None:
            found[chunks[0].path_in_schema] = range_
    return found


def _range(groups: list[Any], rows: int) -> Range | None:
    """Return the range of a column from the statistics of its row groups."""
    if not groups or not all(each is not None and each.has_null_count for each in groups):
        return None
    nulls = sum(each.null_count for each in groups)
    if nulls == rows:
        return Range(None, None, nulls)
    valued = [each for each in groups if each.num_values]
    if not all(each.has_min_max for each in valued):
        return None
    least, greatest = min(each.min for each in valued), max(each.max for each in valued)
    known = isinstance(least, Value) and not isinstance(least, bool)
    return Range(least, greatest, nulls) if known else None


def delta(rows: int, of: Mapping[str, Range]) -> str:
    """Return statistics as Delta tables have them (Delta protocol, "Per-file Statistics")."""
    valued = {
        name: (_below(each.least), _above(each.greatest))
        for name, each in of.items()
        if each.least is not None and each.greatest is not None and not _long(each.least, each.greatest)
    }
    statistics = {
        "numRecords": rows,
        "minValues": {name: least for name, (least, _) in valued.items()},
        "maxValues": {name: greatest for name, (_, greatest) in valued.items()},
        "nullCount": {name: each.nulls for name, each in of.items()},
    }
    return json.dumps(statistics, separators=(",", ":"))


def _long(*values: Value) -> bool:
    return any(isinstance(value, str) and len(value) > MAX_VALUE_CHARACTERS for value in values)


def _below(value: Value) -> int | str:
    """Return a value as it is in the log; a time is rounded down."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def _above(value: Value) -> int | str:
    """Return a value as it is in the log; a time is rounded up."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        value += MILLISECOND
    return _below(value)
