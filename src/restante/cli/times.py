"""Times as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from restante.common.errors import Misuse

MAX_SECONDS: Final = 2**32 - 1
"""Seconds since 1970 of the last moment that an envelope of Waku v1 can have: four bytes."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_time(text: str, now: int, flag: str) -> int:
    """Read a time, as seconds since 1970. Raises Misuse.

    `now`; `-24h` before now, in seconds, minutes, hours or days; seconds since 1970; or ISO 8601, in UTC unless it
    says otherwise.
    """
    seconds = _parse_time(text, now)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        raise Misuse(f"{flag}: '{text}' is not a time; write 1700000000, 2026-11-21T13:00, -24h or now")
    return seconds


def _parse_time(text: str, now: int) -> int | None:
    if text == "now":
        return now
    if before := re.fullmatch(r"-(\d{1,10})([smhd])", text, re.ASCII):
        return now - int(before[1]) * _UNITS[before[2]]
    if re.fullmatch(r"\d{1,10}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
