"""Every conversation, on the cores and over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.effort import rounds
from support.rows import every
from support.waku.conversation import WakuReplay, WakuScript, read_scripts
from support.waku.worlds import JoinedCores, live_node

SCRIPTS = read_scripts()
IN_PIECES = [script for script in SCRIPTS if not any(" & " in line for _, line in script.lines)]
WITHOUT_SOCKETS = [script for script in SCRIPTS if not script.needs_a_socket]


@every("script", WITHOUT_SOCKETS, ids=lambda script: script.name)
async def test_on_the_cores(script: WakuScript) -> None:
    await WakuReplay(script, JoinedCores(script.options)).whole()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
async def test_over_sockets(script: WakuScript, tmp_path: Path) -> None:
    async with live_node(script.options, tmp_path) as node:
        await WakuReplay(script, node).whole()


@every("script", IN_PIECES[:: rounds(4, 1)], ids=lambda script: script.name)
async def test_over_sockets_in_pieces(script: WakuScript, tmp_path: Path) -> None:
    """Bytes that are cut anywhere are the subject of test_devp2p.py and test_rlpx.py; this is the link."""
    async with live_node(script.options, tmp_path / script.name, pieces=7) as node:
        await WakuReplay(script, node).whole()
