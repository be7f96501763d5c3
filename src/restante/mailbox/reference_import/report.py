"""The report of an import or export, for the operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

Counts = Counter[str]


class Report(msgspec.Struct):
    """How many rows were imported and skipped. Each row that was read is counted once."""

    imported: dict[str, int]
    """Rows by kind."""
    skipped: dict[str, int]
    """Rows by kind and reason. Only reasons that occurred are listed."""


def render(groups: Mapping[str, Mapping[str, int]]) -> str:
    """Return counts as a table with three columns: what was done, the kind of row, the count."""
    lines = [
        (done, name.replace("_", " "), number) for done, counts in groups.items() for name, number in counts.items()
    ]
    wide = max(len(name) for _, name, _ in lines)
    digits = max(len(str(number)) for _, _, number in lines)
    return "\n".join(f"{done:<9} {name:<{wide}}  {number:>{digits}}" for done, name, number in lines)
