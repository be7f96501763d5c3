"""Reads the extracts of all hosts: which files are new, what they say about themselves, and their rows.

Files come from other machines, in any order, and some more than once. So those of a generation are read as far as
each begins where another ends, and rows that the lake has are left out by their ids. Names are only parsed, and rows
are checked where Spark reads them: a host can write what it likes.

A source's mark is the same as if its database were read in place, with the generation and the number of the last
file in `seen`. So a source may change from one to the other. If a host or a database was restored from a backup, ids
were given a second time. So a file that does not show that it continues the rows that the lake has is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from restante.common import transfer_records, usage_records
from restante.common.errors import plain
from restante.pipeline.clean import rules
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.lake.data_files import native_file
from restante.pipeline.lake.url_path import LakePath, UrlPath, error_text, spark_path
from restante.pipeline.schemas import (
    ARCHIVED,
    CLIENT_VERSIONS,
    FIRST_DAY,
    LIVE,
    LIVE_LISTENER,
    LIVE_MAILBOX,
    LIVE_NAMEPLATE,
    MAILBOXES,
    MAX_TEXT_CHARACTERS,
    MICROSECONDS,
    NAMEPLATES,
    RELAY_TRANSFERS,
    SOURCE_KIND_ARCHIVE,
    Table,
)
from restante.pipeline.sources import rows
from restante.pipeline.sources.extract_files import (
    GENERATION,
    Damaged,
    ExtractFile,
    ExtractInfo,
    parse_path,
    read_footer,
)
from restante.pipeline.sources.marks import changed_ids
from restante.pipeline.sources.source import DUPLICATE, SOURCE_NAME, IngestContext, SourceError, Span
from restante.pipeline.spark.small_jobs import one_task
from restante.waku.files.parquet import MAX_EXPANSION, MAX_ROWS_PER_BYTE, UNSUSPICIOUS_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = (LIVE, NAMEPLATES, MAILBOXES, CLIENT_VERSIONS, RELAY_TRANSFERS, ARCHIVED)
"""The tables that extracts have, in the order in which they are read."""

MAX_ENTRIES: Final = 10_000
"""Maximum entries of one folder: sources, generations, days, or files of a day."""

MAX_FILES: Final = 100_000
"""Files of a table that a run reads, and each source has the same share: with 40 sources, those of a hundred days
with one file an hour. The next run reads more."""

FOOTERS_AT_ONCE: Final = 16
"""Footers that are read at once: at a URL each is a request or two, for which a thread waits."""

READ_DAYS: Final = 3
"""Days in a row whose files were all read, and before which no day is looked at: hosts' clocks are set back, too."""

CLOCK_DIFFERENCE: Final = timedelta(days=2)
"""How much later than our clock a row may be. Its host has compared it with its own, and allows a day."""

_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

_KNOWN_VALUES: Final[Mapping[str, tuple[str, Collection[str]]]] = {
    NAMEPLATES.name: ("result", usage_records.RESULTS),
    MAILBOXES.name: ("result", usage_records.RESULTS),
    RELAY_TRANSFERS.name: ("result", transfer_records.RESULTS),
    LIVE.name: ("kind", (LIVE_NAMEPLATE, LIVE_MAILBOX, LIVE_LISTENER)),
    ARCHIVED.name: ("source_kind", (SOURCE_KIND_ARCHIVE,)),
}
"""Table → a column, and the values that it may have."""


class NewFile(NamedTuple):
    """A file that is read."""

    name: str
    """Its path below the folder of all extracts."""
    path: LakePath
    size: int
    """In bytes."""
    after: int | None = None
    """Rows up to this id are left out, because other files have them. None: no row."""


class NewExtracts(NamedTuple):
    """The new rows of a source for a table."""

    source: str
    span: Span
    files: tuple[NewFile, ...]
    rejected: int
    """Those of them that have a fault."""


def sources_of(folder: LakePath) -> list[str]:
    """Return the names of the sources that the folder has. Raises SourceError."""
    try:
        exists = folder.exists() if isinstance(folder, UrlPath) else folder.is_dir()
    except FileNotFoundError:  # the bucket
        exists = False
    except OSError as error:
        raise _unreadable(folder, error) from error
    if not exists:
        raise SourceError(
            f"--extracts {folder}: there is no such folder: name the one with the extracts of all hosts"
        )
    return _folders(folder, SOURCE_NAME)


