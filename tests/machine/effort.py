"""How hard the tests of this folder look.

Quick, in the normal suite: few examples, the same ones every time. With EFFORT=N in the environment there are N
times as many, and other ones on every run; `EFFORT=50 ./run test tests/machine` takes about half an hour.
A failure found that way prints a blob that repeats it: see `hypothesis.reproduce_failure`.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

EFFORT: Final = int(os.environ.get("EFFORT", "0"))


def effort(examples: int, steps: int = 50) -> settings:
    """Settings for a test that looks at so many examples when in a hurry."""
    return settings(
        max_examples=examples * max(EFFORT, 1),
        stateful_step_count=steps,
        derandomize=EFFORT == 0,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    )
