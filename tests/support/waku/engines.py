"""The engines that the contract holds for, and what a test must do behind their backs."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from restante.waku.archive import pruning
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import Archive, open_archive
from restante.waku.envelope.envelope import Envelope
from support.disk import crashing


class Engine(ABC):
    """One archive at a time, and what outlives it."""

    archive: Archive

    @abstractmethod
    async def restart(self) -> None:
        """Close the archive and open what it left."""

    @abstractmethod
    async def crash(self) -> None:
        """Open what a process finds that starts now, while the archive has not been closed."""

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind."""

    @abstractmethod
    def refusing(self) -> contextlib.AbstractContextManager[None]:
        """Let another program write meanwhile, without an end."""

    @abstractmethod
    def read_on(self) -> contextlib.AbstractContextManager[None]:
        """Let another program read meanwhile, without an end."""

    @abstractmethod
    def meddling(self, steps: Iterable[Callable[[], None]]) -> contextlib.AbstractContextManager[None]:
        """Run one step before each read, as long as there are any."""

    @abstractmethod
    def save_now(self, batch: Sequence[Envelope]) -> None:
        """Save in such a step."""

    @abstractmethod
    def prune_now(self, before: int, most: int) -> None:
        """Prune in such a step."""

    @abstractmethod
    def full(self) -> contextlib.AbstractContextManager[None]:
        """Refuse whatever needs more room meanwhile."""

    @abstractmethod
    def full_at_commit(self) -> contextlib.AbstractContextManager[None]:
        """Find no room when the transaction is to be written, and undo it."""

    @abstractmethod
    def failing_at_commit(self) -> contextlib.AbstractContextManager[None]:
        """Fail at every commit, in a way of which nobody can tell what it did."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Fallible(sqlite3.Connection):
    """A connection whose COMMIT fails when it is told to, and waits for no disk.

    What another process sees after a crash is the kernel's copy of the files, flushed or not. That a commit is
    flushed is for test_durability.py.
    """

    code: int | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        super().execute("PRAGMA synchronous = OFF")

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql == "PRAGMA synchronous = FULL":
            return super().execute("SELECT NULL")
        if sql == "COMMIT" and self.code is not None:
            failure = sqlite3.OperationalError("it was told to")
            failure.sqlite_errorcode = self.code
            raise failure
        return super().execute(sql, parameters)


class Meddled:
    """A connection, and what happens before each of its statements."""

    def __init__(self, database: sqlite3.Connection, steps: Iterator[Callable[[], None]]) -> None:
        self._database = database
        self._steps = steps

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        for step in self._steps:
            step()
            break
        return self._database.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Sqlite(Engine):
    """A data directory."""

    archive: Archive

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.data = Path(self._folder.name) / "data"
        self._open()

    def _open(self) -> None:
        with patch("sqlite3.connect", partial(sqlite3.connect, factory=Fallible)):
            archive = open_archive(self.data)
        self.archive = archive

    async def restart(self) -> None:
        await self.archive.close()
        self._open()

    async def crash(self) -> None:
        with crashing(self.data):
            await self.archive.close()
        self._open()

    async def close(self) -> None:
        await self.archive.close()
        self._folder.cleanup()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        with self._transaction("BEGIN IMMEDIATE", "UPDATE totals SET envelopes = 12345"):
            yield

    @contextlib.contextmanager
    def read_on(self) -> Iterator[None]:
        with self._transaction("BEGIN", "SELECT * FROM totals"):
            yield

    @contextlib.contextmanager
    def _transaction(self, *statements: str) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self.data / FILE, isolation_level=None)) as database:
            for statement in statements:
                database.execute(statement).fetchall()
            try:
                yield
            finally:
                database.execute("ROLLBACK")

    @contextlib.contextmanager
    def meddling(self, steps: Iterable[Callable[[], None]]) -> Iterator[None]:
        following = iter(steps)
        free = [Meddled(each, following) for each in self.archive.readers.free]
        with patch.object(self.archive.readers, "free", free):
            yield

    def save_now(self, batch: Sequence[Envelope]) -> None:
        self.archive._save(batch, 1)

    def prune_now(self, before: int, most: int) -> None:
        self.archive._prune(lambda: pruning.prune(self.archive.database, before, most))

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        database = self.archive.database
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        try:
            yield
        finally:
            database.execute(f"PRAGMA max_page_count = {1 << 30}")

    def full_at_commit(self) -> contextlib.AbstractContextManager[None]:
        return self._at_commit(sqlite3.SQLITE_FULL)

    def failing_at_commit(self) -> contextlib.AbstractContextManager[None]:
        return self._at_commit(sqlite3.SQLITE_IOERR_FSYNC)

    @contextlib.contextmanager
    def _at_commit(self, code: int) -> Iterator[None]:
        database = self.archive.database
        assert isinstance(database, Fallible)
        database.code = code
        try:
            yield
        finally:
            database.code = None


ENGINES: tuple[type[Engine], ...] = (Sqlite,)
