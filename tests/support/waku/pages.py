"""What a query should give, told from the envelopes, and whoever asks on until he has all."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from restante.waku.archive.history.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.archive.sqlite import Archive
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from support.waku.envelopes import T0


def query(
    lower: int = 0,
    upper: int = 1000,
    *,
    topics: Iterable[bytes] | None = None,
    bloom: int | None = None,
    limit: int = 1000,
    after: bytes | None = None,
    descending: bool = False,
) -> PageQuery:
    """Ask for what was sent between these seconds after T0."""
    return PageQuery(
        lower=T0 + lower,
        upper=T0 + upper,
        topics=None if topics is None else frozenset(topics),
        bloom=bloom,
        limit=limit,
        after=after,
        descending=descending,
    )


def matches(asked: PageQuery, kind: Envelope) -> bool:
    if not asked.lower <= kind.sent <= asked.upper:
        return False
    if asked.topics is not None:
        return kind.topic in asked.topics
    return asked.bloom is None or bloom.passes(asked.bloom, kind.topic)


def answer(asked: PageQuery, rows: Iterable[Envelope]) -> list[bytes]:
    """Answer by hand, where no hashes begin alike."""
    found = sorted((each.sent, each.hash, each.raw) for each in rows if matches(asked, each))
    return [raw for _, _, raw in (found[::-1] if asked.descending else found)]


def on(asked: PageQuery, page: Page) -> PageQuery:
    """Ask for the next page."""
    return replace(asked, after=page.cursor)


async def pages(archive: Archive, asked: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> list[Page]:
    """Ask until there is no more."""
    found = [await archive.page(asked, bounds)]
    while found[-1].cursor is not None:
        assert len(found) < 10_000
        found.append(await archive.page(on(asked, found[-1]), bounds))
    return found


async def loop(archive: Archive, asked: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> list[bytes]:
    """Return the envelopes of all pages."""
    return [raw for page in await pages(archive, asked, bounds) for raw in page.raws]
