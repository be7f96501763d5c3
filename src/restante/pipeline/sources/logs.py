"""Reads clients' timing logs, from `wormhole --dump-timing`, and servers' traces; from a file, a folder or a glob.

A file's first character shows its kind: a log is a JSON list, a trace has a JSON object on each line.

A server appends lines to its trace. When the file is moved away, it starts a new one. A trace is identified by its
first line, whatever its name; a line by its offset. A line without its end is left for the next run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from restante.pipeline.clean import timing
from restante.pipeline.clean.rules import Faulty, TimeLimits, time_limits
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLIENT_EVENTS, SERVER_COMMANDS
from restante.pipeline.sources import paths
from restante.pipeline.sources.paths import SourceFile
from restante.pipeline.sources.rows import fault_row, row_batches
from restante.pipeline.sources.source import IngestContext, PathPreview, Say, Source, SourceSpec, Span, Task
from restante.timing.logs import NOT_JSON, EventItem, log_items

MAX_LOG_BYTES: Final = 256 << 20
"""Bytes of the largest log that is read, which is read whole: 600,000 events."""

MAX_LINE_BYTES: Final = 1 << 16
"""Bytes of a line that are read; a server's lines have about 200."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read at a time."""

TASK_BYTES: Final = 16 << 20
"""Approximate number of bytes that one task reads: a second of work, so that every core has tasks."""

LOG_TOO_LARGE: Final = "larger than any timing log"


def recognise(spec: SourceSpec, preview: PathPreview) -> Source | None:
    """Return the source if the path is a log or a trace, or a folder or glob with one. Raises SourceError.

    An empty file counts as one that has not been written to yet.
    """
    if preview.sqlite:
        return None
    files = paths.find_files(spec.path)
    has_content = any(file.size and _kind(file) for file in files)
    if not has_content and all(file.size for file in files):
        return None
    return Source(
        spec.name,
        "timing logs or traces",
        spec.path,
        # A trace is empty just after rotation. A log is written at once, so it is never empty after it had content.
        (SERVER_COMMANDS, CLIENT_EVENTS) if has_content else (SERVER_COMMANDS,),
        paths.inodes(files) if has_content else frozenset(),
        partial(_opened, spec),
        is_database=False,
        empty=not has_content,
    )


def _kind(file: SourceFile) -> str:
    """Return "[" for a log, "{" for a trace or an empty file, and "" for neither."""
    first_byte = paths.read_head(file).lstrip()[:1] if file.size else b"{"
    return first_byte.decode() if first_byte in {b"[", b"{"} else ""


@contextmanager
def _opened(spec: SourceSpec, scratch: Path, say: Say, context: IngestContext) -> Iterator[OpenedLogs]:  # noqa: ARG001 - nothing is copied
    yield OpenedLogs(spec.name, spec.server, paths.files_to_read(spec.name, spec.path, say), context, say)


class _NewLines(NamedTuple):
    """The complete lines of a trace that were not read yet."""

    cuts: tuple[int, ...]
    """Where tasks begin, and where the last line ends."""
    lines: int
    mark: Mark


