from collections.abc import AsyncIterator

import pytest

from stores.engine import Engine


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """An empty store."""
    async with Engine() as engine:
        yield engine
