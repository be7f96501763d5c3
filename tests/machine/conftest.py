from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the server logs of a disk that refuses would hide what a test has to say."""
    with capture_logs():
        yield
