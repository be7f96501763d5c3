"""The command line that the benches with two sides share: its options, and the report at the end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from figures import Results
from servers import KINDS, Kind

MAX_SHOWN_FAILURES = 20


def parser(about: str | None, scenarios: Iterable[str], sides: str, quick: str) -> argparse.ArgumentParser:
    """Return a parser with the shared options. `about` is the docstring of the bench, `sides` what it compares."""
    names = list(scenarios)
    found = argparse.ArgumentParser(description=about.partition("\n")[0] if about else None)
    found.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    found.add_argument("--against", choices=(*KINDS, "both"), default="both", help=f"which {sides} to run")
    found.add_argument("--rounds", type=int, default=5, help="rounds of each, by turns")
    found.add_argument("--quick", action="store_true", help=f"a smoke run of {quick}")
    found.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures to FILE")
    found.add_argument("--scratch", type=Path, metavar="DIR", help="where the servers keep their data")
    return found


def kinds(options: argparse.Namespace) -> tuple[Kind, ...]:
    """Return the sides to run."""
    return KINDS if options.against == "both" else (options.against,)


def report(options: argparse.Namespace, machine: Mapping[str, Any], results: Results, started: float) -> int:
    """Print the figures and the failures, and write them to `--json`. Return the exit code."""
    for name, fact in machine.items():
        print(f"{name:10} {fact}")
    print(f"\n{results.table()}\n\n{time.perf_counter() - started:.0f} s")
    for failure in results.failures[:MAX_SHOWN_FAILURES]:
        print(f"FAILED  {failure}")
    if options.json:
        content = {"machine": machine, "figures": results.as_json(), "failures": results.failures}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    return 1 if results.failures else 0
