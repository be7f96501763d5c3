"""Usage records: our mailbox server's database, and the reference server's usage database, of either version.

Only the columns of restante.pipeline.cleaning are ever read: no side, nameplate, mailbox id or address leaves the
copy. Sources: our schema, restante/mailbox/store/sql; magic-wormhole-mailbox-server 0.8.0, db-schemas/usage-v2.sql.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.errors import Misuse
from restante.pipeline import cleaning
from restante.pipeline.cleaning import RULES, Fault
from restante.pipeline.notes import Mark
from restante.pipeline.schemas import CLIENT_VERSIONS, MAILBOXES, NAMEPLATES
from restante.pipeline.sources import Look, Part, Say, SourceError, Span, Spec, Terms, marks
from restante.pipeline.sources.snapshot import reading, snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE: Final = "restante.sqlite"
"""Of our mailbox server, in its data directory (restante.mailbox.store.schema)."""

APPLICATION_ID: Final = 0x52657374
"""Marks that file (likewise)."""


class Shape(NamedTuple):
    """How a kind of server keeps its usage records."""

    kind: str
    versions: tuple[int, ...]
    """Of its schema, as far as we know what they mean."""
    version: str
    """How the database tells its version."""
    prefix: str
    """Of its tables' names."""
    since: Mapping[str, int]
    """Tables that came with a later version."""
    own: bool
    """Ours: rows have an id that is never given twice, and an origin. With the reference a rowid has to do."""
    others: frozenset[str]
    """Columns that are known, and never read."""

    def table(self, table: str) -> str:
        """Name a table as the database does."""
        return self.prefix + table

    def columns(self, table: str) -> tuple[str, ...]:
        """Give the columns that a row consists of, but for its id."""
        ruled = tuple(rule.source for rule in RULES[table])
        return ("origin", *ruled) if self.own else ruled


OURS: Final = Shape(
    "mailbox server's database",
    (1, 2),
    "PRAGMA user_version",
    "usage_",
    {},
    own=True,
    others=frozenset({"id", "side", "address_id"}),
)
THEIRS: Final = Shape(
    "reference server's usage database",
    (1, 2),
    "SELECT version FROM version",
    "",
    {CLIENT_VERSIONS.name: 2},
    own=False,
    others=frozenset({"side"}),
)

TABLES: Final = (NAMEPLATES, MAILBOXES, CLIENT_VERSIONS)


def recognised(spec: Spec, look: Look) -> UsageSource | None:
    """Give the source, where it is a mailbox server's. Raises Misuse, SourceError."""
    path = spec.path
    if look.files is not None:
        if FILE not in look.files:
            return None
        path /= FILE
    elif not look.sqlite:
        return None
    with reading(path, spec.name) as database:
        [(application,)] = database.execute("PRAGMA application_id")
        kinds = _kinds(database)
    if application == APPLICATION_ID:
        shape = OURS
    elif {"nameplates", "mailboxes", "version"} <= kinds.keys():
        shape = THEIRS
        if "messages" in kinds:
            raise Misuse(
                f"source {spec.name}: {path} is the reference server's channel database, everybody's post: nothing of"
                " it is for the lake. Name the file of its --usage-db"
            )
    else:
        return None
    if spec.server is not None:
        raise Misuse(f"source {spec.name}: @{spec.server} is for timing logs, and {path} is a {shape.kind}")
    return UsageSource(spec.name, path, shape)


class UsageSource:
    """A mailbox server's database, by its name."""

    def __init__(self, name: str, path: Path, shape: Shape) -> None:
        self.name, self.path, self._shape = name, path, shape

    @property
    def kind(self) -> str:
        return self._shape.kind

    @property
    def origins(self) -> Sequence[str]:
        """`restante import` reads the reference server's files, and keeps their names."""
        return () if self._shape.own else (os.fsencode(self.path.name).decode(errors="replace"),)

    @contextmanager
    def opened(self, scratch: Path, say: Say, terms: Terms) -> Iterator[Usage]:
        """Copy it, and see whether it is as we know it. Raises SourceError."""
        with snapshot(self.path, scratch, self.name) as copy:
            yield Usage(self.name, copy, self._shape, terms, say)