class OpenedLogs:
    """Files as they were found. Lines that are appended to a trace later are read by the next run."""

    tables = (SERVER_COMMANDS, CLIENT_EVENTS)

    def __init__(
        self, name: str, server: str | None, files: list[SourceFile], context: IngestContext, say: Say
    ) -> None:
        self._name, self._server, self._say = name, server, say
        self._now = context.now
        self._limits = time_limits(context.latest)
        self._traces: dict[str, SourceFile] = {}
        self._other_files: list[SourceFile] = []
        """All other files that are not empty; they are read as logs."""
        for file in files:
            if _kind(file) == "{":
                self._add_trace(file)
            elif file.size:
                self._other_files.append(file)

    def _add_trace(self, file: SourceFile) -> None:
        with paths.open_growing(file) as data:
            name = _trace_digest(data)
        if not name and file.size >= MAX_LINE_BYTES:
            self._other_files.append(file)
        elif name and (name not in self._traces or self._traces[name].size < file.size):
            self._traces[name] = file

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Return what is new, or None if nothing is. Raises SourceError."""
        if table == SERVER_COMMANDS.name:
            return self._find_new_lines(marks)
        return paths.find_new_files(table, self._other_files, marks, self._now, _count_events, self._log_task)

    def _log_task(self, file: SourceFile, digest: str) -> Task:
        return partial(row_batches, CLIENT_EVENTS, read_log, file, digest, self._server, self._name, self._limits)

    def _find_new_lines(self, marks: Mapping[str, Mark]) -> Span | None:
        digests: dict[str, str] = {}  # of the lines that were read last; "" if a trace is shorter than it was
        for name in (name for name in self._traces if name in marks):
            with paths.open_growing(self._traces[name]) as data:
                digests[name] = _line_digest(data, marks[name].last)
        changed = (name for name, digest in digests.items() if digest not in {"", marks[name].last_digest})
        reason, valid_marks = "", marks
        if rewritten := next(changed, ""):
            path = paths.path_text(self._traces[rewritten].path)
            reason, valid_marks = f"{path} was rewritten: an older copy was put back, or its lines were changed", {}
        new_lines: dict[str, _NewLines] = {}
        tasks: list[Task] = []
        for name, file in self._traces.items():
            if name in valid_marks and not digests[name]:
                self._say(f"source {self._name}: {paths.path_text(file.path)} is shorter than it was and is left out")
                continue
            with paths.open_growing(file) as data:
                new = _find_new_lines(data, name, file.size, valid_marks.get(name))
            if new is not None:
                new_lines[name] = new
                read = partial(row_batches, SERVER_COMMANDS, read_trace, file.absolute, name)
                tasks += [partial(read, *ends, self._name, self._limits) for ends in pairwise(new.cuts)]
        if not new_lines:
            return None
        return Span(
            table=SERVER_COMMANDS.name,
            counted=sum(new.lines for new in new_lines.values()),
            marks={**valid_marks, **{name: new.mark for name, new in new_lines.items()}},
            tasks=tasks,
            replace=bool(reason),
            reason=reason,
        )


def _count_events(file: SourceFile) -> int:
    if file.size > MAX_LOG_BYTES:
        return 1
    with paths.open_unchanged(file) as data:
        return sum(1 for _ in log_items(data.read()))


def read_log(
    file: SourceFile, file_digest: str, server: str | None, source: str, limits: TimeLimits
) -> Iterator[tuple[Any, ...]]:
    """Yield a log's events, cleaned."""
    with paths.open_unchanged(file) as data:
        log = data.read(MAX_LOG_BYTES + 1)
    items = log_items(log) if len(log) <= MAX_LOG_BYTES else [EventItem(0, log, LOG_TOO_LARGE)]
    for index, item in enumerate(items):
        ids = (file_digest, index, server)
        try:
            if item.fault:
                raise Faulty(item.fault)  # noqa: TRY301
            yield (*ids, *timing.clean_event(item.raw, limits), source, None, None, None)
        except Faulty as fault:
            yield fault_row(CLIENT_EVENTS, ids, source, fault, f"{file.printable_name}:{item.offset}", item.raw)


def _trace_digest(data: BufferedReader) -> str:
    """Return the digest that identifies a trace; "" if its first line is incomplete, or too long for a trace."""
    data.seek(0)
    line = data.readline(MAX_LINE_BYTES)
    return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") else ""


def _find_new_lines(data: BufferedReader, name: str, size: int, mark: Mark | None) -> _NewLines | None:
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
    mark = Mark(last=last_start, last_digest=_line_digest(data, last_start), first=0, first_digest=name)
    return _NewLines((*(cut for cut in cuts if cut < stop), stop), lines, mark)


def _line_digest(data: BufferedReader, offset: int) -> str:
    """Return the digest of the line that begins there; "" if it is incomplete."""
    data.seek(offset)
    line = data.readline(MAX_LINE_BYTES)
    return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") or len(line) == MAX_LINE_BYTES else ""


def read_trace(
    file: SourceFile, name: str, start: int, stop: int, source: str, limits: TimeLimits
) -> Iterator[tuple[Any, ...]]:
    """Yield the lines of a trace between two offsets, cleaned. `name` is the digest that identifies the trace."""
    with paths.open_growing(file) as data:
        for offset, line in _lines(data, start, stop):
            try:
                if len(line) == MAX_LINE_BYTES:
                    raise Faulty(NOT_JSON)  # noqa: TRY301
                yield (name, offset, *timing.clean_command(line, limits), source, None, None, None)
            except Faulty as fault:
                identity = f"{file.printable_name}:{offset}"
                yield fault_row(SERVER_COMMANDS, (name, offset), source, fault, identity, line)


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
