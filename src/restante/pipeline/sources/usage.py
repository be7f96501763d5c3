"""Reads usage records from the database of our mailbox server or transit relay, or from the reference's of either.

Of usage records only the columns that have a rule in restante.pipeline.clean.rules are read; of what is live, only
times and counts (restante.pipeline.sources.live). No side, nameplate, mailbox id or address is copied.

Our servers store a hash of the client's address with each bind. Whoever has the hashes knows which binds of a day
came from the same address. So they stay in the task: a row only says whether it is the first from its address.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import structs

from restante.common.extras import require_extra
from restante.pipeline.clean import rules
from restante.pipeline.clean.rules import (
    MICROSECONDS_PER_DAY,
    ORIGIN_RULE,
    OWN_RULES,
    RULES,
    SECONDS_PER_DAY,
    Faulty,
    TimeLimits,
)
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLEAN_TABLES, CLIENT_VERSIONS, LIVE
from restante.pipeline.sources import databases, live, paths, schema
from restante.pipeline.sources.databases import (
    CopyFile,
    UsageDatabase,
    copy_file,
    database_path,
    reading,
    task_ranges,
)
from restante.pipeline.sources.live import LiveScan
from restante.pipeline.sources.marks import RECENT_ROWS, IdRange, contradiction, mark_after
from restante.pipeline.sources.rows import fault_row, row_batches
from restante.pipeline.sources.schema import (
    ADDRESS_ID,
    MAILBOX_APPLICATION_ID,
    MAILBOX_FILE,
    OUR_RELAY_SHAPE,
    OUR_SHAPE,
    POSTGRES_SHAPE,
    REFERENCE_RELAY_SHAPE,
    REFERENCE_SHAPE,
    RELAY_APPLICATION_ID,
    RELAY_FILE,
    Shape,
    printable_name,
)
from restante.pipeline.sources.source import (
    DUPLICATE,
    IngestContext,
    PathPreview,
    Say,
    Source,
    SourceError,
    SourceSpec,
    Span,
)

Open = Callable[[CopyFile], AbstractContextManager[UsageDatabase]]
"""Opens a database, with the file for copies of its new rows."""

OUR_SHAPES: Final[Mapping[int, Shape]] = {MAILBOX_APPLICATION_ID: OUR_SHAPE, RELAY_APPLICATION_ID: OUR_RELAY_SHAPE}
"""By SQLite's application id."""

ROWS_PER_TASK: Final = 100_000
"""Rows that one task reads: a second of work, so that every core has tasks."""

MAX_BIND_SECONDS: Final = 10**12
"""Seconds since 1970 from which the day of a bind is not looked at: a clock that shows the year 33,000 is wrong, and
SQLite has no integer for the day of infinity."""

_HAS_ADDRESS: Final = f"{ADDRESS_ID} IS NOT NULL AND abs(connect_time) < {MAX_BIND_SECONDS}"

_EARLIER: Final = f"{_HAS_ADDRESS} AND +id < ? AND connect_time >= ? AND connect_time < ?"
"""Selects binds before an id, between two times. `+` keeps SQLite from using the ids: the index of times finds fewer
rows."""

_ANY_TIME: Final = TimeLimits(-(1 << 62), 1 << 62)
"""The digest of a row must not depend on when it is computed."""


def recognise(spec: SourceSpec, preview: PathPreview) -> Source | None:
    """Return the source if the path is the database of a mailbox server or a transit relay. Raises SourceError."""
    path = database_path(spec, preview, (MAILBOX_FILE, RELAY_FILE))
    if path is None:
        return None
    with reading(path, spec.name) as database:
        [(application,)] = database.execute("PRAGMA application_id")
        entries = schema.entries(database)
    if application in OUR_SHAPES:
        shape = OUR_SHAPES[application]
    elif {"nameplates", "mailboxes", "version"} <= entries.keys():
        shape = REFERENCE_SHAPE
        if "messages" in entries:
            raise SourceError(
                f"source {spec.name}: {path} is the reference server's channel database, which contains users'"
                " messages: name the file of its --usage-db"
            )
    elif {"usage", "current", "version"} <= entries.keys():
        shape = REFERENCE_RELAY_SHAPE
    else:
        return None
    spec.refuse_server(f"{path} is a {shape.kind}")
    # An import records the name of the reference's file as rows' origin.
    origins = () if shape.own else (os.fsencode(path.name).decode(errors="replace"),)
    inodes = paths.inodes(paths.find_files(path))
    opened = partial(_opened, partial(databases.open_sqlite, path), shape, spec.name)
    return Source(spec.name, shape.kind, path, shape.feeds, inodes, opened, origins=origins)


