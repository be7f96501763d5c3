"""Restante's mailbox server beside the reference server, in one run. See bench/README.md.

python bench/mailbox.py [--only NAME ...] [--quick] [--json FILE]
"""  # noqa: A005 - nothing here reads mail

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

import uvloop

import command
from figures import Results
from host import facts, scratch_root
from mailbox_scenarios import SCENARIOS, Run
from servers import Bench, ServerError, pin_generator
from wire import BadWireError


def arguments() -> argparse.Namespace:
    parser = command.parser(__doc__, SCENARIOS, sides="servers", quick="under a minute")
    parser.add_argument("--seconds", type=float, default=5, help="length of a measured window")
    parser.add_argument("--no-usage-db", action="store_true", help="reference without usage records")
    return parser.parse_args()


def plan(options: argparse.Namespace, bench: Bench) -> Run:
    quick = options.quick
    return Run(
        bench=bench,
        results=Results(filled=2_000 if quick else 50_000),
        kinds=command.kinds(options),
        rounds=1 if quick else options.rounds,
        warm_up=1 if quick else 2,
        seconds=1.5 if quick else options.seconds,
        idle=300 if quick else 3_000,
        probes=20 if quick else 200,
        prune_every=1 if quick else 5,
        prune_after=4 if quick else 10,
    )


async def measure(run: Run, names: list[str]) -> None:
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: run.results.failures.append(f"{context['message']}: {context.get('exception')!r}")
    )
    for name in names:
        run.tell(f"{name} ...")
        try:
            await SCENARIOS[name](run)
        except* (BadWireError, ServerError, TimeoutError) as group:
            run.results.failures.extend(f"{name}: {error!r}" for error in group.exceptions)
        finally:
            run.bench.kill_all()


def main() -> int:
    options = arguments()
    started = time.perf_counter()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with tempfile.TemporaryDirectory(prefix="mailbox-bench-", dir=scratch_root(options.scratch)) as scratch:
        machine = facts(Path(scratch))
        pin_generator()
        run = plan(options, Bench(Path(scratch), reference_usage=not options.no_usage_db))
        uvloop.run(measure(run, options.only))
    return command.report(options, machine, run.results, started)


if __name__ == "__main__":
    sys.exit(main())
