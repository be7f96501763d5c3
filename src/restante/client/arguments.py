"""Whether an argument has the type that it should have. Programs without a type checker may pass anything."""

from __future__ import annotations

import math
from pathlib import Path

from restante.common.errors import Misuse


def is_integer(value: object, minimum: int, maximum: float = math.inf) -> bool:
    """Return whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def check_seconds(name: str, value: object) -> None:
    """Raise Misuse if a value is not a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise Misuse(f"`{name}` is a number of seconds above 0, not {value!r}")


def check_path(value: object) -> None:
    """Raise Misuse if a value is not a Path."""
    if not isinstance(value, Path):
        raise Misuse(f"a path is a pathlib.Path, not {value!r}")


def is_text(value: object) -> bool:
    """Return whether a value is a text that UTF-8 can encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
