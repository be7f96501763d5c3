"""Every conversation, on the cores and over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.effort import is_thorough
from support.rows import every
from support.waku.conversation import WakuReplay, WakuScript, read_scripts
from support.waku.worlds import JoinedCores, live_node

SCRIPTS = read_scripts()
CONNECTIONS = (
    "first_status_is_no_good",
    "greet",
    "large_packet",
    "long_ttl",
    "relay_by_topic",
    "second_status",
    "what_lives",
)
"""What a connection can be told and tell: a good greeting and a bad one, packets of all sizes, refusals."""

IN_PIECES = [
    script
    for script in SCRIPTS
    if not any(" & " in line for _, line in script.lines) and (is_thorough() or script.name in CONNECTIONS)
]
WITHOUT_SOCKETS = [script for script in SCRIPTS if not script.needs_a_socket]


@every("script", WITHOUT_SOCKETS, ids=lambda script: script.name)
async def test_on_the_cores(script: WakuScript) -> None:
    await WakuReplay(script, JoinedCores(script.options)).whole()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
async def test_over_sockets(script: WakuScript, tmp_path: Path) -> None:
    async with live_node(script.options, tmp_path) as node:
        await WakuReplay(script, node).whole()


@every("script", IN_PIECES, ids=lambda script: script.name)
async def test_over_sockets_in_pieces(script: WakuScript, tmp_path: Path) -> None:
    """Bytes that are cut anywhere are the subject of test_devp2p.py and test_rlpx.py; this is the connection."""
    async with live_node(script.options, tmp_path / script.name, pieces=7) as node:
        await WakuReplay(script, node).whole()
