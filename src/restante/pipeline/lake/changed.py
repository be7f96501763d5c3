"""Which version of a table was the last to change each day, in few numbers.

    gap, days, versions,  gap, days, versions, …

is a run of days that the same version changed, after another: how many days lie between it and the one before, how
many it has, and by how much its version is greater than that one's. Gaps count from 0001-01-01, versions from 0. A
day that was changed alone takes about seven bytes of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date


def to_numbers(versions: Mapping[str, int]) -> list[int]:
    """Return the numbers for a mapping from days, ISO, to versions."""
    runs: list[tuple[int, int, int]] = []
    for day, version in sorted((date.fromisoformat(day).toordinal(), version) for day, version in versions.items()):
        if runs and runs[-1][2] == version and sum(runs[-1][:2]) == day:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, version)
        else:
            runs.append((day, 1, version))
    found: list[int] = []
    end, before = 1, 0
    for first, days, version in runs:
        found += [first - end, days, version - before]
        end, before = first + days, version
    return found


def from_numbers(numbers: Sequence[int]) -> dict[str, int]:
    """Return the mapping that numbers stand for. Raises ValueError where there is none."""
    found: dict[str, int] = {}
    end, version = 1, 0
    for gap, days, more in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        version += more
        for day in range(end + gap, end + gap + days):
            found[date.fromordinal(day).isoformat()] = version
        end += gap + days
    return found
