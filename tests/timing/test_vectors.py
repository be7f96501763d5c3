"""The shared vectors of timing, in Python. tests/pipeline/test_tables.py has them in Spark."""

from __future__ import annotations

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
