"""What a server tells the service manager that started it: systemd, or another one that sets NOTIFY_SOCKET.

The messages are those of sd_notify(3): datagrams to a Unix socket, with a VARIABLE=VALUE in each line. Without
NOTIFY_SOCKET nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Final

from restante.common.logs import log

SEND_TIMEOUT: Final = 1.0
"""Seconds that a message may wait until the manager reads earlier ones. It reads them at once."""

CHECKS_PER_TIMEOUT: Final = 4
"""How often the event loop is checked within the manager's timeout. sd_watchdog_enabled(3) recommends two; with four,
one late answer of a busy machine does no harm."""

SERVING: Final = "STATUS=serving"
"""What `systemctl status` shows while the server works."""


class ServiceManager:
    """The service manager, to which a server says when it is ready, when it stops, and that it works."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = _address(environment)
        self.watchdog_seconds = _watchdog_seconds(environment) if self._address else None
        """The manager ends the process if it sends no WATCHDOG=1 for so long; None if it does not."""
        self._ready = self._unreachable = False

    def notify(self, *lines: str) -> None:
        """Send a message. If that fails, log it: the server goes on."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._unreachable:  # once is enough
                log.warning("the service manager cannot be reached", reason=error.strerror or "it does not read")
            self._unreachable = True

    def reload(self, read_again: Callable[[], None]) -> None:
        """Call a function that reads the settings again, and say when that begins and ends."""
        if not self._ready:  # the end of a reload says that the server is ready
            read_again()
            return
        self.begin_reload("reading the settings again")
        read_again()
        self.end_reload()

    def begin_reload(self, status: str) -> None:
        """Say that the server goes on with something new. It is ready again at `end_reload`, or in `serving`."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.notify("RELOADING=1", f"MONOTONIC_USEC={now}", f"STATUS={status}")

    def end_reload(self) -> None:
        """Say that the server is ready again."""
        self.notify("READY=1", SERVING)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Say in the block that the process works, although its event loop does not respond."""
        with (
            _watching(self, self.watchdog_seconds, lambda: True)
            if self.watchdog_seconds
            else contextlib.nullcontext()
        ):
            yield

    @contextlib.asynccontextmanager
    async def serving(
        self, stop: asyncio.Event, waits_for_disk: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[None]:
        """Say that the server is ready; in the block, that its event loop responds; and when `stop` is set.

        While `waits_for_disk` returns true, the loop need not respond: a restart repairs no disk. It is called in
        another thread.
        """
        self._ready = True
        self.notify("READY=1", SERVING)
        stopping = asyncio.create_task(self._say_stopping(stop))
        with contextlib.ExitStack() as stack:
            stack.callback(stopping.cancel)
            if self.watchdog_seconds is not None:
                stack.enter_context(_watching(self, self.watchdog_seconds, waits_for_disk))
            yield

    async def _say_stopping(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._ready = False
        self.notify("STOPPING=1", "STATUS=draining")


def _address(environment: Mapping[str, str]) -> str | None:
    """Return the manager's address, None if there is none, or one of a virtual machine's host (vsock)."""
    path = environment.get("NOTIFY_SOCKET", "")
    if path.startswith("@"):
        return "\0" + path[1:]  # unix(7): an abstract name
    return path if path.startswith("/") else None


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the timeout of the watchdog, None if there is none for this process (sd_watchdog_enabled(3))."""
    time_text, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not (time_text.isascii() and time_text.isdigit() and int(time_text)) or pid not in {"", str(os.getpid())}:
        return None
    return int(time_text) / 1_000_000


@contextlib.contextmanager
def _watching(manager: ServiceManager, timeout: float, waits_for_disk: Callable[[], bool]) -> Iterator[None]:
    """Send WATCHDOG=1 in the block while the event loop responds or waits for the disk, from a thread."""
    loop, over, interval = asyncio.get_running_loop(), threading.Event(), timeout / CHECKS_PER_TIMEOUT

    def responds() -> bool:
        responded = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(responded.set)
        return responded.wait(interval)

    def watch() -> None:
        while not over.wait(interval):
            if waits_for_disk() or responds() or waits_for_disk():
                manager.notify("WATCHDOG=1")

    faulthandler.enable()  # the manager ends a process that hangs with SIGABRT: the log then says where it hung
    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()  # nobody waits for the thread: it may wait for the loop
