"""What is lost if a mailbox server's machine is lost, and another one goes on with a copy. See bench/README.md.

python bench/mailbox_standby.py [--copy COMMAND] [--beside COMMAND --after COMMAND] [--restarts N] [--every N]
    [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import random
import shlex
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvloop

import words
from host import facts, scratch_root
from mailbox_connection import Connection
from servers import Bench
from wire import BadWireError

if TYPE_CHECKING:
    from servers import Server

SENDERS: Final = 8
ADDS_PER_SECOND: Final = 25.0
"""Of each sender."""

BODY: Final = "0" * 300
RESTANTE: Final = f"{sys.executable} -m restante"
BACKUP: Final = RESTANTE + " backup {copy} --data {data}"
LIMITS: Final = ("--limit", "mailbox_messages=0", "--limit", "mailbox_bytes=0", "--limit", "address_bytes=0")
COMMAND_SECONDS: Final = 300.0
KILLED: Final = (("server",), ("beside",), ("server", "beside"))
"""What is killed and started again, one of these each time."""

END_SECONDS: Final = 30.0
"""How long a program beside the server may take to end."""


@dataclass
class Sender:
    """A client that adds messages at a steady rate, whether or not the last was answered in time."""

    mailbox: str
    acked: list[float] = field(default_factory=list)
    """When each message was acknowledged; its phase is its place."""
    delays: list[float] = field(default_factory=list)

    async def run(self, port: int) -> None:
        """Add messages until the server ends. Continues after the last message that was acknowledged."""
        connection = Connection(port)
        connection.side = self.mailbox  # a mailbox has two sides, however often they connect
        try:
            await connection.greet()
            await connection.bind()
            await connection.call(words.Ack, "open", mailbox=self.mailbox)
            due = time.perf_counter()
            while True:
                due += random.expovariate(ADDS_PER_SECOND)
                await asyncio.sleep(due - time.perf_counter())
                await connection.call(words.Ack, "add", phase=str(len(self.acked)), body=BODY)
                self.acked.append(time.perf_counter())
                self.delays.append(self.acked[-1] - due)
        except BadWireError:
            connection.end()

    def acked_before(self, moment: float) -> int:
        return bisect.bisect_left(self.acked, moment)


@dataclass
class Copy:
    """A copy of the data, and when it was made."""

    path: Path
    began: float
    ended: float
    error: str = ""
    """What the command said, if it failed, or else `restante restore`, if that refused the copy."""


@dataclass
class Verdict:
    """What a server that goes on with a copy would have."""

    usable: bool
    lost: int = 0
    """Acknowledged messages that it lacks."""
    lost_seconds: float = 0.0
    """The time from the acknowledgement of the first of these to the end of the server."""
    lost_before: int = 0
    """Those that were acknowledged before the copy was begun."""


def call(command: str, data: Path, copy: Path) -> subprocess.CompletedProcess[str]:
    said = command.format(data=data, copy=copy)
    return subprocess.run(["sh", "-c", said], capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)


def start_beside(command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def judge(copy: Copy, senders: list[Sender], end: float) -> Verdict:
    """Restore a copy, and compare it with what the server had acknowledged when it ended."""
    file = copy.path / "restante.sqlite" if copy.path.is_dir() else copy.path
    with tempfile.TemporaryDirectory(dir=copy.path.parent) as name:
        words = [*shlex.split(RESTANTE), "restore", str(file), "--data", f"{name}/new"]
        if copy.error:
            return Verdict(usable=False)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            copy.error = done.stderr
            return Verdict(usable=False)
        with contextlib.closing(sqlite3.connect(f"{name}/new/restante.sqlite")) as database:
            query = "SELECT mailbox_id, phase FROM messages JOIN mailboxes ON mailbox = mailboxes.key"
            there = {(mailbox, msgspec.json.decode(phase)) for mailbox, phase in database.execute(query)}
    found = Verdict(usable=True)
    for sender in senders:
        missing = [n for n in range(len(sender.acked)) if (sender.mailbox, str(n)) not in there]
        found.lost += len(missing)
        found.lost_before += sum(n < sender.acked_before(copy.began) for n in missing)
        found.lost_seconds = max([found.lost_seconds, *(end - sender.acked[n] for n in missing)])
    return found


async def copies(options: argparse.Namespace, data: Path, folder: Path, made: list[Copy]) -> None:
    """Make a copy every so many seconds, until the time is over."""
    end = time.perf_counter() + options.seconds * random.uniform(0.75, 1)
    while (left := end - time.perf_counter()) > 0:
        await asyncio.sleep(min(options.every, left))
        if options.copy and end > time.perf_counter():
            copy = folder / f"copy-{len(made)}"
            began = time.perf_counter()
            done = await asyncio.to_thread(call, options.copy, data, copy)
            made.append(Copy(copy, began, time.perf_counter(), done.stderr if done.returncode else ""))


async def one_round(options: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    """Serve clients, copy, kill the server, and judge the copies.

    With `--restarts`, the server and the program beside it are killed and started again before that.
    """
    data, folder = bench.folder(), bench.folder()
    senders = [Sender(f"mailbox-{n}") for n in range(SENDERS)]
    running: list[asyncio.Task[None]] = []
    made: list[Copy] = []
    server: Server | None = None
    beside: subprocess.Popen[bytes] | None = None
    end = 0.0
    kills = {"server": 0, "beside": 0}
    try:
        for left in reversed(range(options.restarts + 1)):
            if server is None:
                server = await bench.start("restante", data, *LIMITS)
                running = [asyncio.create_task(each.run(server.port)) for each in senders]
            if options.beside and beside is None:
                beside = start_beside(options.beside.format(data=data, copy=folder / "replica"))
            await copies(options, data, folder, made)
            killed = random.choice(KILLED) if left and beside else KILLED[-1]  # at last the machine: both end at once
            if beside and "beside" in killed:
                beside.kill()
                kills["beside"] += 1
            if "server" in killed:
                server.kill()
                kills["server"] += 1
                end = time.perf_counter()
                await asyncio.gather(*running)
                server = None
            if beside and "beside" in killed:
                beside.wait(END_SECONDS)
                beside = None
    finally:
        if beside is not None:
            beside.kill()
            beside.wait(END_SECONDS)
    wal = data / "restante.sqlite-wal"
    if options.after:
        copy = folder / "restored"
        began = time.perf_counter()
        done = call(options.after, folder / "replica", copy)
        made.append(Copy(copy, end, time.perf_counter() + end - began, done.stderr if done.returncode else ""))
    verdicts = [judge(each, senders, end) for each in made]
    finished = [verdict for copy, verdict in zip(made, verdicts, strict=True) if copy.ended <= end or options.after]
    delays = sorted(each for sender in senders for each in sender.delays)
    return {
        "acknowledged": sum(len(each.acked) for each in senders),
        "copies": len(made),
        "kills": kills,
        "wal_bytes": wal.stat().st_size if wal.exists() else 0,
        "unusable": sum(not each.usable for each in verdicts),
        "incomplete": sum(each.lost_before > 0 for each in verdicts) if not options.after else 0,
        "lost": finished[-1].lost if finished and finished[-1].usable else None,
        "lost_seconds": finished[-1].lost_seconds if finished and finished[-1].usable else None,
        "copy_seconds": statistics.median(copy.ended - copy.began for copy in made) if made else None,
        "add_ms": 1000 * statistics.median(delays),
        "slowest_add_ms": 1000 * delays[-1],
        "errors": sorted({copy.error.strip()[-200:] for copy in made if copy.error}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--copy", default=BACKUP, metavar="COMMAND", help="makes {copy} of {data}; empty: none")
    parser.add_argument("--beside", default="", metavar="COMMAND", help="runs beside the server, and writes {copy}")
    parser.add_argument("--after", default="", metavar="COMMAND", help="makes {copy} of what --beside wrote, {data}")
    parser.add_argument("--every", type=float, default=5, metavar="N", help="seconds between two copies")
    parser.add_argument(
        "--seconds", type=float, default=20, metavar="N", help="until a kill, at most; 75 %% at least"
    )
    parser.add_argument(
        "--restarts", type=int, default=0, metavar="N", help="kills before the last one, in each round"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the servers keep their data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=scratch_root(options.scratch)) as name:
        scratch = Path(name)
        machine = facts(scratch)
        bench = Bench(scratch, reference_usage=True, counts_flushes=False)
        try:
            rounds = [uvloop.run(one_round(options, bench)) for _ in range(options.rounds)]
        finally:
            bench.kill_all()
    for title, fact in machine.items():
        print(f"{title:10} {fact}")
    for number, found in enumerate(rounds):
        shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in found.items()}
        print(f"\nround {number}", *(f"  {key:16} {value}" for key, value in shown.items()), sep="\n")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "rounds": rounds})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
