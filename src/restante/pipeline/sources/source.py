"""The interface of sources: data of servers and clients as rows for the lake. The new rows of a database are copied.

A source returns what is new since the marks of the last run (`find_new`), with the tasks that read its rows, each
clean or with a fault. It does not decide what becomes of them, and writes nothing but its copies.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from restante.common.errors import Misuse, RestanteError, plain
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import FIRST_DAY, Table

if TYPE_CHECKING:
    import pyarrow as pa

Inode = tuple[int, int]
"""Device and inode number of a file: all names of one file have the same."""

Say = Callable[[str], None]
"""Shows the operator one sentence."""

URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""How a URL with an authority begins (RFC 3986, section 3)."""

POSTGRES_URL: Final = re.compile(r"postgres(ql)?://")
"""How the URL of a PostgreSQL database begins (postgresql.org/docs/18/libpq-connect.html)."""

DUPLICATE: Final = "duplicate"
"""The fault of a row that another row represents. It is counted, but not put into quarantine."""


MAX_CLOCK_DIFFERENCE_SECONDS: Final = 60.0
"""Seconds by which our clock may be behind the last commit. The clocks of machines that write to one lake in turn
differ by less, and so do the steps by which programs correct a clock that is nearly right."""


class SourceError(RestanteError):
    """A source, or one of its tables, cannot be read; the other sources still are."""

    def with_source(self, name: str) -> str:
        """Return the text, beginning with the source's name: errors about a file come from where it is not known."""
        text, prefix = str(self), f"source {name}: "
        return text if text.startswith(prefix) else prefix + text


class IngestContext(NamedTuple):
    """The values that all sources of a run are read with."""

    now: float
    """The time of the run in seconds since 1970."""
    origins: Mapping[str, Sequence[Path]] = {}
    """Origin of imported rows → the files of that name that are themselves sources of the run."""
    last_commit: float = 0.0
    """When the lake was last written to, in seconds since 1970; 0: never."""

    @property
    def before(self) -> float:
        """Return when the lake was last written to, not before FIRST_DAY."""
        return max(self.last_commit, datetime.combine(FIRST_DAY, time(), UTC).timestamp())

    @property
    def set_back(self) -> bool:
        """Return whether our clock was set back since the lake was last written to."""
        return self.before - self.now > MAX_CLOCK_DIFFERENCE_SECONDS

    @property
    def latest(self) -> float:
        """Return the time in seconds since 1970 that rows are compared with. Rows more than a day later are faults.

        If our clock was set back, this is the time of the last commit: then rows were read that are as late.
        """
        return self.before if self.set_back else self.now


Task = Callable[[], "Iterator[pa.RecordBatch]"]
"""Reads a part of a source, in a worker of Spark, too. The batches have the table's columns, and `fault`, `identity`,
`digest` (sources.rows)."""


class Span(NamedTuple):
    """The new rows of a source for one table of the lake."""

    table: str
    counted: int
    """Rows that were copied of a database, or a file's lines or items. The tasks must read as many."""
    marks: Mapping[str, Mark]
    """Where reading stands afterwards, by part: all parts, including those that are not read this time."""
    tasks: Iterable[Task] = ()
    """The tasks that read the rows. They are iterated over once, before the source is closed. Extracts have none."""
    missed: int = 0
    """New ids that were assigned and have no row any more."""
    replace: bool = False
    """Whether the lake's rows of this source and table are to be removed, because the data that they came from is
    gone."""
    reason: str = ""
    """Why the source is read again, for the operator; "" if it is not."""
    envelope_bytes: int = 0
    """About how many bytes its envelopes have; 0 if its rows are no envelopes. Other rows are short."""

    @property
    def first_id(self) -> int:
        """Return the least new id of a database, whether it still has a row or not."""
        return self.marks[""].last - self.counted - self.missed + 1


class OpenedSource(Protocol):
    """A source up to where it had come when it was opened."""

    @property
    def tables(self) -> Sequence[Table]:
        """Return the tables of the lake that it feeds."""

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Return what is new since the marks ({} for none), or None if nothing is. Raises SourceError.

        Every row of the source gives one row.
        """


class OpenedDatabase(OpenedSource, Protocol):
    """A database up to where it had come when it was opened."""

    def mark_at(self, span: Span, last_id: int) -> Mark:
        """Return the mark that says that a span of rows with ids was read up to an id."""


class Source(NamedTuple):
    """A named source of rows."""

    name: str
    """The name that the operator gave it, which is its partition in the lake."""
    kind: str
    """What it is, for the operator."""
    path: Path | str
    """Its path, or the URL of a database, without user and password."""
    feeds: Sequence[Table]
    """The tables that its kind of source feeds in any version; if it is empty, those that it may have fed."""
    inodes: frozenset[Inode]
    """The files that rows are read from, whatever their names."""
    opened: Callable[[Path, Say, IngestContext], AbstractContextManager[OpenedSource]]
    """Opens the source. New rows of a database are copied into a scratch folder. Raises SourceError."""
    is_database: bool = True
    """Whether it is one database, whose mark has the name "", and not files."""
    empty: bool = False
    """Whether it is empty: then its kind is unknown."""
    origins: Sequence[str] = ()
    """The origins of rows that were imported from it elsewhere; () if no server imports from it."""


def another_kind(source: Source, tables: str) -> SourceError:
    """Return the error for a name under which the lake has rows of another kind of source in these tables."""
    if source.empty:
        return SourceError(
            f"source {source.name}: {source.path} is empty, and the lake has {tables} of it: put back what was there,"
            " or leave this source out"
        )
    return SourceError(
        f"source {source.name}: {source.path} is of another kind ({source.kind}) than the rows that the lake has"
        f" in {tables}: put back what was there, or give this one a name of its own"
    )


class SourceSpec(NamedTuple):
    """A source as the operator named it: NAME[@SERVER]=PATH, or NAME=URL of a PostgreSQL database."""

    name: str
    server: str | None
    """The source with the trace that belongs to this timing log."""
    path: Path
    url: str = ""
    """The URL of a database; "" if a path is named. It may have a password."""

    def refuse_server(self, contents: str) -> None:
        """Raise SourceError if a server is named. `contents` says what the path is, if not a timing log."""
        if self.server is not None:
            raise SourceError(f"source {self.name}: @{self.server} is for timing logs, and {contents}: leave it out")


class PathPreview(NamedTuple):
    """What a path contains, before its kind is known."""

    files: frozenset[str] | None
    """The names in a directory; None if it is not a directory."""
    head: bytes
    """A file's first bytes, at most PREVIEW_BYTES."""

    @property
    def sqlite(self) -> bool:
        """Return whether it begins like an SQLite file (sqlite.org/fileformat2.html#magic_header_string)."""
        return self.head.startswith(b"SQLite format 3\0")


