"""Rows as a busy week leaves them, from seeded dice: most on one day, with what is rare made frequent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any

from support.pipeline.tables import TABLES, Values
from support.pipeline.tables import rows as written

TODAY = datetime(2026, 3, 10, tzinfo=UTC)
SOURCES = ("main", "second")
APPS = ("lothar.com/wormhole/text-or-file-xfer", "<b>app</b>", "=1+1", "\u001b[31m", "", "other")
RESULTS = ("happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded")
BLURS = (None, None, None, None, 1_000_000, 7_000_000, 60_000_000, 3_600_000_000, 7_000_000_000)
SECOND = 1_000_000


def busy_week(dice: Random, rows: int) -> Mapping[str, Sequence[tuple[Any, ...]]]:
    """Return about so many rows of each table."""
    return {
        "nameplates": [_ended(dice, place) for place in range(rows)],
        "mailboxes": [_mailbox(dice, place) for place in range(rows)],
        "client_versions": [_bind(dice, place) for place in range(rows)],
        "archived": list(_archived(dice, rows)),
        "envelopes": list(_envelopes(dice, rows)),
        **_logs(dice, rows),
        "timing": [_timed(dice, place) for place in range(rows)],
    }


def crowd(dice: Random, names: int) -> Mapping[str, Sequence[Values]]:
    """Return a day on which clients come with so many names of applications and versions, a few of them common."""
    app = [f"app {number}" for number in range(names)]
    ended = [*app, *dice.choices(app, k=names // 2), *["common"] * 10]
    binds = [{"app_id": f"app {number}", "version": f"1.{number}"} for number in range(names)]
    binds += [{"app_id": "common", "version": "1.0"}] * 10
    return {
        "nameplates": written("nameplates", [{"app_id": each} for each in ended]),
        "mailboxes": written("mailboxes", [{"app_id": each, "result": "scary"} for each in ended[::2]]),
        "client_versions": written("client_versions", binds),
    }


def _time(dice: Random, blur: int | None = None) -> datetime:
    """Return a moment, of the day for the most part; on a whole second or an hour more often than life has it."""
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
    return (place, "", _app(dice), time, *who, blur, time.date(), dice.choice(SOURCES))


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
                yield tuple(row[name] for name in _names("archived"))
                if made >= rows:
                    return


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
    """Return client logs of some forty commands, and the trace of one of their two servers, with gaps in both."""
    events: list[Values] = []
    commands: list[Values] = []
    for log in range(max(1, rows // 100)):
        offset, place, now = dice.uniform(-100, 100), 0, _time(dice).timestamp()
        server = dice.choice(("main", "second", None))
        for _ in range(40):
            now += dice.expovariate(1)
            name = f"{dice.randrange(1 << 16):04x}"
            add = dice.random() < 0.5
            rx = now + dice.expovariate(20)
            commit = rx + dice.expovariate(200) if add else None
            tx = (commit or rx) + dice.expovariate(1000)
            back = tx + dice.expovariate(20)
            command, phase = ("add", str(dice.randrange(4))) if add else ("open", None)
            mine = dice.random() < 0.8
            stamp = float(f"{tx:.6f}")
            said: list[tuple[str, float, str, str | None, float | None, float | None]]
            said = [("ws_send", now, command, phase, None, None)] * mine
            said += [("ws_receive", back, "ack", None, None, stamp)] * (mine and dice.random() < 0.9)
            said += [("ws_receive", back + 0.001, "message", phase, rx, stamp)] * (add and dice.random() < 0.9)
            for event, at, kind, of, came, told in said:
                own = mine if kind == "message" else None
                day = datetime.fromtimestamp(at + offset, UTC).date()
                events.append(
                    (
                        str(log),
                        place,
                        server,
                        event,
                        at + offset,
                        None,
                        None,
                        kind,
                        name,
                        of,
                        own,
                        came,
                        told,
                        day,
                        "logs",
                    )
                )
                place += 1
            if server == "main" and dice.random() < 0.9:
                day = datetime.fromtimestamp(rx, UTC).date()
                commands.append(("t", len(commands), 1, command, name, rx, commit, tx, day, "main"))
        events += [_span(dice, str(log), place + each, server, now + offset) for each in range(5)]
    return {"client_events": events, "server_commands": commands}


def _span(dice: Random, log: str, place: int, server: str | None, start: float) -> Values:
    name, waiting = dice.choice(
        (("input code", "user"), ("pake1", "crypto"), ("tx file", None), ("transit connect", None), ("import", None))
    )
    stop = dice.choice((None, start, start + dice.expovariate(0.1)))
    day = datetime.fromtimestamp(start, UTC).date()
    return (log, place, server, name, start, stop, waiting, *(None,) * 6, day, "logs")


def _timed(dice: Random, place: int) -> Values:
    us, day = dice.choice((None, -_long(dice), _long(dice))), _time(dice).date()
    server = dice.choice((None, "main"))
    return ("0", place, server, "add", dice.choice(("queue", "commit")), us, None, None, day, dice.choice(SOURCES))
