"""The shared vectors of timing, in Python. tests/pipeline/test_tables.py has them in Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from restante.timing.model.phases import ALL_PHASES
from support.timing.rows import VECTORS, computed_rows, vector_rows


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_a_vector_gives_the_rows_that_it_expects(vector: Mapping[str, Any]) -> None:
    assert sorted(computed_rows(vector), key=repr) == sorted(vector_rows(vector), key=repr)


def test_the_order_of_the_log_and_of_the_trace_changes_nothing() -> None:
    for vector in VECTORS:
        last = len(vector["log"]) - 1
        turned = {"log": vector["log"][::-1], "trace": vector["trace"] and vector["trace"][::-1]}
        found = [(last - at, *row) for at, *row in computed_rows(turned)]
        assert sorted(found, key=repr) == sorted(vector_rows(vector), key=repr), vector["name"]


def test_every_phase_is_in_a_vector() -> None:
    assert {row[2] for vector in VECTORS for row in vector_rows(vector)} == set(ALL_PHASES)


def test_no_two_vectors_have_the_same_name_or_the_same_log_and_trace() -> None:
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)
    assert len({json.dumps([vector["log"], vector["trace"]]) for vector in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_the_parts_of_a_command_add_up(vector: Mapping[str, Any]) -> None:
    commands: dict[int, dict[str, int | None]] = {}
    for at, what, phase, us, *_ in vector_rows(vector):
        if what != "ws_send":  # a wait, beside the command's own phases
            commands.setdefault(at, {})[phase] = us
    for spent in (each for each in commands.values() if "round trip" in each):
        ways = [spent["network out"], spent["server"], spent["network in"]]
        if None not in ways:
            assert sum(filter(None, ways)) == spent["round trip"]
        parts = [spent[each] for each in ("queue", "commit", "queue and commit", "answer") if each in spent]
        if parts and None not in (*parts, spent["server"]):
            assert abs(sum(filter(None, parts)) - (spent["server"] or 0)) <= 2  # server_tx is rounded in frames
