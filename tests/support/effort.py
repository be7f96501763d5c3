"""How many examples hypothesis tries. conftest.py calls `configure` before any test module is imported."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_chosen: dict[str, int] = {"effort": 1, "random": 0}


def configure(*, thorough: bool, effort: int | None, seed: int | None) -> None:
    """Choose how many examples this run tries; those of thorough runs differ, unless there is a seed."""
    _chosen["effort"] = effort or (2 if thorough else 1)
    _chosen["random"] = seed is not None
    settings.register_profile("restante", examples(100))
    settings.load_profile("restante")


def examples(number: int, steps: int = 50) -> settings:
    """Return the settings of a property: so many quick examples, and no deadline, since a busy machine fails none."""
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
