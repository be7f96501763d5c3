"""Restante's Mailserver over real RLPx: what it costs. See bench/README.md.

python bench/waku.py [--only NAME ...] [--window N] [--packet N] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import uvloop

from host import facts, scratch_root
from servers import Bench, ServerError, pin_generator
from waku_figures import Run
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
