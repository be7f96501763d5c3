"""Any order, any split, prunes and ends in between: an archive holds and answers what a plain list would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.waku.archive import ids
from restante.waku.archive.history import page as history_page
from restante.waku.archive.history import plans
from restante.waku.archive.history.query import Bounds, Page, PageQuery
from restante.waku.archive.records import Counts
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from support.effort import examples
from support.waku.envelopes import T0, alike, envelope, everything, held, topics_of
from waku.archive.engine import Engine, loop, matches, on, query

SECONDS = 4
POOL = [
    made
    for number in range(6)
    for second in range(SECONDS)
    for made in (
        envelope(second, number, topic=bytes([0, 0, 0, number % 2]), size=8 + number),
        alike(envelope(second, number + 100, topic=b"\xff\0\0\0")),
    )
]

batches = st.lists(st.sampled_from(POOL), max_size=12)
slices = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("save"), batches, st.integers(0, 9)),
    st.tuples(st.just("prune"), st.integers(T0 - 1, T0 + SECONDS), slices),
    st.tuples(st.just("prune_bytes"), st.integers(0, 400), slices),
    st.tuples(st.sampled_from(["restart", "crash"])),
)


class Model:
    """A list of envelopes with the time of their arrival, in the order of arrival."""

    def __init__(self) -> None:
        self.rows: list[tuple[Envelope, int]] = []
        self.highest = 0

    def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        for each in batch:
            if each not in [row for row, _ in self.rows]:
                self.rows.append((each, arrived))

    async def check(self, engine: Engine) -> None:
        rows = [row for row, _ in self.rows]
        found = await everything(engine.archive)
        assert [(each.raw, each.arrived) for each in found] == [(row.raw, at) for row, at in self.rows]
        arrivals = [each.arrival for each in found]
        assert arrivals == sorted(set(arrivals))
        counted = await engine.archive.counts()
        sent = [row.sent for row in rows]
        assert counted == Counts(
            len(rows),
            sum(len(row.raw) for row in rows),
            len({row.topic for row in rows}),
            min(sent, default=None),
            max(sent, default=None),
            counted.next_arrival,
        )
        assert counted.next_arrival > max([self.highest, *arrivals])
        self.highest = counted.next_arrival - 1
        assert {each.topic: each for each in await engine.archive.topics()} == topics_of(rows)

    async def take_out(self, engine: Engine, wanted: Any, number: int) -> None:
        """Remove what the archive deleted, if it was the oldest; which ones of a second is the archive's choice."""
        left = {each.raw for each in await everything(engine.archive)}
        gone = [row for row, _ in self.rows if row.raw not in left]
        assert len(gone) == number
        self.rows = [(row, at) for row, at in self.rows if row.raw in left]
        if gone and self.rows:
            assert max(row.sent for row in gone) <= min(row.sent for row, _ in self.rows)
        wanted(gone)


async def step(engine: Engine, model: Model, what: str, *arguments: Any) -> None:
    if what in ("restart", "crash"):
        await getattr(engine, what)()
    elif what == "save":
        await engine.archive.save(*arguments)
        model.save(*arguments)
    elif what == "prune":
        before, most = arguments
        due = sum(row.sent < before for row, _ in model.rows)

        def only_old(gone: list[Envelope]) -> None:
            assert all(row.sent < before for row in gone)
            assert len(gone) == min(due, most)

        await model.take_out(engine, only_old, await engine.archive.prune(before, most))
    else:
        limit, most = arguments
        before_bytes = sum(len(row.raw) for row, _ in model.rows)

        def no_more_than_needed(gone: list[Envelope]) -> None:
            assert len(gone) <= most
            left = before_bytes - sum(len(row.raw) for row in gone)
            if len(gone) < most:
                assert left <= limit
            if gone:
                last = max(row.sent for row in gone)
                assert left + max(len(row.raw) for row in gone if row.sent == last) > limit
            else:
                assert before_bytes <= limit

        await model.take_out(engine, no_more_than_needed, await engine.archive.prune_bytes(limit, most))


