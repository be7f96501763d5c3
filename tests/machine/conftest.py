from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

# So that a difference is shown, and not only that there is one.
pytest.register_assert_rewrite("machine.machine", "machine.model")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the server logs of a disk that refuses would hide what a test has to say."""
    with capture_logs():
        yield
