"""Encodes the last version that changed each day in few numbers.

    gap, days, versions,  gap, days, versions, …

Each triple is a run of days that the same version changed: the number of days between it and the previous run, the
number of its days, and the difference between its version and that of the previous run. The first gap counts from
0001-01-01, the first version from 0. A day that was changed alone takes about seven bytes of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date


def encode_changes(versions: Mapping[str, int]) -> list[int]:
    """Return the numbers for a mapping from ISO days to versions."""
    runs: list[tuple[int, int, int]] = []
    for day, version in sorted((date.fromisoformat(day).toordinal(), version) for day, version in versions.items()):
        if runs and runs[-1][2] == version and sum(runs[-1][:2]) == day:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, version)
        else:
            runs.append((day, 1, version))
    numbers: list[int] = []
    end, before = 1, 0
    for first, days, version in runs:
        numbers += [first - end, days, version - before]
        end, before = first + days, version
    return numbers


def decode_changes(numbers: Sequence[int]) -> dict[str, int]:
    """Return the mapping that the numbers encode. Raises ValueError if they encode none."""
    versions: dict[str, int] = {}
    end, version = 1, 0
    for gap, days, more in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        version += more
        for day in range(end + gap, end + gap + days):
            versions[date.fromordinal(day).isoformat()] = version
        end += gap + days
    return versions
