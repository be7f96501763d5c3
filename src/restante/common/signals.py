"""Signals of the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT)

SERVED: Final = (*ENDING, signal.SIGHUP, signal.SIGUSR2)
"""What a running server waits for."""


class ServerSignals:
    """What the signals of a server do."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Set by the first SIGTERM or SIGINT, and by SIGHUP if the terminal was closed."""
        self.stopping = False
        """Whether a signal has come that is about to set `stop`."""
        self.ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        """Whether the process was started so that it outlives its terminal (nohup(1))."""
        self.thread: _SignalThread | None = None
        """Receives the signals."""
        self._actions: dict[int, Callable[[], object]] = {}
        self._early: set[int] = set()
        """Signals that came before there were actions."""

    def serve(self, reload: Callable[[], object], restart: Callable[[], object] = lambda: None) -> None:
        """Call `reload` for each other SIGHUP, and `restart` for each SIGUSR2, also if it has come already."""
        self._actions = {signal.SIGHUP: reload, signal.SIGUSR2: restart}
        early, self._early = self._early, set()
        for number in early:
            self._actions[number]()

    def receive(self, number: int) -> None:
        """Do what a signal asks for, in the event loop."""
        self._actions.get(number, lambda: self._early.add(number))()

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Let another program, which replaces this one in the block, begin with what this one began with.

        Signals that come in the block wait for that program.
        """
        assert self.thread is not None
        self.thread.end()
        before = signal.getsignal(signal.SIGHUP)
        if self.ignores_hangup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)
            self.thread.start()


def run_server(serve: Callable[[ServerSignals], Coroutine[Any, Any, None]]) -> None:
    """Run a server, which ends after a signal, in an event loop of its own."""
    import uvloop  # the extra of servers has it, and what logs need

    from restante.common.logs import log, log_loop_errors

    async def run() -> None:
        log_loop_errors(asyncio.get_running_loop())
        with _listening_for_signals(lambda name: log.info("draining", signal=name)) as signals:
            await serve(signals)
        log.info("stopped")

    uvloop.run(run())


@contextlib.contextmanager
def _listening_for_signals(on_stop: Callable[[str], object]) -> Iterator[ServerSignals]:
    """Yield what the signals of a server set and call. A second SIGTERM or SIGINT ends the process.

    `on_stop` is called with the name of the signal that stops the server, in the event loop.

    A thread waits for the signals (man 3 sigwait), because the loop may be blocked by a disk that does not answer.
    Threads that are started within the block do not receive these signals.
    """
    loop = asyncio.get_running_loop()
    signals = ServerSignals()
    terminal = None if signals.ignores_hangup else Terminal()

    def stop(name: str) -> None:
        signals.stop.set()
        on_stop(name)

    def wait(over: threading.Event) -> None:
        while not signals.stopping:
            received = signal.sigwaitinfo(SERVED)
            if over.is_set() and received.si_pid == os.getpid():  # that of `end`
                return
            number, closed = received.si_signo, terminal is not None and terminal.closed(received)
            if number == signal.SIGUSR2 or (number == signal.SIGHUP and not closed):
                loop.call_soon_threadsafe(signals.receive, number)
            else:
                signals.stopping = True
                loop.call_soon_threadsafe(stop, signal.Signals(number).name)
        signal.sigwait(ENDING)
        if not over.is_set():
            os._exit(1)

    for number in (signal.SIGHUP, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda: None)  # after the block they do nothing
    with _in_a_thread(wait, SERVED) as signals.thread:
        yield signals


class Terminal:
    """The terminal from which the process was started."""

    def __init__(self) -> None:
        self._had_terminal = _has_terminal()
        self._parent = os.getppid()

    def closed(self, received: signal.struct_siginfo) -> bool:
        """Return whether a SIGHUP says that the terminal was closed.

        The kernel sends it (its codes are positive: man 2 sigaction), or the shell, which leads the session or is our
        parent. Another process's SIGHUP never says so: the shell's `disown` lets a server outlive its terminal.
        """
        of_terminal = received.si_code > 0 or received.si_pid in {os.getsid(0), self._parent}
        return self._had_terminal and of_terminal and not _has_terminal()


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal (man 4 tty)."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt within the block, as Ctrl-C does, so that unfinished files are removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ending_at_once(clean_up: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process within the block, with 130 or 143, after a call of `clean_up`.

    A thread waits for them, because compiled code that does not return lets no Python handler run. Threads that are
    started within the block do not receive these signals.
    """

    def wait(over: threading.Event) -> None:
        number = signal.sigwait(ENDING)
        if not over.is_set():
            clean_up()
            os._exit(128 + number)

    with _in_a_thread(wait):
        yield


class _SignalThread:
    """A thread that waits for signals. When it gets one after `end`, its event is set."""

    def __init__(self, wait: Callable[[threading.Event], None]) -> None:
        self._wait = wait
        self.start()

    def start(self) -> None:
        """Begin, also again after `end`."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(self._over,), name="signals", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End. Signals that come later stay in the kernel."""
        self._over.set()
        assert self._thread.ident is not None
        signal.pthread_kill(self._thread.ident, signal.SIGTERM)
        self._thread.join()


@contextlib.contextmanager
def _in_a_thread(
    wait: Callable[[threading.Event], None], signals: Sequence[signal.Signals] = ENDING
) -> Iterator[_SignalThread]:
    """Run a function that waits for the signals in a thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    thread = _SignalThread(wait)
    try:
        yield thread
    finally:
        thread.end()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # the program before this one may have left them blocked
