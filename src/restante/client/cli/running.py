"""Running a transfer, and how a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final

import typer

from restante.common.terminal import SHOW_CURSOR, can_rewrite, say

SIGNAL_EXIT: Final = 128
"""What the number of a signal is added to for the exit code, as a shell shows it. After Ctrl-C it is 130."""

STOPPING_SECONDS: Final = 2.0
"""Seconds after a signal until the user is told why the command still runs."""

STILL_STOPPING: Final = (
    "Still removing unfinished files, or telling the other side. Ctrl-C ends this and may leave files."
)


def run(transfer: Coroutine[Any, Any, None]) -> None:
    """Run a transfer. Ctrl-C, SIGTERM and SIGHUP end it after the other side is informed.

    A second Ctrl-C or SIGTERM ends it at once, and leaves unfinished files. A second SIGHUP does nothing: when a
    terminal is closed, the shell and the system may both send one. A signal that is ignored, as with nohup, stays so.
    """
    signals: list[signal.Signals] = []

    async def run_until_signal() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            if not signals:
                say("")  # so that nothing is on the line of ^C or of a question
                task.cancel()
                loop.call_later(STOPPING_SECONDS, say, STILL_STOPPING)
            elif number != signal.SIGHUP:
                # A thread may remove files for minutes, and asyncio would wait for it (in_thread).
                say(SHOW_CURSOR if can_rewrite(sys.stderr) else "")
                os._exit(SIGNAL_EXIT + number)
            signals.append(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)
        await transfer

    try:
        asyncio.run(run_until_signal())
    except asyncio.CancelledError:
        raise typer.Exit(SIGNAL_EXIT + signals[0]) from None
