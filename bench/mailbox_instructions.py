"""How many instructions a session takes in the mailbox server, and how many of them are for the metrics.

Valgrind counts them. Unlike CPU time they do not depend on what else the machine does. Those of the kernel are not
counted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mailbox_load import Load
from mailbox_scenarios import AT_A_TIME
from mailbox_session import COMMANDS

if TYPE_CHECKING:
    from servers import Bench

VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
FEW, MANY = 2 * AT_A_TIME, 6 * AT_A_TIME
"""Sessions of two runs of the commit loop. What they differ by took the sessions; the rest took the start."""


@dataclass(frozen=True)
class Instructions:
    """Instructions of a session."""

    without: float
    """In the commit loop without the metrics."""
    measured: float
    """In the commit loop with the metrics."""
    server: float
    """In the whole server, with its sockets, without the metrics."""

    @property
    def percent(self) -> float:
        """Return what the metrics add to the whole server, in percent."""
        return 100 * (self.measured - self.without) / self.server

    def lines(self) -> list[str]:
        return [
            f"{'instructions of a session, without the kernel':56}{'millions':>18}",
            f"{'commit loop without metrics':56}{self.without / 1e6:18.3f}",
            f"{'commit loop with metrics':56}{self.measured / 1e6:18.3f}",
            f"{'whole server without metrics':56}{self.server / 1e6:18.3f}",
            f"{'what the metrics add to that, in percent':56}{self.percent:18.2f}",
        ]


async def instructions(bench: Bench, seconds: float) -> Instructions:
    """Count the instructions of sessions, those of the whole server under a load of so many seconds."""
    return Instructions(_commit_loop(bench, "--unmeasured"), _commit_loop(bench), await _server(bench, seconds))


def _commit_loop(bench: Bench, *flags: str) -> float:
    program = str(Path(__file__).with_name("mailbox_commit_loop.py"))

    def run(sessions: int) -> int:
        command = [*VALGRIND, sys.executable, program, str(bench.folder()), str(sessions), *flags]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return counted(ended.stderr)

    return (run(MANY) - run(FEW)) / (MANY - FEW)


async def _server(bench: Bench, seconds: float) -> float:
    """Return the instructions of a session in a server under load, less those of one that starts and stops."""
    found = []
    for loaded in (False, True):
        server = await bench.start("unmeasured", bench.folder(), under=VALGRIND)
        load = Load(server)
        if loaded:
            await load.closed_loop(AT_A_TIME, warm_up=1.0, seconds=seconds)
        await server.stop()
        found.append(counted(server.last_words()))
    assert not load.failures, load.failures
    return (found[1] - found[0]) / (load.acks / COMMANDS)


def counted(words: str) -> int:
    """Return how many instructions valgrind says it has counted."""
    match = re.search(r"I +refs: +([0-9,]+)", words)
    if match is None:
        raise RuntimeError(f"valgrind counted no instructions: {words[-2000:]}")
    return int(match[1].replace(",", ""))
