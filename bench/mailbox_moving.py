"""How long upgrades, backups, and an import from the reference server take. See bench/README.md.

python bench/mailbox_moving.py [--mailboxes N] [--records N] [--rounds N] [--json FILE] [--scratch DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.resources
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import uvloop

import words
from host import facts, scratch_root
from mailbox_connection import Connection
from mailbox_prefill import fill_reference, filled_restante
from restante.mailbox.store.schema import APPLICATION_ID, FILE, migrations
from servers import CHANNEL_DB, Bench, ServerError
from wire import BadWireError

LIVE: Final = 1_000
"""Live mailboxes of the reference server, with four messages each."""

DAYS: Final = 730
"""So old are the oldest usage records."""

LAST: Final = 1_790_000_000
"""When the newest usage record was made, in seconds since 1970."""

START_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.002


def command(*said: str | Path) -> float:
    """Run `restante`, and return the seconds that it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "restante", *map(str, said)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def first_welcome(bench: Bench, data: Path) -> float:
    """Start a server, and return the seconds until the first welcome."""
    server = bench.spawn("restante", data)
    while True:
        connection = Connection(server.port)
        try:
            await connection.greet()
        except BadWireError:
            server.check()
            if time.perf_counter() > server.started + START_SECONDS:
                raise ServerError("the server does not listen") from None
            await asyncio.sleep(POLL_SECONDS)
        else:
            break
    found = time.perf_counter() - server.started
    connection.end()
    await server.stop()
    return found


async def drain(bench: Bench, data: Path) -> float:
    """Return the seconds from SIGTERM to the end of a server with 100 idle clients."""
    server = await bench.start("restante", data)
    clients = [Connection(server.port) for _ in range(100)]
    for each in clients:
        await each.greet()
        await each.bind()
    began = time.perf_counter()
    await server.stop()
    return time.perf_counter() - began


# ── databases ────────────────────────────────────────────────────────────────────────────────────


def usage_records(count: int) -> Iterator[tuple[str, float, float, float, str]]:
    """Yield app id, start, waiting time, total time and result of records, in the order of their starts."""
    dice = random.Random(1)
    for number in range(count):
        started = LAST - DAYS * 86_400 * (1 - number / count)
        yield words.APPID, int(started), dice.randrange(1, 300), dice.randrange(300, 600), "happy"


def versions(count: int) -> Iterable[tuple[str, str, float, str, str]]:
    return (
        (app, f"side{n:08x}", started, "python", "0.24.0")
        for n, (app, started, *_) in enumerate(usage_records(count))
    )


def reference_usage(file: Path, count: int) -> None:
    """Write a usage database of the reference server, with so many records of each kind."""
    schema = importlib.resources.files("wormhole_mailbox_server").joinpath("db-schemas/usage-v2.sql")
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.executescript(schema.read_text(encoding="utf-8"))
        db.execute("INSERT INTO version VALUES (2)")
        db.executemany("INSERT INTO nameplates VALUES (?, ?, ?, ?, ?)", usage_records(count))
        db.executemany(
            "INSERT INTO mailboxes (app_id, for_nameplate, started, waiting_time, total_time, result)"
            " VALUES (?, 1, ?, ?, ?, ?)",
            usage_records(count),
        )
        db.executemany("INSERT INTO client_versions VALUES (?, ?, ?, ?, ?)", versions(count))


def reference_messages(file: Path) -> None:
    """Add four messages to each live mailbox."""
    rows = (
        (words.APPID, f"mailbox{n:06d}", f"filler-{n}", str(phase), "0" * 300, int(time.time()), None)
        for n in range(1, LIVE + 1)
        for phase in range(4)
    )
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.executemany(
            "INSERT INTO messages (app_id, mailbox_id, side, phase, body, server_rx, msg_id) VALUES (?,?,?,?,?,?,?)",
            rows,
        )


def oldest_schema(data: Path, count: int) -> None:
    """Write a database of version 1 of our own schema, with so many records of each kind."""
    with contextlib.closing(sqlite3.connect(data / FILE)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(migrations()[0])
        db.execute("PRAGMA user_version = 1")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        with db:
            columns = "(app_id, started, waiting_time, total_time, result)"
            db.executemany(f"INSERT INTO usage_nameplates {columns} VALUES (?, ?, ?, ?, ?)", usage_records(count))
            db.executemany(
                "INSERT INTO usage_mailboxes (app_id, for_nameplate, started, waiting_time, total_time, result)"
                " VALUES (?, 1, ?, ?, ?, ?)",
                usage_records(count),
            )
            columns = "(app_id, side, connect_time, implementation, version)"
            db.executemany(f"INSERT INTO usage_client_versions {columns} VALUES (?, ?, ?, ?, ?)", versions(count))


# ── the measurements ─────────────────────────────────────────────────────────────────────────────


async def measure(options: argparse.Namespace, bench: Bench) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each step, by round, and sizes in MB."""
    found: dict[str, list[float]] = {}
    filled = await filled_restante(bench, options.mailboxes)
    theirs = bench.folder()
    fill_reference(theirs, LIVE)
    reference_messages(theirs / CHANNEL_DB)
    reference_usage(theirs / "usage.sqlite", options.records)
    old = bench.folder()
    oldest_schema(old, options.records)
    sizes = {"reference": theirs / "usage.sqlite", "oldest": old / FILE}
    for number in range(options.rounds):
        data, copy = bench.folder(filled), bench.folder()
        imported = copy / "imported"
        steps = {
            "SIGTERM to exit": await drain(bench, data),
            "start to the first welcome": await first_welcome(bench, data),
            "start without mailboxes": await first_welcome(bench, bench.folder()),
            "start that converts version 1": await first_welcome(bench, bench.folder(old)),
            "import": command(
                "import", "--channel", theirs / CHANNEL_DB, "--usage", theirs / "usage.sqlite", "--data", imported
            ),
            "start after the import": await first_welcome(bench, imported),
            "backup": command("backup", copy / "backup", "--data", imported),
            "restore": command("restore", copy / "backup", "--data", copy / "restored"),
            "export": command("export", copy / "usage.sqlite", "--data", imported),
        }
        sizes["imported"] = imported / FILE
        for name, seconds in steps.items():
            found.setdefault(name, []).append(seconds)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    return found, {name: file.stat().st_size / 1e6 for name, file in sizes.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mailboxes", type=int, default=50_000, metavar="N", help="live mailboxes at a restart")
    parser.add_argument("--records", type=int, default=500_000, metavar="N", help="usage records of each kind")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the servers keep their data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=scratch_root(options.scratch)) as name:
        machine = facts(Path(name))
        bench = Bench(Path(name), reference_usage=True, counts_flushes=False)
        try:
            found, sizes = uvloop.run(measure(options, bench))
        finally:
            bench.kill_all()
    for title, fact in machine.items():
        print(f"{title:10} {fact}")
    print(*(f"{title:32} {size:10,.0f} MB" for title, size in sizes.items()), sep="\n")
    for title, seconds in found.items():
        print(f"{title:32} {statistics.median(seconds):10.2f} s   {', '.join(f'{each:.2f}' for each in seconds)}")
    if options.json:
        options.json.write_bytes(msgspec.json.encode({"machine": machine, "seconds": found, "megabytes": sizes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
