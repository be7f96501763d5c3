"""Copies an SQLite database as it is at one moment, while its server is running and without delaying it noticeably.

SQLite's backup API makes the copy in steps. With a rollback journal (the reference server's) a reader blocks the
writer's commit (sqlite.org/lockingv3.html), so steps are short and a longer rest follows each; a write in between
makes the backup start again (sqlite.org/backup.html). With a write-ahead log (WAL, our servers') readers and the
writer do not wait for one another, and one read transaction holds the moment.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from restante.common.errors import plain
from restante.pipeline.sources.source import SourceError, refuse_special

BUSY_TIMEOUT: Final = 5.0
"""Seconds for which another program may have the database locked before we give up."""

SPARE_BYTES: Final = 64 << 20
"""Bytes that must be free beside the copy, because Spark usually writes to the same disk meanwhile."""


class Pace(NamedTuple):
    """The speed of a copy, chosen so that no writer waits long."""

    step: float
    """Seconds that a step may take. A writer waits for the end of the step."""
    rest: float
    """Duration of the rest after a step, in multiples of that step; at least MIN_REST_SECONDS."""
    tries: int = 3


PACES: Final = (Pace(0.002, 5.0), Pace(0.005, 3.0), Pace(0.01, 2.0), Pace(0.02, 1.0), Pace(0.04, 0.5, tries=10))
"""Paces of the tries. A database that is written to so often that a slow copy never ends is copied faster. At the
fastest pace a commit waits at most for 40 ms and the 25 ms until SQLite tries again (sqlite3.c,
sqliteDefaultBusyCallback), less than the tenth of a second that users would notice. One such step copies some 40 MB
from memory, so databases up to that size are copied whatever is written."""

PACE_OF_EACH_TRY: Final = tuple(pace for pace in PACES for _ in range(pace.tries))

FIRST_STEP_BYTES: Final = 256 << 10
"""Bytes of a step of the first try: with a rollback journal a millisecond or less, except on a rotating disk."""

WAL_STEP_BYTES: Final = 4 << 20
"""Bytes of a step with a write-ahead log. No writer waits; what the server shares with the copy is the disk. By
default a server keeps usage records for ever, and the copy has all of them. One of 322 MB, a year of 11,000 rows a
day (docs/decisions/lake-files.md), would rest 1,227 times at the first pace."""

WAL_REST: Final = 1.0
"""Duration of the rest after such a step, as in Pace."""

MAX_STEP_GROWTH: Final = 4
"""Factor by which the steps of a try may be larger than those of the previous one, from which their duration is
estimated."""

MIN_REST_SECONDS: Final = 0.002
"""Seconds in which a waiting writer notices that it may go on (its first retries are 1 and 2 ms apart)."""


class _DatabaseChanged(Exception):  # noqa: N818 - it ends a try, and is not an error
    """Another program wrote, which makes the copied pages invalid."""


@contextmanager
def reading(path: Path, name: str, original: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Yield a database opened for reading only.

    `name` (the source's) and `original` (the path that the file is a copy of) are used in errors. Bytes of a text
    that are invalid UTF-8 become lone surrogates. Raises SourceError if the path is a named pipe or a device, and for
    any SQLite error, also within the `with` block.
    """
    refuse_special(path, name)
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", BUSY_TIMEOUT, uri=True, isolation_level=None)
        ) as database:
            database.execute("PRAGMA trusted_schema = OFF")  # the file may come from anyone
            database.text_factory = _decode_text
            yield database
    except sqlite3.Error as error:
        raise SourceError(f"source {name}: {_reason(error, original or path)}") from error


@contextmanager
def snapshot(path: Path, scratch: Path, name: str, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[Path]:
    """Yield a copy in the scratch folder, where no other user can read it, and remove it afterwards.

    Raises SourceError if the file is not a database, is damaged or changes continually, or if the disk lacks space.
    """
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))  # mode 0700
    except OSError as error:
        raise SourceError(f"source {name}: cannot make a folder for its copy in {scratch}: {plain(error)}") from error
    try:
        copy = folder / "copy.sqlite"
        with reading(path, name) as theirs:
            _require_space(theirs, folder, name)
            _copy(theirs, copy, name, sleep)
        _require_intact(copy, name, path)
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_space(theirs: sqlite3.Connection, folder: Path, name: str) -> None:
    required = _pragma(theirs, "page_count") * _pragma(theirs, "page_size") + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < required:
        raise SourceError(
            f"source {name}: its copy needs {required >> 20} MiB in {folder.parent}, where {free >> 20} MiB are free:"
            " make room there"
        )


