"""Converts a row of a source to the lake's values, or finds its fault. Pure.

SQLite allows any value in any column (sqlite.org/flexibletypegoof.html), people edit these files, and clocks can be
wrong. So every value is checked. A row has one fault: the first in the order of its rules.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, time
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from restante.common import transfer_records, usage_records
from restante.pipeline.schemas import (
    CLIENT_VERSIONS,
    FIRST_DAY,
    MAILBOXES,
    MAX_TEXT_CHARACTERS,
    NAMEPLATES,
    RELAY_TRANSFERS,
)

MISSING_VALUE: Final = "missing value"
WRONG_TYPE: Final = "wrong type"
OUT_OF_RANGE: Final = "out of range"
UNKNOWN_RESULT: Final = "unknown result"

USAGE_FAULTS: Final = (MISSING_VALUE, WRONG_TYPE, OUT_OF_RANGE, UNKNOWN_RESULT)
"""All faults of usage records; docs/pipeline/operating.md says what may cause each."""

MICROSECONDS_PER_SECOND: Final = 1_000_000

SECONDS_PER_DAY: Final = 86_400

MICROSECONDS_PER_DAY: Final = SECONDS_PER_DAY * MICROSECONDS_PER_SECOND

MAX_TRANSFER_BYTES: Final = 10**15
"""Bytes of one transfer at most: a line of 100 Gbit/s carries as many in a day. A row with more is damaged, and the
sum of a few such rows would be too large for a BIGINT."""

DIGEST_CHARACTERS: Final = 16
"""Length of the digest of a row's clean values. A mark has several, and 64 bits tell rows apart."""

SourceRow: TypeAlias = Sequence[Any]
"""A row as SQLite returns it: int, float, str, bytes or None. Invalid UTF-8 in a text is represented by lone
surrogates."""

CleanValues: TypeAlias = list[Any]
"""Values for the lake; times and durations are in microseconds."""


class Faulty(Exception):  # noqa: N818 - it is the row's fault, not an error of ours
    """A row is rejected; the text is its fault."""


class TimeLimits(NamedTuple):
    """The earliest and latest plausible time, in microseconds since 1970."""

    earliest: int
    latest: int


class Rule(NamedTuple):
    """How one column is checked and converted."""

    column: str
    """The column of the lake. The source's column has the same name, except for the unit of durations."""
    read: Callable[[Any, TimeLimits], Any]
    """Converts a value that is not None to the clean one; raises Faulty."""
    null: bool = False

    @property
    def source(self) -> str:
        """Return the column's name at the source."""
        return re.sub(r"_us$", "_time", self.column)


def time_limits(now: float) -> TimeLimits:
    """Return the plausible times: from FIRST_DAY until a day from now.

    The day allows for servers' clocks that differ from ours. A row that is later still was written by a wrong clock.
    """
    midnight = datetime.combine(FIRST_DAY, time(), UTC)
    return TimeLimits(
        int(midnight.timestamp()) * MICROSECONDS_PER_SECOND,
        math.floor(now * MICROSECONDS_PER_SECOND) + MICROSECONDS_PER_DAY,
    )


def clean_values(rules: Sequence[Rule], row: SourceRow, limits: TimeLimits) -> CleanValues:
    """Return the clean values of a row, in the order of the rules. Raises Faulty."""
    values: CleanValues = []
    for (_, clean, null), value in zip(rules, row, strict=True):
        if value is not None:
            values.append(clean(value, limits))
        elif null:
            values.append(None)
        else:
            raise Faulty(MISSING_VALUE)
    return values


def row_digest(row: SourceRow) -> str:
    """Return a digest that identifies a row: SHA-256, hexadecimal, of its original values."""
    return hashlib.sha256(ascii(tuple(row)).encode()).hexdigest()


def value_digest(values: Sequence[Any]) -> str:
    """Return a short digest of a row's clean values, which are the same at its source and in an extract."""
    return row_digest(values)[:DIGEST_CHARACTERS]


def clean_text(value: Any, _limits: TimeLimits | None = None) -> str:
    """Return a text that a client chose: cut to the length that is kept, in a form that any program can read.

    Some programs end strings at NUL, and a surrogate, which is no character, cannot be written as UTF-8. Each of
    these becomes U+FFFD. Any other character may remain, and is escaped wherever it is shown.
    """
    if not isinstance(value, str):
        raise Faulty(WRONG_TYPE)
    cut = value[:MAX_TEXT_CHARACTERS]
    return cut if cut.isascii() and cut.isprintable() else _UNREADABLE.sub("\ufffd", cut)


_UNREADABLE: Final = re.compile("[\0\ud800-\udfff]")


def clean_time(value: Any, limits: TimeLimits) -> int:
    """Return a time, given in seconds since 1970, in microseconds."""
    us = _microseconds(value)
    if limits.earliest <= us <= limits.latest:
        return us
    raise Faulty(OUT_OF_RANGE)


