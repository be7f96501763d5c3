"""Cleaning: a row as it stands at its source → the lake's values, or its fault. Pure; never raises.

SQLite lets any value stand in any column (sqlite.org/flexibletypegoof.html), hands wrote to these files, and clocks
were wrong: so every value is looked at. A row has one fault, the first in the order of its rules.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from restante.common.usage_records import Result
from restante.pipeline.schemas import CLIENT_VERSIONS, MAILBOXES, MAX_TEXT_CHARACTERS, NAMEPLATES

MISSING_VALUE: Final = "missing value"
WRONG_TYPE: Final = "wrong type"
OUT_OF_RANGE: Final = "out of range"
UNKNOWN_RESULT: Final = "unknown result"

USAGE_FAULTS: Final = (MISSING_VALUE, WRONG_TYPE, OUT_OF_RANGE, UNKNOWN_RESULT)
"""All that can be wrong with a row of usage records; docs/pipeline/operating.md tells what each may come from."""

MICROSECONDS_PER_SECOND: Final = 1_000_000

MICROSECONDS_PER_DAY: Final = 86_400 * MICROSECONDS_PER_SECOND

KNOWN_RESULTS: Final = frozenset(get_args(Result))

SourceRow: TypeAlias = Sequence[Any]
"""As SQLite gives it: int, float, str, bytes or None; what is no UTF-8 in a text as lone surrogates."""

CleanValues: TypeAlias = list[Any]
"""For the lake: times and durations in microseconds."""


class Fault(str):
    """Why a row cannot be taken: one of USAGE_FAULTS."""

    __slots__ = ()


class Faulty(Exception):  # noqa: N818 - it is the row's, and no error of ours
    """A value that cannot be taken; its argument is one of USAGE_FAULTS."""


class TimeLimits(NamedTuple):
    """The times that can be true, in microseconds since 1970."""

    earliest: int
    latest: int


class Rule(NamedTuple):
    """One column: what it must be, and what becomes of it."""

    column: str
    """Of the lake; its name at the source, but for the unit of durations."""
    read: Callable[[Any, TimeLimits], Any]
    """A value that is not None → the clean one; raises Faulty."""
    null: bool = False

    @property
    def source(self) -> str:
        """Its name at the source."""
        return re.sub(r"_us$", "_time", self.column)


def limits(first_day: date, now: float) -> TimeLimits:
    """Tell what times can be true: from the lake's first day until a day from now.

    A day, since servers' clocks are not ours; a row that is later still was written by a clock that was wrong.
    """
    midnight = datetime(first_day.year, first_day.month, first_day.day, tzinfo=UTC)
    return TimeLimits(
        int(midnight.timestamp()) * MICROSECONDS_PER_SECOND,
        math.floor(now * MICROSECONDS_PER_SECOND) + MICROSECONDS_PER_DAY,
    )


def clean(rules: Sequence[Rule], row: SourceRow, within: TimeLimits) -> CleanValues | Fault:
    """Clean a row, whose values are in the order of the rules."""
    values: CleanValues = []
    try:
        for (_, read, null), value in zip(rules, row, strict=True):
            if value is not None:
                values.append(read(value, within))
            elif null:
                values.append(None)
            else:
                return Fault(MISSING_VALUE)
    except Faulty as faulty:
        return Fault(faulty.args[0])
    return values


def digest(row: SourceRow) -> str:
    """Stand for a row: SHA-256, hexadecimal, of its values as they were."""
    return hashlib.sha256(ascii(tuple(row)).encode()).hexdigest()


def text(value: Any, _within: TimeLimits | None = None) -> str:
    """Take a stranger's text: so much of it as is kept, as any program can read it.

    NUL ends strings in some, and a surrogate, which is no character, cannot be written as UTF-8: each becomes
    U+FFFD. Anything else may stand there, and is escaped wherever it is shown.
    """
    if not isinstance(value, str):
        raise Faulty(WRONG_TYPE)
    kept = value[:MAX_TEXT_CHARACTERS]
    return kept if kept.isascii() and kept.isprintable() else _UNREADABLE.sub("\ufffd", kept)


_UNREADABLE: Final = re.compile("[\0\ud800-\udfff]")


def time(value: Any, within: TimeLimits) -> int:
    """Take a time in seconds since 1970."""
    found = _microseconds(value)
    if within.earliest <= found <= within.latest:
        return found
    raise Faulty(OUT_OF_RANGE)


def duration(value: Any, within: TimeLimits) -> int:
    """Take a duration in seconds.

    A negative one is 0: the clock was set back meanwhile, which happens, and says nothing against the rest of the row
    (our own server writes 0 there: mailbox.core.usage). One that is longer than the lake is old, or that has no
    end, was measured by a clock that jumped: its result would be counted with a time that nobody waited.
    """
    found = _microseconds(value)
    if found > within.latest - within.earliest:
        raise Faulty(OUT_OF_RANGE)
    return max(found, 0)


def flag(value: Any, _within: TimeLimits) -> bool:
    """Take a yes or no, which SQLite has as 1 or 0."""
    if not isinstance(value, int):
        raise Faulty(WRONG_TYPE)
    if value not in {0, 1}:
        raise Faulty(OUT_OF_RANGE)
    return bool(value)


def number(value: Any, _within: TimeLimits) -> int:
    """Take a number of things."""
    if not isinstance(value, int):
        raise Faulty(WRONG_TYPE)
    if value < 0:
        raise Faulty(OUT_OF_RANGE)
    return value


def result(value: Any, _within: TimeLimits) -> str:
    """Take how it ended."""
    if value in KNOWN_RESULTS:
        return str(value)
    raise Faulty(UNKNOWN_RESULT if isinstance(value, str) else WRONG_TYPE)


def _microseconds(value: Any) -> int:
    if isinstance(value, float):
        try:
            return round(value * MICROSECONDS_PER_SECOND)
        except (OverflowError, ValueError):  # it is infinite, or nothing
            raise Faulty(OUT_OF_RANGE) from None
    if isinstance(value, int):
        return value * MICROSECONDS_PER_SECOND
    raise Faulty(WRONG_TYPE)


_ENDED_RULES: Final = (
    Rule("started", time),
    Rule("waiting_us", duration, null=True),
    Rule("total_us", duration),
    Rule("result", result),
)

ORIGIN_RULE: Final = Rule("origin", text)
"""Goes before the others: where a row was imported from, "" for a server's own."""

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    NAMEPLATES.name: (Rule("app_id", text), *_ENDED_RULES),
    MAILBOXES.name: (Rule("app_id", text), Rule("for_nameplate", flag), *_ENDED_RULES),
    CLIENT_VERSIONS.name: (
        *(Rule("app_id", text), Rule("connect_time", time)),
        *(Rule("implementation", text, null=True), Rule("version", text, null=True)),
    ),
}
"""The columns of usage records that are taken, with our servers and the reference's."""

VISITORS_RULE: Final = Rule("visitors", number, null=True)
BLUR_RULE: Final = Rule("blur_us", duration, null=True)

OWN_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    NAMEPLATES.name: (BLUR_RULE,),
    MAILBOXES.name: (VISITORS_RULE, BLUR_RULE),
    CLIENT_VERSIONS.name: (BLUR_RULE,),
}
"""The columns that only our servers have, read after those; NULL with others. No other column is ever read."""

BLUR_UNITS_US: Final = tuple(seconds * MICROSECONDS_PER_SECOND for seconds in (86_400, 3_600, 60, 1))
"""Usual blurs, in microseconds, the greatest first."""


def blur_us(recorded: int | None, setting: int | None, time: int) -> int | None:
    """Return what a row's time was floored to a multiple of, in microseconds; None: it was not floored.

    Our server records it with the row (0: not floored). Where nothing is recorded, it is the server's setting if the
    time is a multiple of that. A time that is none was written with another setting: then it is the greatest unit of
    BLUR_UNITS_US that the time is a multiple of. A time that was not floored is not even on a whole second, but for
    chance.
    """
    if recorded is not None:
        return recorded or None
    return next((unit for unit in (setting, *BLUR_UNITS_US) if unit and time % unit == 0), None)