def tables_of(folder: LakePath, source: str) -> list[Table]:
    """Return the tables of which the folder has extracts of a source. Raises SourceError."""
    names = _folders(folder / source, re.compile("[a-z_]+"))
    return [table for table in TABLES if table.name in names]


def find_new(
    folder: LakePath, source: str, table: Table, mark: Mark | None, context: IngestContext, max_files: int
) -> tuple[NewExtracts | None, str]:
    """Return what is new of a source since its mark, or None; and what is not read yet, and why, or "".

    Raises SourceError.
    """
    listing = _Listing(folder, source, table, datetime.fromtimestamp(context.latest, UTC).date())
    generations = _folders(folder / source / table.name, GENERATION)
    while generations and not listing.has_files(generations[-1]):
        generations.pop()
    if not generations:
        return None, ""
    newest, reason = generations[-1], ""
    known = _known(listing, newest, mark)
    reads_all = not known.last or table is LIVE or (table is ARCHIVED and known.generation)
    if known.generation != newest and not reads_all:
        last = max(listing.files(newest, 0), key=lambda file: file.last, default=None)
        if last is None:  # it has just been removed
            return None, ""
        info, _ = _read_footer(listing, last)
        if known.generation and info.replaced:
            reason = "its database was replaced"
        elif (known.generation and last.last < known.last) or (
            last.last == known.last and info.mark.last_digest not in {"", known.digest}
        ):
            raise _not_continued(listing, last, known)
        else:  # its host has lost its extracts, or it was read in place
            known = known._replace(generation=newest, unsure=True)
    chain, waiting = _chain(listing, generations, known)
    if len(chain) > max_files:
        waiting = (
            f"source {source}: {len(chain) - max_files:,} more extracts of {table.name} are read by the next run"
        )
        chain = chain[:max_files]
    if not chain:
        return None, waiting
    return _new_rows(listing, chain, known, reason), waiting


class _Known(NamedTuple):
    """What the lake has of a source."""

    generation: str
    """The newest generation of which it has rows; "": none of its extracts."""
    last: int
    """The number up to which it has them."""
    digest: str = ""
    """Of the last row (Mark.last_digest)."""
    recent: Mapping[int, str] = {}
    """Of the last few rows (Mark.recent)."""
    in_place: bool = False
    """Whether they were read in place."""
    unsure: bool = False
    """Whether the host has not compared its database with them."""


def _known(listing: _Listing, newest: str, mark: Mark | None) -> _Known:
    """Return what the lake has of a source. Raises SourceError if `newest`, the newest generation, is older."""
    if mark is None or (not mark.seen and listing.table is LIVE):
        return _Known("", 0)
    generation, number = [*mark.seen.split("/"), ""][:2]
    if generation > newest:
        raise SourceError(
            f"source {listing.source}: the lake has {listing.table.name} of generation {generation} of its extracts,"
            f" and the newest in {listing.folder} is {newest}: put back what was there"
        )
    last = int(number) if number else mark.last
    return _Known(generation, last, mark.last_digest, mark.recent, in_place=not generation)


def _chain(listing: _Listing, generations: Sequence[str], known: _Known) -> tuple[list[tuple[ExtractFile, int]], str]:
    """Return the files that are read, each with the id up to which its rows are left out; and what they wait for."""
    chain: list[tuple[ExtractFile, int]] = []
    for generation in generations:
        # An archive deletes old envelopes, so those of its earlier generations are read, too.
        if generation < (known.generation if listing.table is ARCHIVED else generations[-1]):
            continue
        start = known.last if generation == known.generation else 0
        files = listing.files(generation, start)
        if listing.table is LIVE:
            newest = max(files, key=lambda file: file.last, default=None)
            return ([(newest, 0)] if newest else []), ""
        more, missing = _contiguous(files, start)
        if missing:  # the file with these rows may be in the folder of an earlier day, by a clock that was wrong
            more, missing = _contiguous(listing.files(generation, start, all_days=True), start)
        chain += more
        if missing:
            return chain, (
                f"source {listing.source}: {listing.table.name} with ids {missing[0]} to {missing[1]} of generation"
                f" {generation} have not arrived; they and those behind them are read when they have"
            )
    return chain, ""