def _copy(theirs: sqlite3.Connection, copy: Path, name: str, sleep: Callable[[float], None]) -> None:
    size = _pragma(theirs, "page_size")
    theirs.execute("PRAGMA busy_timeout = 0")  # `_Steps` waits for locks, between steps
    [(mode,)] = theirs.execute("PRAGMA journal_mode")
    if mode == "wal":
        theirs.execute("BEGIN")
        theirs.execute("SELECT 1 FROM sqlite_schema").fetchone()  # this begins the read transaction
        # In a read transaction the database does not change, so there is one try.
        _try_to_copy(theirs, copy, max(1, WAL_STEP_BYTES // size), _Steps(WAL_REST, name, sleep))
        return
    pages = max(1, FIRST_STEP_BYTES // size)
    for pace in PACE_OF_EACH_TRY:
        steps = _Steps(pace.rest, name, sleep)
        try:
            _try_to_copy(theirs, copy, pages, steps)
        except _DatabaseChanged:
            pages = max(1, min(MAX_STEP_GROWTH * pages, round(pages * pace.step / steps.mean)))
        else:
            return
    raise SourceError(
        f"source {name}: its server wrote to it during each of {len(PACE_OF_EACH_TRY)} attempts to copy it:"
        " ingest it when the server is less busy, or ingest a copy"
    )


def _try_to_copy(theirs: sqlite3.Connection, copy: Path, pages: int, steps: _Steps) -> None:
    """Copy in steps of so many pages. Raises _DatabaseChanged if another program writes meanwhile."""
    copy.unlink(missing_ok=True)
    with closing(sqlite3.connect(copy, isolation_level=None)) as ours:
        ours.execute("PRAGMA synchronous = OFF")  # the copy need not survive a crash
        theirs.backup(ours, pages=pages, progress=steps.done, sleep=MIN_REST_SECONDS)
        # The copy has the source's journal mode; with WAL, reading it would create files beside it.
        ours.execute("PRAGMA journal_mode = DELETE").fetchone()


class _Steps:
    """Rests between steps, and ends a backup that starts again."""

    def __init__(self, rest: float, name: str, sleep: Callable[[float], None]) -> None:
        self._rest, self._name, self._sleep = rest, name, sleep
        self._copied = 0
        self._begun = self._progressed_at = time.monotonic()
        self._steps, self._seconds = 0, 0.0

    @property
    def mean(self) -> float:
        """Return the mean duration of a step in seconds, at least the resolution of a clock."""
        return max(0.0001, self._seconds / max(1, self._steps))

    def done(self, status: int, remaining: int, total: int) -> None:
        """Rest after a step. SQLite has released its lock on the database."""
        now = time.monotonic()
        seconds = now - self._begun
        if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            if now - self._progressed_at > BUSY_TIMEOUT:
                raise SourceError(
                    f"source {self._name}: another program has locked it for {BUSY_TIMEOUT:.0f} s: stop that program,"
                    " or ingest a copy"
                )
        else:
            self._steps += 1
            self._seconds += seconds
            if total - remaining <= self._copied and status != sqlite3.SQLITE_DONE:
                raise _DatabaseChanged
            self._copied = total - remaining
            self._progressed_at = now
        if status != sqlite3.SQLITE_DONE:
            self._sleep(max(MIN_REST_SECONDS, self._rest * seconds))
        self._begun = time.monotonic()


def _require_intact(copy: Path, name: str, path: Path) -> None:
    with reading(copy, name, path) as database:
        problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        problem_text = " ".join(str(problem).split())
        raise SourceError(f"source {name}: {path} is damaged ({problem_text}): name an undamaged copy")


def _reason(error: sqlite3.Error, path: Path) -> str:
    """Return why a database cannot be read, and what to do."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return f"{path} is damaged or encrypted ({error}): name an undamaged copy"
    if code in {sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY}:
        return f"{path} was left in the middle of a commit: start its server, which repairs that, then try again"
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return f"the disk has no room for its copy ({error}): make room"
    return f"cannot read {path}: {error}"


_decode_text: Final = partial(str, encoding="utf-8", errors="surrogateescape")
"""A `partial`, not a function of ours, for speed: it is called for every text."""


def _pragma(database: sqlite3.Connection, name: str) -> int:
    value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return value
