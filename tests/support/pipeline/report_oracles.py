"""What the tables that watch over servers and sources should be, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from math import floor
from typing import Any

from restante.pipeline.tables.sources import LEDGERS
from support.pipeline.oracle_helpers import (
    Inputs,
    Rows,
    apps,
    bucket,
    dicts,
    ended,
    known,
    renamed,
    us_of,
)

TIMES = {
    "nameplates": "started",
    "mailboxes": "started",
    "client_versions": "connect_time",
    "server_commands": "server_rx",
    "client_events": "start",
    "archived": "sent",
}


def sources(inputs: Inputs) -> Rows:
    """Go through each source's rows."""
    known: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in dicts(inputs, LEDGERS.name):
        known[row["source"]].append(row)
    rejected = Counter(row["source"] for row in dicts(inputs, "quarantine"))
    rows: Rows = Counter()
    for source, ledgers in known.items():
        times = [
            _moment(row[column])
            for table, column in TIMES.items()
            for row in dicts(inputs, table)
            if row["source"] == source
        ]
        last, ingested = max(times, default=None), max(row["last_ingest"] for row in ledgers)
        lag = None if last is None else (ingested - last) // timedelta(microseconds=1)
        counts = [
            sum(row[name] for row in ledgers) for name in ("read", "clean", "duplicate", "quarantined", "missed")
        ]
        since = min(row["counted_since"] for row in ledgers)
        seen = (source, ledgers[0]["kind"], last, ingested, lag, since)
        rows[*seen, *counts, rejected[source], ingested.date()] += 1
    return rows


FAILURES = ("lonely", "errory", "scary", "pruney", "crowded")


def failures(inputs: Inputs) -> Rows:
    app = apps(inputs)
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for kind, row in ended(inputs):
        hour = row["started"].hour if known(row) else None
        key = (hour, *app(row["source"], row["day"], (row["app_id"],)), kind, row["day"], row["source"])
        counts[key][row["result"]] += 1
    rows: Rows = Counter()
    for key, of in counts.items():
        each = [of[result] for result in FAILURES]
        rows[*key[:3], of.total(), sum(each), *each, *key[3:]] += 1
    return rows


def guesses(inputs: Inputs) -> Rows:
    """Look back from each day."""
    found: dict[Any, Counter[str]] = defaultdict(Counter)
    days: dict[str, set[date]] = defaultdict(set)
    for row in dicts(inputs, "outcomes"):
        days[row["source"]].add(row["day"])
        of = found[row["source"], row["app_id"], row["day"]]
        what = "nameplate" if row["kind"] == "nameplate" else "mailbox"
        for column in ("ended", *FAILURES):
            of[f"{what} {column}"] += row[column]
    rows: Rows = Counter()
    for (source, app, day), of in found.items():
        before = [day - timedelta(back) for back in range(1, 8)]
        compared = [_suspects(found.get((source, app, each), Counter())) for each in before if each in days[source]]
        rule: tuple[Any, ...] = (None,) * 4
        if len(compared) >= 4:
            median = _middle(compared)
            mad = _middle([abs(each - median) for each in compared])
            threshold = median + max(6 * mad, 10, median // 2)
            rule = median, mad, threshold, _suspects(of) > threshold
        counts = [
            of[name]
            for name in (
                *("nameplate ended", "nameplate lonely", "nameplate pruney", "nameplate crowded"),
                *("mailbox ended", "mailbox crowded", "mailbox scary"),
            )
        ]
        rows[app, *counts, _suspects(of), len(compared), *rule, day, source] += 1
    return rows


def _suspects(of: Counter[str]) -> int:
    return of["nameplate crowded"] + of["mailbox scary"]


def _middle(numbers: Sequence[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]


def addresses(inputs: Inputs) -> Rows:
    """Count the binds that are the first; those of all applications together, too."""
    weights: Counter[Any] = Counter()
    for row in dicts(inputs, "client_versions"):
        weights[row["source"], row["day"], (row["app_id"],)] += 1
    app = renamed(weights)
    found: dict[Any, list[bool | None]] = defaultdict(list)
    for row in dicts(inputs, "client_versions"):
        source, day = row["source"], row["day"]
        found[None, day, source].append(row["new_address"])
        [name] = app(source, day, (row["app_id"],))
        found[name, day, source].append(row["new_address_of_app"])
    rows: Rows = Counter()
    for (name, day, source), new in found.items():
        unknown = new.count(None)
        rows[name, len(new), unknown, None if unknown == len(new) else new.count(True), day, source] += 1
    return rows


def lateness(inputs: Inputs) -> Rows:
    """Go through the envelopes, and each one's first arrival at each mailserver."""
    copies: dict[bytes, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in dicts(inputs, "archived"):
        if row["source_kind"] == "archive" and row["arrived"] is not None:
            copies[row["hash"]][row["source"]].append(row)
    counts: Counter[Any] = Counter()
    for held in copies.values():
        arrivals = {source: min(us_of(row["arrived"]) for row in rows) for source, rows in held.items()}
        for source, at in arrivals.items():
            row = held[source][0]
            late = at - us_of(row["sent"])
            counts["ahead" if late < 0 else "late", *bucket(abs(late)), row["day"], source] += 1
            if len(arrivals) > 1:
                counts["after first", *bucket(at - min(arrivals.values())), row["day"], source] += 1
    return Counter((*key[:3], count, *key[3:]) for key, count in counts.items())


def _moment(time: datetime | float) -> datetime:
    if isinstance(time, datetime):
        return time
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=floor(time * 1e6 + 0.5))
