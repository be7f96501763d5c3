"""Every conversation, on the cores and over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from waku.conversation import Replay, Script, read_scripts
from waku.worlds import CoreWorld, live_world

SCRIPTS = read_scripts()
IN_PIECES = [script for script in SCRIPTS if not any(" & " in line for _, line in script.lines)]
WITHOUT_SOCKETS = [script for script in SCRIPTS if not script.needs_a_socket]


@pytest.mark.parametrize("script", WITHOUT_SOCKETS, ids=lambda script: script.name)
async def test_on_the_cores(script: Script) -> None:
    await Replay(script, CoreWorld(script.options)).whole()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
async def test_over_sockets(script: Script, tmp_path: Path) -> None:
    async with live_world(script.options, tmp_path) as world:
        await Replay(script, world).whole()


@pytest.mark.parametrize("script", IN_PIECES, ids=lambda script: script.name)
async def test_over_sockets_in_pieces(script: Script, tmp_path: Path) -> None:
    async with live_world(script.options, tmp_path, pieces=7) as world:
        await Replay(script, world).whole()
