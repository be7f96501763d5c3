"""Restante's client beside the Python client, magic-wormhole, in one run. See bench/README.md.

python bench/client.py [--only NAME ...] [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from client_figures import FIGURES
from client_scenarios import SCENARIOS, Run, WrongError
from figures import Results
from host import facts, scratch_root
from servers import KINDS, Bench, ServerError, pin_generator

LIBRARIES = (
    *("restante", "magic-wormhole", "picows", "uvloop", "msgspec", "pynacl", "cryptography"),
    *("twisted", "autobahn", "spake2"),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--against", choices=(*KINDS, "both"), default="both", help="which clients to run")
    parser.add_argument("--rounds", type=int, default=5, help="of each client, by turns")
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the server keeps its data")
    return parser.parse_args()


async def measure(run: Run, names: list[str]) -> None:
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            await SCENARIOS[name](run)
        except (WrongError, ServerError, OSError, TimeoutError) as error:
            run.results.failures.append(f"{name}: {error!r}")
        finally:
            run.bench.kill_all()


def main() -> int:
    options = arguments()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="client-bench-", dir=scratch_root(options.scratch)) as scratch:
        machine = facts(Path(scratch), LIBRARIES)
        pin_generator()
        quick = options.quick
        run = Run(
            bench=Bench(Path(scratch), reference_usage=False, counts_flushes=False),
            results=Results(filled=100 if quick else 1_000, figures=FIGURES),
            kinds=KINDS if options.against == "both" else (options.against,),
            rounds=1 if quick else options.rounds,
            exchanges=3 if quick else 50,
            messages={"restante": 500 if quick else 50_000, "reference": 200 if quick else 5_000},
            starts=1 if quick else 5,
        )
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
