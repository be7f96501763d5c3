"""An archive and what a test does behind its back; and what a query should give, told from the envelopes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from restante.waku.archive import sqlite
from restante.waku.archive.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.archive.sqlite import Archive, open_archive
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from stores.conftest import DataDirectory
from support.bounds import BOUND
from support.sqlite import LOCK, beside
from support.waku.envelopes import T0, everything


class Altered(sqlite3.Connection):
    """A connection whose COMMIT may fail. Flushes are for durability/test_disk.py: a crash keeps what was written."""

    code: int | None = None
    steps: Iterator[Callable[[], None]] = iter(())

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        super().execute("PRAGMA synchronous = OFF")

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        next(self.steps, lambda: None)()
        if sql == "PRAGMA synchronous = FULL":
            return super().execute("SELECT NULL")
        if sql == "COMMIT" and self.code is not None:
            failure = sqlite3.OperationalError("it was told to")
            failure.sqlite_errorcode = self.code
            raise failure
        return super().execute(sql, parameters)


def open_altered(data: Path) -> Archive:
    with patch("sqlite3.connect", partial(sqlite3.connect, factory=Altered)):
        return open_archive(data)


class Engine(DataDirectory[Archive]):
    def __init__(self) -> None:
        super().__init__(open_altered, ARCHIVE_FILE)

    def refusing(self) -> contextlib.AbstractContextManager[None]:
        return beside(self.file, LOCK, "UPDATE totals SET envelopes = 12345")

    def failing_at_commit(self, code: int = sqlite3.SQLITE_IOERR_FSYNC) -> contextlib.AbstractContextManager[object]:
        return patch.object(self.store.database, "code", code)

    @contextlib.contextmanager
    def meddling(self, steps: Iterable[Callable[[], None]]) -> Iterator[None]:
        """Run one step before each read, as long as there are any. A step runs in the thread that reads."""
        self.loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as patches:
            following = iter(steps)
            for reader in self.store.readers.free:
                patches.enter_context(patch.object(reader, "steps", following))
            yield

    def save_now(self, batch: Sequence[Envelope]) -> None:
        asyncio.run_coroutine_threadsafe(self.store.save(batch, 1), self.loop).result(BOUND)

    def prune_now(self, before: int, max_envelopes: int) -> None:
        asyncio.run_coroutine_threadsafe(self.store.prune(before, max_envelopes), self.loop).result(BOUND)


async def stored(archive: Archive) -> list[bytes]:
    return [row.raw for row in await everything(archive)]


def alike(envelope: Envelope, start: bytes = b"\xaa\xbb\xcc\xdd") -> Envelope:
    return replace(envelope, hash=start + envelope.hash[len(start) :])


def query(
    lower: int = 0, upper: int = 1000, *, topics: Iterable[bytes] | None = None, limit: int = 1000, **others: Any
) -> PageQuery:
    """Ask for what was sent between these seconds after T0."""
    named = None if topics is None else frozenset(topics)
    return PageQuery(lower=T0 + lower, upper=T0 + upper, topics=named, limit=limit, **others)


def matches(asked: PageQuery, envelope: Envelope) -> bool:
    if not asked.lower <= envelope.sent <= asked.upper:
        return False
    if asked.topics is not None:
        return envelope.topic in asked.topics
    return asked.bloom is None or bloom.passes(asked.bloom, envelope.topic)


def answer(asked: PageQuery, rows: Iterable[Envelope]) -> list[bytes]:
    matching = sorted((row.sent, row.hash, row.raw) for row in rows if matches(asked, row))
    return [raw for _, _, raw in (matching[::-1] if asked.descending else matching)]


async def pages(archive: Archive, asked: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> list[Page]:
    answers = [await archive.page(asked, bounds)]
    while answers[-1].cursor is not None:
        assert len(answers) < 10_000
        answers.append(await archive.page(replace(asked, after=answers[-1].cursor), bounds))
    return answers


async def loop(archive: Archive, asked: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> list[bytes]:
    return [raw for page in await pages(archive, asked, bounds) for raw in page.raws]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the other writer to end: it does not."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.01)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as engine:
        yield engine
