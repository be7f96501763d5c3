"""Reads Waku archives: the envelopes that have arrived since the mark.

Arrival numbers are assigned in the order of commits and never reused (restante/waku/archive/sql), so reading goes on
behind the last one. Envelopes that were pruned before they were read are missed. If another archive is found, or an
older copy of the same one, all of it is read. The lake keeps the rows that it has, because an archive prunes old
envelopes and the lake exists to keep them. If an envelope is read twice, `build` chooses the copy that counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from restante.pipeline.clean import rules
from restante.pipeline.clean.envelopes import StoredValues
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import ARCHIVED, SOURCE_KIND_ARCHIVE
from restante.pipeline.sources import archived, paths
from restante.pipeline.sources.archived import EnvelopeBatch, Origin
from restante.pipeline.sources.databases import (
    CopyFile,
    SqliteDatabase,
    copy_file,
    database_path,
    open_sqlite,
    reading,
    task_ranges,
)
from restante.pipeline.sources.marks import RECENT_ROWS, IdRange, contradiction
from restante.pipeline.sources.source import (
    IngestContext,
    PathPreview,
    Say,
    Source,
    SourceError,
    SourceSpec,
    Span,
    Task,
)
from restante.waku.envelope.envelope import U32

ARCHIVE_FILE: Final = "archive.sqlite"
"""The archive's file in a Mailserver's data directory (restante.waku.archive.schema, which is not imported: sources
only know the formats of files)."""

ARCHIVE_APPLICATION_ID: Final = 0x52737441
"""SQLite's application id of that file (restante.waku.archive.schema)."""

SCHEMA_VERSIONS: Final = (1, 2)
"""The versions of its schema that can be read. The tables that are read are the same in both."""

READ_COLUMNS: Final = {
    "arrivals": {"arrival", "id", "arrived"},
    "envelopes": {"id", "topic", "arrival", "raw"},
    "totals": {"next_arrival", "envelopes", "bytes"},
}
"""Table → the columns that are read."""

ROW_BYTES: Final = 64
"""Bytes of a copied row in addition to its envelope, rounded up."""

ENVELOPES_PER_TASK: Final = 50_000
"""Envelopes that one task verifies: half a second of work, so that every core has tasks."""

_CREATE_COPY: Final = """
CREATE TABLE copy.copied (
    arrival INTEGER PRIMARY KEY, id INTEGER NOT NULL, arrived INTEGER NOT NULL, topic INTEGER, raw BLOB
) STRICT
"""

_ARRIVALS: Final = """
SELECT arrivals.arrival, arrivals.id, arrivals.arrived, envelopes.topic, envelopes.raw
FROM main.arrivals LEFT JOIN main.envelopes USING (id, arrival) WHERE arrivals.arrival BETWEEN ? AND ?
ORDER BY arrivals.arrival LIMIT ?
"""


def recognise(spec: SourceSpec, preview: PathPreview) -> Source | None:
    """Return the source if the path is one of our archives. Raises SourceError."""
    path = database_path(spec, preview, (ARCHIVE_FILE,))
    if path is None:
        return None
    with reading(path, spec.name) as database:
        [(application,)] = database.execute("PRAGMA application_id")
    if application != ARCHIVE_APPLICATION_ID:
        return None
    spec.refuse_server(f"{path} is a Waku archive")
    inodes, opened = paths.inodes(paths.find_files(path)), partial(_opened, path, spec.name)
    return Source(spec.name, "Waku archive", path, (ARCHIVED,), inodes, opened)


@contextmanager
def _opened(path: Path, name: str, scratch: Path, say: Say, context: IngestContext) -> Iterator[OpenedArchive]:  # noqa: ARG001 - nothing is said
    """Check the archive's schema, and yield a view of it at one moment. Raises SourceError."""
    with copy_file(scratch, name) as copies, open_sqlite(path, copies) as database:
        _check_schema(database.copy, name)
        database.execute("BEGIN")
        yield OpenedArchive(name, database, copies, context)


