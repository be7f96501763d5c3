"""Sources read by themselves: what their tasks give, without a session in between."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLEAN_TABLES, LIVE
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import IngestContext, Source, Span
from support.pipeline.servers import CONTEXT

Row = dict[str, Any]
Marks = dict[str, dict[str, Mark]]


class SourceRead(NamedTuple):
    """What was new for a table, row by row, if anything was; and the messages about the source."""

    span: Any
    """A Span, or None."""
    rows: list[Row]
    messages: list[str]

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows]

    @property
    def clean(self) -> list[Row]:
        return [row for row in self.rows if row["fault"] is None]

    @property
    def faults(self) -> list[tuple[str, str]]:
        return [(row["identity"], row["fault"]) for row in self.rows if row["fault"] is not None]

    @property
    def marks(self) -> Any:
        return self.span.marks


def read_source(
    spec: str, table: str, scratch: Path, marks: Mapping[str, Mark] | None = None, context: IngestContext = CONTEXT
) -> SourceRead:
    messages: list[str] = []
    with recognise(spec).opened(scratch, messages.append, context) as opened:
        span = opened.find_new(table, marks or {})
        rows = [] if span is None else rows_of(span)
    assert list(scratch.glob("*")) == []  # nothing is left behind
    return SourceRead(span and span._replace(tasks=()), rows, messages)


def read(
    source: Source | str,
    scratch: Path,
    marks: Marks | None = None,
    *,
    context: IngestContext = CONTEXT,
    messages: list[str] | None = None,
) -> dict[str, SourceRead]:
    """Read what is new of the usage records; the marks go on."""
    tables: dict[str, SourceRead] = {}
    marks, messages = {} if marks is None else marks, [] if messages is None else messages
    named = recognise(source) if isinstance(source, str) else source
    with named.opened(scratch, messages.append, context) as opened:
        for name in (table.name for table in opened.tables if table is not LIVE):
            span = opened.find_new(name, marks.get(name, {}))
            if span is not None:
                tables[name] = SourceRead(span._replace(tasks=()), rows_of(span), messages)
                marks[name] = dict(span.marks)
    return tables


def rows_of(span: Span) -> list[Row]:
    """Do the tasks of a span, one after the other; they give as many rows as the source counts."""
    rows = [row for task in span.tasks for batch in task() for row in batch.to_pylist()]
    never_null = [column.name for column in CLEAN_TABLES[span.table].columns if not column.null]
    for row in rows:
        assert (None in map(row.get, never_null)) <= (row["fault"] is not None)
        assert (row["fault"] is None) == (row["identity"] is None) == (row["digest"] is None)
    assert len(rows) == span.counted
    return rows
