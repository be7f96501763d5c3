"""A process: its signals, and its descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from typing import Final

from restante.ops.logs import log

MANY: Final = 1 << 20
"""Descriptors, where there is no limit to them."""


def listen_for_signals() -> asyncio.Event:
    """Give the event that SIGTERM and SIGINT set; the second one ends the process."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def stop(name: str) -> None:
        if told.is_set():
            os._exit(1)  # at once: a thread may be waiting for a disk that never answers
        told.set()
        log.info("draining", signal=name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is something to reload; it would end us
    return told


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
