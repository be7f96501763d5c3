"""Which injected events of unseen demos a report finds, and which quiet days it flags. See bench/README.md.

python bench/pipeline_changes.py [--seeds FIRST LAST] [--days N] [--transfers N] [--keep DIR] [--check LAKE]

The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import msgspec
import pyarrow as pa

from pipeline_changes_fleet import COLUMNS, TYPES, Tables, made
from restante.demo.events import Attack, BadRelease, MailserverGap, Outage, draw_events
from restante.demo.fleet import DEFAULT_DAYS, DEFAULT_TRANSFERS, Fleet
from restante.pipeline.lake.lake import Lake
from restante.pipeline.query import database
from restante.pipeline.report.changes.measure import MIN_DAYS_BEFORE, Compared
from restante.pipeline.report.changes.rule import changes_of
from restante.pipeline.report.model import ReportChange
from restante.pipeline.report.periods import LakeDays, Period, PeriodKind
from restante.pipeline.report.sections.subject import Scope
from restante.pipeline.tables import TABLES

MIN_FOUND: Final = 0.95
MAX_FLAGGED: Final = 0.01
"""The share of injected days that are to be found, and of quiet days that may be flagged."""

LAST: Final = date(2026, 11, 24)
"""The last day of the fleets. The weekdays of the events depend on it."""

Event = Attack | BadRelease | Outage | MailserverGap


class Found(NamedTuple):
    """Days of fleets."""

    injected: Counter[str]
    """Days of events, by kind of event."""
    found: Counter[str]
    """Those of them with a change of the right measure, at the right server or version."""
    quiet: Counter[str]
    """Days without events, and under `flagged` those with any change; under the names of measures, those with one."""
    missed: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 10), metavar=("FIRST", "LAST"))
    parser.add_argument("--last", type=date.fromisoformat, default=LAST, metavar="DAY", help="last day of the fleets")
    parser.add_argument("--days", type=int, default=DEFAULT_DAYS, metavar="N", help="days of each fleet")
    parser.add_argument("--transfers", type=int, default=DEFAULT_TRANSFERS, metavar="N", help="conversations a day")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep each fleet's tables here, and read them again")
    parser.add_argument(
        "--check", type=Path, metavar="LAKE", help="compare the tables of the first seed with a demo's"
    )
    options = parser.parse_args()
    first, last = options.seeds
    of_each = {"last": options.last, "days": options.days, "transfers": options.transfers}
    if options.check:
        sys.exit(_check(options.check, _tables(Fleet(seed=first, **of_each), options.keep)))
    whole = Found(Counter(), Counter(), Counter(), [])
    begun = time.process_time()
    for seed in range(first, last + 1):
        fleet = Fleet(seed=seed, **of_each)
        _judge(fleet, _tables(fleet, options.keep), whole)
    print(f"{last + 1 - first} fleets, seeds {first} to {last}, {time.process_time() - begun:.0f} s of CPU\n")
    print("\n".join(_lines(whole)))
    sys.exit(not (_finds_enough(whole) and _flags_few(whole)))


def _tables(fleet: Fleet, keep: Path | None) -> Tables:
    file = keep and keep / f"{fleet.last}-{fleet.days}-{fleet.transfers}-{fleet.seed}.json"
    if file and file.exists():
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[tuple[Any, ...]]])
    with tempfile.TemporaryDirectory(prefix="changes-bench-") as scratch:
        found = made(fleet, draw_events(fleet), Path(scratch))
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(found))
    return found


def _judge(fleet: Fleet, tables: Tables, whole: Found) -> None:
    """Make the list of changes of each day, and add up what it finds."""
    events = draw_events(fleet)
    all_: list[Event] = [*events.attacks, *events.releases, *events.outages, *events.gaps]
    with _database(fleet, tables) as opened:
        changes = {day: _changes(opened, fleet, day) for day in map(fleet.day, range(fleet.days))}
    for event in all_:
        for day in event.days:
            kind = type(event).__name__
            whole.injected[kind] += 1
            if any(map(_right(event), changes[day])):
                whole.found[kind] += 1
            else:
                whole.missed.append(f"seed {fleet.seed}, {day}: {event}")
    touched = {day for event in all_ for day in event.days}
    for number in range(MIN_DAYS_BEFORE, fleet.days):
        day = fleet.day(number)
        if day not in touched:
            whole.quiet["days"] += 1
            whole.quiet["flagged"] += bool(changes[day])
            whole.quiet.update({each.measure for each in changes[day]})
            whole.missed.extend(f"seed {fleet.seed}, {day}, a quiet day: {each.words}" for each in changes[day])


def _right(event: Event) -> Any:
    """Return whether a change is of the event."""

    def right(change: ReportChange) -> bool:
        match event:
            case Attack():
                return change.measure in {Compared.GUESSES, Compared.ONE_SIDE} and change.source == event.server
            case BadRelease():
                named = change.implementation, change.version
                return change.measure == Compared.FAILURES_OF_VERSION and named == (
                    event.implementation,
                    event.version,
                )
            case Outage():
                return change.measure == Compared.SILENT_HOURS and change.source == event.server
            case MailserverGap():
                return change.measure == Compared.MISSING and change.source == event.mailserver

    return right


def _changes(opened: duckdb.DuckDBPyConnection, fleet: Fleet, day: date) -> tuple[ReportChange, ...]:
    scope = Scope(Period(PeriodKind.DAY, day), LakeDays(fleet.first, fleet.last), _after(fleet))

    def fetch(sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return opened.execute(sql, dict(parameters)).fetchall()

    found = changes_of(fetch, scope)
    return tuple(found.all) if found else ()


def _after(fleet: Fleet) -> datetime:
    return datetime.combine(fleet.last + timedelta(1), time_of_day(12), UTC)


def _database(fleet: Fleet, tables: Tables) -> duckdb.DuckDBPyConnection:
    """Return a database with the tables. There are no timing logs, and all sources are read after the last day."""
    opened = duckdb.connect(config={"threads": 1})
    opened.execute("SET TimeZone = 'UTC'")
    opened.execute('CREATE TABLE times (source VARCHAR, day DATE, "count" BIGINT)')
    opened.execute("CREATE TABLE sources (last_ingest TIMESTAMPTZ)")
    opened.execute("INSERT INTO sources VALUES ($after)", {"after": _after(fleet)})
    for name, columns in COLUMNS.items():
        rows = [tuple(str(each) if isinstance(each, date) else each for each in row) for row in tables[name]]
        given = pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
        opened.register("given", given)
        casts = ", ".join(f"CAST({each} AS {TYPES.get(each, 'BIGINT')}) AS {each}" for each in columns)
        opened.execute(f"CREATE TABLE {name} AS SELECT {casts} FROM given")
        opened.unregister("given")
    opened.execute("ALTER TABLE outcomes ADD COLUMN ended BIGINT")
    opened.execute("UPDATE outcomes SET ended = happy + lonely + errory + scary + pruney + crowded")
    return opened


def _lines(whole: Found) -> Iterator[str]:
    for kind in sorted(whole.injected):
        yield _share(f"days of {kind}", whole.found[kind], whole.injected[kind])
    yield _share("all injected days", whole.found.total(), whole.injected.total()) + _verdict(_finds_enough(whole))
    quiet, flagged = whole.quiet["days"], whole.quiet["flagged"]
    yield _share("quiet days flagged", flagged, quiet) + _verdict(_flags_few(whole))
    for measure in Compared:
        yield _share(f"  by {measure}", whole.quiet[measure], quiet)
    yield ""
    yield from whole.missed


def _finds_enough(whole: Found) -> bool:
    return whole.found.total() / whole.injected.total() >= MIN_FOUND


def _flags_few(whole: Found) -> bool:
    return whole.quiet["flagged"] / whole.quiet["days"] <= MAX_FLAGGED


def _share(name: str, part: int, whole: int) -> str:
    return f"{name:36} {part:5} of {whole:5}, {part / whole:.1%}"


def _verdict(enough: bool) -> str:
    return "  enough" if enough else "  MISSED"


def _check(path: Path, tables: Tables) -> int:
    """Compare tables with those of a lake. Return the exit code."""
    different = 0
    with (
        tempfile.TemporaryDirectory(prefix="changes-bench-") as scratch,
        Lake.open(path, write=False) as lake,
        database(lake, "", Path(scratch), [TABLES[name] for name in COLUMNS]) as opened,
    ):
        for name, columns in COLUMNS.items():
            rows = Counter(_texts(opened.fetch(f"SELECT {', '.join(columns)} FROM {name}", {})))
            is_same = rows == Counter(_texts(tables[name]))
            different += not is_same
            print(f"{name:12} {rows.total():6} rows of the lake, {'the same' if is_same else 'DIFFERENT'}")
    return 1 if different else 0


def _texts(rows: Any) -> Iterator[tuple[Any, ...]]:
    return (tuple(str(each) if isinstance(each, date) else each for each in row) for row in rows)


if __name__ == "__main__":
    main()
