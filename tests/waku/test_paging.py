"""Pages over real RLPx, against what is known to be archived: in both orders each envelope once, and in order."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from restante.waku.archive.history.query import Bounds
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.limits import Limits
from restante.waku.node.history_requests import HistoryTerms
from support.waku.asking import fetch_page, pages, walk
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, letter

_dice: Final = random.Random(5)

TOPICS: Final = [_dice.randbytes(4) for _ in range(8)]

SOME: Final = [
    letter(number, topic=_dice.choice(TOPICS), age=_dice.randrange(40), size=_dice.randrange(2000))
    for number in range(250)
]
"""Some six in each second."""

ALIKE: Final = [letter(number, age=20) for number in (34056, 78298)]
"""Found by trying: of one second, and alike in the first 31 bits of their hashes."""

ALL: Final = sorted([*SOME, *ALIKE[::-1]], key=lambda each: (each.sent, int.from_bytes(each.hash[:4]) >> 1))
"""In the order of ids; of those alike, the one that came second is below."""

FILTERS: Final[dict[str, dict[str, Any]]] = {
    "everything": {"bloom": bloom.ALL_BITS, "topics": frozenset()},
    "one topic": {"topics": frozenset(TOPICS[:1])},
    "three topics": {"topics": frozenset(TOPICS[:3])},
    "two topics by their filter": {"bloom": bloom.of(TOPICS[3:5]), "topics": frozenset()},
    "a filter that has holes": {"bloom": bloom.ALL_BITS ^ bloom.of(TOPICS[5:7]), "topics": frozenset()},
    "seconds in the middle": {
        "bloom": bloom.ALL_BITS,
        "topics": frozenset(),
        "lower": EPOCH - 25,
        "upper": EPOCH - 15,
    },
}
EVERYTHING: Final = FILTERS["everything"]

ORDERS: Final = pytest.mark.parametrize("descending", [False, True], ids=["asc", "desc"])


def truth(asked: dict[str, Any], *, descending: bool) -> list[Envelope]:
    """Answer by hand."""
    found = [each for each in ALL if asked.get("lower", 0) <= each.sent <= asked.get("upper", EPOCH)]
    if asked["topics"]:
        found = [each for each in found if each.topic in asked["topics"]]
    else:
        found = [each for each in found if bloom.passes(asked["bloom"], each.topic)]
    return found[::-1] if descending else found


async def fill(here: Inside) -> None:
    """Archive all in no order, those alike as they are."""
    await here.archive.save(SOME, EPOCH)
    for each in ALIKE:
        await here.archive.save([each], EPOCH)


def test_two_envelopes_have_hashes_that_begin_alike() -> None:
    first, second = ALIKE
    assert first.hash != second.hash
    assert first.sent == second.sent
    assert int.from_bytes(first.hash[:4]) >> 1 == int.from_bytes(second.hash[:4]) >> 1


@ORDERS
async def test_every_page_size_and_filter_gives_each_envelope_once_in_order(
    tmp_path: Path, *, descending: bool
) -> None:
    async with inside(tmp_path, history=HistoryTerms(descending=descending), limits=Limits(pages=0)) as here:
        await fill(here)
        peer = await here.greet()
        for name, asked in FILTERS.items():
            expected = truth(asked, descending=descending)
            assert expected, name
            for limit in (1, 7, 100, 1000):
                assert await walk(peer, limit=limit, **asked) == expected, (name, limit)


@ORDERS
async def test_a_cursor_loop_continues_after_a_restart_of_the_node(tmp_path: Path, *, descending: bool) -> None:
    terms = HistoryTerms(descending=descending)
    found: list[Envelope] = []
    cursor = b""
    async with inside(tmp_path, history=terms) as here:
        await fill(here)
    while cursor or not found:
        async with inside(tmp_path, history=terms) as here:
            some, cursor = await fetch_page(await here.greet(), cursor=cursor, limit=60, **EVERYTHING)
            found += some
    assert found == truth(EVERYTHING, descending=descending)


async def prune(here: Inside, how: str, last: Envelope) -> None:
    match how:
        case "its row":
            await here.archive.prune(EPOCH + 1, ALL.index(last) + 1)
        case "its second":
            await here.archive.prune(last.sent + 1, len(ALL))
        case "what is before its second":
            await here.archive.prune(last.sent, len(ALL))
        case "everything":
            await here.archive.prune(EPOCH + 1, len(ALL))


@pytest.mark.parametrize("how", ["its row", "its second", "what is before its second", "everything"])
@ORDERS
async def test_the_envelope_that_a_cursor_names_may_be_pruned(how: str, tmp_path: Path, *, descending: bool) -> None:
    expected = truth(EVERYTHING, descending=descending)
    middle = expected.index(ALIKE[0])
    for limit in (90, middle, middle + 1):  # the last two: between those alike, or beside them
        data = tmp_path / str(limit)
        async with inside(data, history=HistoryTerms(descending=descending)) as here:
            await fill(here)
            peer = await here.greet()
            found, cursor = await fetch_page(peer, limit=limit, **EVERYTHING)
            assert found == expected[:limit]
            await prune(here, how, found[-1])
            held = set(await here.archive.hashes())
            assert len(held) < len(ALL)
            left = [each for each in expected[limit:] if each.hash in held]
            assert await walk(peer, cursor, limit=25, **EVERYTHING) == left, limit


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("everything", Bounds(bytes=5000)),
        ("three topics", Bounds(bytes=5000)),
        ("everything", Bounds(bytes=1)),
        ("a filter that has holes", Bounds(rows=3)),
        ("everything", Bounds(rows=9)),
    ],
    ids=str,
)
@ORDERS
async def test_a_page_that_is_cut_short_has_a_cursor(
    name: str, bounds: Bounds, tmp_path: Path, *, descending: bool
) -> None:
    asked = FILTERS[name]
    async with inside(tmp_path, history=HistoryTerms(descending=descending, bounds=bounds)) as here:
        await fill(here)
        peer = await here.greet()
        got = [each async for each in pages(peer, limit=20, **asked)]
        found = list(chain.from_iterable(some for some, _ in got))
        assert found == truth(asked, descending=descending)
        assert any(len(some) < 20 and cursor for some, cursor in got)
        assert all(len(some) == 1 or sum(len(each.raw) for each in some) <= bounds.bytes for some, _ in got if some)


async def test_an_envelope_archived_during_a_loop_comes_where_it_belongs(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        await fill(here)
        peer = await here.greet()
        found, cursor = await fetch_page(peer, limit=90, **EVERYTHING)
        late = [letter(1000 + age, age=age) for age in range(40)]
        await here.archive.save(late, EPOCH)
        key = (found[-1].sent, found[-1].hash)
        rest = [each for each in [*ALL, *late] if (each.sent, each.hash) > key]
        got = await walk(peer, cursor, limit=25, **EVERYTHING)
        assert {each.hash for each in got} == {each.hash for each in rest}
        assert len(got) == len(rest)
