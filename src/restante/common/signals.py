"""A process: its signals, and its descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from typing import Final

from restante.common.logs import log

ENDING: Final = (signal.SIGTERM, signal.SIGINT)

MANY: Final = 1 << 20
"""Descriptors, where there is no limit to them."""


@contextlib.contextmanager
def listening_for_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets. The second one ends the process.

    A thread waits for them (man 3 sigwait): the loop may be waiting for a disk that never answers. Threads that are
    started in the block leave these signals to it.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    over = threading.Event()

    def stop(name: str) -> None:
        told.set()
        log.info("draining", signal=name)

    def wait() -> None:
        name = signal.Signals(signal.sigwait(ENDING)).name
        if not over.is_set():
            loop.call_soon_threadsafe(stop, name)
            signal.sigwait(ENDING)
        if not over.is_set():
            os._exit(1)

    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is something to reload; it would end us
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    thread = threading.Thread(target=wait, name="signals", daemon=True)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, signal.SIGTERM)
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Have SIGTERM end the block as Ctrl-C does, by an exception: what is not finished is removed on its way."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def raise_descriptors() -> int:
    """Have as many descriptors as we may: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return MANY if soft == resource.RLIM_INFINITY else soft