PREVIEW_BYTES: Final = 4096
"""Bytes of a file that are examined: more than the first line or header of any kind."""

SOURCE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""A source's name. It is the name of a folder in the lake, so it must be valid on any system."""

_SPEC: Final = re.compile(r"(?P<name>[^=@]*)(@(?P<server>[^=]*))?=(?P<path>.+)", re.DOTALL)

_GLOB: Final = frozenset("*?[")


def parse_spec(spec: str) -> SourceSpec:
    """Parse NAME[@SERVER]=PATH, or NAME=URL. Raises Misuse."""
    match = _SPEC.fullmatch(spec)
    if url := POSTGRES_URL.search(spec):  # behind it there may be a password
        spec = f"{spec[: url.end()]}…"
    if match is None:
        raise Misuse(f"--source {spec}: write a name and a path, --source NAME=PATH")
    for name in filter(None, (match["name"], match["server"])):
        if SOURCE_NAME.fullmatch(name) is None:
            raise Misuse(
                f"--source {spec}: {name} cannot be a name: at most 63 of a-z, 0-9, dot, hyphen and underscore,"
                " beginning with a letter or a digit"
            )
    if not match["name"] or match["server"] == "":
        raise Misuse(f"--source {spec}: write a name and a path, --source NAME=PATH")
    if POSTGRES_URL.match(match["path"]):
        source = SourceSpec(match["name"], match["server"], Path(), match["path"])
        source.refuse_server("this is a database")
        return source
    if URL.match(match["path"]):
        raise Misuse(
            f"--source {spec}: this is a URL; name a file or folder of this machine, which may be of a mounted"
            " network file system, or copy what you want to read"
        )
    return SourceSpec(match["name"], match["server"], Path(match["path"]))


def files_by_origin(sources: Sequence[Source]) -> dict[str, list[Path]]:
    """Return the files that are sources, by the origin of rows imported from them: IngestContext.origins."""
    files: dict[str, list[Path]] = {}
    for source in sources:
        for origin in source.origins:
            files.setdefault(origin, []).append(Path(source.path))
    return files


def read_twice(sources: Sequence[Source]) -> dict[str, SourceError]:
    """Return an error for each source that reads a file which another one reads, by name."""
    readers: dict[Inode, list[str]] = {}
    for source in sources:
        for inode in source.inodes:
            readers.setdefault(inode, []).append(source.name)
    partners: dict[str, str] = {}
    for first, *others in readers.values():
        for other in others:
            partners.setdefault(first, other)
            partners.setdefault(other, first)
    return {
        source.name: SourceError(
            f"source {source.name}: what is in {source.path} is read as source {partners[source.name]}, too, and"
            " would be counted twice: leave one of them out"
        )
        for source in sources
        if source.name in partners
    }


def refuse_special(path: Path, name: str) -> None:
    """Raise SourceError if the path, of the source of this name, is something else than a file or a folder.

    To open a named pipe waits for a writer (fifo(7)), and a device may have no end.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # the caller opens it, and reports why it cannot be read
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise SourceError(f"source {name}: {path} is a named pipe, a device or a socket: name a file or a folder")


def is_glob(path: Path) -> bool:
    """Return whether a path is a pattern for files."""
    return bool(_GLOB & set(str(path))) and not path.exists()


def read_preview(spec: SourceSpec) -> PathPreview:
    """Return what the path of a source contains. Raises SourceError."""
    path = spec.path
    try:
        if is_glob(path):
            return PathPreview(frozenset(), b"")
        if path.is_dir():
            return PathPreview(frozenset(entry.name for entry in path.iterdir()), b"")
        refuse_special(path, spec.name)
        with path.open("rb") as file:
            return PathPreview(None, file.read(PREVIEW_BYTES))
    except OSError as error:
        raise SourceError(f"source {spec.name}: cannot read {path}: {plain(error)}") from error
