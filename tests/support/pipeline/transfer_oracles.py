"""What the tables of deliveries and transfers should be, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Any

from support.pipeline.oracle_helpers import Inputs, Rows, dicts, us_of

DAY = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def deliveries(inputs: Inputs) -> Rows:
    """Go through all messages that were sent, and look for each among those that were received."""
    known = {
        (row["source"], row["file"], row["id"]): row
        for row in dicts(inputs, "timing")
        if (row["what"], row["phase"]) in {("add", "network out"), ("message", "network in")}
    }
    sent, received = [], defaultdict(list)
    for event in _one_copy(dicts(inputs, "client_events")):
        way = known.get((event["source"], event["file"], event["id"]))
        at = _micros(event["start"]) or 0
        if way is None or event["command_id"] is None or event["phase"] is None:
            continue
        if event["name"] == "ws_send" and event["command"] == "add" and way["us"] is not None:
            sent.append((event, way, at, at + way["us"] - way["offset_us"]))
        elif event["name"] == "ws_receive" and event["command"] == "message" and event["own"] is False:
            received[event["command_id"], event["phase"], _micros(event["server_rx"])].append((event, way, at))
    candidates: dict[Any, Any] = {}
    for event, way, t0, rx in sent:
        for heard, heard_way, t3 in received.get((event["command_id"], event["phase"], rx), ()):
            if abs(t0 - rx) > DAY or abs(t3 - rx) > DAY:
                continue
            key = (event["source"], event["file"], event["id"], heard["file"])
            tx = _micros(heard["server_tx"])
            order = (t3, -1 if tx is None else tx, tx is not None, heard["id"])
            if key not in candidates or order < candidates[key][0]:
                candidates[key] = (order, event, way, t0, rx, heard, heard_way, t3, tx)
    partners = defaultdict(set)
    for (_, file, _, peer), (_, _, _, _, rx, *_) in candidates.items():
        partners[rx // DAY, file].add(peer)
        partners[rx // DAY, peer].add(file)
    rows: Rows = Counter()
    for (source, file, place, peer), (_, event, way, t0, rx, heard, heard_way, t3, tx) in candidates.items():
        if file == peer or len(partners[rx // DAY, file]) > 1 or len(partners[rx // DAY, peer]) > 1:
            continue
        held = None if tx is None else tx - rx
        whole = None if held is None or heard_way["us"] is None else way["us"] + held + heard_way["us"]
        error = None if whole is None else way["error_us"] + heard_way["error_us"]
        rows[
            *(file, place, event["server"], peer, heard["source"], heard["id"], event["phase"]),
            *(_moment(t0), _moment(rx), _moment(t3), way["us"], held, heard_way["us"], whole, error),
            *(way["offset_us"], heard_way["offset_us"], _moment(rx).date(), source),
        ] += 1
    return rows


def _one_copy(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the events of all copies of a log but one."""
    copies = defaultdict(set)
    for event in events:
        copies[event["file"], event["day"]].add((event["server"] is None, event["source"]))
    return [event for event in events if min(copies[event["file"], event["day"]])[1] == event["source"]]


def transfers(inputs: Inputs) -> Rows:
    """Follow the messages of each two logs in the order in which the server received them."""
    signs = defaultdict(set)
    for event in dicts(inputs, "client_events"):
        name = "allocate" if (event["name"], event["command"]) == ("ws_send", "allocate") else event["name"]
        for away in (-1, 0, 1):
            signs[event["source"], event["file"], event["day"] + timedelta(away)].add(name)
    pairs = defaultdict(list)
    for row in dicts(inputs, "deliveries"):
        pairs[frozenset((row["file"], row["peer_file"]))].append(row)
    rows: Rows = Counter()
    for found in pairs.values():
        found.sort(key=lambda row: (row["server_rx"], row["file"]))
        runs: list[list[dict[str, Any]]] = []
        for row in found:
            if not runs or row["server_rx"] - runs[-1][-1]["server_rx"] > timedelta(1):
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            rows[
                _transfer([row for row in run if row["server_rx"] - run[0]["server_rx"] <= timedelta(1)], signs)
            ] += 1
    return rows


def _transfer(run: list[dict[str, Any]], signs: dict[Any, set[str]]) -> tuple[Any, ...]:
    first, day = run[0], run[0]["day"]
    one, two = sorted((first["file"], first["peer_file"]))
    sources = {
        file: min(row["source"] if row["file"] == file else row["peer_source"] for row in run) for file in (one, two)
    }
    roles = {file: _role(signs[sources[file], file, day]) for file in (one, two)}
    sender, receiver = (first["file"], first["peer_file"])
    known = roles[one] != roles[two]
    if known:
        sender, receiver = (one, two) if roles[one] == "sender" or roles[two] == "receiver" else (two, one)
    clear = [row for row in run if row["us"] is not None]
    ahead = [(row["error_us"], row["server_rx"], _ahead(row, one), row) for row in clear]
    best = min(ahead, key=lambda each: each[:3], default=None)
    offset = None if best is None else _ahead(best[3], sender)
    return (
        *(sender, receiver, sources[receiver], known),
        max((row["server"] for row in run if row["server"] is not None), default=None),
        *(len(run), first["server_rx"], run[-1]["server_rx"], _waited(run, sender), _waited(run, receiver)),
        *(offset, None if best is None else best[0], day, sources[sender]),
    )


def _ahead(row: dict[str, Any], of: str) -> int:
    """Return how far the other client's clock was ahead of this one's."""
    ahead: int = row["peer_offset_us"] - row["offset_us"]
    return ahead if row["file"] == of else -ahead


def _waited(run: list[dict[str, Any]], file: str) -> int | None:
    sent = [us_of(row["sent"]) for row in run if row["file"] == file]
    received = [us_of(row["received"]) for row in run if row["file"] != file]
    return max(0, min(received) - min(sent)) if sent and received else None


def _role(names: set[str]) -> str | None:
    if names & {"tx file", "get ack"}:
        return "sender"
    if names & {"rx file", "unpack zip", "send ack", "permission", "print"}:
        return "receiver"
    return "sender" if "allocate" in names else "receiver" if "input code" in names else None


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None or abs(seconds) >= 1e11 else floor(seconds * 1e6 + 0.5)


def _moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)
