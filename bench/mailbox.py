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

import msgspec
import uvloop

from figures import Results
from host import facts, scratch_root
from mailbox_scenarios import SCENARIOS, Run
from servers import KINDS, Bench, ServerError, pin_generator
from wire import BadWireError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--against", choices=(*KINDS, "both"), default="both", help="which servers to run")
    parser.add_argument("--seconds", type=float, default=5, help="length of a measured window")
    parser.add_argument("--rounds", type=int, default=5, help="of each server, by turns")
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument("--no-usage-db", action="store_true", help="reference without usage records")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the servers keep their data")
    return parser.parse_args()


def plan(options: argparse.Namespace, bench: Bench) -> Run:
    quick = options.quick
    return Run(
        bench=bench,
        results=Results(filled=2_000 if quick else 50_000),
        kinds=KINDS if options.against == "both" else (options.against,),
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
    for name, fact in machine.items():
        print(f"{name:10} {fact}")
    print(f"\n{run.results.table()}\n\n{time.perf_counter() - started:.0f} s")
    for failure in run.results.failures[:20]:
        print(f"FAILED  {failure}")
    if options.json:
        report = {"machine": machine, "figures": run.results.as_json(), "failures": run.results.failures}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    return 1 if run.results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
