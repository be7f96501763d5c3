"""What all benches share: the command line, the table of figures with their targets, and the servers.

See bench/README.md. The targets are those of docs/design.md, "Speed".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import mmap
import os
import platform
import re
import resource
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

HOST = "127.0.0.1"
START_SECONDS = 300.0
STOP_SECONDS = 20.0
MAX_PRINTED_FAILURES = 20
CHANNEL_DB = "relay.sqlite"
LIBRARIES = ("restante", "picows", "uvloop", "msgspec")
RAM_BACKED = ("tmpfs", "ramfs")
CPUS = sorted(os.sched_getaffinity(0))
"""Those of this process before it is pinned."""
_TICK = os.sysconf("SC_CLK_TCK")

Kind = Literal["restante", "reference"]
Program = Literal["restante", "reference", "waku", "relay", "reference relay"]
KINDS: tuple[Kind, ...] = ("restante", "reference")


class BenchError(Exception):
    """A server or a client did not do what it should."""


# ── Figures ──


@dataclass(frozen=True)
class Figure:
    """A line of the table."""

    title: str
    higher_is_better: bool = False
    at_least: float | None = None
    aim: float | None = None
    of_ratio: bool = False
    """Whether the two bounds are of how many times better ours is, and not of our own figure."""
    elsewhere: str = ""
    """What another program took on another machine, once."""


def times(title: str, at_least: float, aim: float, *, higher_is_better: bool = False) -> Figure:
    """Return a figure with bounds on how many times better ours is."""
    return Figure(title, higher_is_better, at_least, aim, of_ratio=True)


def own(title: str, at_least: float, aim: float, *, higher_is_better: bool = False) -> Figure:
    """Return a figure with bounds on our own."""
    return Figure(title, higher_is_better, at_least, aim)


@dataclass
class Results:
    """The values of each figure, one a round, and what went wrong."""

    figures: Mapping[str, Figure]
    texts: Mapping[str, Any] = field(default_factory=dict)
    """What stands for {names} in titles."""
    peer: str = "reference"
    """Heading of the other program's column."""
    values: dict[str, dict[Kind, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, kind: Kind = "restante") -> None:
        self.values.setdefault(name, {}).setdefault(kind, []).append(value)
        print(f"  {kind} {name} {value:.4g}", file=sys.stderr, flush=True)

    def median(self, name: str, kind: Kind) -> float | None:
        values = self.values[name].get(kind)
        return statistics.median(values) if values else None

    def ratio(self, name: str) -> float | None:
        """Return how many times better ours is: the median of the rounds' own ratios."""
        figure, values = self.figures[name], self.values[name]
        pairs = zip(values.get("restante", ()), values.get("reference", ()), strict=False)
        ratios = [a / b if figure.higher_is_better else b / a for a, b in pairs if a > 0 and b > 0]
        return statistics.median(ratios) if ratios else None

    def verdict(self, name: str) -> str:
        figure = self.figures[name]
        if figure.at_least is None:
            return ""
        value = self.ratio(name) if figure.of_ratio else self.median(name, "restante")
        if value is None:
            return "-"
        sign = 1 if figure.of_ratio or figure.higher_is_better else -1
        if figure.aim is not None and sign * value >= sign * figure.aim:
            return "aim"
        return "enough" if sign * value >= sign * figure.at_least else "MISSED"

    def table(self) -> str:
        heading = ("figure", "restante", self.peer, "times better", "at least", "aim", "verdict")
        rows = [heading, tuple("-" * len(title) for title in heading)]
        rows += [self._row(name) for name in self.figures if name in self.values]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
        )

    def _row(self, name: str) -> tuple[str, ...]:
        figure = self.figures[name]
        suffix = "x" if figure.of_ratio else ""
        return (
            figure.title.format(**self.texts),
            _number(self.median(name, "restante")),
            figure.elsewhere or _number(self.median(name, "reference")),
            _number(self.ratio(name), "x"),
            _number(figure.at_least, suffix),
            _number(figure.aim, suffix),
            self.verdict(name),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            name: {
                "title": self.figures[name].title.format(**self.texts),
                "rounds": rounds,
                "ratio": self.ratio(name),
                "verdict": self.verdict(name),
            }
            for name, rounds in self.values.items()
        }


