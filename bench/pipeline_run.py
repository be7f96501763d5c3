"""How long `restante pipeline run` takes, from exec to exit: a day of a small server, and nothing new.

python bench/pipeline_run.py [--rows N] [--days N] [--scratch DIR] [--arguments ...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from host import facts, scratch_root
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import Store

DAY_SECONDS = 86_400
RESULTS = np.array(["happy", "happy", "happy", "lonely", "errory", "scary", "pruney", "crowded"])
NAMEPLATE_RESULTS = np.array(["happy", "happy", "happy", "lonely", "pruney", "crowded"])
APPLICATIONS = np.array(["lothar.com/wormhole/text-or-file-xfer", *(f"app.example.org/{each}" for each in range(9))])
VERSIONS = np.array([f"0.{number}.0" for number in range(30)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000, help="of a day, in the three tables together")
    parser.add_argument("--days", type=int, default=5, help="days that are measured, after one that is not")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the server's data and the lake are")
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help="further arguments of `run`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-", dir=scratch_root(options.scratch)) as scratch:
        folder = Path(scratch)
        for name, value in facts(folder).items():
            print(f"{name:10} {value}")
        print(f"{'load':10} {os.getloadavg()[0]:.1f} before the run\n")
        asyncio.run(_make(folder / "server"))
        today = int(time.time()) // DAY_SECONDS
        days, nothing = [], []
        for day in range(options.days + 1):
            add_usage(folder / "server" / FILE, (today - options.days - 1 + day) * DAY_SECONDS, options.rows, day)
            days.append(_run(folder, options.arguments))
            nothing.append(_run(folder, options.arguments))
            print(f"day {day}: {days[-1]:.2f} s; nothing new: {nothing[-1]:.2f} s", flush=True)
        print(f"\na day of {options.rows:,} rows: {_shown(days[1:])}\nnothing new: {_shown(nothing[1:])}")


async def _make(data: Path) -> None:
    await Store.open(data).close()


def add_usage(database: Path, start: int, rows: int, seed: int | Sequence[int], late: float = 0.0) -> Counter[str]:
    """Add a day's usage records: four tenths mailboxes, three each nameplates and binds. Return how many of each.

    A share of them, `late`, began on the day before.
    """
    dice = np.random.default_rng(seed)

    def times(count: int) -> list[float]:
        at = start + np.sort(dice.random(count)) * DAY_SECONDS
        if late:
            at[dice.random(count) < late] -= DAY_SECONDS
        return [float(each) for each in at.round(6)]

    def waits(count: int) -> list[float | None]:
        return [
            each if paired else None
            for each, paired in zip(dice.lognormal(3, 2, count).tolist(), dice.random(count) < 0.8, strict=True)
        ]

    def apps(count: int) -> list[str]:
        return [str(each) for each in APPLICATIONS[dice.zipf(1.5, count) % len(APPLICATIONS)]]

    mailboxes, nameplates, binds = rows * 4 // 10, rows * 3 // 10, rows * 3 // 10
    with sqlite3.connect(database) as connection:
        waited = waits(mailboxes)
        connection.executemany(
            "INSERT INTO usage_mailboxes (app_id, for_nameplate, started, waiting_time, total_time, result, visitors,"
            " blur_time) VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
            zip(
                apps(mailboxes),
                (dice.random(mailboxes) < 0.8).astype(int).tolist(),
                times(mailboxes),
                waited,
                [(each or 0) + 5 for each in waited],
                RESULTS[dice.integers(0, len(RESULTS), mailboxes)].tolist(),
                strict=True,
            ),
        )
        waited = waits(nameplates)
        connection.executemany(
            "INSERT INTO usage_nameplates (app_id, started, waiting_time, total_time, result, blur_time)"
            " VALUES (?, ?, ?, ?, ?, 0)",
            zip(
                apps(nameplates),
                times(nameplates),
                waited,
                [(each or 0) + 2 for each in waited],
                NAMEPLATE_RESULTS[dice.integers(0, len(NAMEPLATE_RESULTS), nameplates)].tolist(),
                strict=True,
            ),
        )
        connection.executemany(
            "INSERT INTO usage_client_versions (app_id, side, connect_time, implementation, version, blur_time)"
            " VALUES (?, ?, ?, 'python', ?, 0)",
            zip(
                apps(binds),
                [f"{each:010x}" for each in range(binds)],
                times(binds),
                VERSIONS[dice.zipf(1.5, binds) % len(VERSIONS)].tolist(),
                strict=True,
            ),
        )
    connection.close()
    return Counter(mailboxes=mailboxes, nameplates=nameplates, client_versions=binds)


def _run(folder: Path, arguments: list[str]) -> float:
    command = [str(Path(sys.executable).with_name("restante")), "pipeline", "run"]
    command += ["--source", f"main={folder / 'server'}", "--lake", str(folder / "lake"), *arguments]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _shown(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s, the median of {len(seconds)} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