def recognise_url(spec: SourceSpec) -> Source:
    """Return the source at a URL. Raises SourceError if it is not the database of a mailbox server."""
    require_extra("postgres")
    with databases.reading_postgres(spec.url, spec.name) as database:
        if not schema.entries(database, POSTGRES_SHAPE.sql):
            raise SourceError(f"source {spec.name}: there is no mailbox server's data in {database.name}")
        inodes = databases.postgres_inodes(database)
        opened = partial(_opened, partial(databases.open_postgres, spec.url), POSTGRES_SHAPE, spec.name)
        return Source(spec.name, POSTGRES_SHAPE.kind, database.name, POSTGRES_SHAPE.feeds, inodes, opened)


@contextmanager
def _opened(
    opening: Open, shape: Shape, name: str, scratch: Path, say: Say, context: IngestContext
) -> Iterator[OpenedUsage]:
    with copy_file(scratch, name) as copies:
        yield OpenedUsage(copies, opening, shape, context, say)


class OpenedUsage:
    """A database up to the ids that were the last ones when it was opened."""

    def __init__(self, copies: CopyFile, opening: Open, shape: Shape, context: IngestContext, say: Say) -> None:
        self._name = name = copies.name
        self._copies, self._opening, self._shape = copies, partial(opening, copies), shape
        self._context, self._say = context, say
        self._limits = rules.time_limits(context.latest)
        with self._opening() as database:
            self._version = version = schema.version(database, shape, name)
            self.tables = tuple(table for table in shape.feeds if version >= shape.since.get(table.name, 0))
            self._ids = {
                table.name: schema.id_column(database, shape, version, table.name, name)
                for table in self.tables
                if table is not LIVE
            }
            self._setting = schema.blur_us(database, shape, name, self._limits)
            with database.snapshot():  # what is live now is in no usage record up to these ids
                self._ends = {table: self._table(database, table).end() for table in self._ids}
                self._live = self._read_live(database) if LIVE in self.tables else None

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Copy what is new, or return None if nothing is.

        Imported rows are duplicates if the file that they came from is a source itself. That is recorded in marks
        whose parts have the origins' names, since not every run has all sources. Raises SourceError.
        """
        if self._live and table == LIVE.name:
            # The time alone is no reason to read it: a run that finds nothing else new would start Spark for it.
            mark = marks.get("")
            return None if mark == self._live.marks[""] or not (mark or self._live.counted) else self._live
        known_origins = frozenset(marks) - {""}
        ids, end = self._ends[table]
        with self._opening() as database:
            rows, mark = self._table(database, table), marks.get("")
            duplicates = known_origins | self._duplicate_origins(database, rows, known_origins)
            reason = contradiction(mark, ids, rows) if mark else ""
            if mark and not reason and duplicates > known_origins:
                origin = printable_name(min(duplicates - known_origins))
                reason = f"another source has the rows that it imported from {origin}"
            after = mark.last if mark and not reason else 0
            if after >= ids.last_id and not reason:
                return None
            counted = self._copy(database, table, after, ids)
            if contradiction(end, rows.ids(), rows):
                raise SourceError(f"source {self._name}: it was replaced while it was read: run this again")
            ranges = list(task_ranges(database.copy, f"copy.{table}", after + 1, ids.last_id, ROWS_PER_TASK))
        scan = UsageScan(self._name, table, str(self._copies.file), self._limits, self._setting, duplicates)
        read = partial(row_batches, CLEAN_TABLES[table], read_copy, scan)
        return Span(
            table=table,
            counted=counted,
            tasks=[partial(read, *ends) for ends in ranges] if counted else (),
            missed=ids.last_id - after - counted,
            replace=bool(reason),
            reason=reason,
            marks={"": end} | {origin: Mark(0, "", 0, "") for origin in duplicates},
        )

    def mark_at(self, span: Span, last_id: int) -> Mark:
        """Return the mark that says that a span of usage records was read up to an id."""
        with self._opening() as database:
            rows = self._table(database, span.table)
            return structs.replace(
                span.marks[""], last=last_id, last_digest=rows.digest(last_id), recent=rows.recent(last_id)
            )

    def _copy(self, database: UsageDatabase, table: str, after: int, ids: IdRange) -> int:
        """Copy the rows behind an id, and return their number; of binds, also what tells which addresses are new."""
        [(size,)] = database.execute(self._shape.sql.size)
        self._copies.require_space(size * (ids.last_id - after) // max(1, ids.last_id))
        id_, name, selected = self._ids[table], self._shape.names[table], self._shape.selected(table, self._version)
        database.copy.execute(f"DROP TABLE IF EXISTS copy.{table}")
        database.copy.execute(f"CREATE TABLE copy.{table} (id INTEGER PRIMARY KEY, {', '.join(selected)})")
        columns = ", ".join((id_, *selected.values()))
        rows = f"SELECT {columns} FROM {name} WHERE {id_} BETWEEN ? AND ? ORDER BY {id_} LIMIT ?"  # noqa: S608
        counted = database.copy_range(table, rows, after + 1, ids.last_id)
        if table == CLIENT_VERSIONS.name:
            database.copy.execute(f"CREATE INDEX copy.times ON {table} (connect_time)")
            if after and selected[ADDRESS_ID] == ADDRESS_ID:
                copy_earlier_binds(database, table, name, after + 1, ids.last_id)
        return counted

    def _read_live(self, database: UsageDatabase) -> Span:
        """Return all that is live. Its mark differs if there are new usage records, or if something else is live."""
        blur_us: int | None = self._setting or 0
        if self._shape.own:
            of_binds = self._version >= self._shape.since[rules.BLUR_RULE.source]
            blur_us = live.recorded_blur_us(database, self._setting, self._limits, of_binds=of_binds)
        rows, digest = live.find_live(database, LiveScan(self._name, self._shape, self._limits, blur_us))
        last_ids = sum(ids.last_id for ids, _ in self._ends.values())
        return Span(
            table=LIVE.name,
            counted=len(rows),
            marks={"": Mark(last=last_ids, last_digest=digest, first=0, first_digest="")},
            tasks=[partial(row_batches, LIVE, iter, rows)] if rows else (),
            replace=True,
        )

    def _table(self, database: UsageDatabase, table: str) -> UsageTable:
        return UsageTable(database, self._shape, table, self._ids[table])

    def _duplicate_origins(
        self, database: UsageDatabase, rows: UsageTable, known_origins: frozenset[str]
    ) -> set[str]:
        """Return the origins that are sources themselves: a source has that name, and the first of the imported rows.

        Many files are called usage.sqlite, so the row is looked up. With the reference server's indexes the query is
        quick; that server waits for readers.
        """
        origins: set[str] = set()
        imports = self._shape.imports
        if imports is None or "imports" not in schema.entries(database, self._shape.sql):
            return origins
        for origin in self._context.origins.keys() - known_origins:
            row = rows.imported(origin)
            if row is None:
                continue
            if any(self._has_row(file, imports, rows.table, row) for file in self._context.origins[origin]):
                origins.add(origin)
            else:
                text = f"{rows.table} that it imported from {printable_name(origin)}"
                self._say(f"source {self._name}: {text} are in no other source, so they are read from this one")
        return origins

    def _has_row(self, file: Path, shape: Shape, table: str, row: Sequence[Any]) -> bool:
        same = " AND ".join(f"{rule.source} IS ?" for rule in RULES[table])
        select = f"SELECT 1 FROM {shape.names[table]} WHERE {same} LIMIT 1"  # noqa: S608 - constants
        try:
            with reading(file, self._name) as other:
                return bool(other.execute(select, row).fetchone())
        except SourceError:
            return False  # a file that cannot be read is not a source


class UsageTable:
    """A table of a database. Its names are constants of ours, so they are safe in SQL."""

    def __init__(self, database: UsageDatabase, shape: Shape, table: str, id_: str) -> None:
        self.table, self.sql_name = table, shape.names[table]
        self._database, self._shape, self._id = database, shape, id_

    def ids(self) -> IdRange:
        """Return the range of ids."""
        min_id, max_id = self._first_row(
            f"SELECT (SELECT min({self._id}) FROM {self.sql_name}), (SELECT max({self._id}) FROM {self.sql_name})"  # noqa: S608
        )
        if min_id is not None and min_id < 1:
            raise sqlite3.IntegrityError(f"{self.sql_name} has a row with id {min_id}, which no server assigns")
        if not self._shape.own:
            return IdRange(min_id or 0, max_id or 0, never_reused=False)
        sql = self._shape.sql
        assigned = max([0, *(seq for seq in self._first_row(sql.assigned.format(self.sql_name)) if seq)])
        last_id = max(max_id or 0, assigned if sql.certain else 0)
        return IdRange(min_id or 0, last_id, never_reused=True, assigned=assigned)

    def end(self) -> tuple[IdRange, Mark]:
        """Return the range of ids, and the mark behind it."""
        ids = self.ids()
        return ids, mark_after(ids, self)

    def digest(self, row_id: int) -> str:
        """Return a row's digest, or "" if there is no such row."""
        row = self._first_row(f"SELECT {self._columns()} FROM {self.sql_name} WHERE {self._id} = ?", row_id)  # noqa: S608
        return rules.row_digest(row) if row else ""

    def recent(self, last_id: int) -> dict[int, str]:
        """Return the digests of the clean values of the last RECENT_ROWS rows up to an id, by id."""
        ruled = RULES[self.table]
        columns = ", ".join(rule.source for rule in ruled)
        select = f"SELECT {self._id}, {columns} FROM {self.sql_name} WHERE {self._id} <= ?"  # noqa: S608
        rows = self._database.execute(f"{select} ORDER BY {self._id} DESC LIMIT {RECENT_ROWS}", (last_id,))
        digests = {}
        for row_id, *row in rows:
            with suppress(Faulty):
                digests[row_id] = rules.value_digest(rules.clean_values(ruled, row, _ANY_TIME))
        return digests

    def imported(self, origin: str) -> tuple[Any, ...] | None:
        """Return the first row that was imported from an origin, as it was there."""
        if not self._first_row("SELECT 1 FROM imports WHERE name = ?", origin):
            return None  # no row has to be read to know that
        select = f"SELECT {self._columns()} FROM {self.sql_name} WHERE origin = ? ORDER BY id LIMIT 1"  # noqa: S608
        row = self._first_row(select, origin)
        return row[1:] if row else None

    def _columns(self) -> str:
        return ", ".join(self._shape.columns(self.table))

    def _first_row(self, sql: str, *parameters: Any) -> tuple[Any, ...]:
        """Return the first row of the result, or () if there is none."""
        return next(iter(self._database.execute(sql, parameters)), ())


