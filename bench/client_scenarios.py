"""The measurements of bench/client.py, one function each. Each library runs in processes of its own, by turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from client_sides import Exchange, Poured
from first_frame import FirstFrame
from wire import HOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from figures import Results
    from servers import Bench, Kind, Server

T = TypeVar("T")
PROGRAM_SECONDS = 300.0
SAID_CHARACTERS = 500
"""Of what a program that failed has said: the last ones name the error."""
NO_LIMITS = [
    part
    for name in (
        *("commands", "bytes", "mailbox_messages", "mailbox_bytes", "stored_bytes", "held_bytes"),
        *("address_connections", "address_connects", "address_nameplates", "address_claims"),
        *("address_bytes", "address_records"),
    )
    for part in ("--limit", f"{name}=0")
]
IMPORT = {
    "restante": ("from restante.client import Wormhole", "import restante.client"),
    "reference": ("import wormhole", "import wormhole"),
}
"""What a program imports before it can make a wormhole, and the package alone: our names are loaded on first use."""

TIMED = """
import time
start, cpu = time.perf_counter(), time.process_time()
{statement}
print(time.perf_counter() - start, time.process_time() - cpu)
"""
CONNECT = {
    "restante": """
import asyncio, sys
from restante.client import Wormhole
async def main():
    async with Wormhole.create("restante.example/bench", server=sys.argv[1]) as wormhole:
        await wormhole.allocate_code()
asyncio.run(main())
""",
    "reference": """
import sys
import wormhole
from twisted.internet import reactor
wormhole.create("restante.example/bench", sys.argv[1], reactor).allocate_code()
reactor.run()
""",
}
"""The shortest program that connects and sends something."""


class WrongError(Exception):
    """A client failed, or a message was not the one that was sent."""


@dataclass
class Run:
    """How much to measure, of which clients, and where the results go."""

    bench: Bench
    results: Results
    kinds: tuple[Kind, ...]
    rounds: int
    exchanges: int
    messages: dict[Kind, int]
    starts: int
    file_bytes: int
    rust: Path | None
    """The binary of magic-wormhole.rs, if there is one."""

    def turns(self) -> list[Kind]:
        """Return whose turn it is: who goes first changes, so that drift of the host hits both."""
        return [kind for nth in range(self.rounds) for kind in self.kinds[:: 1 if nth % 2 == 0 else -1]]

    def add(self, figure: str, kind: Kind, value: float) -> None:
        self.results.add(figure, kind, value)
        print(f"  {kind} {figure} {value:.4g}", file=sys.stderr)


async def program(*arguments: str, cpus: Collection[int] = ()) -> str:
    """Run a Python program, on some CPUs or on those of this process, and return what it printed.

    If it fails, or takes too long, or the caller is cancelled, it and all that it has started is ended.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=_ENVIRONMENT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    if cpus:
        os.sched_setaffinity(process.pid, cpus)
    try:
        async with asyncio.timeout(PROGRAM_SECONDS):
            printed, said = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        told = said.decode(errors="replace").strip()[-SAID_CHARACTERS:]
        raise WrongError(f"{' '.join(arguments)} ended with {process.returncode}: {told}")
    return printed.decode()


async def both(sender: Awaitable[T], receiver: Awaitable[T]) -> tuple[T, T]:
    """Wait for two sides. If one fails, end the other: it would wait for ever."""
    sides = asyncio.ensure_future(sender), asyncio.ensure_future(receiver)
    try:
        return await asyncio.gather(*sides)
    finally:
        for each in sides:
            each.cancel()
        await asyncio.wait(sides)


_ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
"""Bytecode is compiled once and kept, as in any installation."""

_nameplates = itertools.count(1)


def next_code() -> str:
    """Return a code that no two clients have used yet."""
    return f"{next(_nameplates)}-paper-clip"


async def side(kind: Kind, task: str, server: Server, count: int, result: type[T], code: str = "") -> T:
    """Run one of the tasks of client_sides.py."""
    file = Path(__file__).with_name(f"client_{kind}.py")
    url = f"ws://{HOST}:{server.port}/v1"
    return msgspec.json.decode(await program(str(file), task, url, str(count), code), type=result)


async def exchanges(run: Run) -> None:
    """Two clients of one process meet with a code, again and again."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    for kind in run.turns():
        found = await side(kind, "exchanges", server, run.exchanges, list[Exchange])
        for figure in ("cpu", "cpu_of_code", "cpu_in_all"):
            run.add(figure, kind, statistics.mean(getattr(each, figure) for each in found) * 1e3)
        run.add("wall", kind, statistics.median(each.seconds for each in found) * 1e3)
        run.add("wall_p99", kind, max(each.seconds for each in found) * 1e3)
    await server.stop()


async def pour(kind: Kind, server: Server, count: int) -> tuple[float, Poured, Poured]:
    """Let one process send messages to another. Return the seconds it took, and what each did."""
    code = next_code()
    sender, receiver = await both(
        side(kind, "sender", server, count, Poured, code), side(kind, "receiver", server, count, Poured, code)
    )
    return receiver.ended - sender.began, sender, receiver


async def messages(run: Run) -> None:
    """One process sends messages to another as fast as it can, through a server without limits."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    for kind in run.turns():
        count, before = run.messages[kind], server.cpu()
        seconds, sender, receiver = await pour(kind, server, count)
        run.add("rate", kind, count / seconds)
        run.add("sender_cpu", kind, sender.cpu / count * 1e6)
        run.add("receiver_cpu", kind, receiver.cpu / count * 1e6)
        run.add("server_cpu", kind, (server.cpu() - before) / count * 1e6)
    await server.stop()


async def limits(run: Run) -> None:
    """The same with few messages, under the limits that a server has by default."""
    server = await run.bench.start("restante", run.bench.folder())
    for kind in run.turns():
        seconds, _, _ = await pour(kind, server, run.results.filled)
        run.add("few", kind, seconds * 1e3)
    await server.stop()


async def imported(statement: str) -> tuple[float, float]:
    """Return the seconds that an import takes in a new process, and their CPU."""
    wall, cpu = (await program("-c", TIMED.format(statement=statement))).split()
    return float(wall), float(cpu)


async def start(run: Run) -> None:
    """A process imports a library; another one connects and sends its first frame."""
    for statement in itertools.chain.from_iterable(IMPORT.values()):
        await program("-c", statement)  # compiles it
    for kind in run.turns():
        for figure, statement in zip(("import", "import_package"), IMPORT[kind], strict=True):
            timed = [await imported(statement) for _ in range(run.starts)]
            run.add(figure, kind, statistics.median(wall for wall, _ in timed) * 1e3)
            run.add(f"{figure}_cpu", kind, statistics.median(cpu for _, cpu in timed) * 1e3)
    async with FirstFrame.listen() as listener:
        for kind in run.kinds:
            await listener.time(sys.executable, "-c", CONNECT[kind], env=_ENVIRONMENT)
        for kind in run.turns():
            times = [
                await listener.time(sys.executable, "-c", CONNECT[kind], env=_ENVIRONMENT) for _ in range(run.starts)
            ]
            run.add("first_frame", kind, statistics.median(wall for wall, _ in times) * 1e3)
            run.add("first_frame_cpu", kind, statistics.median(cpu for _, cpu in times) * 1e3)


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "exchanges": exchanges,
    "messages": messages,
    "limits": limits,
    "start": start,
}
