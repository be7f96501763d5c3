from collections.abc import Iterator
from pathlib import Path

import pytest

from support.mailbox.reference_sources import Their


@pytest.fixture
def their(tmp_path: Path) -> Iterator[Their]:
    """The reference server, with databases in which nothing is."""
    server = Their(tmp_path / "their")
    yield server
    server.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Our data directory, which is not there yet."""
    return tmp_path / "data"
