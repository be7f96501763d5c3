"""What all tests share: the options of the suite, which tests run, on which worker, and in which order."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from support import costs, effort

ROOT: Final = Path(__file__).parents[1]

OWN_SPARK: Final = ("tests/pipeline/test_masters.py",)
"""Files that have a Spark session of their own, on another worker than all others: they start clusters."""

SECONDS: Final[dict[str, tuple[int, int]]] = {
    "tests/client/test_address_book.py": (6, 21),
    "tests/demo/test_fleet.py": (7, 3),
    "tests/durability/test_faulty_disks.py": (5, 31),
    "tests/interop/test_clients.py": (1, 18),
    "tests/interop/test_clients.py::test_a_file_arrives": (1, 19),
    "tests/interop/test_clients.py::test_a_file_arrives_byte_for_byte": (1, 15),
    "tests/interop/test_clients.py::test_a_file_arrives_in_another_network": (1, 27),
    "tests/interop/test_clients.py::test_a_file_arrives_through_the_relay": (1, 27),
    "tests/interop/test_clients.py::test_a_file_of_any_name_arrives": (1, 16),
    "tests/interop/test_clients.py::test_a_large_file_arrives": (1, 31),
    "tests/interop/test_clients.py::test_a_text_arrives": (1, 19),
    "tests/interop/test_clients.py::test_clients_that_are_idle_beyond_all_time_limits_stay_connected": (1, 12),
    "tests/interop/test_clients.py::test_each_client_sends_and_receives_over_tls": (1, 15),
    "tests/interop/test_clients.py::test_no_client_notices_that_the_server_replaces_itself_again_and_again": (1, 35),
    "tests/interop/test_prometheus.py": (1, 14),
    "tests/interop/test_relay.py": (6, 42),
    "tests/interop/test_wormhole.py": (3, 18),
    "tests/machine/test_conversations.py": (9, 11),
    "tests/pipeline/test_add_a_table.py": (9, 30),
    "tests/pipeline/test_bad_input.py": (23, 3),
    "tests/pipeline/test_build.py": (5, 1),
    "tests/pipeline/test_commands.py": (22, 1),
    "tests/pipeline/test_demo.py": (5, 27),
    "tests/pipeline/test_envelope_files.py": (1, 13),
    "tests/pipeline/test_gaps.py": (3, 6),
    "tests/pipeline/test_ingest.py": (12, 3),
    "tests/pipeline/test_java.py": (2, 34),
    "tests/pipeline/test_lake_at_url.py": (8, 45),
    "tests/pipeline/test_lake_files.py": (6, 12),
    "tests/pipeline/test_lake_readers.py": (1, 60),
    "tests/pipeline/test_lake_table.py": (7, 4),
    "tests/pipeline/test_masters.py": (1, 280),
    "tests/pipeline/test_masters.py::test_spark_connect_builds_equal_tables": (1, 68),
    "tests/pipeline/test_masters.py::test_the_next_run_completes_what_a_killed_driver_left": (1, 40),
    "tests/pipeline/test_query.py": (14, 2),
    "tests/pipeline/test_report_in_chromium.py": (3, 46),
    "tests/pipeline/test_report_reading.py": (10, 1),
    "tests/pipeline/test_report_sections.py": (1, 25),
    "tests/pipeline/test_schedulers.py": (9, 40),
    "tests/pipeline/test_session.py": (4, 6),
    "tests/pipeline/test_small_jobs.py": (3, 1),
    "tests/pipeline/test_tables.py": (21, 61),
    "tests/test_bench.py": (2, 120),
    "tests/test_cli.py": (18, 1),
    "tests/test_conversations.py": (16, 5),
    "tests/test_dashboard.py": (17, 5),
    "tests/test_docs.py": (10, 3),
    "tests/test_histories.py": (1, 50),
    "tests/test_packages.py": (1, 74),
    "tests/test_restart.py": (18, 20),
    "tests/test_standby.py": (3, 15),
    "tests/timing/test_page_in_chromium.py": (2, 12),
    "tests/waku/hostile/test_siege.py": (8, 9),
}
"""Processor seconds of the quick and thorough tests of long files, which begin first; others take about one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("restante")
    group.addoption("--thorough", action="store_true", help="what a quick run leaves out, and other examples")
    group.addoption("--shard", metavar="K/N", type=_shard, help="the Kth of N parts that take about the same time")
    group.addoption("--effort", type=_count, metavar="N", help="N times as many examples of hypothesis")
    group.addoption("--seed", type=int, metavar="N", help="repeat the run that printed this seed")


@pytest.hookimpl(tryfirst=True)  # hypothesis reads its seed in this hook, too
def pytest_configure(config: pytest.Config) -> None:
    """Choose the effort and the seed; a worker of pytest-xdist takes the seed of the run that started it."""
    # A shell starts what it puts into the background with SIGINT ignored, and nohup ignores SIGHUP. So would all that
    # tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    option = config.option
    if hasattr(config, "workerinput"):
        option.seed = config.workerinput["seed"]
    elif option.thorough and option.seed is None:
        option.seed = random.SystemRandom().randrange(1 << 32)
    if option.seed is not None:
        option.hypothesis_seed = option.seed
    # pytest 9.1 loses the fixtures of a folder if its files do not stand together (pytest-dev/pytest#14635).
    config.args.sort(key=lambda argument: Path(argument.partition("::")[0]).parent)
    config.pluginmanager.register(costs)
    effort.configure(thorough=option.thorough, effort=option.effort, seed=option.seed)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("write a number from 1")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError("write K/N with K from 1 to N, as in 3/8")
    return int(number), int(parts)


