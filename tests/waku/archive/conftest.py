from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from restante.waku.archive import sqlite
from waku.archive.engine import Engine


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is logged of a disk that refuses would hide what a test has to say."""
    with capture_logs():
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the other writer to end: it does not."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.01)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as engine:
        yield engine
