"""Reads clients' timing logs, from `wormhole --dump-timing`, and servers' traces; from a file, a folder or a glob.

A file's first character shows its kind: a log is a JSON list, a trace has a JSON object on each line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from restante.pipeline.clean import timing
from restante.pipeline.clean.rules import Fault, TimeLimits, time_limits
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLIENT_EVENTS, SERVER_COMMANDS
from restante.pipeline.sources import paths, traces
from restante.pipeline.sources.paths import SourceFile
from restante.pipeline.sources.rows import fault_row, row_batches
from restante.pipeline.sources.source import IngestContext, PathPreview, Say, Source, SourceSpec, Span, SpanPart, Task
from restante.timing.logs import EventItem, log_items

MAX_LOG_BYTES: Final = 256 << 20
"""Bytes of the largest log that is read, which is read whole: 600,000 events."""

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


class OpenedLogs:
    """Files as they were found. Lines that are appended to a trace later are read by the next run."""

    tables = (SERVER_COMMANDS, CLIENT_EVENTS)

    def __init__(
        self, name: str, server: str | None, files: list[SourceFile], context: IngestContext, say: Say
    ) -> None:
        self._name, self._server, self._say = name, server, say
        self._now = context.now
        self._limits = time_limits(context.first_day, context.latest)
        self._traces: dict[str, SourceFile] = {}
        self._other_files: list[SourceFile] = []
        """All other files that are not empty; they are read as logs."""
        self._logs: dict[str, SourceFile] = {}
        """Digest → new file, as `find_new` found them."""
        self._new_lines: dict[str, traces.NewLines] = {}
        """First line's digest → new lines, as `find_new` found them."""
        for file in files:
            if _kind(file) == "{":
                self._add_trace(file)
            elif file.size:
                self._other_files.append(file)

    def _add_trace(self, file: SourceFile) -> None:
        with paths.open_growing(file) as data:
            name = traces.trace_digest(data)
        if not name and file.size >= traces.MAX_LINE_BYTES:
            self._other_files.append(file)
        elif name and (name not in self._traces or self._traces[name].size < file.size):
            self._traces[name] = file

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Return what is new, or None if nothing is. Raises SourceError."""
        if table == SERVER_COMMANDS.name:
            return self._find_new_lines(marks)
        span, self._logs = paths.find_new_files(table, self._other_files, marks, self._now, _count_events)
        return span

    def _find_new_lines(self, marks: Mapping[str, Mark]) -> Span | None:
        digests: dict[str, str] = {}  # of the lines that were read last; "" if a trace is shorter than it was
        for name in (name for name in self._traces if name in marks):
            with paths.open_growing(self._traces[name]) as data:
                digests[name] = traces.line_digest(data, marks[name].last)
        changed = (name for name, digest in digests.items() if digest not in {"", marks[name].last_digest})
        reason, valid_marks = "", marks
        if rewritten := next(changed, ""):
            path = paths.path_text(self._traces[rewritten].path)
            reason, valid_marks = f"{path} was rewritten: an older copy was put back, or its lines were changed", {}
        lines_by_trace = {}
        for name, file in self._traces.items():
            if name in valid_marks and not digests[name]:
                self._say(f"source {self._name}: {paths.path_text(file.path)} is shorter than it was and is left out")
                continue
            with paths.open_growing(file) as data:
                new = traces.find_new_lines(data, name, file.size, valid_marks.get(name))
            if new is not None:
                lines_by_trace[name] = new
        self._new_lines = lines_by_trace
        if not lines_by_trace:
            return None
        return Span(
            table=SERVER_COMMANDS.name,
            parts=tuple(SpanPart(name, new.cuts[0], new.mark.last) for name, new in lines_by_trace.items()),
            counted=sum(new.lines for new in lines_by_trace.values()),
            marks={**valid_marks, **{name: new.mark for name, new in lines_by_trace.items()}},
            replace=bool(reason),
            reason=reason,
        )

    def tasks(self, span: Span) -> list[Task]:
        """Return the tasks that read the new lines or events."""
        if span.table == SERVER_COMMANDS.name:
            return list(chain.from_iterable(map(self._trace_tasks, span.parts)))
        return [
            LogTask(self._logs[part.name].absolute, part.name, self._server, self._name, self._limits)
            for part in span.parts
        ]

    def _trace_tasks(self, part: SpanPart) -> Iterator[Task]:
        new = self._new_lines[part.name]
        for start, stop in pairwise((*new.cuts, new.stop)):
            yield traces.TraceTask(self._traces[part.name].absolute, part.name, start, stop, self._name, self._limits)


def _count_events(file: SourceFile) -> int:
    if file.size > MAX_LOG_BYTES:
        return 1
    with paths.open_unchanged(file) as data:
        return sum(1 for _ in log_items(data.read()))


class LogTask(NamedTuple):
    """A task that reads a log."""

    file: SourceFile
    digest: str
    """The file's digest."""
    server: str | None
    source: str
    limits: TimeLimits

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the log's events, cleaned."""
        yield from row_batches(CLIENT_EVENTS, self._rows())

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        with paths.open_unchanged(self.file) as data:
            log = data.read(MAX_LOG_BYTES + 1)
        items = log_items(log) if len(log) <= MAX_LOG_BYTES else [EventItem(0, log, LOG_TOO_LARGE)]
        for index, item in enumerate(items):
            values = Fault(item.fault) if item.fault else timing.clean_event(item.raw, self.limits)
            if isinstance(values, Fault):
                digest = hashlib.sha256(item.raw).hexdigest()
                identity = f"{self.file.printable_name}:{item.offset}"
                ids = (self.digest, index, self.server)
                yield fault_row(CLIENT_EVENTS, ids, self.source, values, identity, digest)
            else:
                yield (self.digest, index, self.server, *values, self.source, None, None, None)
