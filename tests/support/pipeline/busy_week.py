"""Rows as a busy week leaves them, from seeded dice: most on one day, with what is rare made frequent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import product
from random import Random
from typing import Any

from support.pipeline.oracles import ORACLES
from support.pipeline.tables import TABLES, Values
from support.pipeline.tables import rows as written

TODAY = datetime(2026, 3, 10, tzinfo=UTC)
SOURCES = ("main", "second")
SERVERS = (*SOURCES, None)
APPS = ("lothar.com/wormhole/text-or-file-xfer", "<b>app</b>", "=1+1", "\u001b[31m", "", "other")
RESULTS = ("happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded")
RESULT_NAMES = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
BLURS = (None, None, None, None, 1_000_000, 7_000_000, 60_000_000, 3_600_000_000, 7_000_000_000)
SECOND = 1_000_000


def busy_week(dice: Random, rows: int) -> Mapping[str, Sequence[tuple[Any, ...]]]:
    """Return about so many rows of each table."""
    made: dict[str, Sequence[tuple[Any, ...]]] = {
        "nameplates": [_ended(dice, place) for place in range(rows)],
        "mailboxes": [_mailbox(dice, place) for place in range(rows)],
        "client_versions": [_bind(dice, place) for place in range(rows)],
        "live": [_live(Random(place)) for place in range(rows // 5)],
        "outcomes": [_outcome(dice) for _ in range(rows)],
        "archived": list(_archived(dice, rows)),
        "envelopes": list(_envelopes(dice, rows)),
        **_logs(dice, rows),
    }
    made["timing"] = [*ORACLES["timing"](made).elements(), *(_timed(dice, place) for place in range(rows))]
    made["deliveries"] = list(ORACLES["deliveries"](made).elements())
    return {**made, "coverage": _covered(made["archived"])}


def crowd(dice: Random, names: int) -> Mapping[str, Sequence[Values]]:
    """Return a day with so many names of applications, versions and topics, a few of them common.

    A mailserver lacks all its envelopes.
    """
    app = [f"app {number}" for number in range(names)]
    ended = [*app, *dice.choices(app, k=names // 2), *["common"] * 10]
    binds = [{"app_id": f"app {number}", "version": f"1.{number}"} for number in range(names)]
    binds += [{"app_id": "common", "version": "1.0"}] * 10
    topics = [*range(names), *[0xFFFFFFFF] * 10]
    sent = [
        {"hash": f"{place:08x}", "topic": f"0x{topic:08x}", "sent": f"2026-03-10T{place % 3 * 4:02}:00:00"}
        for place, topic in enumerate(topics)
    ]
    sent = [each if each["topic"] != "0xffffffff" else each | {"sent": "2026-03-10T23:00:00"} for each in sent]
    archived = written("archived", sent)
    return {
        "archived": archived,
        "coverage": [(0, 0, len(archived), TODAY.date(), "two")],
        "nameplates": written("nameplates", [{"app_id": each} for each in ended]),
        "mailboxes": written("mailboxes", [{"app_id": each, "result": "scary"} for each in ended[::2]]),
        "client_versions": written("client_versions", binds),
    }


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
    """Return a duration: from nothing to months."""
    return dice.choice(
        (0, 1, dice.randrange(1000), int(1e6 * dice.lognormvariate(3, 3)), int(1e6 * dice.lognormvariate(3, 3)))
    )


def _ended(dice: Random, place: int) -> Values:
    blur = dice.choice(BLURS)
    started = _time(dice, blur)
    waiting = dice.choice((None, _long(dice)))
    total = (waiting or 0) + _long(dice)
    source = dice.choice(SOURCES)
    return (place, "", _app(dice), started, waiting, total, dice.choice(RESULTS), blur, started.date(), source)


def _mailbox(dice: Random, place: int) -> Values:
    row = _ended(dice, place)
    return *row[:3], dice.random() < 0.8, *row[3:7], (None, 0, 0, 1, 3)[place % 5], *row[7:]


def _bind(dice: Random, place: int) -> Values:
    blur = dice.choice(BLURS)
    time = _time(dice, blur)
    who = dice.choice(((None, None), ("python", "0.24.0"), ("rust", f"{int(dice.paretovariate(0.35)) % 5000}")))
    new = Random(place).choice(((None, None), (True, True), (False, True), (False, False)))
    return (place, "", _app(dice), time, *who, blur, *new, time.date(), dice.choice(SOURCES))


def _live(dice: Random) -> Values:
    blur = dice.choice(BLURS)
    kind = dice.choice(("nameplate", "mailbox", "listener"))
    started = None if kind == "listener" else _time(dice, blur)
    as_of = _time(dice, blur, days=dice.randint(0, 2))
    day = (started or as_of).date()
    return (kind, started, dice.choice((1, 1, 1, 2, 50)), as_of, blur, day, dice.choice(SOURCES))


def _outcome(dice: Random) -> Values:
    """Return a row of a day of two weeks; of few applications, so that most have a row on most days."""
    day = (TODAY + timedelta(days=dice.randint(-11, 2))).date()
    counts = [dice.choice((0, 1, 2, 3, 40)) for _ in RESULT_NAMES]
    kind = dice.choice(("nameplate", "claimed", "opened"))
    return (dice.choice(APPS), kind, sum(counts), *counts, None, day, dice.choice(SOURCES))


def _archived(dice: Random, rows: int) -> Iterator[Values]:
    """Yield envelopes that one to three sources have, one of them here and there twice."""
    made = 0
    for envelope in _envelopes(dice, rows):
        for source in dice.sample(("one", "two", "three"), dice.choice((1, 1, 1, 2, 3))):
            for _ in range(dice.choice((1, 1, 1, 2))):
                made += 1
                row = dict(zip(_names("envelopes"), envelope, strict=True))
                kind = "files" if source == "three" else "archive"
                row |= {"source": source, "source_kind": kind, "file": str(made), "arrival": dice.randrange(3)}
                late = timedelta(microseconds=dice.choice((-1, 1, 1)) * _long(dice))
                row["arrived"] = dice.choice((None, row["sent"] + late)) if kind == "archive" else None
                yield tuple(row[name] for name in _names("archived"))
                if made >= rows:
                    return


def _covered(archived: Sequence[Values]) -> list[Values]:
    """Return that both mailservers lack something on each day; how much is for another table to say."""
    days = sorted({row[_names("archived").index("day")] for row in archived})
    return [(0, 0, 1, day, source) for day in days for source in ("one", "two")]


def _envelopes(dice: Random, rows: int) -> Iterator[Values]:
    for _ in range(rows):
        raw, sent = dice.randbytes(dice.randrange(8, 60)), _time(dice)
        if dice.random() < 0.5:  # hours with a thousand, and hours with fewer
            sent = sent.replace(hour=dice.choice((0, 12, 23)))
        topic = f"0x{int(dice.paretovariate(0.3)) % 3000:08x}"
        row = {
            "hash": sha256(raw).digest(),
            "topic": topic,
            "sent": sent,
            "expiry": sent + timedelta(seconds=50),
            "ttl": 50,
        }
        row |= {"size": len(raw), "pow": dice.random(), "arrived": None, "raw": raw, "hour": None, "day": sent.date()}
        yield tuple((row | {"holder": "one", "holders": 1})[name] for name in _names("envelopes"))


def _names(table: str) -> list[str]:
    return [column.name for column in TABLES[table].columns]


def _logs(dice: Random, rows: int) -> Mapping[str, Sequence[Values]]:
    """Return client logs of some forty commands, and the trace of one of their two servers, with gaps in both.

    Ids repeat, clocks are set, and a log goes on after midnight more often than in life.
    The first nine logs are of each server on each of three days, whatever the dice say.
    """
    fixed = list(product((0, -1, 1), SERVERS))
    events: list[Values] = []
    commands: list[Values] = []
    for log in range(max(1, rows // 100)):
        days, server = fixed[log] if log < len(fixed) else (None, dice.choice(SERVERS))
        offset, now, ids = dice.uniform(-100, 100), _time(dice, days=days).timestamp(), ["0000"]
        heard: list[tuple[Any, ...]] = [("ws_receive", now, "welcome", None, None, None, None, now - 0.02)]
        for _ in range(40):
            now += dice.choice((dice.expovariate(1),) * 60 + (40_000.0, 86_399.0, 86_400.0))
            offset += dice.choice((0.0,) * 40 + (-1e-6, 1e-6, dice.uniform(-5, 5)))
            ids.append(dice.choice((f"{dice.randrange(1 << 16):04x}",) * 12 + (ids[-1],)))
            add, mine = dice.random() < 0.5, dice.random() < 0.8
            command, phase = ("add", str(dice.randrange(4))) if add else (dice.choice(("open", "", None)), None)
            rx = now + dice.expovariate(20)
            began = rx + dice.expovariate(500)
            commit = began + dice.expovariate(200)
            tx = (commit if add else rx) + dice.expovariate(1000)
            back = tx + dice.expovariate(20)
            stamp = dice.choice((float(f"{tx:.6f}"),) * 30 + (None, -1e300, 1e11))
            mail = ("ws_receive", back + dice.choice((-0.001, 0.0, 0.001)), "message", ids[-1], phase, mine)
            heard += [("ws_send", now, command, ids[-1], phase, None, None, None)] * mine
            for _ in range(dice.choice((0, 1, 1, 1, 1, 1, 1, 1, 2)) * mine):
                heard.append(("ws_receive", back, "ack", ids[-1], None, None, None, stamp))
            for came in dice.choice(((), (rx,), (rx,), (rx,), (rx,), (None,), (rx, rx + 0.001))) if add else ():
                heard.append((*mail, came, stamp))
            if server == "main" and dice.random() < 0.9:
                day = datetime.fromtimestamp(rx, UTC).date()
                times = (dice.choice((began, began, None)), commit) if add else (None, None)
                for later in dice.choice(((0.0,),) * 9 + ((0.0, 1e-6),)):
                    line = ("t", len(commands), 1, command, ids[-1], rx + later, *times, tx, day, "main")
                    commands.append(line)
            events += [_heard(str(log), len(events), server, offset, *each) for each in heard]
            heard = []
        events += [_span(dice, str(log), len(events) + each, server, now + offset) for each in range(5)]
    events += _at_peers(dice, events)
    events += [(*event[:-1], "copies") for event in events if event[0] == "1"]
    return {"client_events": events, "server_commands": commands}


def _at_peers(dice: Random, events: Sequence[Values]) -> list[Values]:
    """Return the messages as other clients received them: each two logs are of a transfer, and some have a third."""
    found: list[Values] = []
    third = {log: dice.random() < 0.2 for log in sorted({str(event[0]) for event in events})}
    for log, _, server, name, _, _, _, command, *message, _, _ in events:
        command_id, phase, own, rx, tx = message
        if name != "ws_receive" or command != "message" or not own or rx is None:
            continue
        number = int(str(log))
        for peer in (number ^ 1, *((number + 2,) * (third[str(log)] and dice.random() < 0.1))):
            for _ in range(dice.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))):
                at = rx + dice.expovariate(20) + dice.choice((0.0,) * 40 + (86_300.0, 86_400.0, -86_400.0))
                heard = ("ws_receive", at, "message", command_id, phase, False, rx, tx)
                found.append(_heard(str(peer), len(events) + len(found), server, peer / 10, *heard))
    return found


def _heard(
    log: str, place: int, server: str | None, offset: float, name: str, at: float, command: str | None, *others: Any
) -> Values:
    """Return an event of a message that was sent or received."""
    command_id, phase, own, rx, tx = others
    day = datetime.fromtimestamp(at + offset, UTC).date()
    return (
        *(log, place, server, name, at + offset, None, None),
        *(command, command_id, phase, own, rx, tx, day, "logs"),
    )


def _span(dice: Random, log: str, place: int, server: str | None, start: float) -> Values:
    name, waiting = dice.choice(
        (
            *(("input code", "user"), ("pake1", "crypto"), ("import", None)),
            *(("tx file", None), ("get ack", None), ("transit connect", None)),
        )
    )
    stop = dice.choice((None, start, start + dice.expovariate(0.1)))
    day = datetime.fromtimestamp(start, UTC).date()
    return (log, place, server, name, start, stop, waiting, *(None,) * 6, day, "logs")


def _timed(dice: Random, place: int) -> Values:
    us, day = dice.choice((None, -_long(dice), _long(dice))), _time(dice).date()
    server = dice.choice((None, "main"))
    return ("0", place, server, "add", dice.choice(("queue", "commit")), us, None, None, day, dice.choice(SOURCES))
