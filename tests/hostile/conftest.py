from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.mailbox.siege import CROWD, Siege, besieged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One server for all the attacks of a file, with its OPTIONS and its CROWD; `{folder}` is its own folder."""
    folder = tmp_path_factory.mktemp("siege")
    options = tuple(each.format(folder=folder) for each in getattr(request.module, "OPTIONS", ()))
    async with besieged(folder / "data", options, crowd=getattr(request.module, "CROWD", CROWD)) as siege:
        yield siege
