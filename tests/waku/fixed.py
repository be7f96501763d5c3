"""What tests have instead of chance, and the vectors."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

from hypothesis import settings

from restante.waku.keys import Key

VECTORS = Path(__file__).parent / "vectors"

KEY = Key(bytes(range(1, 33)))
OTHER_KEY = Key(bytes(range(2, 34)))


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())
    assert found
    return found


def examples(number: int) -> settings:
    """So many, the same ones every time."""
    return settings(max_examples=number, derandomize=True, deadline=None, database=None)


class FixedDice:
    """Draws what nobody could tell from chance, and the same every time."""

    def __init__(self) -> None:
        self._draws = itertools.count()

    def draw(self, size: int) -> bytes:
        return hashlib.shake_256(b"%d" % next(self._draws)).digest(size)

    def key(self) -> Key:
        return Key(self.draw(32))
