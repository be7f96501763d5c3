"""Processes that tests start, listen to, kill and start again; `restante` above all."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from unittest.mock import patch
from urllib.parse import urlsplit

import structlog

from restante.cli.main import main
from restante.common.logs import log
from support.bounds import BOUND, bounded
from support.forks import Forked

RESTANTE: Final = (sys.executable, "-m", "restante")
RELAY: Final = (*RESTANTE, "relay")
TESTS: Final = Path(__file__).parents[1]

T = TypeVar("T")


def altered(how: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "support.mailbox.altered", how)


def environment(**variables: str) -> dict[str, str]:
    """Return our environment without the settings of the programs, and with what they import of the tests."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("RESTANTE_", "WORMHOLE_"))}
    path = os.pathsep.join(filter(None, (ours.get("PYTHONPATH"), str(TESTS))))
    return {**ours, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "XDG_CONFIG_HOME": os.devnull, **variables}


class Child:
    def __init__(self, process: Process | Forked, *read: str) -> None:
        self.process = process
        self.said = {"stdout": "", "stderr": ""}
        self._news = asyncio.Event()
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        self._reading = [asyncio.create_task(self._read(name, streams[name])) for name in read]

    @classmethod
    async def forked(cls, main: str, *arguments: str, cwd: Path, **variables: str) -> Self:
        """Call `main`, a MODULE:FUNCTION, in a fork, as the program and with these arguments."""
        process = await Forked.start(main, *arguments, cwd=cwd, variables=environment(**variables))
        return cls(process, "stdout", "stderr")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    @property
    def log(self) -> list[str]:
        return self.said["stderr"].split("\n")[:-1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()

    async def says(self, pattern: str) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, said) for said in self.said.values())), None)

        return await self.until(f"it says {pattern}", look)

    async def until(self, what: str, look: Callable[[], T | None]) -> T:
        async with bounded(what):
            while not (result := look()):
                assert not all(task.done() for task in self._reading), f"it ended instead: {self.said}"
                self._news.clear()
                await self._news.wait()
        return result

    async def ended(self, within: float = BOUND) -> int:
        """Wait until it has ended and all that it said was read; gives its exit code."""
        async with bounded(f"the end of a process; so far {self.said}", within):
            await asyncio.shield(asyncio.gather(*self._reading))  # who gives up waiting may wait again
            return await self.process.wait()

    async def restarts(self, times: int = 1) -> None:
        """SIGUSR2, and wait for the restart. On a machine so busy that a batch takes seconds, try again."""

        def events(text: str) -> int:
            return sum(text in line for line in self.log)

        for _ in range(times):
            done = events('"restarted"') + 1
            while events('"restarted"') < done:
                tries = events("was not restarted") + 1
                self.send(signal.SIGUSR2)
                await self.until(
                    "a restart",
                    lambda done=done, tries=tries: (
                        events('"restarted"') >= done or events("was not restarted") >= tries
                    ),  # type: ignore[misc]
                )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Whatever state it is in: no process stays behind."""
        if self.running:
            self.kill()
        await self.ended()

    async def _read(self, name: str, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while data := await stream.read(1 << 16):
            # What is looked for is ASCII; a letter cut in two must not raise.
            self.said[name] += data.decode(errors="replace")
            self._news.set()
        self._news.set()


async def spawn(
    *command: str,
    cwd: Path | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    variables: Mapping[str, str] | None = None,
) -> Process:
    its = environment(**(variables or {}))
    return await asyncio.create_subprocess_exec(*command, cwd=cwd, env=its, stdin=stdin, stdout=stdout, stderr=PIPE)


@asynccontextmanager
async def child(*command: str, **variables: str) -> AsyncIterator[Child]:
    async with Child(await spawn(*command, variables=variables), "stdout", "stderr") as running:
        yield running


class Serving(Child):
    def __init__(self, process: Process, data: Path) -> None:
        super().__init__(process, "stderr")
        self.data = data
        self.url = ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    async def logged(self, event: str, **wanted: Any) -> dict[str, Any]:
        """Wait until it has logged this event with these fields; gives all of its fields."""
        lines = 0

        def look() -> dict[str, Any] | None:
            nonlocal lines
            for line in self.log[lines:]:
                lines += 1
                fields: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
                if ({"event": event} | wanted).items() <= fields.items():
                    return fields
            return None

        return await self.until(f"{event!r} {wanted or ''} in the log", look)

    async def stop(self) -> None:
        """SIGTERM; it must end as it promises."""
        self.send(signal.SIGTERM)
        assert await self.ended() == 0, self.log


@asynccontextmanager
async def started(
    data: Path,
    program: tuple[str, ...] = RESTANTE,
    options: tuple[str, ...] = (),
    stdout: int = DEVNULL,
    **variables: str,
) -> AsyncIterator[Serving]:
    """Start a server, on a free port unless the options name one, and do not wait for it. No process stays behind."""
    free = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    state = () if "--database" in options else ("--data", str(data))
    command = (*program, "serve", *state, *free, "--admin", "off", "--log-format", "json", *options)
    async with Serving(await spawn(*command, stdout=stdout, variables=variables), data) as server:
        yield server


@asynccontextmanager
async def serving(
    data: Path, program: tuple[str, ...] = RESTANTE, options: tuple[str, ...] = (), **variables: str
) -> AsyncIterator[Serving]:
    async with started(data, program, options, DEVNULL, **variables) as server:
        server.url = (await server.logged("listening"))["url"]
        yield server


@contextmanager
def process_group(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program; in the end kill it and what it started: a fork may keep a pipe whose end would end a Java."""
    with subprocess.Popen(command, text=True, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)


