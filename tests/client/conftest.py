"""A server in memory, one whose days pass, two programs that know one another's code, and shorter waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from client.commands import Desk
from client.live import Network, Program
from restante.client.connection import websocket
from restante.mailbox.server.commit_loop import Retention
from support.mailbox.live import DAY, LiveServer, open_live

WEEK: Final = Retention(prune_after=7 * DAY)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(websocket, "connect", network.connect)
    return network


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with open_live(tmp_path_factory.mktemp("server") / "data", retention=WEEK) as running:
        yield running.url


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with open_live(tmp_path / "data", retention=WEEK) as running:
        yield running


@pytest.fixture
def alice(tmp_path: Path, server: LiveServer) -> Program:
    return Program(tmp_path / "alice", server)


@pytest.fixture
def bob(tmp_path: Path, server: LiveServer) -> Program:
    return Program(tmp_path / "bob", server)


@pytest.fixture
async def friends(alice: Program, bob: Program) -> None:
    """Both run in turns until they have agreed on the key and know each other's versions."""
    for program in (alice, bob, alice, bob, alice):
        await program.run()


@pytest.fixture
def desk(tmp_path: Path, url: str) -> Desk:
    return Desk(tmp_path / "desk", url)