@examples(30)
@given(steps=st.lists(STEPS, max_size=12))
async def test_an_archive_holds_what_a_list_would(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    async with Engine() as engine:
        for each in steps:
            await step(engine, model, *each)
            await model.check(engine)


HISTORY_SECONDS = 4
TOPICS = [b"\0\0\0\0", b"\0\0\0\1", b"\xff\0\0\0", b"\x10\x11\x80\0"]
ALIKE = [alike(envelope(second, 100 + number, topic=TOPICS[number % 2])) for second in (1, 2) for number in range(5)]
OTHERS = [
    envelope(second, number, topic=TOPICS[number % 4], size=8 + 7 * number)
    for number in range(12)
    for second in range(HISTORY_SECONDS)
]
LATE = [
    envelope(second, number, topic=TOPICS[number % 4])
    for number in range(20, 30)
    for second in range(HISTORY_SECONDS)
]
LATE += [alike(envelope(second, 200 + number, topic=TOPICS[0])) for second in (1, 2) for number in range(3)]
HISTORY = ALIKE + OTHERS
BY_RAW = {each.raw: each for each in HISTORY + LATE}

history_batches = st.lists(st.sampled_from(HISTORY), max_size=12)
topics = st.none() | st.frozensets(st.sampled_from(TOPICS))
blooms = st.none() | st.sampled_from(
    [bloom.of(TOPICS[:1]), bloom.of(TOPICS[1:3]), bloom.kept(TOPICS[3]), bloom.ALL_BITS, bloom.ALL_BITS >> 2, 0]
)
QUERIES = st.builds(
    query,
    st.integers(-1, HISTORY_SECONDS),
    st.integers(-1, HISTORY_SECONDS),
    topics=topics,
    bloom=blooms,
    limit=st.integers(1, 9),
    descending=st.booleans(),
)
BOUNDS = st.builds(Bounds, st.sampled_from([100, 8 << 20]), st.sampled_from([3, 10, 200_000]))
BETWEEN = st.one_of(
    st.none(),
    st.tuples(st.just("save"), history_batches),
    st.tuples(st.just("prune"), st.integers(T0, T0 + HISTORY_SECONDS), st.integers(1, 4)),
    st.just(("restart",)),
)
WAYS = st.fixed_dictionaries(
    {
        "SEEK_COST": st.sampled_from([0, 3000, 10**6]),
        "PART_FACTORS": st.sampled_from([(), (0.5, 2.0), plans.PART_FACTORS]),
        "MAX_SORT_FACTOR": st.sampled_from([1, plans.MAX_SORT_FACTOR]),
        "MAX_PAIRED_PLACES": st.sampled_from([0, 40]),
        "MAX_SINGLE_PLACES": st.sampled_from([0, 160, 512]),
        "MAX_SEEK_TOPICS": st.sampled_from([1, 5000]),
    }
)


def name(raw: bytes) -> bytes:
    """Return the hash that an envelope has here: some begin alike."""
    return BY_RAW[raw].hash if raw in BY_RAW else keccak(raw)


class Meanwhile:
    """What happens between pages, and what it means for who asks."""

    def __init__(self, engine: Engine, start: Sequence[Envelope]) -> None:
        self.engine = engine
        self.there = {each.raw for each in start}
        self.stayed = set(self.there)
        self.came_back: set[bytes] = set()
        self._gone: set[bytes] = set()

    async def step(self, what: str, *arguments: Any) -> None:
        if what == "restart":
            await self.engine.restart()
        elif what == "save":
            await self.engine.archive.save(arguments[0], 1)
        else:
            await self.engine.archive.prune(*arguments)
        now = set(await held(self.engine.archive))
        self.came_back |= self._gone & now
        self._gone |= self.there - now
        self.stayed &= now
        self.there = now


async def whole(engine: Engine, asked: PageQuery) -> list[bytes]:
    """Return the answer as one page, when it is one that can be."""
    exact = replace(asked, limit=1000, after=None)
    page = await engine.archive.page(exact)
    assert (page.cursor, page.bounded) == (None, False)
    there = [BY_RAW[raw] for raw in await held(engine.archive)]
    assert sorted(page.raws) == sorted(each.raw for each in there if matches(asked, each))
    homes = [ids.home(BY_RAW[raw]) for raw in page.raws]
    assert homes == sorted(homes, reverse=asked.descending)
    return page.raws


async def check(engine: Engine, asked: PageQuery, bounds: Bounds, page: Page) -> None:
    """Hold one page against what it promises, while the archive is as it was."""
    assert all(matches(asked, BY_RAW[raw]) for raw in page.raws)
    assert len(page.raws) <= min(asked.limit, bounds.rows)
    assert len(page.raws) <= 1 or sum(map(len, page.raws)) <= bounds.bytes
    assert page.last == (name(page.raws[-1]) if page.raws else None)
    assert page.looked >= len(page.raws)
    if page.cursor is not None:
        assert len(page.cursor) == 36
        further = await engine.archive.page(on(asked, page))
        assert page.bounded or further.raws
    assert page.cursor is not None or not page.bounded
    assert page.cursor is None or page.bounded or len(page.raws) == asked.limit


@examples(60)
@given(
    start=st.lists(history_batches, max_size=4),
    asked=QUERIES,
    bounds=BOUNDS,
    steps=st.lists(BETWEEN, max_size=8),
    ways=WAYS,
)
async def test_all_pages_together_are_the_answer(
    start: list[list[Envelope]],
    asked: PageQuery,
    bounds: Bounds,
    steps: list[tuple[Any, ...] | None],
    ways: dict[str, Any],
) -> None:
    with patch.multiple(plans, **ways), patch.object(history_page, "keccak", name):
        async with Engine() as engine:
            for batch in start:
                await engine.archive.save(batch, 1)
            meanwhile = Meanwhile(engine, [each for batch in start for each in batch])
            page = await engine.archive.page(asked, bounds)
            await check(engine, asked, bounds, page)
            given, pages = [*page.raws], 1
            while page.cursor is not None:
                if pages <= len(steps) and (step := steps[pages - 1]) is not None:
                    await meanwhile.step(*step)
                page = await engine.archive.page(on(asked, page), bounds)
                await check(engine, asked, bounds, page)
                given += page.raws
                pages += 1
                assert pages < 200
            exact = await whole(engine, asked)
            stayed = [raw for raw in exact if raw in meanwhile.stayed]
            assert [raw for raw in given if raw in meanwhile.stayed] == stayed
            twice = {raw for raw in given if given.count(raw) > 1}
            assert twice <= meanwhile.came_back & {each.raw for each in ALIKE}


MEDDLING = st.one_of(
    st.none(),
    st.tuples(st.just("save_now"), st.lists(st.sampled_from(LATE), max_size=12)),
    st.tuples(st.just("prune_now"), st.integers(T0, T0 + HISTORY_SECONDS), st.integers(1, 4)),
)


@examples(80)
@given(
    start=st.lists(st.sampled_from(HISTORY), min_size=10, max_size=60),
    asked=QUERIES,
    bounds=BOUNDS,
    steps=st.lists(MEDDLING, max_size=30),
    ways=WAYS,
    room=st.sampled_from([0, 16 << 20]),
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
    with patch.multiple(plans, **ways), patch.multiple(history_page, keccak=name, MAX_RESULT_BYTES=room or 2000):
        async with Engine() as engine:
            await engine.archive.save(start, 1)
            taken = [partial(getattr(engine, step[0]), *step[1:]) if step else lambda: None for step in steps]
            with engine.meddling(taken):
                given = await loop(engine.archive, asked, bounds)
            exact = await whole(engine, asked)
            stayed = [raw for raw in exact if raw in {each.raw for each in start}]
            assert [raw for raw in given if raw in stayed] == stayed
            assert len(given) == len(set(given))


@examples(40)
@given(
    start=history_batches,
    asked=QUERIES,
    at=st.sampled_from(HISTORY),
    end=st.none() | st.sampled_from([bytes(28), b"\xff" * 28]),
)
async def test_any_cursor_means_after_this_key(
    start: list[Envelope], asked: PageQuery, at: Envelope, end: bytes | None
) -> None:
    """Of those alike, all come where it is none of theirs; where it is, those behind it."""
    after = at.sent.to_bytes(4, "big") + (at.hash if end is None else at.hash[:4] + end)
    with patch.object(history_page, "keccak", name):
        async with Engine() as engine:
            await engine.archive.save(start, 1)
            exact = await whole(engine, asked)
            found = (await engine.archive.page(replace(asked, limit=1000, after=after))).raws
            if end is None and at.raw in exact:
                assert found == exact[exact.index(at.raw) + 1 :]
            elif end is None and at in start:
                assert [raw for raw in exact if raw in found] == found
            else:
                home = ids.named(at.sent, after[4:])
                behind = [raw for raw in exact if is_behind(BY_RAW[raw], after, home, descending=asked.descending)]
                assert found == behind


def is_behind(kind: Envelope, after: bytes, home: int, *, descending: bool) -> bool:
    """Return whether an envelope is after a cursor that names none in the archive, or one of those alike."""
    if ids.home(kind) == home:
        return True
    key = kind.sent.to_bytes(4, "big") + kind.hash
    return key < after if descending else key > after
