"""The tests of the rule: whether a share rose, whether a count is unusual, and when nothing happened. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

MIN_RISE: Final = 0.1
"""By how much a share must rise: one mailbox in ten. Smaller differences come from the mix of users. On a busy server
they are no chance, and yet no event."""

MIN_MORE: Final = 10
"""How many more must have failed than the days before let expect: a few failures may be of one person."""

MIN_EVIDENCE: Final = 12.0
"""The least logarithm of the likelihood ratio. By chance it is this large about once in a million tests (4.9 standard
deviations). A report makes up to some hundreds."""

LEFT_OUT: Final = 0.25
"""Share of the days before that are left out, those with the highest shares first. Otherwise one event would hide the
next one. A bad week is a quarter of four weeks."""

DEVIATIONS: Final = 6
"""Median absolute deviations by which a count must exceed the median, as in the table `guesses` (`MADS`)."""

MIN_EXPECTED: Final = 20
"""Connections that silent hours must have had on three quarters of the days before. A transfer makes two or three,
so these are about eight transfers. If transfers begin independently of each other, none begins once in 3,000
times."""


class Portion(NamedTuple):
    """A part of a whole."""

    part: int
    total: int

    @property
    def share(self) -> float:
        """Return the share. Of nothing it is 0."""
        return self.part / self.total if self.total else 0.0


def sum_portions(parts: Iterable[Portion]) -> Portion:
    """Return the sum of parts, and of their wholes."""
    portions = list(parts)
    return Portion(sum(portion.part for portion in portions), sum(portion.total for portion in portions))


def ordinary(days: Iterable[Portion]) -> list[Portion]:
    """Return the days before, without those with the highest shares."""
    by_share = sorted((day for day in days if day.total), key=lambda day: day.share)
    return by_share[: len(by_share) - int(len(by_share) * LEFT_OUT)]


def excess(now: Portion, before: Portion) -> int:
    """Return how many more there are than the share before lets expect."""
    return round(now.part - now.total * before.share)


def rose(now: Portion, before: Portion) -> bool:
    """Return whether a share is larger than before, by enough, in enough cases, and not by chance."""
    if not now.total or not before.total:
        return False
    if now.share - before.share < MIN_RISE or excess(now, before) < MIN_MORE:
        return False
    return evidence(now, before) >= MIN_EVIDENCE


def evidence(now: Portion, before: Portion) -> float:
    """Return the logarithm of the likelihood ratio of two shares to one common share."""
    both = sum_portions((now, before))
    return _likelihood(now, now.share) + _likelihood(before, before.share) - _likelihood(both, both.share)


def _likelihood(portion: Portion, share: float) -> float:
    total = 0.0
    for count, chance in ((portion.part, share), (portion.total - portion.part, 1 - share)):
        if count:
            total += count * math.log(chance)
    return total


def median(numbers: Sequence[float]) -> float:
    """Return the number in the middle; of an even number, the lesser one of the two."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def threshold(before: Sequence[float], min_excess: float, min_excess_share: float = 0.0) -> float:
    """Return what a number must exceed to be unusual: the median, and the greatest of three distances.

    They are DEVIATIONS median absolute deviations, `min_excess`, and this share of the median.
    """
    usual = median(before)
    mad = median([abs(number - usual) for number in before])
    return usual + max(DEVIATIONS * mad, min_excess, min_excess_share * usual)


class Silence(NamedTuple):
    """Hours in a row in which nothing happened. The last one is included."""

    first_hour: int
    last_hour: int
    expected: int
    """What happened in these hours on a day before. On three quarters of the days it was more."""


def silence(now: Collection[int], known_hours: int, before: Sequence[Mapping[int, int]]) -> Silence | None:
    """Return the hours in a row without anything of which most is expected, if it is enough.

    `now` are the hours of the day with something, `known_hours` is how many hours of it are known, and `before` are
    the counts of each hour of the days before.
    """
    if not before:
        return None
    silences: list[Silence] = []
    begin = 0
    for hour in range(known_hours + 1):
        if hour == known_hours or hour in now:
            if hour > begin:
                silences.append(Silence(begin, hour - 1, _expected(range(begin, hour), before)))
            begin = hour + 1
    largest = max(silences, key=lambda hours: hours.expected, default=None)
    return largest if largest and largest.expected >= MIN_EXPECTED else None


def _expected(hours: range, before: Sequence[Mapping[int, int]]) -> int:
    sums = sorted(sum(day.get(hour, 0) for hour in hours) for day in before)
    return sums[(len(sums) - 1) // 4]
