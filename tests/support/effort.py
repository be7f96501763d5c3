"""How much a run of the tests looks at.

`./run test` checks every promise once, with the same examples in every run. `./run test --thorough` runs the same
tests with more examples and rounds, and also those marked `thorough`; its examples and the order of the tests follow
from a random seed, which it prints. `--effort N` multiplies the examples of either.

conftest.py calls `configure` before any test module is imported, so decorators and parameters may ask here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

THOROUGH_EFFORT: Final = 2
"""How many times as many examples `--thorough` looks at, unless `--effort` says otherwise.

Each thorough run tries other examples, so runs add up. With 4, the properties took a sixth of the run's processor
time. `--effort` is for a search that may take hours.
"""

T = TypeVar("T")

_chosen: dict[str, int] = {"thorough": 0, "effort": 1, "random": 0, "seed": 0}


def configure(*, thorough: bool, effort: int | None, seed: int | None) -> None:
    """Choose how much this run looks at, and whether its examples follow from a seed."""
    _chosen["thorough"] = thorough
    _chosen["random"] = seed is not None
    _chosen["seed"] = seed or 0
    _chosen["effort"] = effort or (THOROUGH_EFFORT if thorough else 1)
    settings.register_profile("restante", examples(100))
    settings.load_profile("restante")


def is_thorough() -> bool:
    return bool(_chosen["thorough"])


def rounds(quick: int, thorough: int) -> int:
    """Return how often a test repeats something: `quick` times, or `thorough` times with --thorough."""
    return thorough if is_thorough() else quick


def dice(*use: object) -> random.Random:
    """Return dice for a use: the same in every quick run; in a thorough run they follow from its seed."""
    return random.Random(repr((_chosen["seed"], *use)))


def examples(number: int, steps: int = 50) -> settings:
    """Return the settings of a property: so many examples in a quick run, of `steps` steps where it is a machine.

    There is no deadline and no health check of speed: a busy machine fails no property.
    """
    return settings(
        max_examples=number * _chosen["effort"],
        stateful_step_count=steps,
        derandomize=not _chosen["random"],
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
            HealthCheck.function_scoped_fixture,
        ),
    )


def some(cases: Sequence[T], *quick: T) -> list[Any]:
    """Return all cases as parameters of a test; those that are not `quick` run with --thorough only."""
    assert quick, "every promise is tested in a quick run"
    assert all(case in cases for case in quick)
    return [case if case in quick else pytest.param(case, marks=pytest.mark.thorough) for case in cases]