def run(
    *command: str | Path,
    cwd: Path | None = None,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
    bound: float = BOUND,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=bound,
        env=environment(**(variables or {})),
    )


def loaded_by(library: str) -> tuple[set[str], set[str]]:
    """Return the modules that the import of a library loads, and those that are loaded when all its names are."""
    names = f"for name in {library}.__all__: getattr({library}, name)"
    done = run(sys.executable, "-c", f"import sys, {library}\nprint(*sys.modules)\n{names}\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    return set(first.split()), set(last.split())


def restante(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(*RESTANTE, *arguments, variables=variables)


def called(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Do what `restante ARGUMENTS...` does in this process, and undo what it changes; a server would not end."""
    command = ["restante", *map(str, arguments)]
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        patch.object(sys, "argv", command),
        patch.dict(os.environ, environment(**variables), clear=True),
        _process_as_it_was(),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    written = [stream.detach().getvalue().decode() for stream in (stdout, stderr)]
    return subprocess.CompletedProcess(command, code, *written)


def on_a_terminal(
    *command: str | Path, streams: Container[str] = ("stdin", "stdout", "stderr"), steps: Sequence[Sequence[str]] = ()
) -> str:
    """Run a program with streams on a terminal; return what it shows. When it shows a step's words, send a line."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [str(word) for word in command],
        env=environment(TERM="xterm", COLUMNS="100"),
        bufsize=0,
        stdin=its if "stdin" in streams else subprocess.PIPE,
        stdout=its if "stdout" in streams else subprocess.DEVNULL,
        stderr=its if "stderr" in streams else subprocess.DEVNULL,
    ) as process:
        os.close(its)
        hang = threading.Timer(BOUND, process.kill)
        hang.start()
        coming, sent = list(steps), b""
        with contextlib.suppress(OSError):  # EIO is how Linux says that nobody has the other end
            while some := os.read(ours, 4096):
                sent += some
                while coming and all(words.encode() in sent for words in coming[0]):
                    del coming[0]
                    assert process.stdin is not None
                    process.stdin.write(b"\n")
        code = process.wait()
        hang.cancel()
    os.close(ours)
    assert code == 0, f"{code}; {coming} was not shown: {sent!r}"
    return sent.decode().replace("\r\n", "\n")


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    mask = os.umask(0o077)
    os.umask(mask)
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
        structlog.reset_defaults()
        vars(log).pop("bind", None)  # what it caches at its first line


def database(data: Path) -> Path:
    return data / "restante.sqlite"


def wal(data: Path) -> Path:
    return data / "restante.sqlite-wal"


@contextmanager
def evidence(data: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database of a server that is down: looking must not repair what it will find."""
    copy = data.with_name(data.name + "-copy")
    shutil.copytree(data, copy)
    try:
        with closing(sqlite3.connect(database(copy))) as db:
            yield db
    finally:
        shutil.rmtree(copy)
