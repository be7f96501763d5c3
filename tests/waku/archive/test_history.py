"""History: what matches, in order, each once, however it is cut into pages and whatever happens between them."""

from __future__ import annotations

import random
from functools import partial
from itertools import permutations

import pytest
from msgspec.structs import replace

from restante.waku.archive import ids
from restante.waku.archive.history.query import ID_CURSOR_MARK, PAGE_CURSOR_BYTES, Bounds
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from support.waku.envelopes import T0, alike, envelope
from waku.archive.engine import Engine, answer, loop, on, pages, query

DICE = random.Random(1)
TOPICS = [DICE.randbytes(4) for _ in range(30)]
ROWS = [envelope(DICE.randrange(100), number, topic=DICE.choice(TOPICS)) for number in range(600)]

both_orders = pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])


def key(kind: Envelope) -> bytes:
    """Return the cursor that shipped servers give for an envelope."""
    return kind.sent.to_bytes(4, "big") + kind.hash


@pytest.mark.parametrize("places", [40, 41, 160])
async def test_topics_that_a_bloom_filter_skips_count_as_examined(engine: Engine, places: int) -> None:
    # Each has a first place that the filter has, and a last one that it has not.
    rows = [envelope(number, number, topic=bytes([number % 40, 200 + number % 5, 250, 0])) for number in range(200)]
    await engine.archive.save(rows, 1)
    asked = query(bloom=sum(1 << place for place in range(places)))
    page = await engine.archive.page(asked)
    assert page.raws == answer(asked, rows) == []
    seen = len({row.topic for row in rows}) if places > 40 else 0
    assert page.looked == seen + (places if places > 40 else places**2)


async def test_skipped_topics_count_towards_the_limit_of_examined_rows(engine: Engine) -> None:
    rows = [envelope(number, number, topic=bytes([number, 200, 250 - number % 2, 0])) for number in range(41)]
    match = envelope(50, 50, topic=bytes([1, 2, 3, 0]))
    await engine.archive.save([*rows, match], 1)
    asked = query(bloom=sum(1 << place for place in range(60)))
    bounds = Bounds(rows=20)
    found, page = [], await engine.archive.page(asked, bounds)
    while page.cursor is not None:
        assert page.looked <= 2 * bounds.rows + 60
        found += page.raws
        page = await engine.archive.page(replace(asked, after=page.cursor), bounds)
    assert [*found, *page.raws] == answer(asked, rows + [match]) == [match.raw]


async def test_a_topic_that_is_not_four_bytes_matches_no_other_topic(engine: Engine) -> None:
    first, last = envelope(-T0, topic=b"\0\0\1\2"), alike(envelope(0xFFFFFFFF - T0, 1), b"\xff\xff\xff\xff")
    await engine.archive.save([first, last], 1)
    for topic in (b"\1\2", b"\0\1\2", b"\0\0\0\1\2", b""):
        assert await loop(engine.archive, query(-T0, topics=[topic])) == []
    every_second = query(-T0 - 5, 1 << 33, limit=1)
    assert await loop(engine.archive, every_second) == [first.raw, last.raw]


async def test_a_full_bloom_filter_and_no_filter_match_everything(engine: Engine) -> None:
    await engine.archive.save(ROWS, 1)
    assert await loop(engine.archive, query(bloom=bloom.ALL_BITS)) == answer(query(), ROWS)
    page = await engine.archive.page(query(bloom=bloom.ALL_BITS, limit=10))
    assert page.looked == 11  # nothing is held against a filter


@both_orders
@pytest.mark.parametrize("limit", [7, 599, 600, 601])
async def test_all_pages_together_are_the_answer_and_only_the_last_has_no_cursor(
    engine: Engine, limit: int, descending: bool
) -> None:
    await engine.archive.save(ROWS, 1)
    asked = query(limit=limit, descending=descending)
    found = await pages(engine.archive, asked)
    by_raw = {each.raw: each for each in ROWS}
    assert [raw for page in found for raw in page.raws] == answer(asked, ROWS)
    assert [len(page.raws) for page in found] == [limit] * (len(found) - 1) + [600 - limit * (len(found) - 1)]
    assert not any(page.bounded for page in found)
    assert all(page.last == by_raw[page.raws[-1]].hash for page in found)
    for page in found[:-1]:
        assert page.cursor == key(by_raw[page.raws[-1]])  # as shipped servers give it


@both_orders
async def test_envelopes_saved_meanwhile_are_returned_only_if_the_cursor_has_not_passed_them(
    engine: Engine, descending: bool
) -> None:
    await engine.archive.save(ROWS, 1)
    first = await engine.archive.page(query(limit=300, descending=descending))
    late = [envelope(0, 9000), envelope(99, 9001)]
    await engine.archive.save(late, 2)
    rest = await loop(engine.archive, on(query(limit=100, descending=descending), first))
    expected = answer(query(descending=descending), [*ROWS, late[0 if descending else 1]])
    assert first.raws + rest == expected


@both_orders
async def test_a_page_that_reaches_its_byte_limit_ends_early_with_a_cursor(engine: Engine, descending: bool) -> None:
    sizes = (10, 500, 10, 2000, 10, 10, 900)
    rows = [envelope(number, number, size=size) for number, size in enumerate(sizes)]
    await engine.archive.save(rows, 1)
    asked = query(limit=6, descending=descending)
    found = await pages(engine.archive, asked, Bounds(bytes=1000))
    assert [raw for page in found for raw in page.raws] == answer(asked, rows)
    assert [len(page.raws) for page in found] == [3, 1, 3]
    assert [page.bounded for page in found] == [True, True, False]
    assert [page.cursor is None for page in found] == [False, False, True]


