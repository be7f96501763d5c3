"""Reads traces: files that a server appends lines to. When a file is moved away, the server starts a new one.

A trace is identified by its first line, whatever its name; a line by its offset. A line without its end is left for
the next run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from restante.pipeline.clean import timing
from restante.pipeline.clean.rules import Fault, TimeLimits
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import SERVER_COMMANDS
from restante.pipeline.sources import paths
from restante.pipeline.sources.paths import SourceFile
from restante.pipeline.sources.rows import fault_row, row_batches
from restante.timing.logs import NOT_JSON

MAX_LINE_BYTES: Final = 1 << 16
"""Bytes of a line that are read; a server's lines have about 200."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read at a time."""

TASK_BYTES: Final = 16 << 20
"""Approximate number of bytes that one task reads: a second of work, so that every core has tasks."""


class NewLines(NamedTuple):
    """The complete lines of a trace that were not read yet."""

    stop: int
    """Where the last line ends."""
    cuts: tuple[int, ...]
    """Where tasks begin."""
    lines: int
    mark: Mark


def trace_digest(data: BufferedReader) -> str:
    """Return the digest that identifies a trace; "" if its first line is incomplete, or too long for a trace."""
    data.seek(0)
    line = data.readline(MAX_LINE_BYTES)
    return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") else ""


def find_new_lines(data: BufferedReader, name: str, size: int, mark: Mark | None) -> NewLines | None:
    """Return the lines behind the mark among the first `size` bytes, or None if there is no complete one."""
    start = 0 if mark is None else _line_end(data, mark.last)
    position = last_start = stop = start
    data.seek(start)
    lines = 0
    cuts = [start]
    while chunk := data.read(min(CHUNK_BYTES, size - position)):
        lines += chunk.count(b"\n")
        end = chunk.rfind(b"\n")
        if end >= 0:
            before = chunk.rfind(b"\n", 0, end)
            last_start = position + before + 1 if before >= 0 else stop
            stop = position + end + 1
            if stop - cuts[-1] >= TASK_BYTES:
                cuts.append(stop)
        position += len(chunk)
    if not lines:
        return None
    mark = Mark(last=last_start, last_digest=line_digest(data, last_start), first=0, first_digest=name)
    return NewLines(stop, tuple(cut for cut in cuts if cut < stop), lines, mark)


def line_digest(data: BufferedReader, offset: int) -> str:
    """Return the digest of the line that begins there; "" if it is incomplete."""
    data.seek(offset)
    line = data.readline(MAX_LINE_BYTES)
    return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") or len(line) == MAX_LINE_BYTES else ""


class TraceTask(NamedTuple):
    """A task that reads a range of a trace's lines."""

    file: SourceFile
    name: str
    """The digest that identifies the trace."""
    start: int
    stop: int
    source: str
    limits: TimeLimits

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines, cleaned."""
        with paths.open_growing(self.file) as data:
            yield from row_batches(SERVER_COMMANDS, self._rows(data))

    def _rows(self, data: BufferedReader) -> Iterator[tuple[Any, ...]]:
        for offset, line in _lines(data, self.start, self.stop):
            values = Fault(NOT_JSON) if len(line) == MAX_LINE_BYTES else timing.clean_command(line, self.limits)
            if isinstance(values, Fault):
                digest = hashlib.sha256(line).hexdigest()
                identity = f"{self.file.printable_name}:{offset}"
                yield fault_row(SERVER_COMMANDS, (self.name, offset), self.source, values, identity, digest)
            else:
                yield (self.name, offset, *values, self.source, None, None, None)


def _lines(data: BufferedReader, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its offset; of a line longer than MAX_LINE_BYTES, only the beginning."""
    offset = start
    while offset < stop:
        data.seek(offset)
        line = data.readline(MAX_LINE_BYTES)
        yield offset, line
        offset = offset + len(line) if line.endswith(b"\n") else _line_end(data, offset)


def _line_end(data: BufferedReader, offset: int) -> int:
    """Return where the line that begins there ends."""
    data.seek(offset)
    while not (piece := data.readline(MAX_LINE_BYTES)).endswith(b"\n"):
        if not piece:
            raise paths.changed_error(Path(data.name))
    return data.tell()