def clean_duration(value: Any, limits: TimeLimits) -> int:
    """Return a duration, given in seconds, in microseconds.

    A negative one becomes 0: the clock was set back meanwhile, which happens and does not invalidate the rest of the
    row (our own server writes 0 then: mailbox.core.usage). One that is longer than the lake's time span, or infinite,
    was measured by a clock that jumped: its result would be counted with a waiting time that never happened.
    """
    us = _microseconds(value)
    if us > limits.latest - limits.earliest:
        raise Faulty(OUT_OF_RANGE)
    return max(us, 0)


def clean_flag(value: Any, _limits: TimeLimits) -> bool:
    """Return a boolean, which SQLite stores as 1 or 0."""
    if not isinstance(value, int):
        raise Faulty(WRONG_TYPE)
    if value not in {0, 1}:
        raise Faulty(OUT_OF_RANGE)
    return bool(value)


def clean_number(value: Any, _limits: TimeLimits) -> int:
    """Return a count."""
    if not isinstance(value, int):
        raise Faulty(WRONG_TYPE)
    if value < 0:
        raise Faulty(OUT_OF_RANGE)
    return value


def clean_bytes(value: Any, limits: TimeLimits) -> int:
    """Return the bytes of a transfer."""
    count = clean_number(value, limits)
    if count > MAX_TRANSFER_BYTES:
        raise Faulty(OUT_OF_RANGE)
    return count


def clean_result(value: Any, _limits: TimeLimits, *, known: Collection[str]) -> str:
    """Return the result, which must be one of those that are known."""
    if isinstance(value, str) and value in known:
        return value
    raise Faulty(UNKNOWN_RESULT if isinstance(value, str) else WRONG_TYPE)


def _microseconds(value: Any) -> int:
    if isinstance(value, float):
        try:
            return round(value * MICROSECONDS_PER_SECOND)
        except (OverflowError, ValueError):  # infinite, or NaN
            raise Faulty(OUT_OF_RANGE) from None
    if isinstance(value, int):
        return value * MICROSECONDS_PER_SECOND
    raise Faulty(WRONG_TYPE)


_ENDED_RULES: Final = (
    Rule("started", clean_time),
    Rule("waiting_us", clean_duration, null=True),
    Rule("total_us", clean_duration),
    Rule("result", partial(clean_result, known=usage_records.RESULTS)),
)

ORIGIN_RULE: Final = Rule("origin", clean_text)
"""Goes before the others: where a row was imported from, "" if the server wrote it itself."""

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    NAMEPLATES.name: (Rule("app_id", clean_text), *_ENDED_RULES),
    MAILBOXES.name: (Rule("app_id", clean_text), Rule("for_nameplate", clean_flag), *_ENDED_RULES),
    CLIENT_VERSIONS.name: (
        Rule("app_id", clean_text),
        Rule("connect_time", clean_time),
        Rule("implementation", clean_text, null=True),
        Rule("version", clean_text, null=True),
    ),
    RELAY_TRANSFERS.name: (
        Rule("started", clean_time),
        Rule("waiting_us", clean_duration, null=True),
        Rule("total_us", clean_duration),
        Rule("total_bytes", clean_bytes),
        Rule("result", partial(clean_result, known=transfer_records.RESULTS)),
    ),
}
"""The columns of usage records that are read from both our servers and the reference's."""

VISITORS_RULE: Final = Rule("visitors", clean_number, null=True)
BLUR_RULE: Final = Rule("blur_us", clean_duration, null=True)

OWN_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    NAMEPLATES.name: (BLUR_RULE,),
    MAILBOXES.name: (VISITORS_RULE, BLUR_RULE),
    CLIENT_VERSIONS.name: (BLUR_RULE,),
    RELAY_TRANSFERS.name: (BLUR_RULE,),
}
"""The columns that only our servers have, read after those of RULES; NULL for the reference's. No other column is
read."""

BLUR_UNITS_US: Final = tuple(seconds * MICROSECONDS_PER_SECOND for seconds in (86_400, 3_600, 60, 1))
"""Usual blurs, in microseconds, the greatest first."""


def blur_us(recorded: int | None, setting: int | None, time: int) -> int | None:
    """Return the unit that a row's time was floored to, in microseconds, or None if it was not floored.

    Our server records it with the row (0: not floored). If nothing is recorded, it is the server's setting, provided
    that the time is a multiple of it. Otherwise the time was written with another setting; then it is the greatest
    unit of BLUR_UNITS_US that the time is a multiple of. That is a guess: a time that was not floored is on a whole
    second only by chance, but then it gets a unit, too.
    """
    if recorded is not None:
        return recorded or None
    return next((unit for unit in (setting, *BLUR_UNITS_US) if unit and time % unit == 0), None)