class _Listing(NamedTuple):
    """The files of a source and table."""

    folder: LakePath
    source: str
    table: Table
    today: date

    def has_files(self, generation: str) -> bool:
        """Return whether a generation has a file. Raises SourceError."""
        return any(self._by_day(generation))

    def files(self, generation: str, position: int, *, all_days: bool = False) -> list[ExtractFile]:
        """Return the files of a generation that have numbers behind a position. Raises SourceError.

        Days are looked at from the last one on. Those that are read already are not opened, except the latest few,
        unless `all_days` are to be looked at.
        """
        new: list[ExtractFile] = []
        read_days = 0
        for files in self._by_day(generation):
            unread = [file for file in files if file.last > position]
            new += unread
            if unread:
                read_days = 0
            elif files and files[0].day <= self.today:
                read_days += 1
            if read_days == READ_DAYS and not all_days:
                break
        return new

    def _by_day(self, generation: str) -> Iterator[list[ExtractFile]]:
        """Yield the files of each day of a generation, from the last day on."""
        path = f"{self.source}/{self.table.name}/{generation}"
        for day in reversed(_folders(self.folder / path, _DAY)):
            names = _entries(self.folder / path / day, folders=False)
            yield [file for name in names if (file := parse_path(f"{path}/{day}/{name}"))]


def _folders(path: LakePath, pattern: re.Pattern[str]) -> list[str]:
    """Return the names of the folders in a folder, in order."""
    return sorted(name for name in _entries(path, folders=True) if pattern.fullmatch(name))


def _entries(path: LakePath, *, folders: bool) -> list[str]:
    """Return the names of the folders, or of the files, in a folder. Raises SourceError."""
    try:
        if isinstance(path, UrlPath):
            names = path.names(folders=folders)
            count = len(names)
        else:
            with os.scandir(path) as scan:
                entries = list(islice(scan, MAX_ENTRIES + 1))
                is_listed = os.DirEntry.is_dir if folders else os.DirEntry.is_file
                names = [entry.name for entry in entries if is_listed(entry, follow_symlinks=False)]
            count = len(entries)
    except OSError as error:
        raise _unreadable(path, error) from error
    if count > MAX_ENTRIES:
        raise SourceError(f"{path} has more than {MAX_ENTRIES:,} entries: remove what is no extract")
    return names


def _unreadable(path: LakePath, error: OSError) -> SourceError:
    reason = error_text(error) if isinstance(path, UrlPath) else plain(error)
    return SourceError(f"cannot read {path}: {reason}")


def _contiguous(
    files: Sequence[ExtractFile], position: int
) -> tuple[list[tuple[ExtractFile, int]], tuple[int, int] | None]:
    """Return the files with all rows behind a position, each with the id up to which its rows are left out.

    Also return the first and last id that are missing before the next file, or None.
    """
    chain: list[tuple[ExtractFile, int]] = []
    for file in sorted(files, key=lambda file: (file.first, -file.last)):  # the longest of those that begin together
        if file.first > position + 1:
            return chain, (position + 1, file.first - 1)
        if file.last > position:
            chain.append((file, position))
            position = file.last
    return chain, None


def _new_rows(
    listing: _Listing,
    chain: Sequence[tuple[ExtractFile, int]],
    known: _Known,
    reason: str,
) -> NewExtracts:
    table = listing.table
    read = missed = rejected = envelope_bytes = 0
    files = []
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        footers = list(pool.map(lambda link: _read_footer(listing, link[0]), chain))
    for (file, after), (info, new_file) in zip(chain, footers, strict=True):
        overlap = _read_up_to(listing, file, after, known) if file.first <= after else None
        if file.generation == known.generation and table is not LIVE and not _continues(info, known, overlap):
            raise _not_continued(listing, file, known)
        known = _Known(file.generation, file.last, info.mark.last_digest, info.mark.recent)
        read += info.rows
        rejected += info.rejected
        missed += info.missed
        if overlap:
            read -= overlap.rows
            rejected -= overlap.rejected
            missed -= after - file.first + 1 - overlap.rows
        envelope_bytes += new_file.size if table is ARCHIVED else 0
        files.append(new_file._replace(after=after if overlap else None))
    if missed < 0 or rejected < 0:
        raise SourceError(f"source {listing.source}: the counts of {files[-1].path} are wrong: {WRITE_AGAIN}")
    last = chain[-1][0]
    marks = {"": msgspec.structs.replace(info.mark, seen=f"{last.generation}/{last.last}")}
    return NewExtracts(
        listing.source,
        Span(
            table=table.name,
            counted=read,
            missed=missed,
            replace=table is LIVE or bool(reason),
            reason=reason,
            marks=marks,
            envelope_bytes=envelope_bytes,
        ),
        tuple(files),
        rejected,
    )


