"""What happened in a fleet, in words, and where its tables show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

from restante.demo.events import Attack, BadRelease, EventSpan, GroundTruth, MailserverGap, Outage
from restante.demo.fleet import MAILBOX_SERVERS, MAILSERVERS

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


def describe_fleet(truth: GroundTruth) -> str:
    """Return what the fleet is."""
    servers, mailservers = (", ".join(names) for names in ([server.name for server in MAILBOX_SERVERS], MAILSERVERS))
    fleet = truth.fleet
    return (
        f"{len(MAILBOX_SERVERS)} mailbox servers ({servers}) and {len(MAILSERVERS)} Mailservers ({mailservers}),"
        f" {fleet.first} to {fleet.last}, seed {fleet.seed}."
    )


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
