"""What the tests cost in processor time, by folder: a plugin of pytest, whose table conftest.py prints at the end.

Processor time depends on other work of the machine much less than the time of a clock. That of all processes that a
test starts counts, also while they still run (a Java, a server that many tests share).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

TICKS: Final = os.sysconf("SC_CLK_TCK")

BUDGETS: Final = {
    "start": 0.6,
    "tests": 1.7,
    "tests/client": 1.2,
    "tests/demo": 0.2,
    "tests/durability": 0.3,
    "tests/hostile": 0.3,
    "tests/interop": 0.3,
    "tests/machine": 0.3,
    "tests/pipeline": 3.4,
    "tests/reference_import": 0.2,
    "tests/relay": 0.5,
    "tests/stores": 0.2,
    "tests/timing": 0.3,
    "tests/waku": 1.1,
}
"""Processor minutes that the quick tests of a folder may take; `start`: what every process imports and collects."""

LIMIT: Final = 12.0
"""Processor minutes of all quick tests: more than the sum of the budgets, since hosts differ by a half."""

START: Final = "start"
SECONDS: Final = "processor seconds"
"""The name of the property of a report: it has such seconds by row of the table."""

_spent: Final[dict[str, float]] = defaultdict(float)
"""Processor seconds by row of the table, in the process that controls the run."""

_unreported: Final[dict[str, float]] = defaultdict(float)
"""The same in the process that tests, until a report has it."""

_last: Final = [0.0]
"""Processor seconds of this process and its descendants at the last reading."""


def _read() -> float:
    """Return the processor seconds of this process and its descendants since the last reading."""
    now = _used(resource.RUSAGE_SELF) + _used(resource.RUSAGE_CHILDREN) + _running(os.getpid()) / TICKS
    seconds, _last[0] = now - _last[0], now
    return max(seconds, 0.0)  # a process whose parent ignores how it ended is lost


def pytest_collection_finish() -> None:
    _unreported[START] = _read()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Write into the last report of a test what it took: the process that controls the run gets all reports."""
    report = yield
    if call.when == "teardown":
        folder = "/".join(item.nodeid.partition("::")[0].split("/")[:-1][:2])  # at most two names deep
        _unreported[folder] += _read()
        report.user_properties.append((SECONDS, dict(_unreported)))
        _unreported.clear()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == SECONDS and isinstance(value, dict):
            for row, seconds in value.items():
                _spent[row] += seconds


def table(config: pytest.Config) -> list[str]:
    """Return the lines of the summary: processor minutes by folder, those of a quick run beside their budgets."""
    quick, rows = not config.option.thorough, dict(sorted(_spent.items()))
    if config.pluginmanager.hasplugin("dsession"):  # this process has distributed, and others have tested
        rows[START] = rows.get(START, 0.0) + _used(resource.RUSAGE_SELF)
    total = sum(rows.values()) / 60
    rows["in all"] = 60 * total
    budgets = BUDGETS | {"in all": sum(BUDGETS.values())}
    lines = ["processor minutes of the tests" + (", and their budgets" if quick else "")]
    for name, seconds in rows.items():
        budget = f"{budgets.get(name, 0):8.1f}" if quick else ""
        lines.append(f"  {name:<24}{seconds / 60:8.1f}{budget}")
    if quick and total > LIMIT:
        lines.append(f"OVER BUDGET: the quick tests took {total:.1f} processor minutes; at most {LIMIT:g}")
    return lines


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _running(pid: int) -> int:
    """Return what running descendants and their ended children took (proc_pid_stat(5), fields 14 to 17)."""
    ticks = 0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a process has ended meanwhile
            for child in map(int, children.read_text().split()):
                ticks += _running(child)
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
    return ticks