class _Overlap(NamedTuple):
    """The rows of a file that are left out."""

    rows: int
    rejected: int
    recent: Mapping[int, str]
    """Those of the ids in _Known.recent → the digests of their values."""


def _continues(info: ExtractInfo, known: _Known, overlap: _Overlap | None) -> bool:
    """Return whether a file continues the rows that the lake or the file before it has.

    It has some of the last rows, too, and they are the same. Or it begins with the next row, and its host knows the
    row before that one, or neither knows it, because it was deleted.
    """
    if overlap:
        return bool(overlap.recent) and not changed_ids(known.recent, overlap.recent)
    if info.before and known.digest:
        return info.before == known.digest
    return not known.unsure


def _not_continued(listing: _Listing, file: ExtractFile, known: _Known) -> SourceError:
    return SourceError(
        f"source {listing.source}: {listing.folder / file.path} does not show that it continues the rows of"
        f" {listing.table.name} that the lake has up to id {known.last}. Its database is another one, or it or its"
        " host was restored from a backup, or it has deleted these rows: "
        + ("read it with --source once more, write an extract, and run this again" if known.in_place else _PUT_BACK)
    )


_PUT_BACK: Final = (
    "remove this file and later ones here and there, and copy its other extracts from here to its host's folder."
    " `restante extract` then finds out which rows are new"
)

WRITE_AGAIN: Final = "copy the file again, or remove it and the later ones of its source, here and there"
"""What to do about a file that cannot be read."""


def _read_footer(listing: _Listing, file: ExtractFile) -> tuple[ExtractInfo, NewFile]:
    """Return what a file says about itself, and the file. Raises SourceError."""
    path, source = listing.folder / file.path, listing.source
    try:
        with native_file(path) as opened:
            size = opened.size()
            info, metadata, schema = read_footer(opened, file, str(path))
    except Damaged as error:
        raise SourceError(f"source {source}: {path} {error}: {WRITE_AGAIN}") from error
    except OSError as error:
        raise SourceError(_unreadable(path, error).with_source(source)) from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # Not of its columns: at a damaged one pyarrow ends the process (26.0.1: RowGroupMetaData.column).
    expanded = sum(group.total_byte_size for group in groups)
    expected = rows.arrow_schema(listing.table)
    added = {column.name for column in listing.table.columns if column.added}
    types = dict(zip(schema.names, schema.types, strict=True))
    needed = {field.name: field.type for field in expected if field.name in types or field.name not in added}
    if len(types) != len(schema.names) or types != needed:
        raise SourceError(f"source {source}: {path} does not have the columns of {file.table}: {WRITE_AGAIN}")
    if (
        sum(group.num_rows for group in groups) != info.rows
        or not 0 <= info.rejected <= info.rows <= MAX_ROWS_PER_BYTE * size
        or expanded > max(MAX_EXPANSION * size, UNSUSPICIOUS_BYTES)
        or info.missed < 0
        or info.missed != (0 if listing.table is LIVE else file.last - file.first + 1 - info.rows)
    ):
        raise SourceError(f"source {source}: the counts of {path} are wrong: {WRITE_AGAIN}")
    return info, NewFile(file.path, path, size)


def _read_up_to(listing: _Listing, file: ExtractFile, last: int, known: _Known) -> _Overlap:
    """Return what the rows of a file with ids up to `last` are. Raises SourceError."""
    table, path, count, rejected = listing.table, listing.folder / file.path, 0, 0
    names = ["arrived"] if table is ARCHIVED else [rule.column for rule in rules.RULES[table.name]]
    recent: dict[int, str] = {}
    try:
        # A text that many rows have is in memory once.
        with native_file(path) as opened, pq.ParquetFile(opened, read_dictionary=["fault", *names]) as parquet:
            for batch in parquet.iter_batches(columns=[rows.id_column(table), "fault", *names]):
                before = batch.filter(pc.less_equal(batch.column(rows.id_column(table)), last))
                faults = before.column("fault")
                count += before.num_rows
                rejected += before.num_rows - faults.null_count
                marked = pc.is_in(before.column(rows.id_column(table)), pa.array(list(known.recent), pa.int64()))
                same = before.filter(pc.and_(marked, faults.is_null()))
                columns = [same.column(name) for name in names]
                columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
                values = zip(*(column.to_pylist() for column in columns), strict=True)
                ids = same.column(rows.id_column(table)).to_pylist()
                recent.update(zip(ids, map(rules.value_digest, values), strict=True))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"source {listing.source}: {path} cannot be read: {WRITE_AGAIN}") from error
    return _Overlap(count, rejected, recent)


