"""Rows as a busy week leaves them, from seeded dice, with what is rare made frequent; and rows of the vectors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any, Final

from restante.pipeline.clean.rules import CleanValues, TimeLimits, time_limits
from restante.pipeline.clean.timing import clean_command, clean_event
from restante.timing.model.exchanges import to_us
from support.pipeline.tables import TABLES, Inputs, Values, apart
from support.pipeline.tables import rows as written
from support.timing.vectors import DELIVERY_VECTORS, VECTORS, events_of, lines_of, timing_rows

TODAY: Final = datetime(2026, 3, 10, tzinfo=UTC)
SOURCES: Final = ("main", "second")
APPS: Final = ("lothar.com/wormhole/text-or-file-xfer", "<b>app</b>", "=1+1", "\u001b[31m", "", "other")
RESULTS: Final = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
BLURS: Final = (None, None, None, None, 1_000_000, 7_000_000, 60_000_000, 3_600_000_000, 7_000_000_000)
SECOND: Final = 1_000_000


def busy_week(dice: Random, rows: int) -> Inputs:
    """Return rows of each table from which others are built, about so many of each but those of logs."""
    inputs: dict[str, Sequence[Values]] = {
        "nameplates": _table("nameplates", (_times(dice) for _ in range(rows))),
        "mailboxes": _table("mailboxes", (_mailbox(dice) for _ in range(rows))),
        "client_versions": _table("client_versions", (_bind(dice) for _ in range(rows))),
        "live": _table("live", (_live(dice) for _ in range(rows // 5))),
        "relay_transfers": _table("relay_transfers", (_transfer(dice) for _ in range(rows))),
        "outcomes": _table("outcomes", (_outcome(dice) for _ in range(rows))),
        "archived": _table("archived", _archived(dice, rows)),
        "envelopes": _table("envelopes", (_envelope(dice) | {"holder": "one", "holders": 1} for _ in range(rows))),
        **_logs(),
    }
    days = sorted({row[-2] for row in inputs["archived"]})
    coverage = [(0, 0, 1, day, source) for day in days for source in ("one", "two")]
    return {**inputs, "coverage": coverage}


def crowd(dice: Random, names: int) -> Inputs:
    """Return a day with so many names of applications, versions and topics; a mailserver lacks all its envelopes."""
    app = [f"app {number}" for number in range(names)]
    rows = [*app, *dice.choices(app, k=names // 2), *["common"] * 10]
    binds = [{"app_id": f"app {number}", "version": f"1.{number}"} for number in range(names)]
    sent = [
        {"hash": f"{number:08x}", "topic": f"0x{number:08x}", "sent": f"2026-03-10T{number % 3 * 4:02}:00:00"}
        for number in range(names)
    ]
    common = {"topic": "0xffffffff", "sent": "2026-03-10T23:00:00"}
    archived = written("archived", [*sent, *(common | {"hash": f"{names + n:08x}"} for n in range(10))])
    return {
        "archived": archived,
        "coverage": [(0, 0, len(archived), TODAY.date(), "two")],
        "nameplates": written("nameplates", [{"app_id": name} for name in rows]),
        "mailboxes": written("mailboxes", [{"app_id": name, "result": "scary"} for name in rows[::2]]),
        "client_versions": written("client_versions", binds + [{"app_id": "common", "version": "1.0"}] * 10),
    }


def _table(name: str, records: Iterator[Mapping[str, Any]]) -> list[Values]:
    """Return rows that have their values as the lake has them; the day is that of the first time."""
    columns = [column.name for column in TABLES[name].columns]
    filled = ({"id": number, "origin": "", **record} for number, record in enumerate(records))
    return [tuple(record[column] for column in columns) for record in filled]


def _time(dice: Random, blur: int | None = None, days: int | None = None) -> datetime:
    """Return a moment, of the day for the most part; on a whole second or an hour more often than life has it."""
    if days is None:
        days = dice.choice((0, 0, 0, 0, 0, 0, 0, -1, 1, dice.randint(-9, 2)))
    us = dice.choice(
        (dice.randrange(86_400 * SECOND), dice.randrange(86_400) * SECOND, dice.randrange(24) * 3600 * SECOND)
    )
    since = int((TODAY + timedelta(days=days)).timestamp()) * SECOND + us
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since // (blur or 1) * (blur or 1))


def _app(dice: Random) -> str:
    return dice.choice((dice.choice(APPS), f"stranger {int(dice.paretovariate(0.35)) % 5000}"))


def _long(dice: Random) -> int:
    return dice.choice((0, 1, dice.randrange(1000), int(1e6 * dice.lognormvariate(3, 3))))


def _common(dice: Random, blur: int | None, time: datetime) -> dict[str, Any]:
    return {"app_id": _app(dice), "blur_us": blur, "day": time.date(), "source": dice.choice(SOURCES)}


def _times(dice: Random) -> dict[str, Any]:
    blur = dice.choice(BLURS)
    started = _time(dice, blur)
    waiting = dice.choice((None, _long(dice)))
    result = dice.choice((*RESULTS, "happy", "happy"))
    lived = {"started": started, "waiting_us": waiting, "total_us": (waiting or 0) + _long(dice), "result": result}
    return _common(dice, blur, started) | lived


def _transfer(dice: Random) -> dict[str, Any]:
    result = dice.choice(("happy", "happy", "lonely", "redundant", "errory", "impatient", "empty"))
    return _times(dice) | {"result": result, "total_bytes": _long(dice)}


def _mailbox(dice: Random) -> dict[str, Any]:
    return _times(dice) | {"for_nameplate": dice.random() < 0.8, "visitors": dice.choice((None, 0, 0, 1, 3))}


def _bind(dice: Random) -> dict[str, Any]:
    blur = dice.choice(BLURS)
    time = _time(dice, blur)
    who = dice.choice(((None, None), ("python", "0.24.0"), ("rust", f"{int(dice.paretovariate(0.35)) % 5000}")))
    new = dice.choice(((None, None), (True, True), (False, True), (False, False)))
    names = ("connect_time", "implementation", "version", "new_address", "new_address_of_app")
    return _common(dice, blur, time) | dict(zip(names, (time, *who, *new), strict=True))


def _live(dice: Random) -> dict[str, Any]:
    blur = dice.choice(BLURS)
    kind = dice.choice(("nameplate", "mailbox", "listener"))
    started = None if kind == "listener" else _time(dice, blur)
    as_of = _time(dice, blur, days=dice.randint(0, 2))
    lived = {"kind": kind, "started": started, "count": dice.choice((1, 1, 1, 2, 50)), "as_of": as_of}
    return _common(dice, blur, started or as_of) | lived


def _outcome(dice: Random) -> dict[str, Any]:
    """Return a row of a day of two weeks; of few applications, so that most have a row on most days."""
    time = TODAY + timedelta(days=dice.randint(-11, 2))
    counts = {result: dice.choice((0, 1, 2, 3, 40)) for result in RESULTS}
    what = {"kind": dice.choice(("nameplate", "claimed", "opened")), "ended": sum(counts.values()), "visited": None}
    return _common(dice, None, time) | counts | what | {"app_id": dice.choice(APPS)}


def _envelope(dice: Random) -> dict[str, Any]:
    raw, sent = dice.randbytes(dice.randrange(8, 60)), _time(dice)
    if dice.random() < 0.5:  # hours with a thousand, and hours with fewer
        sent = sent.replace(hour=dice.choice((0, 12, 23)))
    topic = f"0x{int(dice.paretovariate(0.3)) % 3000:08x}"
    envelope = {"hash": sha256(raw).digest(), "topic": topic, "sent": sent, "expiry": sent + timedelta(seconds=50)}
    values = {"ttl": 50, "size": len(raw), "pow": dice.random(), "raw": raw}
    return envelope | values | {"arrived": None, "hour": None, "day": sent.date()}


def _archived(dice: Random, rows: int) -> Iterator[dict[str, Any]]:
    """Yield envelopes that one to three sources have, one of them here and there twice."""
    for number in range(rows // 2):
        envelope = _envelope(dice)
        for source in dice.sample(("one", "two", "three"), dice.choice((1, 1, 1, 2, 3))):
            for copy in range(dice.choice((1, 1, 1, 2))):
                kind = "files" if source == "three" else "archive"
                late = timedelta(microseconds=dice.choice((-1, 1, 1)) * _long(dice))
                arrived = dice.choice((None, envelope["sent"] + late)) if kind == "archive" else None
                of = {"file": f"{source} {number} {copy}", "arrival": dice.randrange(3), "arrived": arrived}
                yield envelope | of | {"source": source, "source_kind": kind}


def _logs() -> Inputs:
    """Return the logs, traces and rows of all vectors of timing and deliveries, each of sources of its own."""
    tables: dict[str, list[Values]] = {}
    vectors = [*timing_cases().values(), *delivery_cases("transfers").values()]
    for number, (inputs, expected) in enumerate(vectors, 1):
        timing = expected.elements() if "timing" not in inputs else inputs["timing"]
        for name, values in {**inputs, "timing": timing}.items():
            tables.setdefault(name, []).extend(apart(number, name, values))
    return tables


EPOCH = date(1970, 1, 1)
WITHIN = time_limits(1_774_000_000.0)


Case = tuple[Mapping[str, Sequence[Values]], Counter[Values]]
"""The inputs of a table, and its rows."""


def timing_cases() -> Mapping[str, Case]:
    """Return the vectors by name: the inputs of the table timing, and its rows."""
    cases = {}
    for vector in VECTORS:
        server = None if vector["trace"] is None else "main"
        events = [("f", at, server, *_clean(clean_event, each), "logs") for at, each in enumerate(vector["log"])]
        starts = [_day(each["start"]) for each in vector["log"]]
        expected = Counter(("f", at, server, *rest, starts[at], "logs") for at, *rest in vector["rows"])
        cases[vector["name"]] = {"client_events": events, "server_commands": _lines(vector)}, expected
    return cases


def _lines(vector: Mapping[str, Any]) -> list[Values]:
    return [("t", at, *_clean(clean_command, each), "main") for at, each in enumerate(vector["trace"] or ())]


def delivery_cases(name: str) -> Mapping[str, Case]:
    """Return the vectors of deliveries by name: the inputs of the table `deliveries` or `transfers`, and its rows."""
    return {vector["name"]: _delivery_case(vector, name) for vector in DELIVERY_VECTORS}


def _delivery_case(vector: Mapping[str, Any], name: str) -> Case:
    events = [
        (log["file"], at, log["server"], *_clean(clean_event, each), log["source"])
        for log in vector["logs"]
        for at, each in enumerate(log["events"])
    ]
    inputs: dict[str, Sequence[Values]] = {"client_events": events, "server_commands": _lines(vector)}
    inputs["timing"] = [
        (log["file"], at, log["server"], *rest, _day(log["events"][at]["start"]), log["source"])
        for log in vector["logs"]
        for at, *rest in timing_rows(events_of(log["events"]), lines_of(vector) if log["server"] == "main" else ())
    ]
    inputs["deliveries"] = written("deliveries", vector["deliveries"])
    return inputs, Counter(written(name, vector[name]))


def _clean(read: Callable[[bytes, TimeLimits], CleanValues], item: Mapping[str, Any]) -> Values:
    *rest, day = read(json.dumps(item).encode(), WITHIN)
    return (*rest, EPOCH + timedelta(days=day))


def _day(start: float) -> date:
    return EPOCH + timedelta(microseconds=to_us(float(start)) or 0)
