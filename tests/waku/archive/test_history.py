"""History: what matches, in order, each once, however it is cut into pages and whatever happens between them."""

from __future__ import annotations

import asyncio
import operator
import random
import sqlite3
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common.errors import Misuse, StoreError
from restante.waku.archive import history, ids, sqlite
from restante.waku.archive.query import PAGE_CURSOR_BYTES, Bounds, Page, PageQuery, make_cursor, read_cursor
from restante.waku.archive.schema import SCHEMA
from restante.waku.archive.sqlite import READER_COUNT, Archive, open_archive
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from support.bounds import BOUND, bounded
from support.effort import examples
from support.waku.envelopes import T0, envelope
from support.waku.fake_node import key
from waku.archive.conftest import Engine, alike, answer, loop, matches, pages, query, stored


def test_an_id_is_the_time_and_the_first_31_bits_of_the_hash() -> None:
    assert ids.home(alike(envelope(7), b"\xff\xff\xff\xfe")) == (T0 + 7) << 31 | 0x7FFFFFFF
    assert ids.home(alike(envelope(0xFFFFFFFF - T0), b"\xff\xff\xff\xff")) == ids.MAX_ID == 2**63 - 1


@given(st.lists(st.binary(max_size=6)))
def test_a_topic_is_a_number_of_four_bytes(topics: list[bytes]) -> None:
    of_four = [topic for topic in topics if len(topic) == 4]
    numbers = ids.topic_numbers(topics)
    assert numbers == tuple(map(ids.topic_number, of_four))
    assert all(-(2**31) <= number < 2**31 for number in numbers)
    assert list(map(ids.number_topic, numbers)) == of_four


def test_an_id_that_is_taken_is_replaced_by_the_next_lower_free_one_of_its_second_and_the_search_ends() -> None:
    rows = {1000: b"a", 999: b"b"}
    assert ids.find_free_id(1001, b"c", rows.get) == 1001
    assert ids.find_free_id(1000, b"c", rows.get) == 998
    assert ids.find_free_id(1000, b"a", rows.get) is None
    assert ids.find_free_id(1000, b"b", rows.get) is None
    bottom = ids.lowest_id(5)
    assert ids.find_free_id(bottom, b"b", {bottom: b"a"}.get) is None
    assert ids.find_free_id(bottom + 1, b"b", {bottom + 1: b"a"}.get) == bottom
    home, lowest = bottom + 1_000_000, bottom + 1_000_000 - ids.PROBES + 1
    taken = dict.fromkeys(range(lowest, home + 1), b"a")
    assert ids.find_free_id(home, b"b", taken.get) is None
    del taken[lowest]
    assert ids.find_free_id(home, b"b", taken.get) == lowest


@given(st.integers(0, ids.MAX_ID), st.none() | st.binary(min_size=32, max_size=32))
def test_a_cursor_is_the_time_and_the_hash_as_in_status_go_or_an_id(at: int, name: bytes | None) -> None:
    """The key of mailserver/db_key.go, without its topic."""
    written = make_cursor(at, name)
    assert len(written) == PAGE_CURSOR_BYTES
    homely = name is not None and ids.home_of(at >> ids.BITS, name) == at
    assert read_cursor(written) == (at, name if homely else None)
    known = bytes.fromhex("bc10" + "42" * 30)
    at = ids.home_of(0x5F5E1000, known)
    assert make_cursor(at, known) == bytes.fromhex("5f5e1000") + known
    assert read_cursor(make_cursor(at, known)) == (at, known)


def test_a_cursor_has_36_bytes_and_a_page_a_limit_of_at_least_one() -> None:
    for size in (0, 35, 37):
        with pytest.raises(Misuse, match="36 bytes"):
            query(after=bytes(size))
    with pytest.raises(Misuse, match="at least 1"):
        query(limit=0)


