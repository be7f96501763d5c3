"""Sources: what servers and clients leave behind, as rows for the lake. Where it is live, a copy of it is read.

A source says what is new since the marks of the last run (`find_new`), and gives it, a row per row (`read`): clean,
or with its fault. It never decides what becomes of them, and writes nothing but its copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from restante.common.errors import Misuse, RestanteError
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Inode = tuple[int, int]
"""A file, by its device and its number there: two names of one file have the same."""

Say = Callable[[str], None]
"""Tells the operator one sentence."""

DUPLICATE: Final = "duplicate"
"""The fault of a row that another one stands for: counted, and not put into quarantine."""


class SourceError(RestanteError):
    """A source cannot be read, as a whole or one of its tables; the others go on."""


class IngestContext(NamedTuple):
    """What all sources of a run are read by."""

    now: float
    """Seconds since 1970: what came after it, and a day, cannot be true."""
    first_day: date
    """The lake's: what is said to be older is a clock that was wrong."""
    origins: Mapping[str, Sequence[Path]] = {}
    """Files that are themselves sources of the run, by the name that rows imported from them have as their origin."""


class Part(NamedTuple):
    """What is read of one file, or of one table of a database."""

    name: str
    """"" for a database's table, else what stands for the file."""
    first: int
    last: int
    """Ids, both ends included; there may be gaps between them."""


class Span(NamedTuple):
    """What is new in a source for one table of the lake."""

    table: str
    parts: tuple[Part, ...]
    counted: int
    """Rows in all parts, by the source's own COUNT or the file's lines: what `read` must give."""
    missed: int
    """Ids in all parts that were given once, and have no row any more."""
    replace: bool
    """The rows that the lake has of this source and table are to go: they were read from what is no more."""
    why: str
    """For the operator: what is strange about it; "" where nothing is."""
    marks: Mapping[str, Mark]
    """Where reading stands after it, by part: all of them, those that were not read this time too."""


class OpenedSource(Protocol):
    """A source that does not change any more."""

    @property
    def tables(self) -> Sequence[Table]:
        """The tables of the lake that it feeds."""

    def find_new(self, table: str, marks: Mapping[str, Mark]) -> Span | None:
        """Return what is new since the marks, {} for none; None: nothing. Raises SourceError."""

    def read(self, spark: SparkSession, span: Span) -> DataFrame:
        """Return what is new: the table's columns, and `fault`, `identity`, `digest` (pipeline.clean.rules).

        A row for each row that is there. The session is a local one; rows are read when it runs, before the source
        is left.
        """


class Source(Protocol):
    """Something with a name that rows come from."""

    @property
    def name(self) -> str:
        """As the operator named it: the lake's partition."""

    @property
    def kind(self) -> str:
        """For the operator: what it is."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def feeds(self) -> Sequence[Table]:
        """The tables of the lake that sources of this kind feed in any version, or an empty one may have fed."""

    @property
    def inodes(self) -> frozenset[Inode]:
        """The files that rows are read from, whatever they are called."""

    @property
    def empty(self) -> bool:
        """Whether nothing is in it: then nobody knows of which kind it is."""

    @property
    def whole(self) -> bool:
        """Whether it is one database, whose mark has the name "", and not files."""

    @property
    def origins(self) -> Sequence[str]:
        """What rows are told to come from that were imported from it elsewhere; () where nothing imports it."""

    def opened(self, scratch: Path, say: Say, context: IngestContext) -> AbstractContextManager[OpenedSource]:
        """Open it, a copy in the scratch folder where it is live; that is gone afterwards. Raises SourceError."""


def another_kind(source: Source, tables: str) -> SourceError:
    """Say that the lake has rows of these tables under a source's name that are of another kind of source."""
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
    """A source as the operator named it: NAME[@SERVER]=PATH."""

    name: str
    server: str | None
    """The source whose trace goes with this timing log."""
    path: Path


class PathPreview(NamedTuple):
    """What a path looks like, before it is known what it is."""

    files: frozenset[str] | None
    """The names in a directory; None: it is none."""
    head: bytes
    """A file's first bytes, PREVIEW_BYTES at most."""

    @property
    def sqlite(self) -> bool:
        """Whether it begins as SQLite's files do (sqlite.org/fileformat2.html#magic_header_string)."""
        return self.head.startswith(b"SQLite format 3\0")


PREVIEW_BYTES: Final = 4096
"""Bytes that are looked at: more than any kind's first line or header."""

SOURCE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""A source's name: it is a folder's name in the lake, on any system."""

_SPEC: Final = re.compile(r"(?P<name>[^=@]*)(@(?P<server>[^=]*))?=(?P<path>.+)", re.DOTALL)

_GLOB: Final = frozenset("*?[")


def parse(spec: str) -> SourceSpec:
    """Read NAME[@SERVER]=PATH. Raises Misuse."""
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise Misuse(f"--source {spec}: name it and say where it is, --source NAME=PATH")
    for name in filter(None, (found["name"], found["server"])):
        if SOURCE_NAME.fullmatch(name) is None:
            raise Misuse(
                f"--source {spec}: {name} cannot be a name: at most 63 of a-z, 0-9, dot, hyphen and underscore,"
                " beginning with a letter or a digit"
            )
    if not found["name"] or found["server"] == "":
        raise Misuse(f"--source {spec}: name it and say where it is, --source NAME=PATH")
    return SourceSpec(found["name"], found["server"], Path(found["path"]))


def origins(sources: Sequence[Source]) -> dict[str, list[Path]]:
    """Return the files that are themselves sources by what imported rows call them: IngestContext.origins."""
    found: dict[str, list[Path]] = {}
    for source in sources:
        for origin in source.origins:
            found.setdefault(origin, []).append(source.path)
    return found


def shared(sources: Sequence[Source]) -> dict[str, str]:
    """Return, for each source that reads a file another one reads, the name of that other one."""
    readers: dict[Inode, list[str]] = {}
    for source in sources:
        for inode in source.inodes:
            readers.setdefault(inode, []).append(source.name)
    found: dict[str, str] = {}
    for first, *others in readers.values():
        for other in others:
            found.setdefault(first, other)
            found.setdefault(other, first)
    return found


def is_glob(path: Path) -> bool:
    """Tell whether a path means the files that it matches."""
    return bool(_GLOB & set(str(path))) and not path.exists()
