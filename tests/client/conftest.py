"""A server whose days pass, and two programs that know one another's code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client.programs import Program
from support.mailbox.days import ServerOfDays, server_of_days


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