SECONDS = 4
TOPICS = [b"\0\0\0\0", b"\0\0\0\1", b"\xff\0\0\0", b"\x10\x11\x80\0"]
ALIKE = [alike(envelope(second, 100 + number, topic=TOPICS[number % 2])) for second in (1, 2) for number in range(5)]
HISTORY = ALIKE + [
    envelope(second, number, topic=TOPICS[number % 4], size=8 + 7 * number)
    for number in range(12)
    for second in range(SECONDS)
]
LATE = [envelope(second, number, topic=TOPICS[number % 4]) for number in range(20, 30) for second in range(SECONDS)]
LATE += [alike(envelope(second, 200 + number, topic=TOPICS[0])) for second in (1, 2) for number in range(3)]
BY_RAW = {row.raw: row for row in HISTORY + LATE}

FILTERS = [*map(bloom.filter_of, (TOPICS[:1], TOPICS[1:3])), bloom.required_bits(TOPICS[3])]
FILTERS += [bloom.ALL_BITS, bloom.ALL_BITS >> 2, 0]
QUERIES = st.builds(
    query,
    st.integers(-1, SECONDS),
    st.integers(-1, SECONDS),
    topics=st.none() | st.frozensets(st.sampled_from(TOPICS)),
    bloom=st.none() | st.sampled_from(FILTERS),
    limit=st.integers(1, 9),
    descending=st.booleans(),
)
BOUNDS = st.builds(Bounds, st.sampled_from([100, 8 << 20]), st.sampled_from([3, 10, 200_000]))
WAYS = st.fixed_dictionaries(
    {
        "SEEK_COST": st.sampled_from([0, 3000, 10**6]),
        "PART_FACTORS": st.sampled_from([(), (0.5, 2.0), history.PART_FACTORS]),
        "MAX_SORT_FACTOR": st.sampled_from([1, history.MAX_SORT_FACTOR]),
        "MAX_PAIRED_BITS": st.sampled_from([0, 40]),
        "MAX_SINGLE_BITS": st.sampled_from([0, 160, 512]),
        "MAX_SEEK_TOPICS": st.sampled_from([1, 5000]),
    }
)
MEDDLING = st.one_of(
    st.none(),
    st.tuples(st.just("save_now"), st.lists(st.sampled_from(LATE), max_size=12)),
    st.tuples(st.just("prune_now"), st.integers(T0, T0 + SECONDS), st.integers(1, 4)),
)


def name(raw: bytes) -> bytes:
    """Return the hash that an envelope has here: some begin alike."""
    return BY_RAW[raw].hash if raw in BY_RAW else keccak(raw)


async def whole(engine: Engine, asked: PageQuery) -> list[bytes]:
    page = await engine.store.page(replace(asked, limit=1000, after=None))
    assert (page.cursor, page.bounded) == (None, False)
    there = [BY_RAW[raw] for raw in await stored(engine.store)]
    assert sorted(page.raws) == sorted(row.raw for row in there if matches(asked, row))
    homes = [ids.home(BY_RAW[raw]) for raw in page.raws]
    assert homes == sorted(homes, reverse=asked.descending)
    return page.raws


def check(asked: PageQuery, bounds: Bounds, page: Page) -> None:
    assert all(matches(asked, BY_RAW[raw]) for raw in page.raws)
    assert len(page.raws) <= min(asked.limit, bounds.rows)
    assert len(page.raws) <= 1 or sum(map(len, page.raws)) <= bounds.bytes
    assert page.last_hash == (name(page.raws[-1]) if page.raws else None)
    assert page.examined >= len(page.raws)
    if page.cursor is None:
        assert not page.bounded
        return
    assert len(page.cursor) == PAGE_CURSOR_BYTES
    if not page.bounded:
        last = BY_RAW[page.raws[-1]]
        assert len(page.raws) == asked.limit
        assert page.cursor == key(last) or last.hash[:4] == ALIKE[0].hash[:4]


