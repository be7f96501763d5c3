from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.waku.siege import Siege, besieged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One node for all the attacks of a file."""
    async with besieged(tmp_path_factory.mktemp("siege") / "data") as siege:
        yield siege
