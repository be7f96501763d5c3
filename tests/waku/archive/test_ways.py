"""SQLite's ways to a page: each gives the same, and is taken where it is cheap; nobody is held up by any."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import StoreError
from restante.waku.archive import ids
from restante.waku.archive.history import page, plans, readers
from restante.waku.archive.history.query import Page, PageQuery
from restante.waku.archive.history.readers import READER_COUNT
from restante.waku.archive.schema import SCHEMA
from restante.waku.archive.sqlite import Archive
from restante.waku.envelope import bloom
from support.bounds import BOUND, bounded
from support.effort import examples
from support.waku.envelopes import envelope
from waku.archive.engine import answer, loop
from waku.archive.engine import query as ask

DICE = random.Random(1)
TOPICS = [DICE.randbytes(4) for _ in range(60)]
ROWS = [envelope(number // 7, number, topic=DICE.choice(TOPICS)) for number in range(3000)]
NOTHING = Page(b"", [], None, None, 0, False)
HALF = sum(1 << place for place in DICE.sample(range(512), 256))


one_loop = pytest.mark.asyncio(loop_scope="module")
"""For tests of the archive that all of them read."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Archive]:
    """An archive for all tests that only read."""
    archive = Archive.open(tmp_path_factory.mktemp("ways"))
    await archive.save(ROWS, 1)
    yield archive
    await archive.close()


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    """An archive for one test."""
    archive = Archive.open(tmp_path)
    await archive.save(ROWS, 1)
    yield archive
    await archive.close()


def way(archive: Archive, asked: PageQuery) -> str:
    low, high = ids.floor(asked.lower), ids.floor(asked.upper + 1) - 1
    chosen = plans.choose(archive.readers.free[0], asked, low, high, asked.limit + 1, 200_000).way
    assert chosen is not None
    kinds = {plans.RANGE_SQL: "everything", plans.MERGE_SQL: "part"}
    return kinds.get(
        chosen.statement, "dense" if "place" in chosen.statement or ">> 24" in chosen.statement else "walk"
    )


WAYS = [
    ("everything", ask()),
    ("part", ask(topics=TOPICS[:1])),
    ("part", ask(topics=TOPICS[:10], limit=1000)),
    ("part", ask(topics=TOPICS[:2], limit=10)),
    ("part", ask(100, 120, topics=TOPICS[:1], limit=10)),
    ("walk", ask(topics=TOPICS[:40], limit=10)),
    ("walk", ask(topics=TOPICS[:40], limit=500)),
    ("part", ask(bloom=bloom.of(TOPICS[:2]))),
    ("part", ask(bloom=bloom.of(TOPICS[:2]), limit=10)),
    ("walk", ask(bloom=bloom.of(TOPICS[:10]), limit=10)),
    ("part", ask(bloom=bloom.of(TOPICS[:25]), limit=2000)),
    ("dense", ask(bloom=HALF, limit=100)),
]


@pytest.mark.parametrize(
    "changed",
    [{"MAX_PAIRED_PLACES": 512}, {"MAX_PAIRED_PLACES": 0, "MAX_SINGLE_PLACES": 512}, {"MAX_SINGLE_PLACES": 0}],
)
async def test_every_plan_finds_topics_at_the_edges_and_with_overlapping_filter_bits(
    archive: Archive, changed: dict[str, Any]
) -> None:
    special = [
        *(b"\x10\x11\x80\x00", b"\x10\x80\x11\x00", b"\x80\x10\x11\x00", b"\x10\x11\x12\x00", b"\x10\x11\x80\x07"),
        *(b"\xff\x80\x10\x01", b"\x10\xff\x80\x02", b"\x10\x80\xff\x04", b"\xff\xff\xff\xff", b"\0\0\0\0"),
        *(b"\0\x80\x10\0", b"\x10\0\x80\0", b"\x10\x80\0\0"),
    ]
    rows = [envelope(number, 5000 + number, topic=topic) for number, topic in enumerate(special)]
    await archive.save(rows, 1)
    with patch.multiple(plans, **changed):
        for each in rows:
            for filtered in (bloom.kept(each.topic), bloom.of([each.topic])):
                found = await loop(archive, ask(bloom=filtered))
                assert each.raw in found
                assert found == answer(ask(bloom=filtered), [*ROWS, *rows])


@one_loop
async def test_each_plan_is_chosen_where_it_is_meant_to_be_and_a_walk_counts_what_it_examines(kept: Archive) -> None:
    assert [way(kept, asked) for _, asked in WAYS] == [plan for plan, _ in WAYS]
    page = await kept.page(ask(topics=TOPICS[:40], limit=10))
    assert page.looked == 40 + answer(ask(), ROWS).index(page.raws[-1]) + 1
    assert (await kept.page(ask(topics=TOPICS[:2], limit=10))).looked == 2 + 10 + 1


LATE = [envelope(400 + number, 5000 + number, topic=b"late") for number in range(30)]
BURST = [envelope(440, 6000 + number, topic=b"much") for number in range(200)]


