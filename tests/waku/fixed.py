"""What the tests of envelopes share."""

from __future__ import annotations

from hypothesis import settings

from restante.waku.keys import Key

KEY = Key(bytes(range(1, 33)))
OTHER_KEY = Key(bytes(range(2, 34)))


def examples(number: int) -> settings:
    """So many, the same ones every time."""
    return settings(max_examples=number, derandomize=True, deadline=None, database=None)
