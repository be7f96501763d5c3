from collections.abc import AsyncIterator

import pytest

from support.mailbox.engines import ENGINES, Engine


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Each engine in turn, with an empty store."""
    async with request.param() as engine:
        yield engine
