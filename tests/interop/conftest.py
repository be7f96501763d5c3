from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.mailbox.scene import Scene
from support.mailbox.servers import Reference, Restante


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Our server, with the real clients at the other end of the wire."""
    async with Scene(tmp_path, Restante(tmp_path / "server")) as scene:
        yield scene


@pytest.fixture(params=[Restante, Reference], ids=lambda server: server.__name__.lower())
async def any_scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """The same with the reference server too: what holds for both shows that the harness is right."""
    async with Scene(tmp_path, request.param(tmp_path / "server")) as scene:
        yield scene
