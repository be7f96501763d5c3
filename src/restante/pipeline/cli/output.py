"""Standard output of commands: rows as a table, CSV or JSON, and counts of rows. And signals, without Spark."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size

from restante.common.errors import StoreError, plain
from restante.common.texts import END_OF_LINE, counted, csv_field, in_one_line, visible

if TYPE_CHECKING:
    from restante.pipeline.query import QueryResult, ResultColumn, ResultRow

MAX_ROWS: Final = 100
"""Rows of a table, which are in memory to align the columns: some screens. CSV and JSON have all rows."""

MIN_CELLS: Final = 12
"""Smallest width to which a column of texts is cut. The first characters tell values apart."""

GAP: Final = "  "


@contextmanager
def ending_on_signals() -> Iterator[list[Path]]:
    """End the process at once on SIGINT or SIGTERM. Yield a list for the folders that are removed then."""
    from restante.common.signals import ending_at_once

    folders: list[Path] = []

    def stopped() -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os.write(2, b"restante: stopped\n")

    with ending_at_once(stopped):
        yield folders


def write_output_lines(lines: Iterable[str], kind: str) -> None:
    """Write lines to standard output, in UTF-8 whatever the locale is. Each has its end. Raises StoreError.

    `kind` is the word for them in an error.
    """
    if sys.stdout is None:
        raise StoreError(f"cannot write the {kind}: standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # nobody reads the rest; typer ends the process without a word
    except OSError as error:
        raise StoreError(f"cannot write the {kind}: {plain(error)}") from error


def csv_lines(result: QueryResult) -> Iterator[str]:
    """Yield lines of CSV, the names of the columns first, which are texts, too: PIVOT makes them of values."""
    texts = [column.is_text for column in result.columns]
    yield ",".join(csv_field(column.name, is_text=True) for column in result.columns) + END_OF_LINE
    for row in result.rows:
        yield ",".join([csv_field(value, is_text=t) for value, t in zip(row, texts, strict=True)]) + END_OF_LINE


def json_lines(result: QueryResult) -> Iterator[str]:
    """Yield the lines of one JSON array, which has an object for each row. The values are JSON already."""
    names = [_escaped(json.dumps(column.name, ensure_ascii=False)) for column in result.columns]
    before = "[\n"
    for row in result.rows:
        values = ["null" if value is None else _escaped(value) for value in row]
        yield before + "{" + ", ".join([f"{n}: {v}" for n, v in zip(names, values, strict=True)]) + "}"
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _escaped(value: str) -> str:
    """Return JSON whose texts steer no terminal: with an escape for each character that is not printed."""
    if value.isprintable():
        return value
    return "".join(
        character if character.isprintable() or character in "\t\n\r" else json.dumps(character)[1:-1]
        for character in value
    )


def table_lines(result: QueryResult, width: int | None) -> Iterator[str]:
    """Yield lines for people: aligned columns, up to MAX_ROWS rows. `width`: the cells of the terminal's line.

    On a terminal long texts are cut. If that is not enough, each row becomes several lines, one for each column.
    """
    rows = list(itertools.islice(result.rows, MAX_ROWS + 1))
    more = len(rows) > MAX_ROWS
    shown_rows = rows[:MAX_ROWS]
    yield from _plan(shown_rows) if result.is_plan else _aligned(result.columns, shown_rows, width)
    if more:
        yield f"… only the first {MAX_ROWS} rows: --format csv or json prints all"
    elif not result.is_plan:
        yield f"({counted(len(shown_rows), 'row')})"


def wrapped_table_lines(result: QueryResult, width: int | None) -> Iterator[str]:
    """Yield lines for people: aligned columns, of which the last is long and goes on below."""
    columns, rows = result.columns, [[_value_in_line(value) for value in row] for row in result.rows]
    cells = [max(map(cell_len, (column.name, *values))) for column, *values in zip(columns, *rows, strict=True)]
    indent = sum(cells[:-1]) + len(GAP) * (len(cells) - 1)
    room = None if width is None else max(width - indent, 2 * MIN_CELLS)
    for row in ([column.name for column in columns], *rows):
        cells_before_last = [
            _filled(value, count, right=column.is_number)
            for value, count, column in zip(row[:-1], cells, columns, strict=False)
        ]
        lines = textwrap.wrap(row[-1], room) if room else [row[-1]]
        yield GAP.join([*cells_before_last, lines[0] if lines else ""])
        yield from (" " * indent + line for line in lines[1:])


def _plan(rows: Iterable[ResultRow]) -> Iterator[str]:
    for row in rows:
        yield visible(row[-1] or "").rstrip("\n")


def _aligned(columns: Sequence[ResultColumn], rows: Sequence[ResultRow], width: int | None) -> Iterator[str]:
    names = [_value_in_line(column.name) for column in columns]
    texts = [[_value_in_line(value, width) for value in row] for row in rows]
    cells = [max(map(cell_len, values)) for values in zip(names, *texts, strict=True)]
    if width is not None:
        cut = [column.is_text or column.type == "BLOB" for column in columns]
        minimums = [
            max(min(count, MIN_CELLS), cell_len(name)) if is_cut else count
            for count, name, is_cut in zip(cells, names, cut, strict=True)
        ]
        room = width - len(GAP) * (len(cells) - 1)
        if sum(minimums) > room:
            yield from _records(names, texts, width)
            return
        while sum(cells) > room:
            widest = max((n for n in range(len(cells)) if cells[n] > minimums[n]), key=cells.__getitem__)
            cells[widest] -= 1
    rights = [column.is_number for column in columns]
    for row in (names, ["─" * count for count in cells], *texts):
        filled = [_filled(value, count, right=right) for value, count, right in zip(row, cells, rights, strict=True)]
        yield GAP.join(filled).rstrip()


def _records(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    longest = max(map(cell_len, names))
    for number, row in enumerate(rows, 1):
        yield f"── row {number}"
        for name, value in zip(names, row, strict=True):
            head = _filled(name, longest) + GAP
            yield head + _filled(value, max(min(cell_len(value), width - cell_len(head)), 1))


def _filled(value: str, cells: int, *, right: bool = False) -> str:
    """Return a text that takes so many cells of a terminal: filled up with blanks, or cut."""
    length = cell_len(value)
    if length > cells:
        return set_cell_size(value, cells - 1) + "…"
    return " " * (cells - length) + value if right else value + " " * (cells - length)


def _value_in_line(value: str | None, width: int | None = None) -> str:
    """Return a value in one line that steers no terminal. A longer one than `width` may be cut."""
    if value is None:
        return "NULL"
    return in_one_line(value if width is None else value[: width + 1])


def row_counts(clean: int, others: Mapping[str, int], missed: int) -> str:
    """Return how many rows there are of each kind, as text. Only clean ones are named if there are none."""
    counts = {"clean": clean, **others, "deleted before they were read": missed}
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count or kind == "clean")
