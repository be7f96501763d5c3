"""Every conversation, on every world: one by one and as one batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from conversation import Mismatch, Replay, Script, read_scripts
from reference_world import ReferencePeer, ReferenceWorld
from worlds import CoreWorld, LiveWorld, StoreWorld

SCRIPTS = read_scripts()
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@every_script
async def test_on_the_core(script: Script) -> None:
    first = Replay(script, CoreWorld(script.options))
    await first.one_by_one()
    await Replay(script, CoreWorld(script.options), first.variables).as_batches()


@every_script
async def test_on_the_store(script: Script, tmp_path: Path) -> None:
    variables: dict[str, object] = {}
    for batches in (False, True):
        world = StoreWorld(script.options, tmp_path / str(batches))
        try:
            replay = Replay(script, world, variables)
            await (replay.as_batches() if batches else replay.one_by_one())
        finally:
            await world.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.asyncio(loop_scope="module")
@every_script
async def test_over_a_live_socket(script: Script, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    variables: dict[str, object] = {}
    for batches in (False, True):
        world = LiveWorld(script.options, tmp_path / str(batches), http)
        await world.start()
        try:
            replay = Replay(script, world, variables)
            await (replay.as_batches() if batches else replay.one_by_one())
        finally:
            await world.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def reference() -> AsyncIterator[ReferencePeer]:
    peer = ReferencePeer()
    await peer.start()
    yield peer
    await peer.stop()


@pytest.mark.asyncio(loop_scope="module")
@every_script
async def test_against_the_reference_server(
    script: Script, reference: ReferencePeer, http: aiohttp.ClientSession
) -> None:
    """It passes, or the script says why it does not; a reason that no longer holds is a failure, too."""
    world = ReferenceWorld(script.options, reference, http)
    await world.start()
    try:
        replay = Replay(script, world)
        if script.reference_differs is None:
            await replay.one_by_one()
        else:
            with pytest.raises(Mismatch) as mismatch:
                await replay.one_by_one()
            assert mismatch.value.line == script.reference_fails_at
    finally:
        await world.stop()
