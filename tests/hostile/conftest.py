import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from support.bounds import bounded
from support.mailbox.live import open_live
from support.mailbox.siege import Siege


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Siege]:
    """One server for all the attacks of a file, with its LIMITS and its ADMISSION.

    In the end nobody is there, nothing is held, and the log tells nothing of anybody.
    """
    admission = getattr(request.module, "ADMISSION", lambda: None)()
    data = tmp_path_factory.mktemp("siege") / "data"
    with capture_logs() as lines:
        async with open_live(data, admission=admission, limits=request.module.LIMITS) as live:
            siege = Siege(live)
            yield siege
            siege.everybody_goes()
            await siege.pair.play()
            async with bounded("an empty house"):
                while not siege.empty():
                    live.clock.now += 1.0  # who is over its rate is not read, and so not missed
                    live.server.tick()
                    await asyncio.sleep(0)
            live.server.commit_loop.log_refusals()
    siege.check_log(lines)
