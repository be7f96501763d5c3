"""What the built tables should be, in plain Python: slow, and written another way; and builds that need no Spark."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from fractions import Fraction
from math import ceil, floor
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame

from restante.pipeline.lake.data_files import Where
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.tables import BUILDS
from restante.pipeline.tables.build import FOLDERS, Build, Folder
from restante.pipeline.tables.top_n import MAX_NAMES
from support.pipeline import report_oracles
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
        best["hour"] = best["sent"].hour if hours[best["day"], best["sent"].hour] >= 1000 else None
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


def timing(inputs: Inputs) -> Rows:
    """Go through each log by itself."""
    lines = defaultdict(list)
    for row in dicts(inputs, "server_commands"):
        lines[row["source"], row["command_id"]].append(row)
    logs = defaultdict(list)
    for row in dicts(inputs, "client_events"):
        logs[row["source"], row["file"]].append(row)
    return sum((_log(events, lines) for events in logs.values()), Counter())


def _log(events: list[dict[str, Any]], lines: Mapping[Any, list[dict[str, Any]]]) -> Rows:
    rows: Rows = Counter()
    commands = [_Command(event, events, lines) for event in events if event["name"] == "ws_send"]
    clocks = {day: _clock(day, commands, events) for day in {event["day"] for event in events}}

    def write(event: dict[str, Any], what: str, phase: str, us: int | None, sign: int = 0) -> None:
        ahead, error = clocks[event["day"]]
        if sign:
            us = None if us is None or ahead is None else us + sign * ahead
        error = error if sign and us is not None else None
        key = (event["file"], event["id"], event["server"])
        rows[*key, what, phase, us, error, ahead, event["day"], event["source"]] += 1

    for event in events:
        start = _micros(event["start"])
        if event["name"] == "ws_receive" and event["command"] == "message" and event["own"] is False:
            write(event, "message", "network in", _less(start, _micros(event["server_tx"])), -1)
        phase = {"user": "human", "crypto": "crypto"}.get(event["waiting"] or "")
        transfer = dict.fromkeys(("tx file", "get ack", "rx file"), "transfer")
        phase = phase or ({"transit connect": "transit connect"} | transfer).get(event["name"])
        if phase:
            write(event, event["name"], phase, _less(_micros(event["stop"]), start))
    for each in commands:
        what = each.event["command"] or ""
        write(each.event, what, "network out", _less(each.rx, each.t0), 1)
        write(each.event, what, "server", _less(each.tx, each.rx))
        write(each.event, what, "network in", _less(each.t3, each.tx), -1)
        write(each.event, what, "round trip", _less(each.t3, each.t0))
        for phase, us in _in_server(each.line):
            write(each.event, what, phase, us)
    return rows


class _Command:
    """A command with its answer and its line."""

    def __init__(
        self, event: dict[str, Any], events: list[dict[str, Any]], lines: Mapping[Any, list[dict[str, Any]]]
    ) -> None:
        self.event = event
        self.line: dict[str, Any] | None = None
        self.t0 = _micros(event["start"]) or 0
        self.rx: int | None = None
        self.tx: int | None = None
        self.t3: int | None = None
        twins = [
            each
            for each in events
            if (each["name"], each["command_id"], each["day"]) == ("ws_send", event["command_id"], event["day"])
        ]
        if len(twins) > 1 or event["command_id"] is None:
            return
        replies = [each for each in events if each["name"] == "ws_receive" and self._has_reply(each)]
        acks = [each for each in replies if each["command"] == "ack"]
        echoes = [each for each in replies if each["command"] == "message" and each["own"]]
        rx = min((each["server_rx"] for each in echoes if each["server_rx"] is not None), default=None)
        tx = None
        if acks or echoes:
            answer = min(acks or echoes, key=lambda each: (_micros(each["start"]), _earliest(each["server_tx"])))
            tx, self.t3 = answer["server_tx"], _micros(answer["start"])
        for line in lines.get((event["server"], event["command_id"]), ()):
            near = abs(line["server_rx"] * 1e6 - self.t0) <= 86_400_000_000
            by_stamp = tx is not None and line["server_tx"] is not None and abs(line["server_tx"] - tx) < 1.5e-6
            if near and (line["server_rx"] == rx if rx is not None else by_stamp):
                self.line = min(self.line or line, line, key=_order)
        self.rx = _micros(rx if rx is not None or self.line is None else self.line["server_rx"])
        self.tx = _micros(tx)

    def _has_reply(self, heard: dict[str, Any]) -> bool:
        later = (_micros(heard["start"]) or 0) - self.t0
        return bool(self.event["command_id"] == heard["command_id"] and 0 <= later <= 86_400_000_000)


def _earliest(time: float | None) -> float:
    return float("-inf") if time is None else time


def _order(line: dict[str, Any]) -> list[float]:
    return [_earliest(line[each]) for each in ("server_rx", "commit_began", "commit", "server_tx")]


def _in_server(line: dict[str, Any] | None) -> Iterator[tuple[str, int | None]]:
    if line is None:
        return
    names = ("server_rx", "commit_began", "commit", "server_tx")
    came, began, durable, said = (_micros(line[each]) for each in names)
    if durable is None:
        yield "queue", _less(said, came)
        return
    if began is None:
        yield "queue and commit", _less(durable, came)
    else:
        yield from (("queue", _less(began, came)), ("commit", _less(durable, began)))
    yield "answer", _less(said, durable)


def _clock(day: date, commands: list[_Command], events: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    """Return how far the client's clock was ahead on a day, and the error."""
    lows, highs, seen = [], [], []
    for each in commands:
        if each.event["day"] == day and each.tx is not None and each.t3 is not None:
            lows.append(each.tx - each.t3)
            highs.append((each.tx if each.rx is None else each.rx) - each.t0)
            seen += [each.t0, each.t3]
    if not highs:
        return None, None
    heard = [event for event in events if event["name"] == "ws_receive" and event["day"] == day]
    heard = [event for event in heard if _micros(event["server_tx"]) is not None]
    seen += [_micros(event["start"]) or 0 for event in heard]
    ways = [_less(_micros(event["server_tx"]), _micros(event["start"])) for event in heard]
    low, high = max([*lows, *(way for way in ways if way is not None)]), min(highs)
    middle = floor(Fraction(low + high, 2))
    more = 2 + ceil(Fraction(30 * (max(seen) - min(seen)), 10**6))
    if low <= high + 4:
        return -middle, max(high - middle, middle - low) + more
    return -middle, max(abs(bound - middle) for bound in [low, *highs, *lows]) + more


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None or abs(seconds) >= 1e11 else floor(seconds * 1e6 + 0.5)


def _less(what: int | None, by: int | None) -> int | None:
    return None if what is None or by is None else what - by


def times(inputs: Inputs) -> Rows:
    counts: Counter[Any] = Counter()
    for row in dicts(inputs, "timing"):
        counts[row["server"], row["phase"], *bucket(row["us"]), row["day"], row["source"]] += 1
    return Counter((*key[:4], count, *key[4:]) for key, count in counts.items())


ORACLES: Mapping[str, Callable[[Inputs], Rows]] = {
    each.__name__: each
    for each in (
        *(outcomes, durations, pressure, mailbox_pressure, busy_hours, versions, timing, times),
        *(envelopes, traffic, coverage, hourly_coverage, gaps),
        *(report_oracles.failures, report_oracles.guesses, report_oracles.addresses, report_oracles.lateness),
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