@pytest.mark.parametrize(
    ("topic", "descending", "ran"),
    [
        (TOPICS[0], False, ["part"]),
        (TOPICS[0], True, ["part"]),
        (b"late", True, ["part"]),
        (b"late", False, ["part", "part"]),
        (b"much", False, ["part", "part", "merge"]),
        (b"much", True, ["part", "part", "merge"]),
    ],
)
async def test_a_page_is_searched_in_two_parts_of_the_range_before_a_merge(
    archive: Archive, topic: bytes, descending: bool, ran: list[str]
) -> None:
    await archive.save([*LATE, *BURST], 1)
    asked = ask(topics=[topic], limit=10, descending=descending)
    statements: list[str] = []
    [*_, reader] = archive.readers.free
    reader.set_trace_callback(statements.append)
    page = await archive.page(asked)
    assert page.raws == answer(asked, [*ROWS, *LATE, *BURST])[:10]
    kinds = {"WITH entries": "part", "WITH RECURSIVE merged": "merge"}
    assert [kind for each in statements for words, kind in kinds.items() if words in each] == ran


@given(st.lists(st.binary(min_size=4, max_size=4), max_size=20))
@examples(100)
def test_the_index_of_places_has_the_places_of_kept_envelopes(topics: list[bytes]) -> None:
    database = SCHEMA.connect(":memory:")
    for topic in {*topics, b"\x10\x11\x80\0", b"\x10\x80\x11\0", b"\x80\x10\x11\0", b"\x10\x11\x12\0"}:
        database.execute("INSERT INTO topics VALUES (?, 1, 1, 1)", (ids.number(topic),))
    for number, places in database.execute("SELECT topic, places FROM topics").fetchall():
        kept = sum({1 << (places >> shift & 511) for shift in (0, 9, 18)})
        assert kept == bloom.kept(ids.topic(number))
    database.close()


@one_loop
async def test_a_count_that_changes_leaves_the_index_of_places_alone(kept: Archive) -> None:
    """Each batch counts its topics; only a new one has places to be written."""
    for changed, writes in (("count = count + 1, first = 0, last = 0", 0), ("topic = 8", 1)):
        steps = kept.database.execute(f"EXPLAIN UPDATE topics SET {changed} WHERE topic = 7").fetchall()
        assert [step[1] for step in steps].count("IdxInsert") == writes


async def test_a_page_leaves_no_transaction_behind(archive: Archive) -> None:
    """The log can be moved into the database and begun anew after each page, so it does not grow."""
    for _, asked in WAYS:
        page = await archive.page(asked)
        await archive.save([envelope(5000, len(page.raws))], 1)
        assert archive.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


class Held:
    """Searches that begin, and go on for long once they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Event()
        self.over = threading.Semaphore(0)
        self.ended: list[str] = []
        self._rows = rows
        monkeypatch.setattr(page, "page", self._page)

    def _page(self, database: sqlite3.Connection, *_: Any) -> Page:
        def hold(_: int) -> None:
            self.begun.release()
            self.let.wait(BOUND)

        database.create_function("hold", 1, hold)
        count = f"WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT {self._rows})"
        try:
            database.execute(f"{count} SELECT count(*) FROM n WHERE n > 1 OR hold(n)").fetchall()
        except sqlite3.OperationalError as error:
            self.ended.append(str(error))
            raise
        finally:
            self.over.release()
        return NOTHING

    async def search(self, archive: Archive, count: int) -> list[asyncio.Task[Page]]:
        """Begin so many searches."""
        searches = [asyncio.create_task(archive.page(ask())) for _ in range(count)]
        for _ in searches:
            assert await asyncio.to_thread(self.begun.acquire, timeout=BOUND)
        return searches


async def test_a_search_blocks_neither_another_nor_a_writer(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, 10)
    searches = await held.search(archive, READER_COUNT - 1)
    async with bounded("the counts"):
        assert (await archive.counts()).envelopes == len(ROWS)
    searches += await held.search(archive, 1)
    behind = asyncio.create_task(archive.topics())
    await archive.save([envelope(5000, 1)], 1)
    assert not behind.done()
    behind.cancel()
    with pytest.raises(asyncio.CancelledError):
        await behind
    held.let.set()
    assert await asyncio.gather(*searches) == [NOTHING] * READER_COUNT
    assert held.ended == [], "who waited for its turn and left has stopped no other"


async def test_a_requester_that_leaves_stops_only_its_own_search(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, 300_000)
    leaving, staying = await held.search(archive, 2)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    held.let.set()
    assert await staying == NOTHING
    for _ in range(2):
        assert await asyncio.to_thread(held.over.acquire, timeout=BOUND)
    assert held.ended == ["interrupted"]
    for _ in range(READER_COUNT + 1):
        assert (await archive.counts()).envelopes == len(ROWS)


def test_a_search_that_is_cancelled_before_its_turn_does_not_start() -> None:
    turn = readers.ReaderTurn([sqlite3.connect(":memory:")])
    turn.stop()
    with pytest.raises(StoreError, match="was cancelled"):
        turn.take(lambda _: pytest.fail("it began"))
