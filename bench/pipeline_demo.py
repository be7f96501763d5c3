"""How long `restante pipeline demo` takes: the whole command, the same again, and its generator. See bench/README.md.

python bench/pipeline_demo.py [--rounds N] [--scratch DIR] [--arguments ...]

The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

from host import facts, scratch_root
from process_tree import Used, adopt, measure
from restante.demo.events import draw_events
from restante.demo.fleet import MAILBOX_SERVERS, Fleet
from restante.demo.generate import fleet_parts

MAX_COMMAND_SECONDS: Final = 180
MAX_GENERATOR_SECONDS: Final = 60
"""What the command and its generator may take on two cores without other work."""

_GENERATED: Final = re.compile(r"^demo: fleet: .*, ([\d.]+) s$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="how often the command is run, each with another seed")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the demos are made")
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help="further arguments of `demo`")
    options = parser.parse_args()
    adopt()
    with tempfile.TemporaryDirectory(prefix="demo-bench-", dir=scratch_root(options.scratch)) as scratch:
        folder = Path(scratch)
        for name, value in facts(folder).items():
            print(f"{name:10} {value}")
        print(f"{'load':10} {os.getloadavg()[0]:.1f} before the run\n")
        commands, generators = [], []
        for seed in range(1, options.rounds + 1):
            arguments = [str(folder / f"demo-{seed}"), "--seed", str(seed), *options.arguments]
            used, generated = _run(folder, arguments)
            again, _ = _run(folder, arguments)
            commands.append(used.wall)
            generators.append(generated)
            print(
                f"seed {seed}: {used.wall:.1f} s, {used.cpu:.1f} s of CPU, {used.pss >> 20} MiB; the generator"
                f" {generated:.1f} s of it; the same again {again.wall:.1f} s; the usage records of a fleet"
                f" {_usage(folder / f'usage-{seed}', seed):.1f} s of CPU, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        print()
        enough = [
            _judge("command", commands, MAX_COMMAND_SECONDS),
            _judge("generator", generators, MAX_GENERATOR_SECONDS),
        ]
    sys.exit(not all(enough))


def _run(folder: Path, arguments: list[str]) -> tuple[Used, float]:
    """Run the command. Return what it used, and after how many seconds the generator was done."""
    restante = str(Path(sys.executable).with_name("restante"))
    said = folder / "said"
    with said.open("wb") as output:
        used = measure([restante, "pipeline", "demo", *arguments], os.environ, output)
    text = said.read_text()
    if used.exit_code:
        sys.exit(text)
    return used, max(map(float, _GENERATED.findall(text)), default=0.0)


def _usage(folder: Path, seed: int) -> float:
    """Return the CPU seconds that the usage records of all mailbox servers of a fleet take, in one process."""
    fleet = Fleet(seed=seed, last=datetime.now(UTC).date() - timedelta(1))
    names = {server.name for server in MAILBOX_SERVERS}
    begun = time.process_time()
    for part in fleet_parts(fleet, draw_events(fleet), folder):
        if part.name in names:
            part.make()
    return time.process_time() - begun


def _judge(name: str, seconds: list[float], most: float) -> bool:
    """Print the median and the verdict. Return whether it is enough."""
    found = median(seconds)
    enough = found <= most
    verdict = "enough" if enough else "MISSED"
    print(f"{name:10} {found:.1f} s, the median of {len(seconds)}; at most {most:g} s: {verdict}")
    return enough


if __name__ == "__main__":
    main()
