"""A server in memory, one whose days pass, two programs that know one another's code, and shorter waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from client.commands import Desk
from client.programs import Program
from client.virtual import Network
from restante.client.connection import driver, websocket
from support.mailbox.days import ServerOfDays, server_of_days
from support.mailbox.givens import Options
from support.mailbox.worlds import CoreWorld


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """A server's core in memory, which all wormholes reach, whatever URL they have."""
    network = Network(CoreWorld(Options()))
    monkeypatch.setattr(websocket, "connect", network.connect)
    return network


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A server in this process, for all tests of a module."""
    async with server_of_days(tmp_path_factory.mktemp("server") / "data") as running:
        yield running.url


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerOfDays]:
    async with server_of_days(tmp_path / "data") as running:
        yield running


@pytest.fixture
def alice(tmp_path: Path, server: ServerOfDays) -> Program:
    return Program(tmp_path / "alice", server)


@pytest.fixture
def bob(tmp_path: Path, server: ServerOfDays) -> Program:
    return Program(tmp_path / "bob", server)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again after 20 ms."""
    monkeypatch.setattr(driver, "delay_before", lambda _attempt, _dice: 0.02)


@pytest.fixture
def desk(tmp_path: Path, url: str) -> Desk:
    return Desk(tmp_path / "desk", url)