@examples(140)
@given(
    start=st.lists(st.sampled_from(HISTORY), max_size=60),
    asked=QUERIES,
    bounds=BOUNDS,
    steps=st.lists(MEDDLING, max_size=30),
    ways=WAYS,
    room=st.sampled_from([2000, 16 << 20]),
)
async def test_all_pages_together_are_the_answer_whatever_happens_in_between(
    start: list[Envelope],
    asked: PageQuery,
    bounds: Bounds,
    steps: list[tuple[Any, ...] | None],
    ways: dict[str, Any],
    room: int,
) -> None:
    """`room`: whether a page's envelopes are read at the first attempt, or counted first."""
    with patch.multiple(history, **ways), patch.multiple(history, keccak=name, MAX_RESULT_BYTES=room):
        async with Engine() as engine:
            await engine.store.save(start, 1)
            taken = [partial(getattr(engine, step[0]), *step[1:]) if step else lambda: None for step in steps]
            with engine.meddling(taken):
                raws = await loop(engine.store, asked, bounds)
            exact = await whole(engine, asked)
            stayed = [raw for raw in exact if raw in {row.raw for row in start}]
            assert [raw for raw in raws if raw in stayed] == stayed
            assert len(raws) == len(set(raws))
            quiet = await pages(engine.store, asked, bounds)
            assert [raw for page in quiet for raw in page.raws] == exact
            for page, further in zip(quiet, [*quiet[1:], None], strict=True):
                check(asked, bounds, page)
                assert further is None or page.bounded or further.raws


@examples(40)
@given(
    start=st.lists(st.sampled_from(HISTORY), max_size=12),
    asked=QUERIES,
    at=st.sampled_from(HISTORY),
    end=st.none() | st.sampled_from([bytes(28), b"\xff" * 28]),
)
async def test_any_cursor_means_after_this_key(
    start: list[Envelope], asked: PageQuery, at: Envelope, end: bytes | None
) -> None:
    """Of those alike, all come where it is none of theirs; where it is, those behind it."""
    after = key(at) if end is None else key(at)[:8] + end
    with patch.object(history, "keccak", name):
        async with Engine() as engine:
            await engine.store.save(start, 1)
            exact = await whole(engine, asked)
            raws = (await engine.store.page(replace(asked, limit=1000, after=after))).raws
            if end is None and at.raw in exact:
                assert raws == exact[exact.index(at.raw) + 1 :]
            elif end is None and at in start:
                assert [raw for raw in exact if raw in raws] == raws
            else:
                home = ids.home_of(at.sent, after[4:])
                behind = operator.lt if asked.descending else operator.gt
                kinds = [BY_RAW[raw] for raw in exact]
                assert raws == [kind.raw for kind in kinds if ids.home(kind) == home or behind(key(kind), after)]


DICE = random.Random(1)
MANY = [DICE.randbytes(4) for _ in range(60)]
ROWS = [envelope(number // 7, number, topic=DICE.choice(MANY)) for number in range(3000)]
HALF = sum(1 << bit for bit in DICE.sample(range(512), 256))
NOT_FIRST = bloom.ALL_BITS ^ (1 << MANY[0][0] | 1 << MANY[0][0] + 256)
PASSING = next(topic for topic in MANY if bloom.passes(NOT_FIRST, topic))

both_orders = pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])


async def test_a_page_has_8_mib_and_a_larger_envelope_has_its_own_page(engine: Engine) -> None:
    sizes = [1 << 20] * 20 + [9 << 20] + [10] * 3
    rows = [envelope(number, number, size=size) for number, size in enumerate(sizes)]
    await engine.store.save(rows, 1)
    for topics in (None, [rows[0].topic]):
        answers = await pages(engine.store, query(topics=topics))
        assert [len(page.raws) for page in answers] == [7, 7, 6, 1, 3]
        assert [page.bounded for page in answers] == [True] * 4 + [False]
        assert [raw for page in answers for raw in page.raws] == [row.raw for row in rows]


@both_orders
async def test_a_page_that_examined_enough_rows_ends_early_with_a_cursor_even_if_empty(
    engine: Engine, descending: bool
) -> None:
    rows = [envelope(number, number, topic=MANY[0] if number < 250 else PASSING) for number in range(300)]
    await engine.store.save(rows, 1)
    asked = query(bloom=NOT_FIRST, limit=30, descending=descending)
    answers = await pages(engine.store, asked, Bounds(rows=100))
    assert [raw for page in answers for raw in page.raws] == answer(asked, rows)
    assert [len(page.raws) for page in answers] == ([30, 20, 0, 0] if descending else [0, 0, 30, 20])
    bounded_pages = [False, True, True, False] if descending else [True, True, False, False]
    assert [page.bounded for page in answers] == bounded_pages
    assert sum(page.examined for page in answers) in (300, 301)  # the match that shows that there is more, twice


