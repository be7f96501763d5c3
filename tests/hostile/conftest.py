from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from restante.mailbox.core.limits import Limits
from support.mailbox.siege import Siege, besieged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One server for all the attacks of a file, with its LIMITS and its ADMISSION."""
    limits, admission = (getattr(request.module, name, None) for name in ("LIMITS", "ADMISSION"))
    data = tmp_path_factory.mktemp("siege") / "data"
    async with besieged(data, limits or Limits(), admission and admission()) as siege:
        yield siege
