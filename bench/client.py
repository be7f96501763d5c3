"""Restante's client beside the Python client, magic-wormhole, in one run. See bench/README.md.

python bench/client.py [--only NAME ...] [--rounds N] [--quick] [--json FILE] [--rust BINARY]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import uvloop

import command
from client_figures import FIGURES
from client_files import FILE_SCENARIOS
from client_scenarios import SCENARIOS, Run, WrongError
from figures import Results
from host import facts, scratch_root
from servers import Bench, ServerError, pin_generator

LIBRARIES = (
    *("restante", "magic-wormhole", "picows", "uvloop", "msgspec", "pynacl", "cryptography"),
    *("twisted", "autobahn", "spake2"),
)

MEASURED = {**SCENARIOS, **FILE_SCENARIOS}


async def measure(run: Run, names: list[str]) -> None:
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            await MEASURED[name](run)
        except (WrongError, ServerError, OSError, TimeoutError) as error:
            run.results.failures.append(f"{name}: {error!r}")
        finally:
            run.bench.kill_all()


def main() -> int:
    parser = command.parser(__doc__, MEASURED, sides="clients", quick="some seconds")
    parser.add_argument("--rust", type=Path, metavar="BINARY", help="measure magic-wormhole.rs, too")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="client-bench-", dir=scratch_root(options.scratch)) as scratch:
        machine = facts(Path(scratch), LIBRARIES)
        pin_generator()
        quick = options.quick
        run = Run(
            bench=Bench(Path(scratch), reference_usage=False, counts_flushes=False),
            results=Results(filled=100 if quick else 1_000, figures=FIGURES),
            kinds=command.kinds(options),
            rounds=1 if quick else options.rounds,
            exchanges=3 if quick else 50,
            messages={"restante": 500 if quick else 50_000, "reference": 200 if quick else 5_000},
            starts=1 if quick else 5,
            file_bytes=1 << 20 if quick else 1 << 30,
            rust=options.rust,
        )
        uvloop.run(measure(run, options.only))
    return command.report(options, machine, run.results, started)


if __name__ == "__main__":
    sys.exit(main())