async def test_a_page_has_8_mib_and_a_larger_envelope_has_its_own_page(engine: Engine) -> None:
    sizes = [1 << 20] * 20 + [9 << 20] + [10] * 3
    rows = [envelope(number, number, size=size) for number, size in enumerate(sizes)]
    await engine.archive.save(rows, 1)
    for topics in (None, [rows[0].topic]):
        found = await pages(engine.archive, query(topics=topics))
        assert [len(page.raws) for page in found] == [7, 7, 6, 1, 3]
        assert [page.bounded for page in found] == [True] * 4 + [False]
        assert [raw for page in found for raw in page.raws] == [each.raw for each in rows]


@both_orders
async def test_a_page_that_examined_enough_rows_ends_early_with_a_cursor_even_if_empty(
    engine: Engine, descending: bool
) -> None:
    """A filter that lets half of the topics through, while one end of the archive has none of them."""
    dense = bloom.ALL_BITS ^ (1 << TOPICS[0][0] | 1 << TOPICS[0][0] + 256)
    assert not bloom.passes(dense, TOPICS[0])
    passing = next(topic for topic in TOPICS if bloom.passes(dense, topic))
    rows = [envelope(number, number, topic=TOPICS[0] if number < 250 else passing) for number in range(300)]
    await engine.archive.save(rows, 1)
    asked = query(bloom=dense, limit=30, descending=descending)
    found = await pages(engine.archive, asked, Bounds(rows=100))
    assert [raw for page in found for raw in page.raws] == answer(asked, rows)
    lengths = [30, 20, 0, 0] if descending else [0, 0, 30, 20]
    assert [len(page.raws) for page in found] == lengths
    assert [page.bounded for page in found] == (
        [False, True, True, False] if descending else [True, True, False, False]
    )
    assert sum(page.looked for page in found) in (300, 301)  # the match that shows that there is more, twice
    assert [page.last for page in found if not page.raws] == [None, None]


@both_orders
@pytest.mark.parametrize("what", ["save", "prune"])
async def test_the_end_of_a_page_is_not_affected_by_later_changes(
    engine: Engine, what: str, descending: bool
) -> None:
    """What matches is where the first page stops; what is saved and pruned, step by step, is where it begins."""
    dense = bloom.ALL_BITS ^ (1 << TOPICS[0][0] | 1 << TOPICS[0][0] + 256)
    passing = next(topic for topic in TOPICS if bloom.passes(dense, topic))
    rows = [envelope(at, at, topic=passing if 80 <= at < 120 else TOPICS[0]) for at in range(200)]
    await engine.archive.save(rows, 1)

    def save(step: int) -> None:
        second = 300 + step if descending else -300 - step
        engine.save_now([envelope(second, number, topic=TOPICS[0]) for number in range(7)])

    steps = [partial(save, step) if what == "save" else partial(engine.prune_now, T0 + 80, 7) for step in range(50)]
    asked = query(-1000, 1000, bloom=dense, descending=descending)
    with engine.meddling(steps):
        assert await loop(engine.archive, asked, Bounds(rows=100)) == answer(asked, rows)


async def test_the_limit_of_examined_rows_is_exact(engine: Engine) -> None:
    await engine.archive.save(ROWS, 1)
    for topics in (None, TOPICS):
        answers = await pages(engine.archive, query(topics=topics, limit=500), Bounds(rows=250))
        assert [(len(page.raws), page.bounded) for page in answers] == [(250, True), (250, True), (100, False)]


THREE = [envelope(0, number) for number in (281534, 2157663, 3054885)]
"""Envelopes of one second whose hashes begin alike, found by making three million."""


async def test_a_cursor_between_envelopes_whose_hashes_begin_alike_is_a_place(engine: Engine) -> None:
    rows = [alike(envelope(0, number)) for number in range(3)]
    await engine.archive.save(rows, 1)
    for descending in (False, True):
        page = await engine.archive.page(query(limit=1, descending=descending))
        assert page.cursor is not None
        assert len(page.cursor) == PAGE_CURSOR_BYTES
        assert page.cursor[:4] == rows[0].sent.to_bytes(4, "big")
        assert page.cursor.endswith(ID_CURSOR_MARK)


@both_orders
async def test_a_cursor_of_another_server_finds_its_envelope_among_hashes_that_begin_alike(
    engine: Engine, descending: bool
) -> None:
    """Another archive had them in another order; and one that names none of them omits none."""
    assert len({ids.home(row) for row in THREE}) == 1
    for rows in permutations(THREE):
        await engine.archive.prune(1 << 33, 1000)
        await engine.archive.save(rows, 1)
        whole = (await engine.archive.page(query(descending=descending))).raws
        for row in THREE:
            behind = await loop(engine.archive, query(after=key(row), descending=descending))
            assert behind == whole[whole.index(row.raw) + 1 :]
    for end in (bytes(28), b"\xff" * 28):
        after = key(THREE[0])[:8] + end
        assert sorted(await loop(engine.archive, query(after=after, descending=descending))) == sorted(whole)