def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say how to repeat this run, where its examples and its order are random."""
    option = config.option
    if option.seed is None:
        return None
    thorough = "--thorough " if option.thorough else ""
    shard = f"--shard {option.shard[0]}/{option.shard[1]} " if option.shard else ""
    more = f"--effort {option.effort} " if option.effort else ""
    again = f"{thorough}{shard}{more}--seed {option.seed}"
    return f"seed: {option.seed} (the same examples and order again: {again})"


def pytest_xdist_auto_num_workers() -> int:
    """Start two workers a core: for half of its time a test waits for a process, a socket or a disk."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long value by its length: it would be in each line about its test, and in the environment."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > 100 else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run does not want; say which tests share a worker; order them (thorough: randomly)."""
    option = config.option
    wanted = [item for item in items if _wanted(item, thorough=option.thorough)]
    if option.shard is not None:
        wanted = [item for item in wanted if _unit(item) in _shard_units(*option.shard)]
    config.hook.pytest_deselected(items=list(set(items) - set(wanted)))
    items[:] = wanted
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    if option.seed is not None:
        _shuffle(items, random.Random(option.seed))
    # pytest-xdist hands out groups in the order of their first tests.
    items.sort(key=lambda item: -max(_seconds(_file(item))[option.thorough], _seconds(_unit(item))[option.thorough]))


def _seconds(unit: str) -> tuple[int, int]:
    return SECONDS.get(unit, (1, 1))


def _unit(item: pytest.Item) -> str:
    """Return what a test counts with: its file, or itself if `SECONDS` names it."""
    test = item.nodeid.partition("[")[0].partition("@")[0]
    return test if test in SECONDS else _file(item)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _wanted(item: pytest.Item, *, thorough: bool) -> bool:
    """Say whether a run has a test; both have properties (`examples`), since a thorough run has other examples."""
    if item.get_closest_marker("leveldb") and importlib.util.find_spec("plyvel") is None:
        return False  # plyvel has no wheel for this Python
    marked = item.get_closest_marker("thorough") is not None
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or item.get_closest_marker("examples")
    return marked == thorough or (thorough and bool(drawn))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the files of other parts alone: to import and to collect them takes a while."""
    if config.option.shard is None or not collection_path.match("test_*.py"):
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    return None if any(unit.partition("::")[0] == file for unit in _shard_units(*config.option.shard)) else True


@functools.cache
def _shard_units(number: int, parts: int) -> set[str]:
    """Return the files, and the tests that count alone, of a part: the longest first, each to the shortest part."""
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    sums = [0] * parts
    shards: list[set[str]] = [set() for _ in sums]
    for unit in sorted({*files, *SECONDS}, key=lambda unit: (-_seconds(unit)[1], unit)):
        least = sums.index(min(sums))
        sums[least] += _seconds(unit)[1]
        shards[least].add(unit)
    return shards[number - 1]


def _group(item: pytest.Item) -> str:
    """Return the worker's group: one has the Spark session; elsewhere a file's tests share what the file set up."""
    if "spark" in getattr(item, "fixturenames", ()) and _file(item) not in OWN_SPARK:
        return "spark"
    return _file(item)


def _shuffle(items: list[pytest.Item], dice: random.Random) -> None:
    """Shuffle the tests, and the files: a file's tests stay together for what they share."""
    dice.shuffle(items)
    places = {file: dice.random() for file in dict.fromkeys(map(_file, items))}
    items.sort(key=lambda item: places[_file(item)])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    from support.postgres import cluster  # only the tests that need it

    with cluster() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Any) -> Any:
    """Return a PostgreSQL server without tables of ours (support.postgres.Cluster)."""
    postgres_server.empty()
    return postgres_server


@pytest.hookimpl(wrapper=True, tryfirst=True)  # below what pytest and its plugins print
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """Print what the tests cost, which were run again and why, the seed, and the coverage (--cov)."""
    yield
    for line in costs.table(config):
        terminalreporter.line(line)
    for report in terminalreporter.stats.get("passed", []):
        for figure in (value for name, value in report.user_properties if name == "figure"):
            terminalreporter.line(figure)
    for report in terminalreporter.stats.get("rerun", []):
        reason = str(getattr(report.longrepr, "reprcrash", None) or report.longreprtext).partition("\n")[0]
        terminalreporter.line(f"run again: {report.nodeid.partition('@')[0]}: {reason}")
    if seed := pytest_report_header(config):
        terminalreporter.line(seed)
    measured = config.pluginmanager.get_plugin("_cov")
    if measured is not None and measured.cov_total is not None and "xml" in measured.options.cov_report:
        rates = ET.parse(measured.options.cov_report["xml"]).getroot().attrib
        branches, lines = (100 * float(rates[name]) for name in ("branch-rate", "line-rate"))
        figures = f"{branches:.1f} % of branches, {lines:.1f} % of lines"
        terminalreporter.line(f"covered in the tests' own processes: {figures}")
