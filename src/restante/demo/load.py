"""How much begins when: growth, the days of the week, the hours of the day, and days that differ by chance."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate
from random import Random
from typing import Final

from restante.demo.fleet import DAY_SECONDS, HOUR_SECONDS, Fleet, MailboxServer

GROWTH_PER_DAY: Final = 0.004
"""An eighth more in a month."""

DAY_SIGMA: Final = 0.05
"""How much days differ that nobody could tell apart: one in twenty by more than a tenth. Chance adds to it."""

WEEKDAYS: Final = (1.0, 1.05, 1.06, 1.03, 0.95, 0.62, 0.58)
"""Monday to Sunday, by the users' clocks."""

HOURS: Final = (
    *(0.35, 0.25, 0.20, 0.18, 0.20, 0.30, 0.50, 0.80, 1.20, 1.60, 1.70, 1.60),
    *(1.40, 1.50, 1.60, 1.60, 1.50, 1.40, 1.30, 1.20, 1.10, 0.95, 0.75, 0.50),
)
"""The hours of a day, by the users' clocks."""

_HOURS_A_DAY: Final = 24


class Load:
    """What is expected to begin in each hour of the fleet's days."""

    def __init__(self, fleet: Fleet, name: str, per_day: float, hours_ahead: int = 0) -> None:
        """Expect `per_day` on a day like the average one of the first week."""
        self.begin = fleet.begin
        dice = fleet.dice(name, "load")
        noise = [dice.lognormvariate(0.0, DAY_SIGMA) for _ in range(fleet.days)]
        unit = per_day * 7 / (sum(WEEKDAYS) * sum(HOURS))
        self.hours: list[float] = []
        """What is expected in each hour, from the first one on."""
        for hour in range(fleet.days * _HOURS_A_DAY):
            day = hour // _HOURS_A_DAY
            local = datetime.fromtimestamp(self.begin + (hour + hours_ahead) * HOUR_SECONDS, UTC)
            shape = WEEKDAYS[local.weekday()] * HOURS[local.hour]
            self.hours.append(unit * shape * (1 + GROWTH_PER_DAY) ** day * noise[day])
        self._total = [0.0, *accumulate(self.hours)]

    def expected(self, begin: float, end: float) -> float:
        """Return what is expected between two times."""
        return self._until(end) - self._until(begin)

    def _until(self, at: float) -> float:
        hour, part = divmod((at - self.begin) / HOUR_SECONDS, 1)
        if not 0 <= hour < len(self.hours):
            return 0.0 if hour < 0 else self._total[-1]
        return self._total[int(hour)] + part * self.hours[int(hour)]

    def time_of(self, begin: float, count: float) -> float:
        """Return when so much is expected to have begun since `begin`; at the latest the end of that day."""
        target = self._until(begin) + count
        hour = min(bisect_left(self._total, target), len(self.hours)) - 1
        at = self.begin + (hour + (target - self._total[hour]) / self.hours[hour]) * HOUR_SECONDS
        end_of_day = self.begin + ((begin - self.begin) // DAY_SECONDS + 1) * DAY_SECONDS
        return min(at, end_of_day)

    def arrivals(self, dice: Random) -> Iterator[float]:
        """Yield the times at which something begins, each independent of the others (a Poisson process)."""
        for hour, expected in enumerate(self.hours):
            at = dice.expovariate(expected)
            while at < 1.0:
                yield self.begin + (hour + at) * HOUR_SECONDS
                at += dice.expovariate(expected)


def conversation_load(fleet: Fleet, server: MailboxServer) -> Load:
    """Return the conversations that begin at a mailbox server."""
    return Load(fleet, server.name, fleet.transfers * server.share, server.hours_ahead)
