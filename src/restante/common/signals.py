"""Signals of the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

from restante.common.logs import log

ENDING: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def listening_for_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets. The second ends the process.

    A thread waits for the signals (man 3 sigwait), because the loop may be blocked by a disk that does not answer.
    Threads that are started within the block do not receive these signals.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop(name: str) -> None:
        stopping.set()
        log.info("draining", signal=name)

    def wait(over: threading.Event) -> None:
        name = signal.Signals(signal.sigwait(ENDING)).name
        if not over.is_set():
            loop.call_soon_threadsafe(stop, name)
            signal.sigwait(ENDING)
        if not over.is_set():
            os._exit(1)

    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until a handler is set: by default it ends the process
    with _in_a_thread(wait):
        yield stopping


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


@contextlib.contextmanager
def _in_a_thread(wait: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function that waits for the signals in a thread. When it gets one after the block, the event is set."""
    over = threading.Event()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    thread = threading.Thread(target=wait, args=(over,), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, signal.SIGTERM)
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
