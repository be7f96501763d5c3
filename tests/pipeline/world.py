"""Rows as a busy week leaves them, from seeded dice: most on one day, with what is rare made frequent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from .tables import Values

DAY = datetime(2026, 3, 10, tzinfo=UTC)
SOURCES = ("main", "second")
APPS = ("lothar.com/wormhole/text-or-file-xfer", "<b>app</b>", "=1+1", "\u001b[31m", "", "other")
RESULTS = ("happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded")
BLURS = (None, None, None, None, 1_000_000, 60_000_000, 3_600_000_000, 7_000_000_000)
SECOND = 1_000_000


def world(dice: Random, rows: int) -> Mapping[str, Sequence[tuple[Any, ...]]]:
    """Give about so many rows of each table."""
    return {
        "nameplates": [_ended(dice, place) for place in range(rows)],
        "mailboxes": [_mailbox(dice, place) for place in range(rows)],
    }


def _time(dice: Random, blur: int | None = None) -> datetime:
    """Give a moment, of the day for the most part; on a whole second or an hour more often than life has it."""
    days = dice.choice((0, 0, 0, 0, 0, 0, 0, -1, 1, dice.randint(-9, 2)))
    us = dice.choice(
        (dice.randrange(86_400 * SECOND), dice.randrange(86_400) * SECOND, dice.randrange(24) * 3600 * SECOND)
    )
    since = int((DAY + timedelta(days=days)).timestamp()) * SECOND + us
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since // (blur or 1) * (blur or 1))


def _app(dice: Random) -> str:
    return dice.choice((dice.choice(APPS), f"stranger {int(dice.paretovariate(0.35)) % 5000}"))


def _long(dice: Random) -> int:
    """Give a duration: from nothing to months."""
    return dice.choice(
        (0, 1, dice.randrange(1000), int(1e6 * dice.lognormvariate(3, 3)), int(1e6 * dice.lognormvariate(3, 3)))
    )


def _ended(dice: Random, place: int) -> Values:
    blur = dice.choice(BLURS)
    started = _time(dice, blur)
    waiting = dice.choice((None, _long(dice)))
    total = (waiting or 0) + _long(dice)
    source = dice.choice(SOURCES)
    return (place, "", _app(dice), started, waiting, total, dice.choice(RESULTS), blur, started.date(), source)


def _mailbox(dice: Random, place: int) -> Values:
    row = _ended(dice, place)
    return *row[:3], dice.random() < 0.8, *row[3:]
