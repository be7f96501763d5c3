"""`restante extract`: writes what is new in the databases of a host to the folder of extracts, without Spark.

Nothing is stored on the host. What the folder has says where reading goes on: behind the last id of the newest
generation, if the database is still the one that its mark describes, or else from the first id of a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from restante.common.errors import InUse, Misuse, RestanteError, StoreError
from restante.common.extras import require_extra
from restante.common.texts import counted
from restante.pipeline.clean.rules import OUT_OF_RANGE
from restante.pipeline.schemas import CLEAN_TABLES, LIVE, Table
from restante.pipeline.sources import usage
from restante.pipeline.sources.extract_files import (
    EXTRACT_FORMAT,
    INFO_KEY,
    MAX_ID,
    SECONDS_PER_HOUR,
    ExtractFile,
    ExtractFolder,
    ExtractInfo,
    new_generation,
)
from restante.pipeline.sources.rows import arrow_schema, id_column
from restante.pipeline.sources.source import (
    IngestContext,
    OpenedDatabase,
    Say,
    Source,
    SourceError,
    Span,
    parse_spec,
    read_preview,
    read_twice,
)

MAX_ROWS: Final = 1_000_000
MAX_BYTES: Final = 32 << 20
"""Maximum rows of a file, and bytes of them in memory, where the file is then made, too. More rows go into the next
file."""


class Extracted(NamedTuple):
    """What was written for a table of a source."""

    source: str
    table: str
    files: int
    rows: int
    rejected: int
    """Rows with a fault, which are in the files without their values."""
    missed: int
    """Ids that were assigned and had no row any more."""


def recognise(spec: str) -> Source:
    """Return the database that the operator named. Raises Misuse if the text names none, SourceError."""
    source_spec = parse_spec(spec)
    if source_spec.url:
        return usage.recognise_url(source_spec)
    preview = read_preview(source_spec)
    source: Source | None = usage.recognise(source_spec, preview)
    if source is not None:
        return source
    if preview.sqlite or preview.files:
        try:
            require_extra("waku")
        except Misuse as error:
            raise SourceError(
                f"source {source_spec.name}: {source_spec.path} has no usage records. If it is a Waku archive,"
                f" {error}"
            ) from error
        from restante.pipeline.sources import archive  # needs the extra

        waku_archive = archive.recognise(source_spec, preview)
        if waku_archive is not None:
            return waku_archive
    raise SourceError(
        f"source {source_spec.name}: {source_spec.path} is not a database of usage records or envelopes: name a"
        " server's database or its data directory. Logs and files of envelopes are copied as they are"
    )


def extract(
    specs: Sequence[str],
    folder: ExtractFolder,
    scratch: Path,
    now: float,
    say: Say,
) -> Iterator[Extracted | str | RestanteError]:
    """Write what is new in the sources, and yield what was written for each table.

    A text says why nothing was written for a source. An error is one of a source; the others are read: SourceError,
    StoreError if its extracts cannot be read or written, InUse if another process is writing them.
    """
    sources = []
    for spec in specs:
        try:
            sources.append(recognise(spec))
        except SourceError as error:
            yield error
    errors = read_twice(sources)
    for source in sources:
        if source.name in errors:
            yield errors[source.name]
            continue
        try:
            with folder.locked(source.name):
                context = IngestContext(now)
                yield from _SourceExtract(source, folder, scratch, context, say).write()
        except (SourceError, StoreError, InUse) as error:
            yield error


class _Newest(NamedTuple):
    """The newest extract of a table that can be read."""

    extract: ExtractFile
    info: ExtractInfo


class _SourceExtract:
    """What a run writes for one source."""

    def __init__(
        self, source: Source, folder: ExtractFolder, scratch: Path, context: IngestContext, say: Say
    ) -> None:
        self._source, self._folder, self._scratch, self._say = source, folder, scratch, say
        self._now = context.now
        files = folder.files(source.name)
        tables = {extract.table for extract in files}
        if tables and tables.isdisjoint(table.name for table in source.feeds):
            raise SourceError(
                f"source {source.name}: {source.path} is of another kind ({source.kind}) than the extracts of that"
                f" name, which are of {', '.join(sorted(tables))}: give it a name of its own"
            )
        self._newest: dict[str, _Newest] = {}
        self._last_live = max((extract.last for extract in files if extract.table == LIVE.name), default=0)
        self._last_generations = {extract.table: extract.generation for extract in files}  # they are in order
        for table in sorted(tables):
            newest = self._find_newest([extract for extract in files if extract.table == table])
            if newest is not None:
                self._newest[table] = newest

    def _find_newest(self, files: Sequence[ExtractFile]) -> _Newest | None:
        for extract in reversed(files):
            info = self._folder.info(extract)
            if info is not None:
                return _Newest(extract, info)
            self._say(
                f"source {self._source.name}: {self._folder.path_text(extract.path)} is damaged and does not count:"
                " its rows are written again if they are still in the database. Remove it"
            )
        return None

    def write(self) -> Iterator[Extracted | str]:
        """Write what is new, unless all that was new in this hour was written already."""
        infos, hour = [newest.info for newest in self._newest.values()], self._now // SECONDS_PER_HOUR
        if any(info.complete and info.written // SECONDS_PER_HOUR == hour for info in infos):
            following = datetime.fromtimestamp((hour + 1) * SECONDS_PER_HOUR, UTC)
            yield f"{self._source.name}: written in this hour; what is new is written after {following:%H:%M} UTC"
            return
        last_commit = max((info.written for info in infos), default=0.0)
        context = IngestContext(self._now, last_commit=last_commit)
        with self._source.opened(self._scratch, self._say, context) as source:
            opened = cast("OpenedDatabase", source)
            spans = [span for table in opened.tables if (span := self._find_new(opened, table))]
            for span in spans:
                yield self._write_table(opened, span, context, complete=span is spans[-1])
        if not spans:
            yield f"{self._source.name}: nothing new"

    def _find_new(self, opened: OpenedDatabase, table: Table) -> Span | None:
        newest = self._newest.get(table.name)
        span = opened.find_new(table.name, {"": newest.info.mark} if newest else {})
        return span if span and (span.counted or table is LIVE) else None

    def _write_table(
        self, opened: OpenedDatabase, span: Span, context: IngestContext, *, complete: bool
    ) -> Extracted:
        """Write what is new of a table. `complete`: it is the last one of its source that has something new."""
        table, newest = CLEAN_TABLES[span.table], self._newest.get(span.table)
        generation = new_generation(self._now, self._last_generations.get(span.table, ""))
        before, replaced = "", False
        if newest is not None and span.reason:
            replaced = True
            self._say(
                f"source {self._source.name}: {table.name} is written again from the beginning, as generation"
                f" {generation}: {span.reason}"
            )
        elif newest is not None:
            generation, before = newest.extract.generation, newest.info.mark.last_digest
            replaced = newest.info.replaced
        first, read, infos = span.first_id, 0, list[ExtractInfo]()
        for batches, is_last in _batches_of_files(chain.from_iterable(task() for task in span.tasks)):
            rows = pa.Table.from_batches(batches, arrow_schema(table))
            read += rows.num_rows
            if is_last and read != span.counted:
                raise SourceError(
                    f"source {self._source.name}: {table.name} counts {counted(span.counted, 'row')}, but {read:,}"
                    " could be read. The file is damaged, or was changed by hand: check it"
                )
            self._check_clock(rows, table, context)
            if table is LIVE:
                first = last = self._last_live + 1
                mark, missed = span.marks[""], 0
            else:
                last = rows.column(id_column(table))[-1].as_py()
                mark, missed = opened.mark_at(span, last), last - first + 1 - rows.num_rows
            info = ExtractInfo(
                format=EXTRACT_FORMAT,
                written=self._now,
                rows=rows.num_rows,
                rejected=rows.num_rows - rows.column("fault").null_count,
                missed=missed,
                mark=mark,
                before=before,
                replaced=replaced,
                complete=complete and is_last,
            )
            day = datetime.fromtimestamp(self._now, UTC).date()
            self._add(rows, ExtractFile(self._source.name, table.name, generation, day, first, last), info)
            infos.append(info)
            first, before = last + 1, mark.last_digest
        rejected, missed = sum(info.rejected for info in infos), sum(info.missed for info in infos)
        return Extracted(self._source.name, table.name, len(infos), read, rejected, missed)

    def _check_clock(self, rows: pa.Table, table: Table, context: IngestContext) -> None:
        """Raise SourceError if rows have a fault that may be that of our clock."""
        out_of_range = pc.sum(pc.equal(rows.column("fault"), OUT_OF_RANGE)).as_py()
        if out_of_range and context.set_back:
            raise SourceError(
                f"source {self._source.name}: the times of {counted(out_of_range, 'row')} of {table.name}"
                " are out of range, perhaps only by this machine's clock, which was set back since the last"
                " extract. They were not written: set the clock, and run this again"
            )

    def _add(self, rows: pa.Table, extract: ExtractFile, info: ExtractInfo) -> None:
        """Add an extract to the folder. Raises StoreError, or SourceError if it cannot have its name."""
        if extract.last > MAX_ID:
            raise SourceError(
                f"source {self._source.name}: an extract of {extract.table} has the last number: remove it"
            )
        content = pa.BufferOutputStream()
        with pq.ParquetWriter(content, rows.schema, compression="zstd", store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({INFO_KEY: msgspec.json.encode(info)})
        self._folder.add(content.getvalue(), extract)


def _batches_of_files(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[pa.RecordBatch], bool]]:
    """Yield the batches that go into each file, and whether it is the last one. Without batches there is one file."""
    of_file: list[pa.RecordBatch] = []
    rows = bytes_ = 0
    for batch in batches:
        if of_file and (rows + batch.num_rows > MAX_ROWS or bytes_ + batch.nbytes > MAX_BYTES):
            yield of_file, False
            of_file, rows, bytes_ = [], 0, 0
        of_file.append(batch)
        rows += batch.num_rows
        bytes_ += batch.nbytes
    yield of_file, True