class Usage:
    """A copy of a database."""

    def __init__(self, name: str, copy: Path, shape: Shape, terms: Terms, say: Say) -> None:
        self._name, self._copy, self._shape = name, copy, shape
        self._limits = cleaning.limits(terms.first_day, terms.now)
        with reading(copy, name) as database:
            version = self._version(database)
            self.tables = tuple(table for table in TABLES if version >= shape.since.get(table.name, 0))
            self._ids = {table.name: self._checked(database, table.name, say) for table in self.tables}
            self._blur = self._blur_us(database)
            self._duplicates = self._imports(database) & terms.origins.keys()

    def span(self, table: str, marks_: Mapping[str, Mark]) -> Span | None:
        """Tell what is new. Raises SourceError."""
        with reading(self._copy, self._name) as database:
            return self._span(database, table, marks_.get(""))

    def rows(self, spark: SparkSession, span: Span) -> DataFrame:
        """Give it."""
        from restante.pipeline.sources import reader  # and Spark

        columns = (
            self._ids[span.table],
            "origin" if self._shape.own else "''",
            *(rule.source for rule in RULES[span.table]),
        )
        return reader.rows(
            spark,
            reader.Job(
                source=self._name,
                table=span.table,
                copy=str(self._copy),
                name=self._shape.table(span.table),
                columns=columns,
                parts=span.parts,
                limits=self._limits,
                blur_us=self._blur,
                duplicates=self._duplicates,
            ),
        )

    # ── what is there ────────────────────────────────────────────────────────────────────────────

    def _span(self, database: sqlite3.Connection, table: str, mark: Mark | None) -> Span | None:
        name, id_ = self._shape.table(table), self._ids[table]
        ids = self._ids_of(database, name, id_)

        def digest(row_id: int) -> str:
            columns = ", ".join(self._shape.columns(table))
            row = database.execute(f"SELECT {columns} FROM {name} WHERE {id_} = ?", (row_id,)).fetchone()  # noqa: S608
            return "" if row is None else cleaning.digest(row)

        why = marks.broken(mark, ids, digest) if mark else ""
        start = mark.last if mark and not why else 0
        if start == ids.last and not why:
            return None
        parts = (Part("", start + 1, ids.last),) if ids.last > start else ()
        counted: int = database.execute(
            f"SELECT count(*) FROM {name} WHERE {id_} > ?",  # noqa: S608
            (start,),
        ).fetchone()[0]
        return Span(
            table=table,
            parts=parts,
            counted=counted,
            missed=ids.last - start - counted,
            replace=bool(why),
            why=why,
            marks={"": marks.behind(ids, digest)},
        )

    def _ids_of(self, database: sqlite3.Connection, name: str, id_: str) -> marks.Ids:
        first, last = database.execute(
            f"SELECT (SELECT {id_} FROM {name} ORDER BY {id_} LIMIT 1),"  # noqa: S608
            f" (SELECT {id_} FROM {name} ORDER BY {id_} DESC LIMIT 1)"
        ).fetchone()
        given = 0
        if self._shape.own:
            found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (name,)).fetchone()
            given = found[0] if found else 0
        if first is not None and first < 1:
            raise SourceError(f"source {self._name}: table {name} has an id {first}, which no server gives")
        return marks.Ids(first or 0, max(given, last or 0), kept=self._shape.own)

    def _version(self, database: sqlite3.Connection) -> int:
        found = database.execute(self._shape.version).fetchall()
        if len(found) != 1 or not isinstance(found[0][0], int) or found[0][0] < 1:
            raise SourceError(f"source {self._name}: it does not tell the version of its schema: name another file")
        version: int = found[0][0]
        if version > self._shape.versions[-1]:
            raise SourceError(
                f"source {self._name}: its schema is {version}, this program knows up to {self._shape.versions[-1]}:"
                " use a newer restante"
            )
        return version

    def _checked(self, database: sqlite3.Connection, table: str, say: Say) -> str:
        """See whether a table is as it should be; give the name of its id."""
        name = self._shape.table(table)
        kind = _kinds(database).get(name)
        if kind != "table":
            raise SourceError(f"source {self._name}: {name} is {f'a {kind}' if kind else 'missing'}, not a table")
        present = [row[0] for row in database.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))]
        taken = self._shape.columns(table)
        wanted = (*taken, "id") if self._shape.own else taken
        missing = [column for column in wanted if column not in present]
        if missing:
            raise SourceError(f"source {self._name}: table {name} has no column {missing[0]}")
        for column in present:
            if column not in taken and column not in self._shape.others:
                say(f"source {self._name}: column {name}.{_shown(column)} is not known, and left out")
        if self._shape.own:
            return "id"
        # A column of that name would stand for itself (sqlite.org/rowidtable.html).
        lowered = {column.lower() for column in present}
        return next(word for word in ("rowid", "oid", "_rowid_") if word not in lowered)

    def _blur_us(self, database: sqlite3.Connection) -> int | None:
        """Tell what the server floors times to now; nothing says what it was when the rows were written."""
        name = self._shape.table("current")
        if _kinds(database).get(name) != "table":
            raise SourceError(f"source {self._name}: there is no table {name}, which has the blur of its times")
        found = database.execute(f"SELECT blur_time FROM {name}").fetchall()  # noqa: S608
        blur = found[-1][0] if found else None
        us = cleaning.duration(blur, self._limits) if blur else 0
        if isinstance(us, Fault):
            raise SourceError(f"source {self._name}: the blur in {name} is no number of seconds: correct it there")
        return us or None

    def _imports(self, database: sqlite3.Connection) -> frozenset[str]:
        """Name the files that usage records were imported from."""
        if not self._shape.own or "imports" not in _kinds(database):
            return frozenset()
        return frozenset(row[0] for row in database.execute("SELECT name FROM imports WHERE kind = 'usage'"))


def _kinds(database: sqlite3.Connection) -> dict[str, str]:
    """Give table, view, virtual or shadow by name."""
    return dict(database.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))


def _shown(column: str) -> str:
    """Make a stranger's name fit for a terminal."""
    return ascii(column[:64])[1:-1]
