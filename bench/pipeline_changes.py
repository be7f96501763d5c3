"""Which injected events of unseen demos a report finds, and which quiet days it flags. See bench/README.md.

The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from typing import Any, Final, NamedTuple

import harness
from restante.demo.events import Attack, BadRelease, MailserverGap, Outage, draw_events
from restante.demo.fleet import Fleet
from restante.pipeline.lake.lake import Lake
from restante.pipeline.query import Database
from restante.pipeline.report.changes.measure import MIN_DAYS_BEFORE, Compared
from restante.pipeline.report.changes.rule import changes_of
from restante.pipeline.report.model import ReportChange
from restante.pipeline.report.periods import LakeDays, Period, PeriodKind
from restante.pipeline.report.sections.subject import Scope
from restante.pipeline.tables import TABLES

MIN_FOUND: Final = 0.95
MAX_FLAGGED: Final = 0.01
"""The share of injected days that are to be found, and of quiet days that may be flagged."""

LAST_DAY: Final = date(2026, 11, 24)
"""The last day of the fleets. The weekdays of the events depend on it."""

TABLE_NAMES: Final = ("outcomes", "versions", "busy_hours", "relay_hours", "guesses", "coverage", "times", "sources")
"""What the rule reads."""

Event = Attack | BadRelease | Outage | MailserverGap


class Judged(NamedTuple):
    """Days of fleets."""

    injected: Counter[str]
    """Days of events, by kind of event."""
    detected: Counter[str]
    """Those of them with a change of the right measure, at the right server or version."""
    quiet: Counter[str]
    """Days without events, and under `flagged` those with any change."""
    mistakes: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 10), metavar=("FIRST", "LAST"))
    options = parser.parse_args()
    harness.print_conditions()
    judged = Judged(Counter(), Counter(), Counter(), [])
    for seed in range(options.seeds[0], options.seeds[1] + 1):
        fleet = Fleet(seed=seed, last=LAST_DAY)
        with tempfile.TemporaryDirectory(prefix="changes-bench-") as scratch:
            _make_demo(fleet, Path(scratch) / "demo")
            _judge(fleet, dict(_changes_by_day(fleet, Path(scratch))), judged)
    for kind in sorted(judged.injected):
        print(_share(f"days of {kind}", judged.detected[kind], judged.injected[kind]))
    detects_enough = judged.detected.total() / judged.injected.total() >= MIN_FOUND
    flags_few = judged.quiet["flagged"] / judged.quiet["days"] <= MAX_FLAGGED
    print(
        _share("all injected days", judged.detected.total(), judged.injected.total()),
        " enough" if detects_enough else " MISSED",
    )
    print(
        _share("quiet days flagged", judged.quiet["flagged"], judged.quiet["days"]),
        " enough" if flags_few else " MISSED",
    )
    print("\n".join(judged.mistakes))
    harness.print_conditions()
    sys.exit(not (detects_enough and flags_few))


def _make_demo(fleet: Fleet, folder: Path) -> None:
    command = [sys.executable, "-m", "restante", "pipeline", "demo", str(folder)]
    command += ["--seed", str(fleet.seed), "--last", str(fleet.last)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _changes_by_day(fleet: Fleet, scratch: Path) -> Iterator[tuple[date, tuple[ReportChange, ...]]]:
    """Yield the list of changes of each day, as of the noon after the last one."""
    after = datetime.combine(fleet.last + timedelta(1), time_of_day(12), UTC)
    with (
        Lake.open(scratch / "demo" / "lake", write=False) as lake,
        Database(lake, "", scratch, [TABLES[name] for name in TABLE_NAMES]) as opened,
    ):

        def fetch(sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
            return list(opened.fetch(sql, dict(parameters)))

        for day in map(fleet.day, range(fleet.days)):
            changes = changes_of(fetch, Scope(Period(PeriodKind.DAY, day), LakeDays(fleet.first, fleet.last), after))
            yield day, tuple(changes.with_parts) if changes else ()


def _judge(fleet: Fleet, changes: Mapping[date, tuple[ReportChange, ...]], judged: Judged) -> None:
    """Add up which days of events have a change, and which quiet days."""
    drawn = draw_events(fleet)
    events: list[Event] = [*drawn.attacks, *drawn.releases, *drawn.outages, *drawn.gaps]
    for event in events:
        for day in event.days:
            kind = type(event).__name__
            judged.injected[kind] += 1
            if any(_is_of(change, event) for change in changes[day]):
                judged.detected[kind] += 1
            else:
                judged.mistakes.append(f"seed {fleet.seed}, {day}: {event}")
    days_of_events = {day for event in events for day in event.days}
    for day in map(fleet.day, range(MIN_DAYS_BEFORE, fleet.days)):
        if day not in days_of_events:
            judged.quiet["days"] += 1
            judged.quiet["flagged"] += bool(changes[day])
            judged.mistakes.extend(f"seed {fleet.seed}, {day}, a quiet day: {change.text}" for change in changes[day])


def _is_of(change: ReportChange, event: Event) -> bool:
    match event:
        case Attack():
            return change.measure in {Compared.GUESSES, Compared.ONE_SIDE} and change.source == event.server
        case BadRelease():
            version = event.implementation, event.version
            is_same = (change.implementation, change.version) == version
            return change.measure == Compared.FAILURES_OF_VERSION and is_same
        case Outage():
            return change.measure == Compared.SILENT_HOURS and change.source == event.server
        case MailserverGap():
            return change.measure == Compared.MISSING and change.source == event.mailserver


def _share(name: str, part: int, total: int) -> str:
    return f"{name:36} {part:5} of {total:5}, {part / total:.1%}"


if __name__ == "__main__":
    main()
