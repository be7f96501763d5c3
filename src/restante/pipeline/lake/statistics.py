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
"""A minimum or a maximum. A column of doubles has neither: a NaN is in no statistic, so a reader could skip a file
that has one. A column of bytes has neither, because Delta tables have none."""


class ColumnRange(NamedTuple):
    """The values of a column in a file."""

    minimum: Value | None
    """None if all values are NULL."""
    maximum: Value | None
    nulls: int
    """The number of NULLs."""

    @property
    def only(self) -> Value | None:
        """Return the value that all rows have, or None."""
        return self.minimum if self.minimum == self.maximum and not self.nulls else None


def column_ranges(footer: pq.FileMetaData) -> dict[str, ColumnRange]:
    """Return the ranges of a file's columns; of a column without exact statistics there is none."""
    ranges: dict[str, ColumnRange] = {}
    for column in range(footer.num_columns):
        chunks = [footer.row_group(group).column(column) for group in range(footer.num_row_groups)]
        if (range_ := _range_of_groups([chunk.statistics for chunk in chunks], footer.num_rows)) is not None:
            ranges[chunks[0].path_in_schema] = range_
    return ranges


def _range_of_groups(groups: list[Any], rows: int) -> ColumnRange | None:
    """Return the range of a column from the statistics of its row groups."""
    if not groups or not all(group is not None and group.has_null_count for group in groups):
        return None
    nulls = sum(group.null_count for group in groups)
    if nulls == rows:
        return ColumnRange(None, None, nulls)
    valued = [group for group in groups if group.num_values]
    if not all(group.has_min_max for group in valued):
        return None
    minimum, maximum = min(group.min for group in valued), max(group.max for group in valued)
    is_supported = isinstance(minimum, Value) and not isinstance(minimum, bool)
    return ColumnRange(minimum, maximum, nulls) if is_supported else None


def delta_statistics(rows: int, column_ranges: Mapping[str, ColumnRange]) -> str:
    """Return statistics as Delta tables have them (Delta protocol, "Per-file Statistics")."""
    valued = {
        name: (_rounded_down(range_.minimum), _rounded_up(range_.maximum))
        for name, range_ in column_ranges.items()
        if range_.minimum is not None and range_.maximum is not None and not _is_long(range_.minimum, range_.maximum)
    }
    statistics = {
        "numRecords": rows,
        "minValues": {name: minimum for name, (minimum, _) in valued.items()},
        "maxValues": {name: maximum for name, (_, maximum) in valued.items()},
        "nullCount": {name: range_.nulls for name, range_ in column_ranges.items()},
    }
    return json.dumps(statistics, separators=(",", ":"))


def _is_long(*values: Value) -> bool:
    return any(isinstance(value, str) and len(value) > MAX_VALUE_CHARACTERS for value in values)


def _rounded_down(value: Value) -> int | str:
    """Return a value as it is in the log; a time is rounded down."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def _rounded_up(value: Value) -> int | str:
    """Return a value as it is in the log; a time is rounded up."""
    if isinstance(value, datetime) and value.microsecond % 1000:
        value += MILLISECOND
    return _rounded_down(value)
