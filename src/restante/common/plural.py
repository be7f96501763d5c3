"""Numbers with their nouns: 1 row, 2,000 rows."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return the number and the noun. The noun is given in the singular and takes -s in the plural."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
