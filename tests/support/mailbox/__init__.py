"""The kit of the mailbox server's tests: worlds, scripts, clients, processes."""

import pytest

# So that a difference is shown, and not only that there is one.
MODULES = ("conversation", "picture", "shells", "tables", "worlds")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in MODULES))
