"""A store that refuses leaves nothing behind, in every engine."""

from __future__ import annotations

import asyncio

import pytest

from restante.common.errors import StoreBusy, StoreError
from restante.mailbox.store import sqlite
from stores.engine import LIVE, USAGE, Engine
from support.mailbox.ledger import Ledger
from support.mailbox.picture import assert_shown, picture


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here waits for the other writer to end: it does not."""
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)


async def test_a_batch_that_was_refused_leaves_nothing_behind(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
    ledger.bind("a")
    ledger.claim("a", "4")
    ledger.open("b", "m")
    await ledger.commit(engine.store)
    before, rows = picture(await engine.store.view()), engine.count(*LIVE, *USAGE)

    ledger.pass_(5.0)
    ledger.bind("b")
    ledger.add("b", "m", b'"00"')
    ledger.close("b", "m")
    ledger.claim("b", "4")
    ledger.allocate("c")
    with engine.refusing(), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z"):
        await ledger.commit(engine.store)
    assert picture(await engine.store.view()) == before
    assert engine.count(*LIVE, *USAGE) == rows
    assert engine.rows("SELECT seconds FROM service") == [(0.0,)]

    again = Ledger(await engine.store.view(), service=10.0)
    again.bind("b")
    again.claim("b", "4")
    await again.commit(engine.store)
    await assert_shown(engine.store, again)
    await engine.restart()
    await assert_shown(engine.store, again)
    assert engine.store.service == 10.0


async def test_a_batch_that_finds_the_disk_full_leaves_nothing_behind(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    before = picture(await engine.store.view())
    ledger.open("a", "another")
    ledger.add("a", "m", b'"' + b"0" * 200_000 + b'"')
    with engine.full(), pytest.raises(StoreBusy, match="full"):
        await ledger.commit(engine.store)
    assert picture(await engine.store.view()) == before
    again = await Ledger.begin(engine.store)
    again.add("a", "m", b'"00"')
    await again.commit(engine.store)
    await assert_shown(engine.store, again)


async def test_a_batch_that_fails_halfway_leaves_nothing_behind(engine: Engine) -> None:
    """It is no use to try again: that is not StoreBusy."""
    ledger = await Ledger.begin(engine.store)
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    before = picture(await engine.store.view())
    ledger.bind("a")
    ledger.open("b", "m")
    ledger.claim("c", "4")
    ledger.add("a", "m", b'"00"')
    with engine.failing(), pytest.raises(StoreError, match="not this") as failure:
        await ledger.commit(engine.store)
    assert not isinstance(failure.value, StoreBusy)
    assert picture(await engine.store.view()) == before
    await engine.crash()
    assert picture(await engine.store.view()) == before
    assert engine.count(*USAGE) == {}


async def test_forgetting_that_was_refused_forgets_nothing(engine: Engine) -> None:
    ledger = await Ledger.begin(engine.store)
    ledger.bind("a")
    await ledger.commit(engine.store)
    with engine.refusing(), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z"):
        await engine.store.forget_usage(1e12, 100)
    assert engine.count(*USAGE) == {"usage_client_versions": 1}
    assert await engine.store.forget_usage(1e12, 100) == 1


async def test_a_batch_waits_for_another_writer_that_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup, say; and the loop turns meanwhile."""
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 30.0)
    async with Engine() as engine:
        ledger = await Ledger.begin(engine.store)
        ledger.open("a", "m")
        with engine.refusing():
            commit = asyncio.create_task(ledger.commit(engine.store))
            for _ in range(3):  # it has found the lock by now, and we are here
                await asyncio.sleep(0)
            assert not commit.done()
        await commit
        await assert_shown(engine.store, ledger)
