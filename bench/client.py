"""Restante's client beside the Python client, magic-wormhole, in one run. See bench/README.md."""

from __future__ import annotations

import asyncio
import contextlib
import filecmp
import itertools
import os
import re
import resource
import shutil
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop

import harness
from client_side import Exchange, Transmission
from harness import HOST, Bench, BenchError, Figure, Kind, Results, Server, own, times

LIBRARIES = (*harness.LIBRARIES, "magic-wormhole", "pynacl", "cryptography", "twisted", "autobahn", "spake2")
FIGURES = {
    "cpu": times("code to verified key, CPU ms of both", 8, 15),
    "cpu_of_code": Figure("  the part of it after the code, CPU ms"),
    "cpu_with_closing": Figure("  the same with closing, CPU ms"),
    "instructions": Figure("  instructions of it with closing, millions"),
    "instructions_outside": Figure("    those outside libsodium and OpenSSL, millions"),
    "wall": own("code to verified key, p50, ms", 15, 8),
    "rate": own("messages of 300 bytes/s, no limits", 10_000, 20_000, higher_is_better=True),
    "sender_cpu": Figure("  sender's CPU a message, µs"),
    "receiver_cpu": Figure("  receiver's CPU a message, µs"),
    "server_cpu": Figure("  server's CPU a message, µs"),
    "import": own("import of all that a wormhole needs, ms", 100, 60),
    "send": own("send that nobody answers, start to end, CPU s", 0.2, 0.15),
    "file": times("large file, direct TCP, MB/s", 1.5, 4, higher_is_better=True),
    "file_rust": times("  the same beside magic-wormhole.rs, MB/s", 0.6, 1, higher_is_better=True),
    "file_sender_cpu": Figure("  sender's CPU, s"),
    "file_receiver_cpu": Figure("  receiver's CPU, s"),
    "file_sender_memory": own("  sender's peak memory, MiB", 60, 45),
    "file_receiver_memory": own("  receiver's peak memory, MiB", 60, 45),
    "directory": times("directory of {n} small files, s", 1, 2),
    "directory_sender_cpu": Figure("  sender's CPU, s"),
    "directory_receiver_cpu": Figure("  receiver's CPU, s"),
}

T = TypeVar("T")
PROGRAM_SECONDS = 300.0
MAX_ERROR_CHARACTERS = 500
SMALL_FILE_BYTES = 1_000
FILES_IN_A_FOLDER = 50
MIB = 1 << 20
PEER_ATTEMPTS = 3
_LIMITED = """commands bytes mailbox_messages mailbox_bytes stored_bytes held_bytes address_connections
    address_connects address_nameplates address_claims address_bytes address_records"""
NO_LIMITS = [argument for name in _LIMITED.split() for argument in ("--limit", f"{name}=0")]
IMPORT = {"restante": "from restante.client import Wormhole", "reference": "import wormhole"}
TIMED = """
import time
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""
NO_RELAY = f"tcp:{HOST}:1"


@dataclass
class Run(harness.Run):
    """How much to measure."""

    exchanges: int
    messages: dict[Kind, int]
    starts: int
    file_bytes: int
    files: int
    rust: Path | None
    """The binary of magic-wormhole.rs, if there is one."""


async def run_python(*arguments: str, cpus: Collection[int] = (), under: Sequence[str] = ()) -> str:
    """Run a Python program, on some CPUs or on those of this process, and return its output.

    If it fails, or takes too long, or the caller is cancelled, it and all that it has started is ended.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *under,
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    if cpus:
        os.sched_setaffinity(process.pid, cpus)
    try:
        async with asyncio.timeout(PROGRAM_SECONDS):
            output, errors = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        message = errors.decode(errors="replace").strip()[-MAX_ERROR_CHARACTERS:]
        raise BenchError(f"{' '.join(arguments)} ended with {process.returncode}: {message}")
    return output.decode()