def _number(value: float | None, suffix: str = "") -> str:
    if value is None:
        return ""
    return f"{value:,.0f}{suffix}" if value >= 100 else f"{value:.3g}{suffix}"


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


# ── Command line and report ──


def parser(
    about: str | None, scenarios: Iterable[str], rounds: int, *, has_peer: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options of every bench. `about` is the docstring of the bench."""
    names = list(scenarios)
    options = argparse.ArgumentParser(description=about.partition("\n")[0] if about else None)
    options.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"some of {', '.join(names)}"
    )
    options.add_argument("--rounds", type=int, default=rounds, help="rounds of each measurement, in turns")
    options.add_argument("--quick", action="store_true", help="a smoke run, whose figures mean little")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round to FILE")
    options.add_argument("--scratch", type=Path, metavar="DIR", help="where the data is")
    if has_peer:
        options.add_argument("--against", choices=(*KINDS, "both"), default="both", help="run only one side")
    return options


def kinds(options: argparse.Namespace) -> tuple[Kind, ...]:
    """Return the sides to run."""
    return KINDS if options.against == "both" else (options.against,)


def main(
    options: argparse.Namespace,
    results: Results,
    measure: Callable[[Path], None],
    libraries: Sequence[str] = LIBRARIES,
    facts: Mapping[str, str] | None = None,
) -> int:
    """Measure in a scratch folder. Print the figures and the failures, and write them to `--json`.

    Return the exit code.
    """
    started, start = time.perf_counter(), print_conditions()
    with tempfile.TemporaryDirectory(prefix="restante-bench-", dir=_scratch_root(options.scratch)) as scratch:
        machine = {**_machine(Path(scratch), libraries), **(facts or {})}
        measure(Path(scratch))
    for name, fact in machine.items():
        print(f"{name:10} {fact}")
    print(f"\n{results.table()}\n\n{time.perf_counter() - started:.0f} s")
    for failure in results.failures[:MAX_PRINTED_FAILURES]:
        print(f"FAILED  {failure}")
    end = print_conditions()
    if options.json:
        content = {
            "start": start,
            "end": end,
            "machine": machine,
            "figures": results.as_json(),
            "failures": results.failures,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    return 1 if results.failures else 0


def print_conditions() -> str:
    """Print, and return, when and of which commit is measured, and the load and the CPUs of the host."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+changes"]
    commit = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip() or "no commit"
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cpus = f"{len(CPUS)} x {models[0] if models else platform.machine()}"
    line = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {commit}, load {os.getloadavg()[0]:.1f}, {cpus}"
    print(line, flush=True)
    return line


def _machine(scratch: Path, libraries: Sequence[str]) -> dict[str, str]:
    """Return what the figures were measured on."""
    return {
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "libraries": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries),
        "disk": f"{_filesystem(scratch)}, {_flushes_per_second(scratch):,.0f} fdatasync/s (4 KiB overwritten)",
    }


def _filesystem(folder: Path) -> str:
    """Return the type of the file system of a folder: the mount with the longest matching path."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    matching = [(len(mount), kind) for mount, kind in mounts if folder.resolve().is_relative_to(mount)]
    return max(matching, default=(0, "unknown"))[1]


def _flushes_per_second(folder: Path, seconds: float = 0.5) -> float:
    count, start = 0, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        while time.perf_counter() < start + seconds:
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            count += 1
    return count / (time.perf_counter() - start)


def _scratch_root(chosen: Path | None) -> Path:
    """Return a folder on a real disk: in memory a flush costs nothing and the figures mislead."""
    temporary = Path(tempfile.gettempdir())
    root = chosen or (Path.cwd() if _filesystem(temporary) in RAM_BACKED else temporary)
    if _filesystem(root) in RAM_BACKED:
        print(f"warning: {root} is in memory, where a flush costs nothing", file=sys.stderr)
    return root


# ── Scenarios ──


@dataclass
class Run:
    """What every bench with servers has."""

    bench: Bench
    results: Results
    rounds: int
    kinds: tuple[Kind, ...]

    def turns(self) -> list[Kind]:
        """Return whose turn it is. Who is the first changes, so that a slow minute of the host hits both."""
        return [kind for number in range(self.rounds) for kind in self.kinds[:: 1 if number % 2 == 0 else -1]]

    def add(self, name: str, value: float, kind: Kind = "restante") -> None:
        self.results.add(name, value, kind)


R = TypeVar("R", bound=Run)


async def run_scenarios(
    run: R, scenarios: Mapping[str, Callable[[R], Awaitable[None]]], names: Iterable[str]
) -> None:
    """Run measurements one after the other. Each starts its own servers, which are ended if it fails."""
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            await scenarios[name](run)
        except* (BenchError, OSError, TimeoutError, AssertionError) as group:
            run.results.failures.extend(f"{name}: {error!r}" for error in group.exceptions)
        finally:
            run.bench.kill_all()


def pin_generator() -> None:
    """Keep this process off the server's CPU, if there are two, and let it open many sockets."""
    os.sched_setaffinity(0, {CPUS[-1]})
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


