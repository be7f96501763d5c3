"""What the built tables should be, in plain Python: slow, and written another way; and builds that need no Spark."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from math import floor
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame

from restante.pipeline.lake.data_files import Where
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.tables import BUILDS, buckets
from restante.pipeline.tables.build import FOLDERS, Build, Folder
from restante.pipeline.tables.top_n import MAX_NAMES
from support.pipeline.lakes import contents, held
from support.pipeline.runs import LakeWorld
from support.pipeline.tables import TABLES
from support.pipeline.tables import dicts as named

Inputs = Mapping[str, Sequence[tuple[Any, ...]]]
Rows = Counter[tuple[Any, ...]]

RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
HOUR = 3_600_000_000
EDGES = buckets.edges()


def dicts(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    return named(name, inputs.get(name, ()))


def bucket(us: int | None) -> tuple[int | None, int | None]:
    if us is None:
        return None, None
    if us <= 0:
        return buckets.ZERO_BUCKET, 0
    number = bisect_right(EDGES, us) - 1
    return number + buckets.ZERO_BUCKET + 1, EDGES[number]


def renamed(weights: Counter[tuple[Any, ...]]) -> Callable[[Any, Any, Any], Any]:
    """Name what is not among the commonest of its source and day: weights by (source, day, name)."""
    by_day = defaultdict(list)
    for (source, day, name), weight in weights.items():
        by_day[source, day].append((-weight, [(part is not None, part or "") for part in name], name))
    kept = {(*key, name) for key, names in by_day.items() for _, _, name in sorted(names, key=str_key)[:MAX_NAMES]}
    return lambda source, day, name: name if (source, day, name) in kept else ("other",) * len(name)


def str_key(item: tuple[int, list[tuple[bool, str]], Any]) -> tuple[int, list[tuple[bool, bytes]]]:
    return item[0], [(there, text.encode()) for there, text in item[1]]


def ended(inputs: Inputs) -> Iterable[tuple[str, dict[str, Any]]]:
    for row in dicts(inputs, "nameplates"):
        yield "nameplate", row
    for row in dicts(inputs, "mailboxes"):
        yield "claimed" if row["for_nameplate"] else "opened", row


def _apps(inputs: Inputs) -> Callable[[Any, Any, Any], Any]:
    return renamed(Counter((row["source"], row["day"], (row["app_id"],)) for _, row in ended(inputs)))


def outcomes(inputs: Inputs) -> Rows:
    app = _apps(inputs)
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
    app = _apps(inputs)
    counts: Counter[Any] = Counter()
    for kind, row in ended(inputs):
        name = app(row["source"], row["day"], (row["app_id"],))
        for measure in ("waiting", "total"):
            counts[*name, kind, measure, *bucket(row[f"{measure}_us"]), row["day"], row["source"]] += 1
    return Counter((*key[:5], count, *key[5:]) for key, count in counts.items())


def pressure(inputs: Inputs) -> Rows:
    """Follow each nameplate through its hours; the peak is at the start of one, or of the hour."""
    hours: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    started: Counter[Any] = Counter()
    cut: Counter[Any] = Counter()
    for row in dicts(inputs, "nameplates"):
        at, source = _us(row["started"]), row["source"]
        key = (source, row["day"], at // HOUR % 24 if _known(row) else None)
        life = min(max(row["total_us"], 0), 7 * 24 * HOUR)
        started[key] += 1
        cut[key] += row["total_us"] > 7 * 24 * HOUR
        for hour in range(at // HOUR, (at + life - 1) // HOUR + 1) if _known(row) and life else ():
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


def busy_hours(inputs: Inputs) -> Rows:
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for place, (name, time) in enumerate(
        {"client_versions": "connect_time", "mailboxes": "started", "nameplates": "started"}.items()
    ):
        for row in dicts(inputs, name):
            counts[row["source"], row["day"], row[time].hour if _known(row) else None][place] += 1
    return Counter((hour, *each, day, source) for (source, day, hour), each in counts.items())


def versions(inputs: Inputs) -> Rows:
    bound = defaultdict(list)
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in dicts(inputs, "client_versions"):
        who = row["implementation"], row["version"]
        counts[row["source"], row["day"], row["app_id"], "version", who]["bind"] += 1
        if (row["blur_us"] or 0) <= 2_000_000:
            bound[row["source"], row["app_id"]].append((_us(row["connect_time"]), who))
    for each in bound.values():
        each.sort(key=lambda bind: bind[0])
    for row in dicts(inputs, "mailboxes"):
        at, binds = _us(row["started"]), bound[row["source"], row["app_id"]]
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
    exchanges, theirs = [], []

    def write(event: dict[str, Any], what: str, phase: str, us: int | None, error: int | None) -> None:
        error = None if us is None else error
        _, behind = best.get(event["day"], (None, None))
        key = (event["file"], event["id"], event["server"])
        ahead = None if behind is None else -behind
        rows[*key, what, phase, us, error, ahead, event["day"], event["source"]] += 1

    for event in events:
        if event["name"] == "ws_send":
            exchanges.append((event, *_exchange(event, events, lines)))
        elif event["name"] == "ws_receive" and event["command"] == "message" and event["own"] is False:
            theirs.append(event)
    best: dict[date, tuple[int, int]] = {}
    for event, rx, tx, heard, _ in exchanges:
        if rx is not None and tx is not None and heard is not None:
            sent_at = _micros(event["start"]) or 0
            found = (heard - sent_at) - (tx - rx), ((rx - sent_at) + (tx - heard)) // 2
            if found[0] >= 0:
                best[event["day"]] = min(found, best.get(event["day"], found))
    for event in events:
        phase = {"user": "human", "crypto": "crypto"}.get(event["waiting"] or "")
        phase = phase or {"transit connect": "transit connect", "tx file": "transfer", "rx file": "transfer"}.get(
            event["name"]
        )
        if phase:
            write(event, event["name"], phase, _less(_micros(event["stop"]), _micros(event["start"])), None)
    for event, rx, tx, heard, line in exchanges:
        delay, offset = best.get(event["day"], (None, None))
        error = None if delay is None else -(-delay // 2)
        at, what = _micros(event["start"]), event["command"]
        write(event, what, "network out", _less(_less(rx, at), offset), error)
        write(event, what, "network in", _less(_less(heard, tx), None if offset is None else -offset), error)
        write(event, what, "round trip", _less(heard, at), None)
        came, durable, said = (_micros(line[each]) if line else None for each in ("server_rx", "commit", "server_tx"))
        if not line or durable is not None:
            write(event, what, "commit", _less(durable, came), None)
        write(event, what, "queue", _less(said, came if durable is None else durable), None)
    for event in theirs:
        delay, offset = best.get(event["day"], (None, None))
        way = _less(_less(_micros(event["start"]), _micros(event["server_tx"])), None if offset is None else -offset)
        write(event, "message", "network in", way, None if delay is None else -(-delay // 2))
    return rows


def _exchange(event: dict[str, Any], events: list[dict[str, Any]], lines: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return when it came, was answered and was heard of, and its line in the trace."""
    answers = [each for each in events if each["name"] == "ws_receive" and _answers(event, each)]
    acks = [each for each in answers if each["command"] == "ack"]
    echoes = [each for each in answers if each["command"] == "message" and each["own"]]
    reply = min(acks or echoes, key=lambda each: each["start"], default=None)
    rx = min((each["server_rx"] for each in echoes), default=None)
    tx = reply["server_tx"] if reply else None
    same = [
        line
        for line in lines.get((event["server"], event["command_id"]), ())
        if (line["server_rx"] == rx if rx is not None else tx is not None and abs(line["server_tx"] - tx) < 1.5e-6)
    ]
    line = min(same, key=lambda each: each["server_rx"], default=None)
    came = rx if rx is not None or line is None else line["server_rx"]
    return _micros(came), _micros(tx), _micros(reply["start"] if reply else None), line


def _answers(sent: dict[str, Any], heard: dict[str, Any]) -> bool:
    later = _less(_micros(heard["start"]), _micros(sent["start"])) or 0
    return bool(sent["command_id"] == heard["command_id"] and 0 <= later <= 86_400_000_000)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else floor(seconds * 1e6 + 0.5)


def _less(what: int | None, by: int | None) -> int | None:
    return None if what is None or by is None else what - by


def times(inputs: Inputs) -> Rows:
    counts: Counter[Any] = Counter()
    for row in dicts(inputs, "timing"):
        counts[row["server"], row["phase"], *bucket(row["us"]), row["day"], row["source"]] += 1
    return Counter((*key[:4], count, *key[4:]) for key, count in counts.items())


def _us(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _known(row: Mapping[str, Any]) -> bool:
    return row["blur_us"] is None or row["blur_us"] <= HOUR


ORACLES: Mapping[str, Callable[[Inputs], Rows]] = {
    each.__name__: each
    for each in (outcomes, durations, pressure, busy_hours, versions, envelopes, traffic, coverage, timing, times)
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