async def both(sender: Awaitable[T], receiver: Awaitable[T]) -> tuple[T, T]:
    """Wait for two sides. If one fails, end the other, which would wait for ever."""
    sides = asyncio.ensure_future(sender), asyncio.ensure_future(receiver)
    try:
        return await asyncio.gather(*sides)
    finally:
        for side in sides:
            side.cancel()
        await asyncio.wait(sides)


_nameplates = itertools.count(1)


def next_code() -> str:
    """Return a code that no two clients have used yet."""
    return f"{next(_nameplates)}-paper-clip"


async def run_side(
    kind: Kind, task: str, server: Server, count: int, result: type[T], code: str = "", under: Sequence[str] = ()
) -> T:
    """Run one of the tasks of client_side.py."""
    program = str(Path(__file__).with_name("client_side.py"))
    url = f"ws://{HOST}:{server.port}/v1"
    output = await run_python(program, kind, task, url, str(count), code, under=under)
    return msgspec.json.decode(output, type=result)


async def exchanges(run: Run) -> None:
    """Two clients of one process meet with a code, again and again."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    for kind in run.turns():
        results = await run_side(kind, "exchanges", server, run.exchanges, list[Exchange])
        for figure in ("cpu", "cpu_of_code", "cpu_with_closing"):
            run.add(figure, statistics.mean(getattr(exchange, figure) for exchange in results) * 1e3, kind)
        run.add("wall", statistics.median(exchange.seconds for exchange in results) * 1e3, kind)
    await server.stop()


async def instructions(run: Run) -> None:
    """Many exchanges less few, in user mode: what is left are no imports."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    few, many = 2, 4 if run.exchanges < 10 else 12
    for kind in run.kinds:
        await run_side(kind, "exchanges", server, 1, list[Exchange])  # it compiles the modules
        counts = []
        for number in (few, many):
            profile = run.bench.folder() / "callgrind.out"
            tool = (*harness.VALGRIND, "--tool=callgrind", f"--callgrind-out-file={profile}")
            await run_side(kind, "exchanges", server, number, list[Exchange], under=tool)
            counts.append(_by_library(profile))
        libraries = {name: (count - counts[0][name]) / (many - few) / 1e6 for name, count in counts[1].items()}
        outside = [count for name, count in libraries.items() if not re.search("sodium|libcrypto|_rust", name)]
        run.add("instructions", sum(libraries.values()), kind)
        run.add("instructions_outside", sum(outside), kind)
    await server.stop()


def _by_library(profile: Path) -> Counter[str]:
    """Return the instructions of each library of a profile (Valgrind manual, "Callgrind Format Specification")."""
    names, totals, library, is_call = dict[str, str](), Counter[str](), "", False
    for line in profile.read_text().splitlines():
        if match := re.match(r"(c?)ob=(\(\d+\))(.*)", line):
            name = names.setdefault(match[2], match[3].rpartition("/")[2])
            library = library if match[1] else name
        elif line[:1] in set("0123456789+-*"):
            totals[library] += 0 if is_call else int(line.split()[1])
        is_call = line.startswith("calls=")  # the next line has what the called function took
    return totals