# ── Instructions in user mode ──

VALGRIND = ("env", "PYTHONHASHSEED=0", "valgrind")
"""Runs its arguments. Texts have the same hashes in each run, and so sets and dictionaries take the same steps."""
CACHEGRIND = (*VALGRIND, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def counted(output: str) -> int:
    """Return how many instructions cachegrind has counted, of what it has printed."""
    match = re.search(r"I +refs: +([0-9,]+)", output)
    if match is None:
        raise BenchError(f"valgrind has counted nothing: {output[-2000:]}")
    return int(match[1].replace(",", ""))


def count_instructions(*arguments: str) -> int:
    """Run a Python program and return how many instructions it takes."""
    done = subprocess.run([*CACHEGRIND, sys.executable, *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(done.stderr[-2000:])
    return counted(done.stderr)


# ── Servers ──


_OURS: dict[Program, list[str]] = {"restante": ["serve"], "waku": ["waku", "serve"], "relay": ["relay", "serve"]}


def endpoint(port: int) -> str:
    """Return where a server of Twisted's listens."""
    return f"tcp:{port}:interface={HOST}"


def _command(program: Program, data: Path, port: int, flags: Sequence[str]) -> list[str]:
    serve = _OURS.get(program)
    if serve is None:
        twist = str(Path(sys.executable).with_name("twist"))
        usage = f"--usage-db={data / 'usage.sqlite'}"  # ours always keeps usage records
        if program == "reference relay":
            return [twist, "transitrelay", "--port", endpoint(port), usage]
        return [twist, "wormhole-mailbox", "--port", endpoint(port), f"--channel-db={data / CHANNEL_DB}", usage]
    address = ["--listen", f"{HOST}:{port}", "--admin", "off"]
    directory = [] if "--database" in flags else ["--data", str(data)]
    return [sys.executable, "-m", "restante", *serve, *directory, *address]


@dataclass
class Server:
    """A running server and its counters."""

    program: Program
    port: int
    started: float
    data: Path
    log: Path
    _process: subprocess.Popen[bytes]
    _counter: mmap.mmap

    def cpu(self) -> float:
        """Return seconds of user and system time of all threads, in ticks of 10 ms."""
        return sum(self._cpu_times())

    def kernel(self) -> float:
        """Return the system time alone."""
        return self._cpu_times()[1]

    def _cpu_times(self) -> tuple[float, float]:
        after_name = self._proc("stat").rpartition(")")[2].split()
        return int(after_name[11]) / _TICK, int(after_name[12]) / _TICK

    def rss(self) -> int:
        """Return the resident bytes."""
        return self._memory("VmRSS:")

    def peak(self) -> int:
        """Return the maximum of the resident bytes."""
        return self._memory("VmHWM:")

    def _memory(self, name: str) -> int:
        line = next(line for line in self._proc("status").splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    def flushes(self) -> int:
        """Return the calls of fsync and fdatasync until now, counted by fsync_shim.c."""
        return int.from_bytes(self._counter[:8], sys.byteorder)

    def flush_seconds(self) -> float:
        """Return the seconds that they took."""
        return int.from_bytes(self._counter[8:16], sys.byteorder) / 1e9

    def output(self) -> str:
        """Return the end of what the server has printed."""
        return self.log.read_text(errors="replace")[-2000:]

    def check(self) -> None:
        if self._process.poll() is not None:
            raise BenchError(f"{self.program} ended with {self._process.returncode}: {self.output()}")

    async def wait_for_port(self, port: int) -> None:
        """Wait until the server accepts connections at one of its ports."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            self.check()
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            await asyncio.sleep(0.02)
        raise BenchError(f"{self.program} does not listen after {START_SECONDS:.0f} s: {self.output()}")

    def replace(self) -> None:
        """Let ours replace itself by the installed version, with all its connections."""
        self._process.send_signal(signal.SIGUSR2)

    async def stop(self) -> None:
        """Send SIGTERM, then wait. Ours must exit with 0."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise BenchError(f"{self.program} did not stop within {STOP_SECONDS:.0f} s of SIGTERM") from error
        if code != 0 and self.program in _OURS:
            raise BenchError(f"{self.program} exited with {code}: {self.output()}")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _proc(self, name: str) -> str:
        self.check()
        return Path(f"/proc/{self._process.pid}/{name}").read_text()


class Bench:
    """A scratch folder, and the servers that are started in it. None of them outlives it."""

    def __init__(self, scratch: Path, *, counts_flushes: bool = True) -> None:
        """Prepare. To count flushes, a C compiler is needed."""
        self.scratch = scratch
        self._servers: list[Server] = []
        self._folders = 0
        self._environment = dict(os.environ)
        if counts_flushes:
            shim, source = scratch / "fsync_shim.so", Path(__file__).with_name("fsync_shim.c")
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
            self._environment["LD_PRELOAD"] = str(shim)

    def folder(self, like: Path | None = None) -> Path:
        """Make a data folder: empty, or a copy of a stopped server's."""
        self._folders += 1
        folder = self.scratch / f"data-{self._folders}"
        if like is None:
            folder.mkdir()
        else:
            shutil.copytree(like, folder)
            os.sync()  # or the server would flush the copy at its first checkpoint
        return folder

    def spawn(
        self, program: Program, data: Path, *flags: str, fsync_us: int | None = None, under: Sequence[str] = ()
    ) -> Server:
        """Start a server on the first CPU, as arguments of the command `under` if given. It may not listen yet."""
        port = free_port()
        counter = data.with_suffix(".flushes")  # beside the folder, which belongs to the server
        counter.write_bytes(bytes(16))
        environment = {**self._environment, "FSYNC_SHIM_COUNTER": str(counter)}
        if fsync_us is not None:
            environment["FSYNC_SHIM_SLEEP_US"] = str(fsync_us)
        log = data.with_suffix(".log")
        with log.open("wb") as output, on_cpu(CPUS[0]), counter.open("r+b") as count:
            started = time.perf_counter()
            process = subprocess.Popen(
                [*under, *_command(program, data, port, flags), *flags],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            server = Server(program, port, started, data, log, process, mmap.mmap(count.fileno(), 16))
        self._servers.append(server)
        return server

    async def start(
        self, program: Program, data: Path, *flags: str, fsync_us: int | None = None, under: Sequence[str] = ()
    ) -> Server:
        """Start a server and wait until it accepts connections."""
        server = self.spawn(program, data, *flags, fsync_us=fsync_us, under=under)
        await server.wait_for_port(server.port)
        return server

    def kill_all(self) -> None:
        for server in self._servers:
            server.kill()


def cpu_of_family(pid: int) -> float:
    """Return the CPU seconds of a process and its children, also of those that have ended (man 5 proc_pid_stat)."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            after_name = file.read_text().rpartition(")")[2].split()
            if file.parent.name == str(pid):
                ticks += sum(map(int, after_name[11:15]))
            elif after_name[1] == str(pid):
                ticks += sum(map(int, after_name[11:13]))
    return ticks / _TICK


@contextlib.contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    """Let a child that is started here have `cpu` from its first instruction on."""
    before = os.sched_getaffinity(0)
    if len(CPUS) > 1:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
