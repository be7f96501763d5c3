"""What the mailbox server's metrics, a Prometheus that scrapes them, and open dashboards cost. See bench/README.md.

python bench/mailbox_metrics.py [--rounds N] [--windows N] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec
import uvloop

from command import MAX_SHOWN_FAILURES
from host import facts, scratch_root
from mailbox_instructions import Instructions, instructions
from mailbox_load import Load
from mailbox_scenarios import AT_A_TIME
from servers import Bench, ServerError, free_port, pin_generator
from wire import HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from servers import Kind, Server

SCRAPE_SECONDS: Final = 1.0
"""Seconds between two scrapes. A usual Prometheus scrapes every 15 s."""

VIEWERS: Final = 3
"""Dashboards that are open."""

TARGET_PERCENT: Final = 1.0
"""What the metrics may cost of the server's CPU time at saturation."""


@dataclass(frozen=True)
class Subject:
    """One of the servers that are compared."""

    kind: Kind
    watched: bool = False
    """Whether a Prometheus and dashboards read it."""


SUBJECTS: Final = {
    "without metrics": Subject("unmeasured"),
    "with metrics": Subject("restante"),
    f"with metrics, a scrape each second and {VIEWERS} dashboards": Subject("restante", watched=True),
}
FIRST, MEASURED, _ = SUBJECTS


@dataclass
class Costs:
    """Milliseconds of CPU time of a session, by subject, one for each turn. A turn has a window of each subject."""

    turns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SUBJECTS})
    failures: list[str] = field(default_factory=list)
    instructions: Instructions | None = None
    """None: they are not counted, for lack of valgrind or of time."""

    def over(self, name: str) -> list[float]:
        """Return what a subject cost over the first in each turn, in percent."""
        return [100 * (cost / base - 1) for cost, base in zip(self.turns[name], self.turns[FIRST], strict=True)]

    def table(self) -> str:
        head = f"{'server':56}{'CPU ms a session':>18}{'over the first':>16}{'its median is within':>24}"
        lines = [*(self.instructions.lines() if self.instructions else ()), ""]
        lines.append(f"{head}   {len(self.turns[FIRST])} turns")
        for name, costs in self.turns.items():
            over = self.over(name)
            low, high = interval(over)
            lines.append(
                f"{name:56}{statistics.median(costs):18.3f}{statistics.median(over):+15.2f}%"
                f"{low:+14.2f} to {high:+5.2f}%"
            )
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """Judge by instructions if they are counted, else by CPU time, which other programs of the host disturb."""
        low, high = interval(self.over(MEASURED)) if self.instructions is None else 2 * (self.instructions.percent,)
        return "enough" if high < TARGET_PERCENT else "MISSED" if low >= TARGET_PERCENT else "undecided"


def interval(values: list[float]) -> tuple[float, float]:
    """Return the interval that has the median with a probability of 95 %, by ranks: no distribution is assumed."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = math.floor(len(values) / 2 - half), math.ceil(len(values) / 2 + half)
    return ordered[max(0, low)], ordered[min(len(values) - 1, high)]


async def measure(bench: Bench, costs: Costs, windows: int, seconds: float) -> None:
    """Run one round: start all servers, and load them in turns, in many short windows."""
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(running(bench, subject)) for name, subject in SUBJECTS.items()
        }
        names = list(SUBJECTS)
        for turn in range(windows + 1):
            found = {}
            for name in names if turn % 2 else names[::-1]:
                load = Load(servers[name])
                window = await load.closed_loop(AT_A_TIME, warm_up=0.5, seconds=seconds)
                costs.failures += load.failures
                if not window.sessions or not window.server_cpu:
                    raise ServerError(f"{name}: no session in {seconds} s; failures so far: {costs.failures[:3]}")
                found[name] = 1e3 * window.server_cpu / window.sessions
            if turn:  # the first warms up
                for name, cost in found.items():
                    costs.turns[name].append(cost)


@asynccontextmanager
async def running(bench: Bench, subject: Subject) -> AsyncIterator[Server]:
    """Run a server, and what watches it."""
    port = free_port()
    server = await bench.start(subject.kind, bench.folder(), "--admin", f"{HOST}:{port}")
    async with aiohttp.ClientSession(f"http://{HOST}:{port}") as http:
        watching = [scrape(http), *(view(http) for _ in range(VIEWERS))] if subject.watched else []
        tasks = [asyncio.create_task(each) for each in watching]
        try:
            yield server
            for task in tasks:
                if task.done():
                    task.result()  # raises why it ended
            counted = await commands(http)
            if (counted > 0) != (subject.kind == "restante"):
                raise ServerError(f"{subject.kind} counted {counted:.0f} commands")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()


async def commands(http: aiohttp.ClientSession) -> float:
    """Return how many commands the metrics of a server count."""
    async with http.get("/metrics", raise_for_status=True) as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("restante_commands_total{"))


async def scrape(http: aiohttp.ClientSession) -> None:
    """Read the metrics again and again, as Prometheus does."""
    while True:
        async with http.get("/metrics", raise_for_status=True) as response:
            await response.read()
        await asyncio.sleep(SCRAPE_SECONDS)


async def view(http: aiohttp.ClientSession) -> None:
    """Read the events of the dashboard."""
    async with http.get("/events", raise_for_status=True, timeout=aiohttp.ClientTimeout(total=None)) as response:
        async for _ in response.content.iter_any():
            pass
    raise ServerError("the server ended the events of a dashboard")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often the servers are started anew")
    parser.add_argument("--windows", type=int, default=12, help="windows of each server in a round, by turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--quick", action="store_true", help="half a minute, without instructions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round to FILE")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the servers keep their data")
    return parser.parse_args(words)


async def run(options: argparse.Namespace, bench: Bench) -> Costs:
    """Run all rounds."""
    rounds, windows, seconds = (1, 2, 1.5) if options.quick else (options.rounds, options.windows, options.seconds)
    costs = Costs()
    try:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            await measure(bench, costs, windows, seconds)
        if shutil.which("valgrind") and not options.quick:
            print("counting instructions", file=sys.stderr, flush=True)
            costs.instructions = await instructions(bench, 10 * seconds)
    finally:
        bench.kill_all()
    return costs


def main() -> int:
    options, started = arguments(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="metrics-bench-", dir=scratch_root(options.scratch)) as scratch:
        machine = facts(Path(scratch))
        pin_generator()
        costs = uvloop.run(run(options, Bench(Path(scratch), reference_usage=False)))
    for name, fact in machine.items():
        print(f"{name:10} {fact}")
    print(f"\n{costs.table()}\n")
    print(
        f"the metrics cost less than {TARGET_PERCENT:.0f} %: {costs.verdict}; {time.perf_counter() - started:.0f} s"
    )
    for failure in costs.failures[:MAX_SHOWN_FAILURES]:
        print(f"FAILED  {failure}")
    if options.json:
        over = {name: costs.over(name) for name in SUBJECTS}
        content = {"machine": machine, "turns": costs.turns, "over": over, "failures": costs.failures}
        content["instructions"] = costs.instructions
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    return 1 if costs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