async def messages(run: Run) -> None:
    """One process sends messages to another as fast as it can, through a server without limits."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    for kind in run.turns():
        count, before, code = run.messages[kind], server.cpu(), next_code()
        sender, receiver = await both(
            run_side(kind, "sender", server, count, Transmission, code),
            run_side(kind, "receiver", server, count, Transmission, code),
        )
        run.add("rate", count / (receiver.ended - sender.started), kind)
        run.add("sender_cpu", sender.cpu / count * 1e6, kind)
        run.add("receiver_cpu", receiver.cpu / count * 1e6, kind)
        run.add("server_cpu", (server.cpu() - before) / count * 1e6, kind)
    await server.stop()


async def imports(run: Run) -> None:
    """A new process imports a library."""
    for statement in IMPORT.values():
        await run_python("-c", statement)  # compiles it
    for kind in run.turns():
        program = TIMED.format(statement=IMPORT[kind])
        timings = [float(await run_python("-c", program)) for _ in range(run.starts)]
        run.add("import", statistics.median(timings) * 1e3, kind)


# ── Files and directories between two commands ──


class CommandUsage(msgspec.Struct):
    """What a command took, from client_command.py."""

    started: float
    ended: float
    """By the clock that all processes share."""
    cpu: float
    peak: int
    """Maximum of the resident bytes."""


class Transfer(msgspec.Struct):
    """What a transfer took."""

    sender: CommandUsage
    receiver: CommandUsage

    @property
    def seconds(self) -> float:
        """Return the wall time."""
        started = min(self.sender.started, self.receiver.started)
        return max(self.sender.ended, self.receiver.ended) - started


def commands(run: Run, program: str, url: str, code: str, path: Path, into: Path) -> tuple[list[str], list[str]]:
    """Return the commands that send and receive."""
    if program == "restante":
        restante = [sys.executable, "-m", "restante"]
        options = ["--server", url, "--transit-relay", NO_RELAY]
        send = [*restante, "send", *options, "--code", code]
        receive = [*restante, "receive", *options, "--accept", "--output", str(into)]
    elif program == "reference":
        wormhole = [str(Path(sys.executable).with_name("wormhole")), "--transit-helper", NO_RELAY, "--relay-url", url]
        send = [*wormhole, "send", "--hide-progress", "--no-qr", "--code", code]
        receive = [*wormhole, "receive", "--hide-progress", "--accept-file", "--output-file", str(into)]
    else:
        options = ["--rendezvous-server", url, "--relay-server", f"tcp://{HOST}:1"]
        send = [str(run.rust), "send", *options, "--code", code]
        receive = [str(run.rust), "receive", *options, "--noconfirm", "--out-dir", str(into)]
    return [*send, str(path)], [*receive, code]


async def sends(run: Run) -> None:
    """A command sends a file to nobody, and is interrupted when it shows its code."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    path = run.bench.folder() / "small.bin"
    path.write_bytes(b"nobody receives this")
    for kind in run.turns():
        timings = []
        for _ in range(1 + run.starts):
            code = next_code()
            send, _ = commands(run, kind, f"ws://{HOST}:{server.port}/v1", code, path, path.parent)
            timings.append(await interrupted_cpu(send, code))
        run.add("send", statistics.median(timings[1:]), kind)  # the first one compiles the modules
    await server.stop()


async def interrupted_cpu(command: list[str], text: str) -> float:
    """Interrupt a command as soon as it has written a text. Return its CPU seconds."""
    before = _cpu_of_ended_children()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    os.sched_setaffinity(process.pid, harness.CPUS)
    assert process.stdout is not None
    output = b""
    async with asyncio.timeout(PROGRAM_SECONDS):
        while text.encode() not in output:
            if not (piece := await process.stdout.read(4096)):
                raise BenchError(f"{' '.join(command)} ended: {output.decode(errors='replace')}")
            output += piece
        process.send_signal(signal.SIGINT)
        await process.communicate()
    return _cpu_of_ended_children() - before


def _cpu_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def measure_command(command: list[str]) -> CommandUsage:
    """Run a command on any CPU, and return what it took."""
    program = str(Path(__file__).with_name("client_command.py"))
    return msgspec.json.decode(await run_python("-S", "-E", program, *command, cpus=harness.CPUS), type=CommandUsage)


async def transfer(run: Run, program: str, server: Server, path: Path) -> Transfer:
    """Send a file or directory from one command to another, and compare what arrived.

    A transfer of a peer that fails is repeated, and its message is printed. One of ours fails at once.
    """
    attempts = 1 if program == "restante" else PEER_ATTEMPTS
    while True:
        attempts -= 1
        into = run.bench.folder()
        url = f"ws://{HOST}:{server.port}/v1"
        send, receive = commands(run, program, url, next_code(), path, into)
        try:
            usage = Transfer(*await both(measure_command(send), measure_command(receive)))
            compare(path, into / path.name)
        except BenchError as error:
            if not attempts:
                raise
            print(f"  {program} failed: {error}", file=sys.stderr)
        else:
            return usage
        finally:
            shutil.rmtree(into)
            os.sync()  # or the next transfer would wait for the flush of this one