class OpenedArchive:
    """An archive as it is at one moment."""

    tables = (ARCHIVED,)

    def __init__(self, name: str, database: SqliteDatabase, copies: CopyFile, context: IngestContext) -> None:
        self._name, self._database, self._copies, self._context = name, database, copies, context
        # The first SELECT after BEGIN fixes what the transaction sees (sqlite.org/isolation.html).
        totals = database.execute("SELECT next_arrival, envelopes, bytes FROM totals").fetchall()
        if len(totals) != 1:
            raise SourceError(f"source {name}: the archive is damaged: run `restante waku check` for details")
        [(next_arrival, envelopes, bytes_)] = totals
        self._mean_bytes: int = bytes_ // max(envelopes, 1)
        self._rows = _Arrivals(database.copy)
        ends = database.execute("SELECT min(arrival), max(arrival) FROM arrivals").fetchone()
        min_arrival, max_arrival = (end or 0 for end in ends)
        self._ids = IdRange(min_arrival, max(next_arrival - 1, max_arrival), never_reused=True)

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Return what is new, or None if nothing is. Raises SourceError."""
        mark = marks.get("")
        reason = contradiction(mark, self._ids, self._rows) if mark else ""
        if reason:
            mark = None  # all is read again
        start = mark.last if mark else 0
        last_arrival = self._ids.last_id
        if start == last_arrival and not reason:
            return None
        counted, first_arrival = self._database.execute(
            "SELECT count(*), coalesce(min(arrival), 0) FROM arrivals WHERE arrival > ?", (start,)
        ).fetchone()
        if mark and mark.first_digest:
            first_arrival, first_digest = mark.first, mark.first_digest
        else:
            first_digest = self._rows.digest(first_arrival)
        return Span(
            table=table,
            counted=counted,
            tasks=self._copied(start + 1, counted, first_digest) if counted else (),
            missed=last_arrival - start - counted,
            reason=f"{reason}; the rows that the lake has of it stay" if reason else "",
            marks={"": self._mark(Mark(0, "", first_arrival, first_digest), last_arrival)},
            envelope_bytes=counted * self._mean_bytes,
        )

    def _copied(self, first_arrival: int, counted: int, first_digest: str) -> Iterator[Task]:
        """Copy the new envelopes, and yield the tasks that read and verify them."""
        self._copies.require_space(counted * (self._mean_bytes + ROW_BYTES))
        self._database.execute(_CREATE_COPY)
        self._database.copy_range("copied", _ARRIVALS, first_arrival, self._ids.last_id)
        self._database.execute("COMMIT")  # the server may reset its log again
        origin = Origin(self._name, SOURCE_KIND_ARCHIVE, first_digest, "")
        database, last = self._database.copy, self._ids.last_id
        for arrivals in task_ranges(database, "copy.copied", first_arrival, last, ENVELOPES_PER_TASK):
            yield partial(read_copy, str(self._copies.file), *arrivals, origin)

    def mark_at(self, span: Span, last_arrival: int) -> Mark:
        """Return the mark that says that a span was read up to an arrival."""
        return self._mark(span.marks[""], last_arrival)

    def _mark(self, mark: Mark, last: int) -> Mark:
        return structs.replace(mark, last=last, last_digest=self._rows.digest(last), recent=self._rows.recent(last))


class _Arrivals:
    """The arrivals of an archive."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def digest(self, arrival: int) -> str:
        """Return the digest of an arrival, or "" if there is none of that number."""
        select = "SELECT arrival, id, arrived FROM arrivals WHERE arrival = ?"
        row = self._database.execute(select, (arrival,)).fetchone()
        return "" if row is None else rules.row_digest(row)

    def recent(self, last_arrival: int) -> dict[int, str]:
        """Return digests of the times of the last RECENT_ROWS arrivals up to one, by number."""
        select = "SELECT arrival, arrived * 1000000 FROM arrivals WHERE arrival <= ? ORDER BY arrival DESC LIMIT ?"
        arrivals = self._database.execute(select, (last_arrival, RECENT_ROWS))
        return {arrival: rules.value_digest([microseconds]) for arrival, microseconds in arrivals}


def _check_schema(database: sqlite3.Connection, name: str) -> None:
    [(version,)] = database.execute("PRAGMA main.user_version")
    if version not in SCHEMA_VERSIONS:
        raise SourceError(
            f"source {name}: it has schema {version}, this program knows up to {SCHEMA_VERSIONS[-1]}:"
            " use a newer restante"
        )
    for table, expected in READ_COLUMNS.items():
        present = {row[0] for row in database.execute("SELECT name FROM pragma_table_info(?, 'main')", (table,))}
        for column in sorted(expected - present):
            raise SourceError(f"source {name}: table {table} has no column {column}")


def read_copy(copy: str, first_arrival: int, last_arrival: int, origin: Origin) -> Iterator[pa.RecordBatch]:
    """Yield a range of the copied envelopes, verified."""
    select = "SELECT arrival, id, arrived, topic, raw FROM copied WHERE arrival BETWEEN ? AND ? ORDER BY arrival"
    with closing(sqlite3.connect(copy)) as database:
        arrivals = database.execute(select, (first_arrival, last_arrival))
        for rows in archived.group_rows(arrivals, lambda row: len(row[4] or b"")):
            yield archived.verify_batch(_envelope_batch(rows), origin)


def _envelope_batch(rows: list[tuple[Any, ...]]) -> EnvelopeBatch:
    arrivals, ids, arrived, topics, raws = zip(*rows, strict=True)
    arrival_times = np.array(arrived, np.int64)
    numbers = np.array([-1 if topic is None else topic & U32 for topic in topics], np.int64)
    stored = StoredValues(latest=arrival_times, topics=numbers, ids=np.array(ids, np.int64))
    return EnvelopeBatch([raw or b"" for raw in raws], np.array(arrivals, np.int64), arrival_times, stored)
