from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from support.isolation import isolated_network, unavailable
from support.mailbox.deployment import Deployment
from support.mailbox.shipped import Words
from support.processes import RESTANTE, Serving, serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Words]:
    """A network of its own for all tests of a module."""
    if reason := unavailable():
        pytest.skip(f"networks of their own: {reason}")
    async with isolated_network(tmp_path_factory.mktemp("network")) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(inside: Words, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """A server for all transfers that nobody disturbs."""
    async with serving(tmp_path_factory.mktemp("shared") / "data", (*inside, *RESTANTE)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def deployment(inside: Words, shared: Serving, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as ends:
        yield Deployment(inside, shared, tmp_path, ends)


@pytest_asyncio.fixture(loop_scope="module")
async def own_deployment(inside: Words, tmp_path: Path) -> AsyncIterator[Deployment]:
    """A deployment with a server of its own, which the test kills."""
    async with AsyncExitStack() as ends:
        server = await ends.enter_async_context(serving(tmp_path / "data", (*inside, *RESTANTE)))
        yield Deployment(inside, server, tmp_path, ends)
