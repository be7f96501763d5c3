"""What the built tables should be, in plain Python: slow, and written another way; and builds that need no Spark."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame

from restante.pipeline.lake.data_files import Where
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.tables import BUILDS
from restante.pipeline.tables import envelopes as envelope_tables
from restante.pipeline.tables.build import FOLDERS, Build, Folder
from restante.pipeline.tables.top_n import MAX_NAMES
from support.pipeline import report_oracles, timing_oracles, transfer_oracles
from support.pipeline.lakes import contents, held
from support.pipeline.oracle_helpers import (
    HOUR,
    RESULTS,
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
from support.pipeline.runs import LakeWorld
from support.pipeline.tables import TABLES
from support.pipeline.tables import dicts as named


def outcomes(inputs: Inputs) -> Rows:
    app = apps(inputs)
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    visitors: dict[Any, list[int | None]] = defaultdict(list)
    for kind, row in ended(inputs):
        key = (*app(row["source"], row["day"], (row["app_id"],)), kind, row["day"], row["source"])
        counts[key][row["result"]] += 1
        visitors[key].append(row.get("visitors"))
    rows: Rows = Counter()
    for key, of in counts.items():
        known = [number for number in visitors[key] if number is not None]
        visited = sum(number > 0 for number in known) if known else None
        rows[*key[:2], of.total(), *(of[result] for result in RESULTS), visited, *key[2:]] += 1
    return rows


def durations(inputs: Inputs) -> Rows:
    app = apps(inputs)
    counts: Counter[Any] = Counter()
    for kind, row in ended(inputs):
        name = app(row["source"], row["day"], (row["app_id"],))
        for measure in ("waiting", "total"):
            counts[*name, kind, measure, *bucket(row[f"{measure}_us"]), row["day"], row["source"]] += 1
    return Counter((*key[:5], count, *key[5:]) for key, count in counts.items())


def pressure(inputs: Inputs, table: str = "nameplates", kind: str = "nameplate") -> Rows:
    """Follow each nameplate through its hours; the peak is at the start of one, or of the hour."""
    lived = dicts(inputs, table)
    for row in dicts(inputs, "live"):
        if row["kind"] == kind:
            lived += [row | {"total_us": us_of(row["as_of"]) - us_of(row["started"])}] * row["count"]
    hours: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    started: Counter[Any] = Counter()
    cut: Counter[Any] = Counter()
    for row in lived:
        at, source = us_of(row["started"]), row["source"]
        key = (source, row["day"], at // HOUR % 24 if known(row) else None)
        life = min(max(row["total_us"], 0), 7 * 24 * HOUR)
        started[key] += 1
        cut[key] += row["total_us"] > 7 * 24 * HOUR
        for hour in range(at // HOUR, (at + life - 1) // HOUR + 1) if known(row) and life else ():
            day = date(1970, 1, 1) + timedelta(days=hour // 24)
            hours[source, day, hour % 24].append((max(at, hour * HOUR), min(at + life, (hour + 1) * HOUR)))
    rows: Rows = Counter()
    for key in started.keys() | hours.keys():
        source, day, hour = key
        lives = hours[key]
        steps = sorted([(end, -1) for _, end in lives] + [(begin, 1) for begin, _ in lives])
        live, peak = 0, 0
        for _, step in steps:
            live += step
            peak = max(peak, live)
        measured = (None, None) if hour is None else (peak, sum(end - begin for begin, end in lives))
        rows[hour, started[key], *measured, cut[key], day, source] += 1
    return rows


def mailbox_pressure(inputs: Inputs) -> Rows:
    return pressure(inputs, "mailboxes", "mailbox")


def busy_hours(inputs: Inputs) -> Rows:
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for place, (name, time) in enumerate(
        {"client_versions": "connect_time", "mailboxes": "started", "nameplates": "started"}.items()
    ):
        for row in dicts(inputs, name):
            counts[row["source"], row["day"], row[time].hour if known(row) else None][place] += 1
    return Counter((hour, *each, day, source) for (source, day, hour), each in counts.items())


def versions(inputs: Inputs) -> Rows:
    bound = defaultdict(list)
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in dicts(inputs, "client_versions"):
        who = row["implementation"], row["version"]
        counts[row["source"], row["day"], row["app_id"], "version", who]["bind"] += 1
        if (row["blur_us"] or 0) <= 2_000_000:
            bound[row["source"], row["app_id"]].append((us_of(row["connect_time"]), who))
    for each in bound.values():
        each.sort(key=lambda bind: bind[0])
    for row in dicts(inputs, "mailboxes"):
        at, binds = us_of(row["started"]), bound[row["source"], row["app_id"]]
        low = bisect_left(binds, at - 2_000_000, key=lambda bind: bind[0])
        near = {who for _, who in binds[low : bisect_right(binds, at, key=lambda bind: bind[0])]}
        attribution = "unbound" if not near else "version" if len(near) == 1 else "mixed"
        if (row["blur_us"] or 0) > 2_000_000:
            attribution = "blurred"
        who = near.pop() if attribution == "version" else (None, None)
        counts[row["source"], row["day"], row["app_id"], attribution, who][row["result"]] += 1
    apps: Counter[Any] = Counter()
    names: Counter[Any] = Counter()
    for (source, day, app, attribution, who), of in counts.items():
        apps[source, day, (app,)] += of.total()
        names[source, day, who] += of.total() if attribution == "version" else 0
    app_named, who_named = renamed(apps), renamed(names)
    together: dict[Any, Counter[str]] = defaultdict(Counter)
    for (source, day, app, attribution, who), of in counts.items():
        named = who_named(source, day, who) if attribution == "version" else who
        together[*app_named(source, day, (app,)), attribution, *named, day, source] += of
    return Counter(
        (*key[:4], of["bind"], of.total() - of["bind"], *(of[result] for result in RESULTS), *key[4:])
        for key, of in together.items()
    )


def envelopes(inputs: Inputs) -> Rows:
    hours = Counter((row["day"], row["sent"].hour) for row in dicts(inputs, "archived"))
    copies = defaultdict(list)
    for row in dicts(inputs, "archived"):
        copies[row["hash"]].append(row)
    rows: Rows = Counter()
    for same in copies.values():
        best = min(
            same, key=lambda row: (row["source_kind"] != "archive", row["source"], row["arrival"], row["file"])
        )
        best["hour"] = (
            best["sent"].hour if hours[best["day"], best["sent"].hour] >= envelope_tables.MIN_HOUR_ROWS else None
        )
        holders = {row["source"] for row in same if row["source_kind"] == "archive"}
        best |= {"holder": best["source"], "holders": len(holders)}
        rows[tuple(best[column.name] for column in TABLES["envelopes"].columns)] += 1
    return rows


def traffic(inputs: Inputs) -> Rows:
    topics = defaultdict(list)
    for row in dicts(inputs, "envelopes"):
        topics[row["topic"], row["day"]].append(row)
    return Counter(
        (topic, len(of), sum(row["size"] for row in of), *(end(row["sent"] for row in of) for end in (min, max)), day)
        for (topic, day), of in topics.items()
    )


def coverage(inputs: Inputs) -> Rows:
    held: dict[date, dict[str, set[bytes]]] = defaultdict(lambda: defaultdict(set))
    everything: dict[date, set[bytes]] = defaultdict(set)
    for row in dicts(inputs, "archived"):
        everything[row["day"]].add(row["hash"])
        if row["source_kind"] == "archive":
            held[row["day"]][row["source"]].add(row["hash"])
    rows: Rows = Counter()
    for folder in dicts(inputs, "folders"):
        day, source = folder["day"], folder["source"]
        own = held[day][source]
        others = set().union(*(each for name, each in held[day].items() if name != source))
        rows[len(own), len(own - others), len(everything[day] - own), day, source] += 1
    return rows


def hourly_coverage(inputs: Inputs) -> Rows:
    """Ask of each mailserver's hours which of their envelopes it has."""
    hours: dict[Any, set[bytes]] = defaultdict(set)
    holders: dict[bytes, set[str]] = defaultdict(set)
    for row in dicts(inputs, "archived"):
        hours[row["day"], row["sent"].hour].add(row["hash"])
        if row["source_kind"] == "archive":
            holders[row["hash"]].add(row["source"])
    rows: Rows = Counter()
    for folder in dicts(inputs, "coverage"):
        source = folder["source"]
        for (day, hour), sent in hours.items():
            if day == folder["day"]:
                own = [each for each in sent if source in holders[each]]
                alone = [each for each in own if holders[each] == {source}]
                rows[hour, len(own), len(alone), len(sent) - len(own), day, source] += 1
    return rows


