"""Restante's Mailserver over real RLPx: what it costs. See bench/README.md.

python bench/waku.py [--only NAME ...] [--window N] [--packet N] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import uvloop

from host import facts, scratch_root
from restante.waku.devp2p import enode
from restante.waku.devp2p.enode import Enode
from servers import Bench, Server, ServerError, pin_generator
from waku_history import hashes_per_second, percentile
from waku_pages import Pages
from waku_peer import BenchPeer, envelopes

SENDERS = 4
PACKET = 10
"""Envelopes in a packet of `ingest`, unless `--packet` says otherwise."""
WINDOW = 16
"""Packets that a sender of `ingest` leaves unconfirmed, unless `--window` says otherwise.

Real senders wait for nothing.
"""


@dataclass(frozen=True)
class Figure:
    """A line of the table: what status-go 0.x took on another machine, once; and what we are to take at most.

    If higher is better, the bounds are what we are to reach.
    """

    title: str
    status_go: str = ""
    at_least: float | None = None
    aim: float | None = None
    higher_is_better: bool = False


def _pages(name: str, headed: Figure, p99: Figure | None = None, *, by: str = "p50") -> dict[str, Figure]:
    """Give the lines of a kind of page: the one that its target is of, and what explains it."""
    below = {
        "p50": Figure("  p50 at the client, ms"),
        "p99": p99 or Figure("  p99, ms"),
        "cpu": Figure("  server CPU, ms"),
        "envelopes": Figure("  envelopes a page"),
        "busy": Figure("  generator's share of its cpu"),
    }
    del below[by]
    return {f"{name}_{part}": figure for part, figure in {by: headed, **below}.items()}


RATE_TARGET = {(4, 10): 12_000.0}
"""Envelopes a second that `ingest_rate` is to reach at least, by window and packet. Others have no target."""

FIGURES = {
    "ingest": Figure("ingest of {n}, CPU µs an envelope, confirmed after fsync", "42 (without fsync)", 40, 28),
    "ingest_rate": Figure("  envelopes/s, {window} packets of {packet} unconfirmed", higher_is_better=True),
    "ingest_ack_p50": Figure("  confirmation p50, ms"),
    "ingest_ack_p99": Figure("  confirmation p99, ms"),
    "ingest_flushes": Figure("  envelopes a flush"),
    "ingest_peak": Figure("  peak resident, MiB"),
    "ingest_disk": Figure("  disk, bytes an envelope"),
    "crowd": Figure("200 envelopes/s with {idle} idle peers, CPU ms an envelope", "13.7, saturated", 0.5, 0.2),
    "crowd_ack_p50": Figure("  confirmation p50, ms"),
    "crowd_ack_p99": Figure("  confirmation p99, ms"),
    "idle_kib": Figure("idle peer, resident KiB", "60", 35, 25),
    "handshake": Figure("handshake, CPU µs", "450-490", 600, 450),
    "handshake_rate": Figure("  handshakes/s"),
    **_pages(
        "page_three",
        Figure("{n}, {topics} topics: 1-3 of them, p50, ms", "427", 5, 2),
        Figure("  p99, ms", "482", 15, 5),
    ),
    **_pages(
        "page_crowd", Figure("  the same, 8 clients at once, p50, ms", "3,350", 40, 20), Figure("  p99, ms", "3,855")
    ),
    **_pages("page_day", Figure("  the same, the newest day, p50, ms", "11.8"), Figure("  p99, ms", "23")),
    **_pages("page_bloom", Figure("bloom of 1-3 topics, p50, ms", "483", 10, 4), Figure("  p99, ms", "618")),
    **_pages("page_ten", Figure("10 topics, page of 1,000, CPU ms", "176", 12, 6), by="cpu"),
    **_pages("page_many", Figure("500 topics, page of 1,000, CPU ms", "6.5", 12, 6), by="cpu"),
    **_pages("page_half", Figure("bloom half full, page of 1,000, CPU ms", "6.5", 12, 6), by="cpu"),
    "page_all": Figure("everything, page after page, CPU µs an envelope", "1.8", 4, 2.7),
    "page_peak": Figure("  peak resident, MiB"),
    **_pages("page_million", Figure("{n} different topics: 1-3 of them, p50, ms", "", 10, 4)),
    **_pages("page_million_bloom", Figure("  bloom of 1-3, p50, ms")),
}


@dataclass
class Run:
    bench: Bench
    rounds: int
    envelopes: int
    idle: int
    handshakes: int
    seconds: float
    topics: int
    pages: int
    window: int
    packet: int
    values: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, figure: str, value: float) -> None:
        self.values.setdefault(figure, []).append(value)
        print(f"  {figure} {value:.4g}", file=sys.stderr)

    async def start(self, *flags: str, data: Path | None = None) -> tuple[Server, Enode]:
        """Start a server on an empty folder, or on what was made for it; `flags` come last, and so decide."""
        wide = ("--max-peers", "20000", "--max-peers-per-address", "20000", "--min-pow", "0", "--max-ttl", "4000000")
        limits = [part for name in ("bytes", "envelopes", "connects") for part in ("--limit", f"address_{name}=0")]
        server = await self.bench.start(
            "waku", data or self.bench.folder(), *wide, *limits, "--retention", "60", *flags
        )
        return server, enode.parse(server.log.read_text().split("\n", 1)[0])

    def figure(self, name: str) -> Figure:
        """Return a figure with the targets that it has in this run."""
        if name == "ingest_rate":
            return replace(FIGURES[name], at_least=RATE_TARGET.get((self.window, self.packet)))
        return FIGURES[name]

    def table(self) -> str:
        head = ("figure", "restante", "status-go, elsewhere", "at least", "aim", "verdict")
        rows = [head, tuple("-" * len(word) for word in head)]
        for name in FIGURES:
            if name not in self.values:
                continue
            figure = self.figure(name)
            value = statistics.median(self.values[name])
            title = figure.title.format(
                n=f"{self.envelopes:,}",
                topics=f"{self.topics:,}",
                idle=f"{self.idle:,}",
                window=self.window,
                packet=self.packet,
            )
            bounds = ["" if bound is None else f"{bound:,g}" for bound in (figure.at_least, figure.aim)]
            rows.append(
                (
                    title,
                    f"{value:.3g}" if value < 1000 else f"{value:,.0f}",
                    figure.status_go,
                    *bounds,
                    verdict(figure, value),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )


def verdict(figure: Figure, value: float) -> str:
    if figure.at_least is None:
        return ""
    sign = -1 if figure.higher_is_better else 1
    if figure.aim is not None and sign * value <= sign * figure.aim:
        return "aim"
    return "enough" if sign * value <= sign * figure.at_least else "MISSED"


def parted(raws: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while part := list(itertools.islice(raws, size)):
        yield part


async def ingest(run: Run) -> None:
    """Closed loop, to a full archive."""
    server, node = await run.start()
    peers = [await BenchPeer(node).connect() for _ in range(SENDERS)]
    packets = parted(envelopes(run.envelopes, ahead=300), run.packet)
    before, flushes, started = server.cpu(), server.flushes(), time.perf_counter()
    await asyncio.gather(*(peer.pour(packets, run.window) for peer in peers))
    seconds = time.perf_counter() - started
    await asyncio.sleep(3)  # checkpoints are part of the cost
    run.add("ingest", (server.cpu() - before) / run.envelopes * 1e6)
    run.add("ingest_rate", run.envelopes / seconds)
    delays = [each for peer in peers for each in peer.delays]
    run.add("ingest_ack_p50", percentile(delays, 0.5) * 1e3)
    run.add("ingest_ack_p99", percentile(delays, 0.99) * 1e3)
    run.add("ingest_flushes", run.envelopes / max(1, server.flushes() - flushes))
    run.add("ingest_peak", server.peak() / 1024**2)
    for peer in peers:
        peer.leave()
    await server.stop()
    run.add("ingest_disk", sum(file.stat().st_size for file in server.data.iterdir()) / run.envelopes)


async def crowd(run: Run) -> None:
    """200 envelopes a second, one in a packet, from two senders, beside many peers that only sit there."""
    server, node = await run.start()
    idle = await gather_in_turns([BenchPeer(node).connect for _ in range(run.idle)])
    senders = [await BenchPeer(node).connect() for _ in range(2)]
    count = int(run.seconds * 200)
    before = server.cpu()
    started = time.perf_counter()
    for number, raw in enumerate(envelopes(count, ahead=60)):
        await asyncio.sleep(max(0.0, started + number / 200 - time.perf_counter()))
        senders[number % 2].hand_over([raw])
    for sender in senders:
        await sender.pour(iter(()), 0)
    run.add("crowd", (server.cpu() - before) / count * 1e3)
    delays = [each for sender in senders for each in sender.delays]
    run.add("crowd_ack_p50", percentile(delays, 0.5) * 1e3)
    run.add("crowd_ack_p99", percentile(delays, 0.99) * 1e3)
    for peer in [*idle, *senders]:
        peer.leave()
    await server.stop()


async def peers(run: Run) -> None:
    """Handshakes, 32 at a time; and what those who came take who then say nothing."""
    server, node = await run.start()
    await gather_in_turns([BenchPeer(node).connect for _ in range(50)])  # what the first ones load is not theirs
    before, resident, started = server.cpu(), server.rss(), time.perf_counter()
    peers = await gather_in_turns([BenchPeer(node).connect for _ in range(run.handshakes)])
    seconds = time.perf_counter() - started
    run.add("handshake", (server.cpu() - before) / run.handshakes * 1e6)
    run.add("handshake_rate", run.handshakes / seconds)
    await asyncio.sleep(1)
    run.add("idle_kib", (server.rss() - resident) / run.handshakes / 1024)
    for peer in peers:
        peer.leave()
    await server.stop()


async def gather_in_turns(makers: list[Callable[[], Awaitable[BenchPeer]]], at_once: int = 32) -> list[BenchPeer]:
    found: list[BenchPeer] = []
    for start in range(0, len(makers), at_once):
        found += await asyncio.gather(*(make() for make in makers[start : start + at_once]))
    return found


Scenario = Callable[[Run], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {"ingest": ingest, "crowd": crowd, "peers": peers, "history": Pages(None)}


async def measure(run: Run, names: list[str]) -> None:
    for number in range(run.rounds):
        for name in names:
            print(f"{name}, round {number + 1} ...", file=sys.stderr)
            try:
                await SCENARIOS[name](run)
            except (ServerError, OSError, TimeoutError, AssertionError) as error:
                run.failures.append(f"{name}: {error!r}")
            finally:
                run.bench.kill_all()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envelopes", type=int, default=1_000_000)
    parser.add_argument(
        "--window",
        type=int,
        default=WINDOW,
        metavar="N",
        help="packets that each sender of `ingest` leaves unconfirmed",
    )
    parser.add_argument("--packet", type=int, default=PACKET, metavar="N", help="envelopes in a packet of `ingest`")
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument(
        "--archives", type=Path, metavar="DIR", help="where those of `history` are kept for the next run"
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the server keeps its data")
    options = parser.parse_args()
    started = time.perf_counter()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    quick = options.quick
    with tempfile.TemporaryDirectory(prefix="waku-bench-", dir=scratch_root(options.scratch)) as scratch:
        machine = facts(Path(scratch))
        machine["keccak"] = f"{hashes_per_second():,.0f} hashes/s of 300 bytes"
        pin_generator()
        SCENARIOS["history"] = Pages(options.archives)
        run = Run(
            Bench(Path(scratch), reference_usage=False),
            rounds=1 if quick else options.rounds,
            envelopes=20_000 if quick else options.envelopes,
            topics=500 if quick else 5000,
            pages=40 if quick else 200,
            idle=100 if quick else 1000,
            handshakes=200 if quick else 2000,
            seconds=2 if quick else 20,
            window=options.window,
            packet=options.packet,
        )
        uvloop.run(measure(run, options.only))
    for name, fact in machine.items():
        print(f"{name:10} {fact}")
    print(f"\n{run.table()}\n\n{time.perf_counter() - started:.0f} s")
    for failure in run.failures[:20]:
        print(f"FAILED  {failure}")
    if options.json:
        report = {"machine": machine, "figures": run.values, "failures": run.failures}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
