"""The two servers: how each is started, measured and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wire import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Kind = Literal["restante", "reference", "waku", "unmeasured"]
KINDS: tuple[Kind, ...] = ("restante", "reference")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_TICK = os.sysconf("SC_CLK_TCK")
_CPUS = sorted(os.sched_getaffinity(0))
CHANNEL_DB = "relay.sqlite"


class ServerError(Exception):
    """A server did not start, or did not stop as it should."""


def _restante(data: Path, port: int) -> list[str]:
    serve = [sys.executable, "-m", "restante", "serve", "--data", str(data)]
    return [*serve, "--listen", f"{HOST}:{port}", "--admin", "off"]


def _unmeasured(data: Path, port: int) -> list[str]:
    program = Path(__file__).with_name("mailbox_unmeasured.py")
    return [sys.executable, str(program), *_restante(data, port)[3:]]


def _reference(data: Path, port: int) -> list[str]:
    twist = Path(sys.executable).with_name("twist")
    serve = [str(twist), "wormhole-mailbox", "--port", f"tcp:{port}:interface={HOST}"]
    return [*serve, f"--channel-db={data / CHANNEL_DB}"]


def _waku(data: Path, port: int) -> list[str]:
    serve = [sys.executable, "-m", "restante", "waku", "serve", "--data", str(data)]
    return [*serve, "--listen", f"{HOST}:{port}", "--admin", "off"]


_COMMANDS: dict[Kind, Callable[[Path, int], list[str]]] = {
    "restante": _restante,
    "reference": _reference,
    "waku": _waku,
    "unmeasured": _unmeasured,
}


@dataclass
class Server:
    """A running server and its counters."""

    kind: Kind
    port: int
    started: float
    data: Path
    log: Path
    _process: subprocess.Popen[bytes]
    _counter: mmap.mmap

    def cpu(self) -> float:
        """Seconds of user and system time, all threads, in ticks of 10 ms."""
        after_name = self._proc("stat").rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICK

    def rss(self) -> int:
        """Bytes resident."""
        return self._memory("VmRSS:")

    def peak(self) -> int:
        """Bytes resident, at the most so far."""
        return self._memory("VmHWM:")

    def _memory(self, name: str) -> int:
        for line in self._proc("status").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise ServerError(f"{self.kind} is gone: {self.last_words()}")

    def flushes(self) -> int:
        """Count of fsync and fdatasync so far, by the shim."""
        return int.from_bytes(self._counter[:8], sys.byteorder)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def check(self) -> None:
        if self._process.poll() is not None:
            raise ServerError(f"{self.kind} ended with {self._process.returncode}: {self.last_words()}")

    async def stop(self) -> None:
        """SIGTERM, then wait; ours must drain and exit 0."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ServerError(f"{self.kind} did not stop within {STOP_SECONDS:.0f} s of SIGTERM") from error
        if code != 0 and self.kind != "reference":
            raise ServerError(f"{self.kind} exited {code}: {self.last_words()}")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _proc(self, name: str) -> str:
        self.check()
        return Path(f"/proc/{self._process.pid}/{name}").read_text()


class Bench:
    """A scratch folder, the shim, and the servers started here, none of which outlives it."""

    def __init__(self, scratch: Path, *, reference_usage: bool, counts_flushes: bool = True) -> None:
        """Prepare. The shim, which counts flushes, is compiled: without it no C compiler is needed."""
        self.scratch = scratch
        self._reference_usage = reference_usage
        self._shim = scratch / "fsync_shim.so"
        self._servers: list[Server] = []
        self._folders = 0
        self._env = {
            **os.environ,
            # Bytecode is compiled once and kept, as in any installation, whatever the caller's shell says.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        }
        if not counts_flushes:
            return
        self._env["LD_PRELOAD"] = str(self._shim)
        source = Path(__file__).with_name("fsync_shim.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(self._shim), str(source), "-ldl"], check=True)

    def folder(self, like: Path | None = None) -> Path:
        """Make a data folder: empty, or a copy of a stopped server's."""
        self._folders += 1
        folder = self.scratch / f"data-{self._folders}"
        if like is None:
            folder.mkdir()
        else:
            shutil.copytree(like, folder)
            os.sync()  # a server's own files are on disk; else its first flush would be that of the copy
        return folder

    def spawn(
        self, kind: Kind, data: Path, *flags: str, fsync_us: int | None = None, under: Sequence[str] = ()
    ) -> Server:
        """Start a server on cpu 0, as arguments of the command `under` if given; it may not listen yet."""
        if kind == "reference" and self._reference_usage:
            flags = (*flags, f"--usage-db={data / 'usage.sqlite'}")  # ours always keeps such records
        port = free_port()
        counter = data.with_suffix(".flushes")  # beside the folder: what is in it is the server's
        counter.write_bytes(bytes(8))
        env = {**self._env, "FSYNC_SHIM_COUNTER": str(counter)}
        if fsync_us is not None:
            env["FSYNC_SHIM_SLEEP_US"] = str(fsync_us)
        log = data.with_suffix(".log")
        with log.open("wb") as output, _on_cpu(_CPUS[0]), counter.open("r+b") as count:
            started = time.perf_counter()
            process = subprocess.Popen(
                [*under, *_COMMANDS[kind](data, port), *flags],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            server = Server(kind, port, started, data, log, process, mmap.mmap(count.fileno(), 8))
        self._servers.append(server)
        return server

    async def start(
        self, kind: Kind, data: Path, *flags: str, fsync_us: int | None = None, under: Sequence[str] = ()
    ) -> Server:
        """Start a server and wait until it accepts connections."""
        server = self.spawn(kind, data, *flags, fsync_us=fsync_us, under=under)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            server.check()
            with contextlib.suppress(OSError), socket.create_connection((HOST, server.port), timeout=1):
                return server
            await asyncio.sleep(0.02)
        raise ServerError(f"{kind} does not listen after {START_SECONDS:.0f} s: {server.last_words()}")

    def kill_all(self) -> None:
        for server in self._servers:
            server.kill()


def pin_generator() -> None:
    """Keep this process off the server's cpu, if there are two."""
    os.sched_setaffinity(0, {_CPUS[-1]})


@contextlib.contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    """Let a child started here inherit `cpu` from its first instruction."""
    before = os.sched_getaffinity(0)
    if len(_CPUS) > 1:
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
