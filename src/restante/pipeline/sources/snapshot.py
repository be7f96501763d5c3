"""A copy of an SQLite database as it is at one moment, made while its server is running and does not notice.

The copy is made by SQLite's backup API in steps. With a rollback journal (the reference server's) whoever reads keeps
the writer from its commit (sqlite.org/lockingv3.html), so a step is short and a longer rest follows; who writes in
between makes the backup begin anew (sqlite.org/backup.html). With a log (WAL, our servers') readers and writer do not
wait for one another, and one read transaction holds the moment.
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
from restante.pipeline.sources.source import SourceError

BUSY_TIMEOUT: Final = 5.0
"""Seconds for which somebody may have the database to himself before we give up."""

SPARE_BYTES: Final = 64 << 20
"""Bytes that are to be free beside the copy: what Spark writes meanwhile stands on the same disk, as a rule."""


class Pace(NamedTuple):
    """How a copy is made, so that nobody waits for it long."""

    step: float
    """Seconds that a step may take; a writer that meets it waits for its end."""
    rest: float
    """How much longer than the last step nothing is done; not less than MIN_REST_SECONDS."""
    tries: int = 3


PACES: Final = (Pace(0.002, 5.0), Pace(0.005, 3.0), Pace(0.01, 2.0), Pace(0.02, 1.0), Pace(0.04, 0.5, tries=10))
"""A database that is written to so often that a careful copy never ends is copied faster. Even so a commit waits for
40 ms and the 25 until SQLite looks again (sqlite3.c, sqliteDefaultBusyCallback), not for the tenth of a second that
people would notice. Some 40 MB are one such step, from memory: those are copied whatever is written."""

PACE_OF_EACH_TRY: Final = tuple(pace for pace in PACES for _ in range(pace.tries))

FIRST_STEP_BYTES: Final = 256 << 10
"""Bytes of the first try's steps: a millisecond or less, but on a disk that turns."""

MAX_STEP_GROWTH: Final = 4
"""How much larger the steps of a try may be than those of the last: how long they take is only guessed from those."""

MIN_REST_SECONDS: Final = 0.002
"""Seconds: time for a writer that waits to see that it may go on (its first looks are 1 and 2 ms apart)."""


class _DatabaseChanged(Exception):  # noqa: N818 - it ends a try, and is no error
    """Somebody wrote; what was copied is void."""


@contextmanager
def reading(path: Path, name: str, called: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Open a database as it is, to read from it.

    For the operator there are the source's name, and what its copy is a copy of. Texts that are no UTF-8 keep their
    bytes as lone surrogates. Raises SourceError for whatever SQLite refuses meanwhile.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", BUSY_TIMEOUT, uri=True, isolation_level=None)
        ) as database:
            database.execute("PRAGMA trusted_schema = OFF")  # whoever wrote it
            database.text_factory = _text
            yield database
    except sqlite3.Error as error:
        raise SourceError(f"source {name}: {_words(error, called or path)}") from error


@contextmanager
def snapshot(path: Path, scratch: Path, name: str, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[Path]:
    """Make a copy in the scratch folder, where nobody else can read it; it is gone afterwards.

    Raises SourceError where the database is none, is damaged, changes all the while, or there is no room.
    """
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))  # 0700
    except OSError as error:
        raise SourceError(f"source {name}: cannot make a folder for its copy in {scratch}: {plain(error)}") from error
    try:
        copy = folder / "copy.sqlite"
        with reading(path, name) as theirs:
            _must_fit(theirs, folder, name)
            _copy(theirs, copy, name, sleep)
        _must_be_whole(copy, name, path)
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _must_fit(theirs: sqlite3.Connection, folder: Path, name: str) -> None:
    needed = _pragma(theirs, "page_count") * _pragma(theirs, "page_size") + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SourceError(
            f"source {name}: its copy needs {needed >> 20} MiB in {folder.parent}, where {free >> 20} MiB are free:"
            " make room there"
        )


def _copy(theirs: sqlite3.Connection, copy: Path, name: str, sleep: Callable[[float], None]) -> None:
    size = _pragma(theirs, "page_size")
    theirs.execute("PRAGMA busy_timeout = 0")  # who has it is waited for between steps
    [(mode,)] = theirs.execute("PRAGMA journal_mode")
    if mode == "wal":
        theirs.execute("BEGIN")
        theirs.execute("SELECT 1 FROM sqlite_schema").fetchone()  # this moment it is
    pages = max(1, FIRST_STEP_BYTES // size)
    for pace in PACE_OF_EACH_TRY:
        copy.unlink(missing_ok=True)
        steps = _Steps(pace, name, sleep)
        try:
            with closing(sqlite3.connect(copy, isolation_level=None)) as ours:
                ours.execute("PRAGMA synchronous = OFF")  # nobody misses it after a crash
                theirs.backup(ours, pages=pages, progress=steps.done, sleep=MIN_REST_SECONDS)
                # It came with the mode of theirs; in a log's, who reads makes files beside it.
                ours.execute("PRAGMA journal_mode = DELETE").fetchone()
        except _DatabaseChanged:
            pages = max(1, min(MAX_STEP_GROWTH * pages, round(pages * pace.step / steps.mean)))
        else:
            return
    raise SourceError(
        f"source {name}: it was written to all the while, {len(PACE_OF_EACH_TRY)} copies were begun in vain:"
        " ingest it when its server has less to do, or from a copy of it"
    )


class _Steps:
    """Rests between steps, and gives up a backup that begins anew."""

    def __init__(self, pace: Pace, name: str, sleep: Callable[[float], None]) -> None:
        self._pace, self._name, self._sleep = pace, name, sleep
        self._copied = 0
        self._begun = self._got_on = time.monotonic()
        self._steps, self._seconds = 0, 0.0

    @property
    def mean(self) -> float:
        """Seconds that a step took; not less than a clock can tell."""
        return max(0.0001, self._seconds / max(1, self._steps))

    def done(self, status: int, remaining: int, total: int) -> None:
        """Take note of a step; SQLite has let go of the database."""
        now = time.monotonic()
        took = now - self._begun
        if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            if now - self._got_on > BUSY_TIMEOUT:
                raise SourceError(
                    f"source {self._name}: another program has had it to itself for {BUSY_TIMEOUT:.0f} s: stop that,"
                    " or ingest a copy"
                )
        else:
            self._steps += 1
            self._seconds += took
            if total - remaining <= self._copied and status != sqlite3.SQLITE_DONE:
                raise _DatabaseChanged
            self._copied = total - remaining
            self._got_on = now
        if status != sqlite3.SQLITE_DONE:
            self._sleep(max(MIN_REST_SECONDS, self._pace.rest * took))
        self._begun = time.monotonic()


def _must_be_whole(copy: Path, name: str, path: Path) -> None:
    with reading(copy, name, path) as database:
        problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        words = " ".join(str(problem).split())
        raise SourceError(f"source {name}: {path} is damaged ({words}): name a copy that is whole")


def _words(error: sqlite3.Error, path: Path) -> str:
    """Say why a database cannot be read, and what to do."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return f"{path} is damaged or encrypted ({error}): name a copy that is whole"
    if code in {sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY}:
        return f"{path} was left in the middle of a commit: start its server, which repairs that, then try again"
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return f"there is no room for its copy ({error}): make some"
    return f"cannot read {path}: {error}"


_text: Final = partial(str, encoding="utf-8", errors="surrogateescape")
"""No function of ours: it is called for every text there is."""


def _pragma(database: sqlite3.Connection, name: str) -> int:
    value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return value