def compare(sent: Path, received: Path) -> None:
    """Raise BenchError if what was received is not what was sent."""
    files = [path for path in sent.rglob("*") if path.is_file()] if sent.is_dir() else [sent]
    for file in files:
        other = received / file.relative_to(sent)
        if not other.is_file() or not filecmp.cmp(file, other, shallow=False):
            raise BenchError(f"{file.name} did not arrive as it was sent")


async def large_file(run: Run) -> None:
    """A large file."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    path = run.bench.folder() / "large.bin"
    with path.open("wb") as opened:
        opened.truncate(run.file_bytes)
    with path.open("rb", buffering=0) as opened:  # the first command would otherwise pay for the cache
        while opened.read(MIB):
            pass
    for kind in run.turns():
        usage = await transfer(run, kind, server, path)
        rate = run.file_bytes / usage.seconds / 1e6
        run.add("file", rate, kind)
        for role, side in (("sender", usage.sender), ("receiver", usage.receiver)):
            run.add(f"file_{role}_cpu", side.cpu, kind)
            run.add(f"file_{role}_memory", side.peak / MIB, kind)
        if kind == "restante" and run.rust is not None:
            run.add("file_rust", rate)
            usage = await transfer(run, "rust", server, path)
            run.add("file_rust", run.file_bytes / usage.seconds / 1e6, "reference")
    if run.rust is None:
        print("  magic-wormhole.rs is left out: --rust names its binary", file=sys.stderr)
    await server.stop()


async def directory(run: Run) -> None:
    """A directory with many small files."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    path = run.bench.folder() / "small"
    for number in range(run.files):
        folder = path / f"folder-{number // FILES_IN_A_FOLDER}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file-{number}.txt").write_bytes(number.to_bytes(8, "big") * (SMALL_FILE_BYTES // 8))
    for kind in run.turns():
        usage = await transfer(run, kind, server, path)
        run.add("directory", usage.seconds, kind)
        run.add("directory_sender_cpu", usage.sender.cpu, kind)
        run.add("directory_receiver_cpu", usage.receiver.cpu, kind)
    await server.stop()


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "exchanges": exchanges,
    "instructions": instructions,
    "messages": messages,
    "start": imports,
    "send": sends,
    "file": large_file,
    "directory": directory,
}


def main() -> int:
    parser = harness.parser(__doc__, SCENARIOS, rounds=5, has_peer=True)
    parser.set_defaults(only=[name for name in SCENARIOS if name != "instructions"])  # not every machine has valgrind
    parser.add_argument("--rust", type=Path, metavar="BINARY", help="measure magic-wormhole.rs, too")
    options = parser.parse_args()
    quick = options.quick
    files = 100 if quick else 1_000
    results = Results(FIGURES, {"n": f"{files:,}"})

    def measure(scratch: Path) -> None:
        harness.pin_generator()
        run = Run(
            bench=Bench(scratch, counts_flushes=False),
            results=results,
            rounds=1 if quick else options.rounds,
            kinds=harness.kinds(options),
            exchanges=3 if quick else 50,
            messages={"restante": 500 if quick else 50_000, "reference": 200 if quick else 5_000},
            starts=1 if quick else 5,
            file_bytes=1 << 20 if quick else 1 << 30,
            files=files,
            rust=options.rust,
        )
        uvloop.run(harness.run_scenarios(run, SCENARIOS, options.only))

    return harness.main(options, results, measure, LIBRARIES)


if __name__ == "__main__":
    sys.exit(main())
