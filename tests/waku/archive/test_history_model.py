"""Any archive, any query, any cut into pages, anything saved and pruned between them: the same answer."""

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
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.keccak import keccak
from support.effort import examples
from support.waku.envelopes import T0, alike, envelope, held
from waku.archive.engine import Engine, loop, matches, on, query

SECONDS = 4
TOPICS = [b"\0\0\0\0", b"\0\0\0\1", b"\xff\0\0\0", b"\x10\x11\x80\0"]
ALIKE = [alike(envelope(second, 100 + number, topic=TOPICS[number % 2])) for second in (1, 2) for number in range(5)]
OTHERS = [
    envelope(second, number, topic=TOPICS[number % 4], size=8 + 7 * number)
    for number in range(12)
    for second in range(SECONDS)
]
LATE = [envelope(second, number, topic=TOPICS[number % 4]) for number in range(20, 30) for second in range(SECONDS)]
LATE += [alike(envelope(second, 200 + number, topic=TOPICS[0])) for second in (1, 2) for number in range(3)]
POOL = ALIKE + OTHERS
BY_RAW = {each.raw: each for each in POOL + LATE}

batches = st.lists(st.sampled_from(POOL), max_size=12)
topics = st.none() | st.frozensets(st.sampled_from(TOPICS))
blooms = st.none() | st.sampled_from(
    [bloom.of(TOPICS[:1]), bloom.of(TOPICS[1:3]), bloom.kept(TOPICS[3]), bloom.ALL_BITS, bloom.ALL_BITS >> 2, 0]
)
QUERIES = st.builds(
    query,
    st.integers(-1, SECONDS),
    st.integers(-1, SECONDS),
    topics=topics,
    bloom=blooms,
    limit=st.integers(1, 9),
    descending=st.booleans(),
)
BOUNDS = st.builds(Bounds, st.sampled_from([100, 8 << 20]), st.sampled_from([3, 10, 200_000]))
STEPS = st.one_of(
    st.none(),
    st.tuples(st.just("save"), batches),
    st.tuples(st.just("prune"), st.integers(T0, T0 + SECONDS), st.integers(1, 4)),
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
    start=st.lists(batches, max_size=4), asked=QUERIES, bounds=BOUNDS, steps=st.lists(STEPS, max_size=8), ways=WAYS
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
    st.tuples(st.just("prune_now"), st.integers(T0, T0 + SECONDS), st.integers(1, 4)),
)


@examples(80)
@given(
    start=st.lists(st.sampled_from(POOL), min_size=10, max_size=60),
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
    start=batches, asked=QUERIES, at=st.sampled_from(POOL), end=st.none() | st.sampled_from([bytes(28), b"\xff" * 28])
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
