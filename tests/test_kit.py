"""The test kit: what would let every other test pass if it were broken."""

from __future__ import annotations

import itertools
import os
import random
import select
import subprocess
import sys
from typing import Any

import pytest

from conftest import LONG_GROUPS, OWN_SPARK, _put_long_groups_first, _shuffle
from support.bounds import BOUND
from support.documents import ROOT
from support.effort import rounds, some
from support.processes import process_group
from support.rows import every


def test_a_row_that_fails_fails_its_test_and_is_named_and_the_others_are_run() -> None:
    seen = []

    @every("number", [1, 2, 3, 4])
    def check(number: int) -> None:
        seen.append(number)
        assert number % 2, f"{number} is even"

    with pytest.raises(AssertionError, match="2 is even") as told:
        check()
    assert seen == [1, 2, 3, 4]
    assert told.value.__notes__ == ["rows that failed: 2, 4"]


async def test_every_also_runs_coroutines_and_accepts_ids() -> None:
    @every(("word", "size"), [("a", 1), ("bb", 1)], ids=["one", "other"])
    async def check(word: str, size: int) -> None:
        assert len(word) == size

    with pytest.raises(AssertionError) as told:
        await check()
    assert told.value.__notes__ == ["rows that failed: other"]


def test_a_table_without_rows_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="tests nothing"):
        every("row", [])


def test_cases_that_are_not_quick_are_marked_and_none_is_lost() -> None:
    first, second, third = some(["a", "b", "c"], "b")
    assert second == "b"
    assert [(each.values, [mark.name for mark in each.marks]) for each in (first, third)] == [
        (("a",), ["thorough"]),
        (("c",), ["thorough"]),
    ]
    with pytest.raises(AssertionError):
        some(["a"])
    with pytest.raises(AssertionError):
        some(["a"], "b")


def test_a_thorough_run_has_more_rounds(pytestconfig: pytest.Config) -> None:
    assert rounds(3, 50) == (50 if pytestconfig.option.thorough else 3)


def test_thorough_only_has_what_does_more_than_in_a_quick_run_and_nothing_else() -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-q", "--thorough-only"]
    files = ["tests/test_certificate_dates.py", "tests/test_bench.py", "tests/durability/test_copies.py"]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=BOUND, check=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    names = {line.partition("::")[2] for line in found}
    assert "test_what_is_cut_off_has_no_date" in names, "a property"
    assert "test_the_clients_bench_measures_both_clients" not in names, "it has neither rounds nor a mark"
    assert "test_the_bench_of_the_metrics_measures_servers_with_and_without_them" in names, "marked"
    assert any(line.startswith(files[2]) for line in found), "its file asks for rounds"


def test_a_seed_s_order_is_repeated_and_keeps_the_tests_of_a_file_together() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    def shuffled(seed: int) -> list[str]:
        items: list[Any] = [Item(f"tests/test_{file}.py::test_{number}") for file in "abc" for number in range(4)]
        _shuffle(items, random.Random(seed))
        return [item.nodeid for item in items]

    assert shuffled(1) == shuffled(1) != shuffled(2)
    assert len(set(shuffled(1))) == 12
    files = [nodeid.partition("::")[0] for nodeid in shuffled(1)]
    assert len([1 for one, other in itertools.pairwise(files) if one != other]) == 2


def test_long_groups_come_first_and_everything_else_keeps_its_order() -> None:
    class Item:
        def __init__(self, group: str, number: int) -> None:
            self.group, self.number = group, number

        def get_closest_marker(self, name: str) -> pytest.Mark:
            return pytest.mark.xdist_group(self.group).mark

    items: list[Any] = [Item(group, number) for number in range(2) for group in ("b", *reversed(LONG_GROUPS), "a")]
    _put_long_groups_first(items)
    ordered = [(each.group, each.number) for each in items]
    long = [(group, number) for group in LONG_GROUPS for number in range(2)]
    assert ordered == [*long, ("b", 0), ("a", 0), ("b", 1), ("a", 1)]


def test_files_with_a_worker_or_a_place_of_their_own_are_there() -> None:
    files = [group for group in (*OWN_SPARK, *LONG_GROUPS) if "/" in group]
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_a_test_that_fails_leaves_none_of_the_processes_that_its_program_has_started() -> None:
    """The program and its fork hold a pipe, which is at its end when both are gone."""
    program = "import os, signal; child = os.fork(); os.write(1, b'up\\n'); signal.pause()"
    reader, writer = os.pipe()
    with open(reader, "rb") as held:  # noqa: PTH123 - a descriptor
        with (  # noqa: PT012 - the group ends when its test fails
            pytest.raises(AssertionError, match="it fails"),
            process_group([sys.executable, "-c", program], stdout=subprocess.PIPE, pass_fds=[writer]) as process,
        ):
            os.close(writer)
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
            raise AssertionError("it fails")
        readable, _, _ = select.select([held], [], [], BOUND)
        assert readable
        assert held.read() == b""
