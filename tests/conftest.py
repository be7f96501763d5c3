"""What all tests share."""

import importlib.util

import pytest
from hypothesis import settings

# The same examples in every run, and none that fails because the machine is busy.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs plyvel, on a Python for which there is none."""
    if importlib.util.find_spec("plyvel") is None:
        without = [item for item in items if item.get_closest_marker("leveldb")]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
