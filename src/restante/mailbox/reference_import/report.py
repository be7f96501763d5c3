"""What an import did, for its operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

Counts = Counter[str]


class Report(msgspec.Struct):
    """Every row that was read is counted once, in `imported` or in `skipped`."""

    imported: dict[str, int]
    """By kind of row."""
    skipped: dict[str, int]
    """By kind and reason; only what there was."""


def render(groups: Mapping[str, Mapping[str, int]]) -> str:
    """Show counts as a table: what was done, with what, how often."""
    lines = [
        (done, name.replace("_", " "), number) for done, counts in groups.items() for name, number in counts.items()
    ]
    wide = max(len(name) for _, name, _ in lines)
    digits = max(len(str(number)) for _, _, number in lines)
    return "\n".join(f"{done:<9} {name:<{wide}}  {number:>{digits}}" for done, name, number in lines)
