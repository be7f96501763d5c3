"""Standard output of commands: rows as a table, CSV or JSON, and counts of rows. And signals, without Spark."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from restante.common.errors import StoreError, plain
from restante.common.texts import END_OF_LINE, counted, csv_field, in_one_line, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from restante.pipeline.lake.lake import Lake
    from restante.pipeline.query import QueryResult, ResultColumn, ResultRow

MAX_ROWS: Final = 100
"""Rows of a table, which are in memory to align the columns: some screens. CSV and JSON have all rows."""

MAX_CHARACTERS: Final = 200
"""Characters of a value of such a table, on a terminal: some lines."""

MIN_CELLS: Final = 12
"""Cells of a terminal for each column of a table."""

MAX_CELLS: Final = 1 << 20
"""Cells of a line elsewhere."""


@contextmanager
def scratch_until_a_signal() -> Iterator[Path]:
    """Yield a folder for temporary files. SIGINT or SIGTERM removes it, and ends the process at once.

    It must be entered before a library starts threads. Raises StoreError if there can be none.
    """
    from restante.common.signals import ending_at_once
    from restante.pipeline.sources.scratch import scratch

    folders: list[Path] = []

    def stopped() -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os.write(2, b"restante: stopped\n")

    with ending_at_once(stopped), scratch() as folder:
        folders.append(folder)
        yield folder


@contextmanager
def lake_to_read(address: str) -> Iterator[tuple[Lake, Path]]:
    """Yield a lake, which is only read, and a folder for temporary files, as `scratch_until_a_signal` does.

    Import within the block what reads it: libraries start threads.
    """
    with scratch_until_a_signal() as folder:
        from restante.pipeline.lake.lake import Lake

        with Lake.open(address, write=False) as lake:
            yield lake, folder


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


def table_lines(result: QueryResult, width: int | None, *, whole: bool = False) -> Iterator[str]:
    """Yield lines for people: aligned columns, up to MAX_ROWS rows. `width`: the cells of the terminal's line.

    On a terminal texts go on below if they do not fit, up to MAX_CHARACTERS unless they are shown `whole`.
    """
    rows = list(itertools.islice(result.rows, MAX_ROWS + 1))
    more = len(rows) > MAX_ROWS
    shown_rows = rows[:MAX_ROWS]
    limit = None if width is None or whole else MAX_CHARACTERS
    yield from _plan(shown_rows) if result.is_plan else _aligned(result.columns, shown_rows, width, limit)
    if more:
        yield f"… only the first {MAX_ROWS} rows: --format csv or json prints all"
    elif not result.is_plan:
        yield f"({counted(len(shown_rows), 'row')})"


def _plan(rows: Iterable[ResultRow]) -> Iterator[str]:
    for row in rows:
        yield visible(row[-1] or "").rstrip("\n")


def _aligned(
    columns: Sequence[ResultColumn], rows: Sequence[ResultRow], width: int | None, limit: int | None
) -> Iterator[str]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(Text(in_one_line(column.name)), justify=side, no_wrap=not column.is_text, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_value_in_line(value, limit)) for value in row))
    # The lines of a table with many columns are longer than those of the terminal, which breaks them.
    cells = MAX_CELLS if width is None else max(width, len(columns) * MIN_CELLS)
    yield from rendered_lines(table, cells)


def rendered_lines(drawing: RenderableType, cells: int) -> Iterator[str]:
    """Yield the lines of a table or a tree of rich, in so many cells and without colours."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=cells, color_system=None)
    with console.capture() as lines:
        console.print(drawing)
    yield from (line.rstrip() for line in lines.get().splitlines())


def _value_in_line(value: str | None, limit: int | None) -> str:
    """Return a value in one line that steers no terminal, cut to `limit` characters."""
    if value is None:
        return "NULL"
    return in_one_line(value if limit is None or len(value) <= limit else f"{value[:limit]}…")


def row_counts(clean: int, others: Mapping[str, int], missed: int) -> str:
    """Return how many rows there are of each kind, as text. Only clean ones are named if there are none."""
    counts = {"clean": clean, **others, "deleted before they were read": missed}
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count or kind == "clean")
