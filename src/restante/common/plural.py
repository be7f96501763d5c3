"""A number with its noun, as every command says it: 1 row, 2,000 rows."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Give both; the noun is in the singular, and has a plural in -s."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
