"""What the tables of timing should be, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from fractions import Fraction
from math import ceil, floor
from typing import Any

from support.pipeline.oracle_helpers import Inputs, Rows, bucket, dicts


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