@both_orders
@pytest.mark.parametrize("what", ["save", "prune"])
async def test_the_end_of_a_page_is_not_affected_by_later_changes(
    engine: Engine, what: str, descending: bool
) -> None:
    """What matches is where the first page stops; what is saved and pruned, step by step, is where it begins."""
    rows = [envelope(at, at, topic=PASSING if 80 <= at < 120 else MANY[0]) for at in range(200)]
    await engine.store.save(rows, 1)

    def save(step: int) -> None:
        second = 300 + step if descending else -300 - step
        engine.save_now([envelope(second, number, topic=MANY[0]) for number in range(7)])

    steps = [partial(save, step) if what == "save" else partial(engine.prune_now, T0 + 80, 7) for step in range(50)]
    asked = query(-1000, 1000, bloom=NOT_FIRST, descending=descending)
    with engine.meddling(steps):
        assert await loop(engine.store, asked, Bounds(rows=100)) == answer(asked, rows)


@pytest.mark.parametrize("what", ["save", "prune"])
async def test_a_page_that_its_bytes_end_continues_after_its_last_envelope_whatever_changes_meanwhile(
    engine: Engine, what: str
) -> None:
    rows = [envelope(at, at, size=200) for at in range(40)]
    await engine.store.save(rows, 1)

    def save(step: int) -> None:
        engine.save_now([envelope(-1 - step, number) for number in range(3)])

    steps = [partial(save, step) if what == "save" else partial(engine.prune_now, T0 + 30, 3) for step in range(20)]
    with engine.meddling(steps):
        raws = await loop(engine.store, query(-1000, 1000), Bounds(bytes=1000))
    stayed = [row.raw for row in rows if row.raw in await stored(engine.store)]
    assert [raw for raw in raws if raw in stayed] == stayed


@pytest.mark.parametrize(("places", "looked"), [(40, 40 * 40), (60, 41 + 60), (160, 41 + 160)])
async def test_a_bound_counts_rows_exactly_and_topics_that_a_filter_skips(
    engine: Engine, places: int, looked: int
) -> None:
    # Each has a first place that the filter has, and a last one that it has not.
    rows = [envelope(number, number, topic=bytes([number % 40, 200 + number, 250, 0])) for number in range(41)]
    match = envelope(50, 50, topic=bytes([1, 2, 3, 0]))
    await engine.store.save(rows, 1)
    asked = query(bloom=sum(1 << bit for bit in range(places)))
    page = await engine.store.page(asked)
    assert (page.raws, page.examined) == ([], looked)
    bounds = Bounds(rows=20)
    for topics in (None, [row.topic for row in rows]):
        answers = await pages(engine.store, query(topics=topics, limit=30), bounds)
        assert [(len(page.raws), page.bounded) for page in answers] == [(20, True), (20, True), (1, False)]
    await engine.store.save([match], 1)
    answers = await pages(engine.store, asked, bounds)
    assert [raw for page in answers for raw in page.raws] == answer(asked, [*rows, match]) == [match.raw]
    assert places == 40 or all(page.examined <= 2 * bounds.rows + places for page in answers)
    assert (await engine.store.page(query(bloom=bloom.ALL_BITS, limit=10))).examined == 11


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    archive = open_archive(tmp_path)
    await archive.save(ROWS, 1)
    yield archive
    await archive.close()


async def test_each_plan_is_chosen_where_it_is_meant_to_be_and_leaves_no_transaction_behind(archive: Archive) -> None:
    """The log can be moved into the database and begun anew after each page, so it does not grow."""
    kinds = {history.RANGE_SQL: "everything", history.MERGE_SQL: "part"}
    for kind, asked in (
        ("everything", query()),
        ("part", query(topics=MANY[:1])),
        ("part", query(topics=MANY[:10], limit=1000)),
        ("part", query(100, 120, topics=MANY[:1], limit=10)),
        ("walk", query(topics=MANY[:40], limit=10)),
        ("part", query(bloom=bloom.filter_of(MANY[:2]))),
        ("walk", query(bloom=bloom.filter_of(MANY[:10]), limit=10)),
        ("part", query(bloom=bloom.filter_of(MANY[:25]), limit=2000)),
        ("walk", query(bloom=HALF, limit=100)),
    ):
        low, high = ids.lowest_id(asked.lower), ids.lowest_id(asked.upper + 1) - 1
        plan = history.choose_plan(archive.readers.free[0], asked, low, high, asked.limit + 1, 200_000).plan
        assert plan is not None
        assert kind == ("walk" if plan.walks else kinds[plan.statement])
        page = await archive.page(asked)
        await archive.save([envelope(428, 9000 + len(page.raws))], 1)
        assert archive.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    page = await archive.page(query(topics=MANY[:40], limit=10))
    assert page.examined == 40 + answer(query(), ROWS).index(page.raws[-1]) + 1
    assert (await archive.page(query(topics=MANY[:2], limit=10))).examined == 2 + 10 + 1