def read(spark: SparkSession, table: Table, new: Sequence[NewExtracts], context: IngestContext) -> DataFrame:
    """Return the new rows of some sources, with the columns of restante.pipeline.sources.rows and `broken`.

    `broken` is the rule of the lake that a row breaks, or NULL. Of a source that writes extracts with our program no
    row breaks one.
    """
    from pyspark.sql import functions as f

    files = [file for of_source in new for file in of_source.files]
    frame = spark.read.schema(rows.ddl(table)).parquet(*(spark_path(file.path) for file in files))
    frame = one_task(frame.select("*", f.expr("substring_index(_metadata.file_path, '/', -5)").alias("extract")))
    after = [{"extract": file.name, "after": file.after} for file in files if file.after is not None]
    if after:
        left_out = one_task(spark.createDataFrame(pa.Table.from_pylist(after)))
        frame = frame.join(f.broadcast(left_out), "extract", "left")
        frame = frame.where(f"after IS NULL OR coalesce({rows.id_column(table)} > after, true)")
    broken = f.lit(None).cast("string")
    for rule, condition in reversed(row_rules(table, context).items()):
        broken = f.when(~f.coalesce(f.expr(condition), f.lit(False)), rule).otherwise(broken)
    return frame.withColumn("broken", broken)


def row_rules(table: Table, context: IngestContext) -> dict[str, str]:
    """Return the conditions that all rows fulfil, as SQL, by what is said of a row that does not."""
    clean: dict[str, list[str]] = {"a value is missing": [], "a number is out of range": []}
    limits = rules.time_limits(context.latest)
    latest = datetime.fromtimestamp(context.latest, UTC).date() + CLOCK_DIFFERENCE
    moments = ", ".join(column.name for column in table.columns if column.type == "TIMESTAMP")
    texts = [column.name for column in rows.columns(table) if column.type == "STRING"]
    for column in table.columns:
        if not column.null:
            clean["a value is missing"].append(f"`{column.name}` IS NOT NULL")
        if column.type in {"BIGINT", "INT"}:
            maximum = limits.latest - limits.earliest if column.unit == MICROSECONDS else (1 << 63) - 1
            maximum = rules.MAX_TRANSFER_BYTES if column.name == "total_bytes" else maximum
            clean["a number is out of range"].append(f"coalesce(`{column.name}`, 0) BETWEEN 0 AND {maximum}")
    clean["a day is out of range"] = [
        f"day BETWEEN DATE'{FIRST_DAY}' AND DATE'{latest}'",
        f"day = CAST(coalesce({moments}) AS DATE)",
    ]
    if table.name in _KNOWN_VALUES:
        name, values = _KNOWN_VALUES[table.name]
        clean["a value is not known"] = [f"{name} IN ({', '.join(repr(value) for value in values)})"]
    of_all = {
        "it is of another source": "source = substring_index(extract, '/', 1)",
        "a text is too long": " AND ".join(
            f"coalesce(length(`{name}`), 0) <= {MAX_TEXT_CHARACTERS}" for name in texts
        ),
        "a text has NUL or is not UTF-8": " AND ".join(
            f"coalesce(instr(`{name}`, chr(0)) = 0 AND is_valid_utf8(`{name}`), true)" for name in texts
        ),
        "its fault is not complete": "fault IS NULL OR"
        f" fault <> '{DUPLICATE}' AND identity IS NOT NULL AND digest IS NOT NULL",
    }
    if table is not LIVE:
        name = "substring_index(extract, '/', -1)"
        of_all["its id is not in the file's name"] = (
            f"{rows.id_column(table)} BETWEEN CAST(substring({name}, 1, 19) AS BIGINT)"
            f" AND CAST(substring({name}, 21, 19) AS BIGINT)"
        )
    return of_all | {
        rule: f"fault IS NOT NULL OR ({' AND '.join(conditions)})" for rule, conditions in clean.items() if conditions
    }