class UsageScan(NamedTuple):
    """The rows to read and how to clean them; part of each task."""

    source: str
    table: str
    """Name of the lake's table, and of its copy."""
    copy: str
    limits: TimeLimits
    setting_us: int | None
    """The unit that the server floors times to now, in microseconds, for its own rows that do not record theirs."""
    duplicates: frozenset[str]
    """Origins whose rows another source has."""


class FirstBinds(NamedTuple):
    """The ids of the binds that are the first ones from their addresses.

    Binds are compared as the source has them, also those that are put into quarantine. So whatever is read in one run
    or in several, the same binds are the first.
    """

    of_day: Collection[int] = ()
    """The first of a day from an address."""
    of_app: Collection[int] = ()
    """The first of a day from an address for an application."""


def clean_rows(
    scan: UsageScan, rows: Iterable[tuple[Any, ...]], first_binds: FirstBinds
) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a row of the lake's table and its fault. A row with a fault has no other values."""
    are_binds = scan.table == CLIENT_VERSIONS.name
    new: tuple[bool | None, ...] = ()
    table, of_row = CLEAN_TABLES[scan.table], (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table])
    when = next(index for index, rule in enumerate(of_row) if rule.column in {"started", "connect_time"})
    for row_id, *row in rows:
        if are_binds:
            new = (None, None) if row.pop() is None else tuple(row_id in ids for ids in first_binds)
        try:
            if row[0] in scan.duplicates:
                raise Faulty(DUPLICATE)  # noqa: TRY301
            values = rules.clean_values(of_row, row, scan.limits)
        except Faulty as fault:
            yield fault_row(table, (row_id,), scan.source, fault, str(row_id), row)
            continue
        own = values[0] == ""  # another server wrote an imported row, with its own setting
        values[-1] = rules.blur_us(values[-1], scan.setting_us if own else None, values[when])
        yield (row_id, *values, *new, values[when] // MICROSECONDS_PER_DAY, scan.source, None, None, None)


def read_copy(scan: UsageScan, first_id: int, last_id: int) -> Iterator[tuple[Any, ...]]:
    """Yield a range of the copied rows, cleaned; both ends are included."""
    with reading(Path(scan.copy), scan.source) as database:
        are_binds = scan.table == CLIENT_VERSIONS.name
        first_binds = _first_binds(database, scan.table, first_id, last_id) if are_binds else FirstBinds()
        select = f"SELECT * FROM {scan.table} WHERE id BETWEEN ? AND ? ORDER BY id"  # noqa: S608
        yield from clean_rows(scan, database.execute(select, (first_id, last_id)), first_binds)


def _first_binds(database: sqlite3.Connection, table: str, first_id: int, last_id: int) -> FirstBinds:
    """Return the first binds of the days on which a range of ids has binds."""
    of_app = f"SELECT min(id) AS id, {ADDRESS_ID} FROM {table} WHERE {_EARLIER} GROUP BY {ADDRESS_ID}, app_id"  # noqa: S608
    select = f"SELECT min(id) OVER (PARTITION BY {ADDRESS_ID}), id FROM ({of_app})"  # noqa: S608
    firsts: list[tuple[int, int]] = []
    for day in days_of_binds(database, table, first_id, last_id):
        firsts += database.execute(select, (last_id + 1, day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY))
    return FirstBinds({of_day for of_day, _ in firsts}, {of_app for _, of_app in firsts})


def days_of_binds(database: sqlite3.Connection, table: str, first_id: int, last_id: int) -> list[int]:
    """Return the days, since 1970, of the binds with an address in a range of ids."""
    day = f"CAST(connect_time / {SECONDS_PER_DAY} AS INTEGER)"
    days = f"SELECT DISTINCT {day} FROM {table} WHERE {_HAS_ADDRESS} AND id BETWEEN ? AND ?"  # noqa: S608
    return [day for (day,) in database.execute(days, (first_id, last_id))]


def copy_earlier_binds(database: UsageDatabase, copied: str, table: str, first_id: int, last_id: int) -> None:
    """Copy the earlier binds of the days on which a range of ids has binds: one of each application and address.

    Only our servers have addresses, and no commit of theirs waits for a reader. One statement reads an hour.
    """
    earlier = (
        f"SELECT min(id), app_id, min(connect_time), {ADDRESS_ID} FROM {table} WHERE {_EARLIER}"  # noqa: S608
        f" GROUP BY app_id, {ADDRESS_ID}"
    )
    for day in days_of_binds(database.copy, f"copy.{copied}", first_id, last_id):
        for begin in range(day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY, 3600):
            into = f"{copied} (id, app_id, connect_time, {ADDRESS_ID})"
            database.insert(into, earlier, (first_id, begin, begin + 3600))
