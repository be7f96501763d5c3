"""What every world is given: time, chance, the operator's options, and clients to speak to."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import NamedTuple

from machine.model import Frame
from restante.mailbox.desk import Connection


class Clock:
    """Moves only when it is told to, in steps that floats can add without loss."""

    def __init__(self) -> None:
        self.wall_time = 1_700_000_000.0
        self.uptime = 5000.0

    def wall(self) -> float:
        return self.wall_time

    def monotonic(self) -> float:
        return self.uptime


class Dice:
    """Chance from a seed. Every other id comes from a small pool, so that it may be taken already."""

    def __init__(self, seed: int, *, stubborn: bool) -> None:
        self.ids: deque[str] = deque()
        """The ids that were given, until somebody takes note of them."""
        self._random = random.Random(seed)
        self._stubborn = stubborn
        self._given = 0

    def below(self, bound: int) -> int:
        """A stubborn dice shows the same number for ever: whoever draws until it fits must know when to stop."""
        return 0 if self._stubborn else self._random.randrange(bound)

    def mailbox_id(self) -> str:
        self._given += 1
        self.ids.append(self._random.choice(("m1", "m2", "m3")) if self._given % 2 else f"drawn{self._given}")
        return self.ids[-1]


class Options(NamedTuple):
    """What the operator chose."""

    blur: int
    lists: bool
    prune_after: float
    binary: bool
    """The frames that the server sends; it takes either."""


class Wire:
    """A client's end of a connection: all that came out of it, and how it was ended."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.verdict: tuple[int, str] | None = None
        self.connection = Connection(self)

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        if self.verdict is None:
            self.frames += [json.loads(body + stamp) for body in bodies]

    def pause(self) -> None:
        """Nobody floods here."""

    def resume(self) -> None:
        """Nobody was paused."""

    def hang_up(self, code: int, reason: str) -> None:
        self.verdict = code, reason
