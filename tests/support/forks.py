"""Programs in Python, run in forks of one process that has imported them.

Most of what a short program costs is its imports: a second of processor time for a `wormhole`. So one process for
each worker of pytest imports them once, and forks for each program that is asked for. A fork has its own arguments,
environment, folder and output, ends with its own exit code, and can be killed like any other process.

    python -m support.forks SOCKET    is that process
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import json
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, Self

PRELOADED: Final = (
    "restante.mailbox.server.main",
    "restante.client.journal_mode.journal",
    "client.commands",
    "client.killed_at",
    "restante.client.cli.transfer",
    "segno",
    "restante.mailbox.reference_import.importing",
    # What `wormhole` and `twist` import, but for the modules that create Twisted's reactor: that must not be forked.
    "wormhole.cli.cli",
    "wormhole.transit",
    "support.mailbox.wormhole",
    "humanize",
    "iterableio",
    "qrcode",
    "tqdm",
    "zipstream.ng",
    "twisted.internet.epollreactor",
    "twisted.application.twist._twist",
    "twisted.plugins.magic_wormhole_mailbox",
    "wormhole_mailbox_server.database",
    "wormhole_mailbox_server.server",
    "autobahn.twisted.resource",
    "twisted.web.static",
)
REACTOR: Final = "twisted.internet.reactor"
LONGEST: Final = 1 << 18


class Forked:
    """A program in a fork, with the part of the interface of asyncio's Process that tests use."""

    returncode: int | None = None

    def __init__(self, pid: int, *streams: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout, self.stderr, self._status = streams
        self._waiting = asyncio.create_task(self._wait())

    @classmethod
    async def start(cls, main: str, *words: str, cwd: Path, variables: Mapping[str, str]) -> Self:
        """Call `main`, a MODULE:FUNCTION, as the program `words[0]` with the other words as its arguments."""
        request = json.dumps({"main": main, "words": words, "cwd": str(cwd), "variables": dict(variables)}).encode()
        pipes = [os.pipe() for _ in range(3)]
        try:
            socket.send_fds(_forker(), [request], [theirs for _, theirs in pipes])
        finally:
            for _, theirs in pipes:
                os.close(theirs)
        streams = [await _reader(ours) for ours, _ in pipes]
        return cls(int(await streams[2].readline()), *streams)

    async def wait(self) -> int:
        return await asyncio.shield(self._waiting)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we were not told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _wait(self) -> int:
        self.returncode = int(await self._status.readline())
        await self._status.read()  # the end of the pipe closes it
        return self.returncode


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


@functools.cache
def _forker() -> socket.socket:
    """Return the socket of the process that forks, which is started when it is needed first."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, its):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.forks", str(its.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # this comes first, and ends it
    return ours


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for pytest
    for name in PRELOADED:
        importlib.import_module(name)
    if REACTOR in sys.modules:
        # In a new environment, Twisted imports all of its plugins once, to write a list of them (twisted/plugin.py,
        # getCache), and some of them import the reactor. The second time it reads the list.
        assert len(sys.argv) == 2, "the reactor's descriptors would be shared by all forks"
        os.execv(sys.executable, [sys.executable, "-m", "support.forks", sys.argv[1], "again"])
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            request, descriptors, *_ = socket.recv_fds(requests, LONGEST, 3)
            _reap(0 if not request else os.WNOHANG)
            if not request:
                return
            if os.fork() == 0:
                requests.close()
                _keep(request, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _reap(options: int) -> None:
    """Wait for keepers that have ended: then the processor time of all forks counts as that of our children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _keep(request: bytes, stdout: int, stderr: int, status: int) -> NoReturn:
    """Fork the program; tell its number, wait for it and tell how it ended."""
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(request, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    os.write(status, b"%d\n" % pid)
    _, ended = os.waitpid(pid, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _become(request: bytes, stdout: int, stderr: int) -> NoReturn:
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asked = json.loads(request)
        for ours, its in ((stdout, 1), (stderr, 2)):
            os.dup2(ours, its)
            os.close(ours)
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
        os.environ.clear()
        os.environ.update(asked["variables"])
        os.chdir(asked["cwd"])
        sys.argv[:] = asked["words"]  # in place: it may be the default of an argument
        module, _, function = asked["main"].partition(":")
        code = operator.attrgetter(function)(importlib.import_module(module))()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a program
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)  # noqa: T201
    # What the interpreter does at the end of a program; it has no public names.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