@pytest.mark.parametrize(
    "changed", [{"MAX_PAIRED_BITS": 512}, {"MAX_PAIRED_BITS": 0, "MAX_SINGLE_BITS": 512}, {"MAX_SINGLE_BITS": 0}]
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
    with patch.multiple(history, **changed):
        for row in rows:
            for filtered in (bloom.required_bits(row.topic), bloom.filter_of([row.topic])):
                raws = await loop(archive, query(bloom=filtered))
                assert row.raw in raws
                assert raws == answer(query(bloom=filtered), [*ROWS, *rows])


@given(st.lists(st.binary(min_size=4, max_size=4), max_size=20))
@examples(100)
def test_the_index_of_places_has_the_places_of_kept_envelopes(topics: list[bytes]) -> None:
    database = SCHEMA.connect(":memory:")
    for topic in {*topics, b"\x10\x11\x80\0", b"\x10\x80\x11\0", b"\x80\x10\x11\0", b"\x10\x11\x12\0"}:
        database.execute("INSERT INTO topics VALUES (?, 1, 1, 1)", (ids.topic_number(topic),))
    for number, places in database.execute("SELECT topic, places FROM topics").fetchall():
        kept = sum({1 << (places >> shift & 511) for shift in (0, 9, 18)})
        assert kept == bloom.required_bits(ids.number_topic(number))
    database.close()


NOTHING = Page(b"", [], None, None, 0, False)


async def test_searches_block_nobody_and_who_leaves_stops_only_its_own(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over, let = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    errors: list[str] = []

    def long_search(database: sqlite3.Connection, *_: Any) -> Page:
        def wait(_: int) -> None:
            begun.release()
            let.wait(BOUND)

        database.create_function("wait", 1, wait)
        count = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 300000)"
        try:
            database.execute(f"{count} SELECT count(*) FROM n WHERE n > 1 OR wait(n)").fetchall()
        except sqlite3.OperationalError as error:
            errors.append(str(error))
            raise
        finally:
            over.release()
        return NOTHING

    async def begin(count: int) -> list[asyncio.Task[Page]]:
        searches = [asyncio.create_task(archive.page(query())) for _ in range(count)]
        for _ in searches:
            assert await asyncio.to_thread(begun.acquire, timeout=BOUND)
        return searches

    monkeypatch.setattr(history, "read_page", long_search)
    searches = await begin(READER_COUNT - 1)
    async with bounded("the counts"):
        assert (await archive.counts()).envelopes == len(ROWS)
    searches += await begin(1)
    behind = asyncio.create_task(archive.topics())
    await archive.save([envelope(5000, 1)], 1)
    assert not behind.done()
    leaving = searches.pop(0)
    for left in (behind, leaving):  # the first waits for its turn, and stops no other
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
    let.set()
    assert await asyncio.gather(*searches) == [NOTHING] * (READER_COUNT - 1)
    for _ in range(READER_COUNT):
        assert await asyncio.to_thread(over.acquire, timeout=BOUND)
    assert errors == ["interrupted"]
    for _ in range(READER_COUNT + 1):
        assert (await archive.counts()).envelopes == len(ROWS) + 1


def test_a_search_that_is_cancelled_before_its_turn_does_not_start() -> None:
    turn = sqlite.ReaderTurn([sqlite3.connect(":memory:")])
    turn.cancel()
    with pytest.raises(StoreError, match="was cancelled"):
        turn.run(lambda _: pytest.fail("it began"))
