"""An archive that refuses leaves everything as it was; one that failed does nothing more."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import pytest

from restante.common.errors import StoreBusy, StoreError, StoreFull
from support.waku.envelopes import T0, envelope, everything, held
from waku.archive.engine import Engine

pytestmark = pytest.mark.usefixtures("impatient")

OLD = [envelope(number, number, topic=bytes([number % 2] * 4)) for number in range(10)]
NEW = [envelope(number, number, topic=bytes([number % 3] * 4), size=3000) for number in range(5, 100)]

Refusal = Callable[[Engine], AbstractContextManager[None]]

REFUSALS: dict[str, Refusal] = {
    "another writer": lambda engine: engine.refusing(),
    "no room": lambda engine: engine.full(),
    "no room at the commit": lambda engine: engine.failing_at_commit(sqlite3.SQLITE_FULL),
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_a_batch_that_is_refused_changes_nothing_and_may_be_tried_again(engine: Engine, why: str) -> None:
    await engine.archive.save(OLD, 1)
    before = await everything(engine.archive), await engine.archive.counts(), await engine.archive.topics()
    with REFUSALS[why](engine), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z") as refusal:
        await engine.archive.save([OLD[0], *NEW], 2)
    assert isinstance(refusal.value, StoreFull) == why.startswith("no room")
    assert before == (await everything(engine.archive), await engine.archive.counts(), await engine.archive.topics())
    await engine.archive.save(NEW, 3)
    await engine.crash()
    assert await held(engine.archive) == [each.raw for each in OLD + NEW]


async def test_a_prune_that_is_refused_drops_nothing(engine: Engine) -> None:
    await engine.archive.save(OLD, 1)
    prunes: list[Callable[[], Awaitable[int]]] = [
        lambda: engine.archive.prune(T0 + 100, 100),
        lambda: engine.archive.prune_bytes(0, 100),
    ]
    for prune in prunes:
        for why in ("another writer", "no room at the commit"):
            with REFUSALS[why](engine), pytest.raises(StoreBusy):
                await prune()
    assert await held(engine.archive) == [each.raw for each in OLD]


async def test_after_a_failed_commit_nothing_more_is_written(engine: Engine) -> None:
    await engine.archive.save(OLD, 1)
    with engine.failing_at_commit(), pytest.raises(StoreError, match="commit failed") as failure:
        await engine.archive.save(NEW, 2)
    assert not isinstance(failure.value, StoreBusy)
    for write in (engine.archive.save(NEW, 2), engine.archive.prune(T0 + 100, 9)):
        with pytest.raises(StoreError, match="an earlier commit failed") as refusal:
            await write
        assert not isinstance(refusal.value, StoreBusy)
    await engine.restart()
    assert await held(engine.archive) == [each.raw for each in OLD]
    await engine.archive.save(NEW, 2)
    assert (await engine.archive.counts()).envelopes == len(OLD) + len(NEW)


async def test_an_invalid_envelope_fails_its_batch_and_not_the_archive(engine: Engine) -> None:
    with pytest.raises(AttributeError):
        await engine.archive.save([OLD[0], None], 1)  # type: ignore[list-item]
    await engine.archive.save(OLD, 1)
    assert await held(engine.archive) == [each.raw for each in OLD]