def gaps(inputs: Inputs) -> Rows:
    """Go through each mailserver's day hour by hour."""
    copies: dict[date, dict[bytes, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in dicts(inputs, "archived"):
        copies[row["day"]][row["hash"]].append(row)
    rows: Rows = Counter()
    for folder in dicts(inputs, "coverage"):
        day, source = folder["day"], folder["source"]
        lacked = [same for same in copies[day].values() if source not in {copy["source"] for copy in same}]
        totals = Counter(same[0]["topic"] for same in lacked)
        named = {topic for topic, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMES]}
        hours: dict[str | None, list[list[dict[str, Any]]]] = defaultdict(lambda: [[] for _ in range(24)])
        for same in lacked:
            topic, sent = same[0]["topic"], same[0]["sent"]
            hours[topic if topic in named else None][sent.hour] += same
        for topic, of_day in hours.items():
            run: list[dict[str, Any]] = []
            for of_hour in (*of_day, []):
                if run and not of_hour:
                    sent = [copy["sent"] for copy in run]
                    missing = len({copy["hash"] for copy in run})
                    holders = ",".join(sorted({copy["source"] for copy in run}))
                    rows[topic, min(sent), max(sent), missing, holders, day, source] += 1
                    run = []
                run += of_hour
    return rows


ORACLES: Mapping[str, Callable[[Inputs], Rows]] = {
    each.__name__: each
    for each in (
        *(outcomes, durations, pressure, mailbox_pressure, busy_hours, versions),
        *(timing_oracles.timing, timing_oracles.times),
        *(envelopes, traffic, coverage, hourly_coverage, gaps),
        *(report_oracles.failures, report_oracles.guesses, report_oracles.addresses, report_oracles.lateness),
        *(transfer_oracles.deliveries, transfer_oracles.transfers),
    )
}


class Plain(Build):
    """A table that plain Python builds."""

    def written(self, inputs: Mapping[str, Any], days: Sequence[date]) -> DataFrame:
        """Make the rows of these days, from the inputs' rows as dictionaries."""
        names = {each: [column.name for column in TABLES[each].columns] for each in inputs}
        rows = {each: [tuple(row[name] for name in names[each]) for row in inputs[each]] for each in inputs}
        made = named(self.table.name, ORACLES[self.table.name](rows).elements())
        return held([row for row in made if row["day"] in days], self.table)

    def folders_frame(self, spark: Any, folders: Collection[Folder]) -> Any:
        """Return folders as dictionaries."""
        return named(FOLDERS.name, folders)


PLAIN: Mapping[str, Build] = {name: Plain(*build) for name, build in BUILDS.items()}


@contextmanager
def without_spark(world: LakeWorld) -> Iterator[None]:
    """Make the builds of PLAIN in this lake read their inputs without Spark."""

    def read(table: LakeTable, _session: object, where: Where | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = contents(table, where).to_pylist()
        return found

    session: Any = SimpleNamespace()
    with patch.object(LakeTable, "read", read), patch.object(world, "spark", lambda: session):
        yield
