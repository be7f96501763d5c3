"""Whether an argument has the type that it should have. Programs without a type checker may pass anything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse
from restante.common.texts import counted

MAX_SENT_BYTES: Final = 1_000_000
"""Bytes of a message. A server of this project takes commands of 2 MiB, in which a message is in hex. A command that
is too long ends the wormhole."""


def is_integer(value: object, minimum: int, maximum: float = math.inf) -> bool:
    """Return whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def check_seconds(name: str, value: object) -> None:
    """Raise Misuse if a value is not a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise Misuse(f"`{name}` is a number of seconds above 0, not {value!r}")


def check_flags(**flags: object) -> None:
    """Raise Misuse if an argument is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise Misuse(f"`{name}` is True or False, not {value!r}")


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


def checked_message(message: bytes) -> bytes:
    """Return a copy of a message. Raises TypeError if it is not bytes, and Misuse if it is too long."""
    try:
        copy = bytes(memoryview(message))
    except TypeError:
        raise TypeError(f"a message is bytes, not {type(message).__name__}: encode it") from None
    if len(copy) > MAX_SENT_BYTES:
        limit = counted(MAX_SENT_BYTES, "byte")
        raise Misuse(f"a message has at most {limit}, and this one has {len(copy):,}: send it in parts")
    return copy
