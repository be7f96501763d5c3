from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from restante.waku.archive import sqlite
from support.waku.engines import ENGINES, Engine


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is logged of a disk that refuses would hide what a test has to say."""
    with capture_logs():
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the other writer to end: it does not."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.01)


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Each engine in turn, with an empty archive."""
    async with request.param() as engine:
        yield engine
