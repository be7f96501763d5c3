"""`restante pipeline demo`: a small fleet, made in seconds, with a lake and reports of its own."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from msgspec import Meta

from restante.common.errors import Misuse
from restante.demo.events import Attack, BadRelease, EventSpan, GroundTruth, MailserverGap, Outage
from restante.demo.fleet import (
    DEFAULT_DAYS,
    DEFAULT_SEED,
    DEFAULT_TRANSFERS,
    MAILBOX_SERVERS,
    MAILSERVERS,
    MAX_DAYS,
    MAX_TRANSFERS,
    MIN_DAYS,
    MIN_TRANSFERS,
    RELAY,
    Fleet,
)
from restante.pipeline.cli.options import DEFAULT_MEMORY, Memory, RunOptions, Verbose, day_option, number_option

if TYPE_CHECKING:
    from restante.pipeline.report.periods import Period

DEMO_FOLDER: Final = Path("restante-demo")

MAX_SEED: Final = 2**63 - 1


def _number(flag: str, low: int, high: int, meaning: str) -> Any:
    return number_option(flag, Annotated[int, Meta(ge=low, le=high)], meaning)


def demo(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[DIR]", help="New folder for the sources, the lake and the reports.", show_default=True
        ),
    ] = DEMO_FOLDER,
    seed: Annotated[
        int | None, _number("--seed", 0, MAX_SEED, f"Another number makes another fleet. Default: {DEFAULT_SEED}.")
    ] = None,
    days: Annotated[
        int | None,
        _number(
            "--days", MIN_DAYS, MAX_DAYS, f"Days of the fleet, {MIN_DAYS} to {MAX_DAYS}. Default: {DEFAULT_DAYS}."
        ),
    ] = None,
    last: Annotated[
        date | None, day_option("--last", "Last day of the fleet, like 2026-11-21. Default: yesterday.")
    ] = None,
    transfers: Annotated[
        int | None,
        _number(
            "--transfers",
            MIN_TRANSFERS,
            MAX_TRANSFERS,
            f"Conversations a day, at all mailbox servers together. Default: {DEFAULT_TRANSFERS}.",
        ),
    ] = None,
    memory: Memory = DEFAULT_MEMORY,
    verbose: Verbose = False,
) -> None:
    """Make a small fleet, its lake and reports, to try the pipeline.

    It ingests what the servers of the fleet left behind, builds all tables, and writes reports. The same command
    again uses the fleet that is there, reads and builds what is missing, and writes the reports again.
    """
    from restante.demo.generate import LAKE, REPORTS, find_demo, make_demo, source_specs
    from restante.pipeline.cli.report import write_reports
    from restante.pipeline.cli.run import (
        build_into,
        end_run_on_signals,
        ingest_into,
        open_run,
        show_failures,
        unblock_pipe,
    )
    from restante.pipeline.report.files import check_reports
    from restante.pipeline.sources.recognise import recognise
    from restante.pipeline.steps import Steps

    values = {"seed": seed, "days": days, "transfers": transfers, "last": last}
    options = {name: value for name, value in values.items() if value is not None}
    truth = find_demo(folder)
    unblock_pipe()
    steps = Steps("demo")
    if truth is None:
        fleet = _make_fleet(options)
        with steps.step("fleet") as step:
            truth = make_demo(fleet, folder, step.so_far, locked=end_run_on_signals)
    else:
        _check_same(truth, options, folder)
        steps.say(f"the fleet in {folder} is used as it is")
    check_reports(_periods(truth), folder / REPORTS)
    run_options = RunOptions(lake=str(folder / LAKE), memory=memory, verbose=verbose)
    with open_run("demo", run_options, make=True) as run:
        results = ingest_into(run, [recognise(spec) for spec in source_specs(folder)], {}, plan=False)
        build_into(run, {}, plan=False)
        write_reports(run, _periods(truth), folder / REPORTS)
    for line in closing_lines(truth, folder):
        print(line)
    if show_failures(results):
        sys.exit(1)


def _make_fleet(options: dict[str, Any]) -> Fleet:
    """Return the fleet that the options ask for. Raises Misuse if its days are no days of a lake."""
    from restante.pipeline.schemas import FIRST_DAY

    yesterday = datetime.now(UTC).date() - timedelta(1)
    fleet = Fleet(**{"last": yesterday, **options})
    if fleet.last > yesterday:
        raise Misuse(f"--last {fleet.last}: this day is not over yet; yesterday was {yesterday}")
    if fleet.last < FIRST_DAY + timedelta(fleet.days):  # the day before the first is built, too
        raise Misuse(f"--last {fleet.last}: the fleet would begin before {FIRST_DAY}, the first day of a lake")
    return fleet


def _check_same(truth: GroundTruth, options: dict[str, Any], folder: Path) -> None:
    """Raise Misuse if the folder has another fleet than the options say."""
    for name, value in options.items():
        if (is_ := getattr(truth.fleet, name)) != value:
            raise Misuse(f"{folder} has a fleet with --{name} {is_}: name a new folder for another one")


def closing_lines(truth: GroundTruth, folder: Path) -> Iterator[str]:
    """Yield the text at the end: what the fleet is, what happened, and where to look next.

    Commands are indented. They can be run as they are.
    """
    from restante.common.terminal import command_line
    from restante.demo.generate import LAKE, REPORTS, SOURCES, TRUTH
    from restante.pipeline.report.files import page_name
    from restante.pipeline.report.periods import Period, PeriodKind

    yield _fleet_text(truth.fleet)
    for entry in story_entries(truth):
        yield f"\n{entry.what} The table {entry.table} shows it:"
        yield f"    {command_line('pipeline', 'query', '--lake', folder / LAKE, entry.query)}"
        yield f"The report of the day: {folder / REPORTS / page_name(Period(PeriodKind.DAY, entry.first))}"
    yield f"\nThe sources and {TRUTH}, which says what happened, are in {folder / SOURCES}."
    yield from _where_to_look(truth, folder)


def _fleet_text(fleet: Fleet) -> str:
    servers, mailservers = (", ".join(names) for names in ([server.name for server in MAILBOX_SERVERS], MAILSERVERS))
    return (
        f"{len(MAILBOX_SERVERS)} mailbox servers ({servers}), {len(MAILSERVERS)} Mailservers ({mailservers}) and a"
        f" transit relay ({RELAY}), {fleet.first} to {fleet.last}, seed {fleet.seed}."
    )


def _where_to_look(truth: GroundTruth, folder: Path) -> Iterator[str]:
    """Yield what to do next with the lake of a demo."""
    from restante.common.terminal import command_line
    from restante.demo.generate import LAKE, REPORTS
    from restante.pipeline.cli.query import EXAMPLE
    from restante.pipeline.report.files import page_name
    from restante.pipeline.report.periods import PeriodKind, last_finished

    [month, *_] = _periods(truth)
    week = last_finished(PeriodKind.WEEK, truth.fleet.last + timedelta(1))
    lake, output = ("--lake", folder / LAKE), ("-o", folder / REPORTS)
    yield f"To see all of it on a page, open {folder / REPORTS / page_name(month)}"
    yield "To write the report of a week:"
    yield f"    {command_line('pipeline', 'report', *lake, *output, week.name)}"
    yield "To print what the tables mean, and what the columns of one table mean:"
    yield f"    {command_line('pipeline', 'query', *lake, '--describe')}"
    yield f"    {command_line('pipeline', 'query', *lake, '--describe', 'outcomes')}"
    yield "To run a query:"
    yield f"    {command_line('pipeline', 'query', *lake, EXAMPLE)}"


def _periods(truth: GroundTruth) -> list[Period]:
    """Return the periods of which the demo writes reports.

    They are its months, the one with the most days first, and the first day of everything that happened.
    """
    from restante.pipeline.report.periods import Period, PeriodKind, period_containing

    fleet = truth.fleet
    days = [fleet.first + timedelta(number) for number in range(fleet.days)]
    months = Counter(period_containing(PeriodKind.MONTH, day) for day in days)
    eventful = dict.fromkeys(entry.first for entry in story_entries(truth))
    return [*(month for month, _ in months.most_common()), *(Period(PeriodKind.DAY, day) for day in eventful)]


# ── what happened in the fleet, in words, and where its tables show it ───────────────────────────

FleetEvent = Attack | BadRelease | Outage | MailserverGap


class StoryEntry(NamedTuple):
    """Something that happened, and a query that shows it."""

    first: date
    """The day on which it began."""
    what: str
    table: str
    columns: str
    condition: str

    @property
    def query(self) -> str:
        """Return the query, in SQL."""
        return f"SELECT {self.columns} FROM {self.table} WHERE {self.condition}"  # noqa: S608 - for a person to read


def story_entries(truth: GroundTruth) -> Iterator[StoryEntry]:
    """Yield what happened, in the order in which it began."""
    events = truth.events
    all_events: list[FleetEvent] = [*events.attacks, *events.releases, *events.outages, *events.gaps]
    for event in sorted(all_events, key=lambda event: event.begin):
        yield _story_entry(event)


def _story_entry(event: FleetEvent) -> StoryEntry:
    match event:
        case Attack():
            return StoryEntry(
                event.days[0],
                f"{_span_text(event)}: somebody guessed codes at {event.server}.",
                "guesses",
                "day, app_id, suspects, threshold",
                f"stands_out AND source = '{event.server}' ORDER BY day",
            )
        case BadRelease():
            return StoryEntry(
                event.days[0],
                f"{event.days[0]} to {event.days[-1]}: version {event.version} of the client {event.implementation}"
                f" made {event.failing:.0%} of its transfers fail.",
                "versions",
                "version, sum(errory) AS errory, sum(mailboxes) AS mailboxes",
                f"implementation = '{event.implementation}' GROUP BY version ORDER BY version",
            )
        case Outage():
            return StoryEntry(
                event.days[0],
                f"{_span_text(event)}: {event.server} did not run.",
                "busy_hours",
                "hour, connections",
                f"source = '{event.server}' AND day = DATE '{event.days[0]}' ORDER BY hour",
            )
        case MailserverGap():
            return StoryEntry(
                event.days[0],
                f"{_span_text(event)}: {event.mailserver} received no envelopes.",
                "gaps",
                "min(first) AS first, max(last) AS last, sum(missing) AS missing",
                f"source = '{event.mailserver}' AND day = DATE '{event.days[0]}'",
            )


def _span_text(span: EventSpan) -> str:
    return f"{span.begin:%Y-%m-%d, %H:%M} to {span.end:%H:%M} UTC"
