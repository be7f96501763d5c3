"""What all tests share: the options of the suite, which tests run, on which worker, and in which order."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from support import effort

OWN_SPARK: Final = ("tests/pipeline/test_masters.py",)
"""Files that have a Spark session of their own, on another worker than all others: to start clusters and to build all
tables on them takes as long as all other tests that need Spark."""

LONG_GROUPS: Final = (
    *OWN_SPARK,
    "spark",
    "tests/pipeline/test_closing_gaps.py",
    "tests/client/test_address_book.py",
    "large files",
    "tests/interop/test_client_files.py",
    "tests/interop/test_clients.py",
    "tests/interop/test_files_apart.py",
    "tests/interop/test_files.py",
)
"""The groups that take longest, the longest first. pytest-xdist hands out groups in the order of their first tests.
So none of these begins when there is nothing left for the other workers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("restante")
    group.addoption("--thorough", action="store_true", help="more rounds, examples, cases")
    group.addoption("--thorough-only", action="store_true", help="--thorough without what a quick run does as well")
    group.addoption("--effort", type=int, metavar="N", help="N times as many examples of hypothesis")
    group.addoption("--pictures", action="store_true", help="store the pictures of the dashboards in docs/dashboard")
    group.addoption("--seed", type=int, metavar="N", help="repeat the run that printed this seed")


@pytest.hookimpl(tryfirst=True)  # hypothesis reads its seed in this hook, too
def pytest_configure(config: pytest.Config) -> None:
    """Choose the effort and the seed; a worker of pytest-xdist takes the seed of the run that started it."""
    # A shell starts what it puts into the background with SIGINT ignored, and nohup ignores SIGHUP. So would all that
    # tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    option = config.option
    option.thorough = option.thorough or option.thorough_only
    if hasattr(config, "workerinput"):
        option.seed = config.workerinput["seed"]
    elif option.thorough and option.seed is None:
        option.seed = random.SystemRandom().randrange(1 << 32)
    if option.seed is not None:
        option.hypothesis_seed = option.seed
    effort.configure(thorough=option.thorough, effort=option.effort, seed=option.seed)


def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of pytest-xdist."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str | None:
    return _seed(config)


def _seed(config: pytest.Config) -> str | None:
    """Say how to repeat this run, where its examples and its order are random."""
    option = config.option
    if option.seed is None:
        return None
    thorough = "--thorough " if option.thorough else ""
    return f"seed: {option.seed} (the same examples and order again: {thorough}--seed {option.seed})"


def pytest_xdist_auto_num_workers() -> int:
    """Start two workers a core: for half of its time a test waits for a process, a socket or a disk."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run does not want; say which tests share a worker; order them (thorough: randomly)."""
    unwanted = [item for item in items if not _wanted(item, config)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    if config.option.seed is not None:
        _shuffle(items, random.Random(config.option.seed))
    _put_long_groups_first(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that groups have an effect: pytest-xdist writes them into ids, where pytest 9.2 does not read them."""
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "pytest-xdist's groups have no effect"


def _wanted(item: pytest.Item, config: pytest.Config) -> bool:
    if item.get_closest_marker("leveldb") and importlib.util.find_spec("plyvel") is None:
        return False  # plyvel has no wheel for this Python
    if config.option.thorough_only:
        return _does_more(item)
    return config.option.thorough or item.get_closest_marker("thorough") is None


def _does_more(item: pytest.Item) -> bool:
    """Say whether a test does more with --thorough than without it.

    A property has more examples. A file that asks for the effort has more rounds or other dice in some of its tests.
    Spark compiles its plans (tests/pipeline/conftest.py).
    """
    if item.get_closest_marker("thorough") or "spark" in getattr(item, "fixturenames", ()):
        return True
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return True
    asked = (effort.rounds, effort.dice, effort.is_thorough)
    return any(value is each for value in vars(getattr(item, "module", effort)).values() for each in asked)


def _group(item: pytest.Item) -> str:
    """Return the worker's group: one has the Spark session; elsewhere a file's tests share what the file set up."""
    file = item.nodeid.partition("::")[0]
    if "spark" in getattr(item, "fixturenames", ()) and file not in OWN_SPARK:
        return "spark"
    return file


def _put_long_groups_first(items: list[pytest.Item]) -> None:
    """Move the tests of long groups to the front; the order within a group and that of the others stays."""
    rank = {group: number for number, group in enumerate(LONG_GROUPS)}

    def place(item: pytest.Item) -> int:
        mark = item.get_closest_marker("xdist_group")
        assert mark is not None
        return rank.get(mark.args[0], len(rank))

    items.sort(key=place)


def _shuffle(items: list[pytest.Item], dice: random.Random) -> None:
    """Shuffle the files, and the tests of each: a file's tests stay together for what they share."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    shuffled = list(files.values())
    dice.shuffle(shuffled)
    for tests in shuffled:
        dice.shuffle(tests)
    items[:] = [item for tests in shuffled for item in tests]


@pytest.hookimpl(trylast=True)  # after pytest-cov's own lines
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seed again, below the failures and also with -q; and the coverage (--cov)."""
    if seed := _seed(config):
        terminalreporter.line(seed)
    measured = config.pluginmanager.get_plugin("_cov")
    if measured is not None and getattr(measured, "cov_total", None) is not None:
        rates = ET.parse(measured.options.cov_report["xml"]).getroot().attrib
        branches, lines = (100 * float(rates[each]) for each in ("branch-rate", "line-rate"))
        figures = f"{branches:.1f} % of branches, {lines:.1f} % of lines"
        terminalreporter.line(f"covered in the tests' own processes: {figures}")
