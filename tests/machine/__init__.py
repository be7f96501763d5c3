import pytest

# So that a difference is shown, and not only that there is one.
pytest.register_assert_rewrite("machine.machine", "machine.model")
