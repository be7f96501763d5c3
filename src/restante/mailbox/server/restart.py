"""The restart: the process replaces itself by the installed version (execve(2)), and leaves it its connections.

Until the process is replaced, everything can be undone, and an error only ends the restart.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Final

import msgspec

from restante import __version__
from restante.common.errors import RestanteError, plain
from restante.common.handover import Head, replace_process, waits_for_disk
from restante.common.line_writer import wait_for_standard_error
from restante.common.logs import log, trace_text
from restante.common.restart import Answer, Running, write_answer
from restante.common.service_manager import ServiceManager
from restante.common.signals import ServerSignals
from restante.mailbox.server.handover import FORMAT, leave
from restante.mailbox.server.server import Server
from restante.mailbox.server.trace import TraceFile
from restante.mailbox.settings import Serve

CHECK_SECONDS: Final = 60.0
"""Seconds that the installed version has to check itself, the settings and the database."""

HOLD_SECONDS: Final = 5.0
"""Seconds that the current batch has to reach the disk."""


LAST_SECONDS: Final = 1.0
"""Seconds that threads have to end what they write, when all clients wait already."""

CONNECTIONS_CLOSED: Final = "the server was restarted, and all connections were closed: its log says why"


class RestartFailed(RestanteError):  # noqa: N818 - the project's name for it (CONTRIBUTING.md)
    """The process cannot be replaced. The text says why."""


class Restart:
    """Replaces the process when it is asked to."""

    def __init__(
        self,
        server: Server,
        settings: Serve,
        locks: list[int],
        admin_listening: dict[str, list[int]],
        manager: ServiceManager,
        signals: ServerSignals,
        trace_file: TraceFile | None,
    ) -> None:
        self._server = server
        self._settings = settings
        self._locks = locks
        self._admin_listening = admin_listening
        self._manager = manager
        self._signals = signals
        self._trace_file = trace_file
        self._task: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a restart, unless one is under way."""
        if self._task is not None and not self._task.done():
            log.info("a restart is under way already")
        elif not self._signals.stopping:
            log.info("checking the installed version, for a restart")
            self._task = asyncio.create_task(self._run())

    async def give_up(self) -> None:
        """End a restart that is under way, because the server stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def succeeded(self, before: str, seconds: float, connections: int | None) -> None:
        """Say that this program has replaced another version in the process.

        `seconds`: how long its clients have waited. `connections`: how many stayed; None: it could use none.
        """
        log.info("restarted", version=__version__, before=before, connections=connections, seconds=round(seconds, 3))
        error = "" if connections is not None else CONNECTIONS_CLOSED
        self._answering = asyncio.create_task(self._answer(Answer(__version__, error, connections or 0, seconds)))

    async def _run(self) -> None:
        reason = ""
        try:
            await self._check()
            await self._wait_for_disk()
            log.info("restarting")
            self._manager.begin_reload("restarting")
            try:
                self._replace(await self._server.hold(HOLD_SECONDS))
            finally:
                await self._server.release()
                self._manager.end_reload()
        except TimeoutError:
            reason = "the disk does not answer"
        except (RestanteError, OSError) as error:
            reason = plain(error) if isinstance(error, OSError) else str(error)
        except Exception as error:  # noqa: BLE001 - our bug must not end the server
            reason = trace_text(error)
        if reason:
            log.error("the server was not restarted and goes on", reason=reason)
            await self._answer(Answer(__version__, f"the server was not restarted and goes on: {reason}"))

    async def _check(self) -> None:
        """Raise RestartFailed if the installed version cannot start, or refuses the settings or the database."""
        arguments = sys.orig_argv[1:]
        try:
            position = arguments.index("serve")
        except ValueError:
            raise RestartFailed("the command line has no `serve`") from None
        check = [*arguments[:position], "config", "check", "--with-database", *arguments[position + 1 :]]
        status = os.fstat(self._locks[0])
        running = Running((status.st_dev, status.st_ino), self._settings.listen, self._settings.admin)
        variables = {**os.environ, **running.environment()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *check, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=variables
        )
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                _, errors = await process.communicate()
        except TimeoutError:
            raise RestartFailed("the installed version does not answer") from None
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise RestartFailed(f"the installed version cannot go on: {lines[-1]}")

    async def _wait_for_disk(self) -> None:
        """Raise TimeoutError if a thread waits for a disk that hangs."""
        async with asyncio.timeout(HOLD_SECONDS):
            while waits_for_disk():  # noqa: ASYNC110 - the kernel has no event for it
                await asyncio.sleep(0.01)

    def _replace(self, closed: int) -> None:
        """Replace the process. It returns only by an error."""
        body = leave(self._server, closed=closed)
        listening = {**self._server.listeners.descriptors(), **self._admin_listening}
        sockets = [record.socket.descriptor for record in body.connections if record.socket is not None]
        head = Head(os.getpid(), FORMAT, time.monotonic(), __version__, listening, sockets, self._locks)
        if self._trace_file is not None and not self._trace_file.wait():
            raise RestartFailed("the trace cannot be written")
        wait_for_standard_error()
        deadline = time.monotonic() + LAST_SECONDS
        while waits_for_disk():  # mostly for some milliseconds
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.002)
        with self._signals.leaving():
            replace_process(sys.orig_argv[1:], head, msgspec.msgpack.encode(body), self._refuse_if_stopping)

    def _refuse_if_stopping(self) -> None:
        """Raise RestartFailed if a signal to stop has come, which the next process would not get."""
        if self._signals.stopping:
            raise RestartFailed("it stops")

    async def _answer(self, outcome: Answer) -> None:
        try:
            await asyncio.to_thread(write_answer, Path(self._settings.data), outcome)
        except OSError as error:
            log.warning("cannot write how the restart ended", reason=plain(error))
