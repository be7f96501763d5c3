"""Logs: one line per event, for people or for programs. Never an address, nameplate, mailbox id, side or body."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from restante.common.line_writer import unblock_standard_error
from restante.common.refusals import RefusalCounts, RefusalKind
from restante.common.terminal import has_colours

HIDDEN_MODULES: Final = ("rich", "twisted")
"""Modules that structlog imports if they are installed. We use neither; they take a third of the start-up time."""


@contextlib.contextmanager
def _without(modules: tuple[str, ...]) -> Iterator[None]:
    """Hide modules that are not loaded yet from imports (the import system: None in sys.modules)."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _without(HIDDEN_MODULES):
    import structlog


log: structlog.stdlib.BoundLogger = structlog.get_logger()


def trace_text(error: BaseException | None) -> str:
    """Return an exception's type and the lines it passed through. Its text is left out: it may contain a secret."""
    if error is None:
        return "unknown"
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(
        [type(error).__name__, *(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))]
    )


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log exceptions of the loop's callbacks, which nothing else reports."""

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # uvloop goes on with the look-up of a name when the task that waits for it is cancelled (loop.pyx).
        if not isinstance(error, socket.gaierror) or isinstance(context.get("future"), asyncio.Task):
            log.error("unhandled exception in a background task", fault=trace_text(error))

    loop.set_exception_handler(report)


def _log_dropped_lines(error: str, dropped: int) -> None:
    if dropped and not error:
        log.warning("lines of the log were dropped, because nobody read them", lines=dropped)


MAX_LOGGED_ADDRESSES: Final = 10
"""Log lines about addresses at a time, so that attackers do not fill the disk with logs."""


def log_refusals(counts: RefusalCounts, kinds: Mapping[str, RefusalKind]) -> None:
    """Log the refusals since the last call, the most frequent first. Call this once a minute and at the end."""
    pairs = counts.end_minute().most_common()
    for (reason, address_id), times in pairs[:MAX_LOGGED_ADDRESSES]:
        log.warning("refused", reason=reason, words=kinds[reason].message, times=times, address=address_id)
    if unlogged := pairs[MAX_LOGGED_ADDRESSES:]:
        log.warning("other refusals", times=sum(times for _, times in unlogged), pairs=len(unlogged))


def is_log_started() -> bool:
    """Return whether `start_log` was called."""
    return structlog.is_configured()


def start_log(form: str) -> None:
    """Configure logging to standard error. `auto` is `console` on a terminal and `json` elsewhere.

    A thread writes, so a server goes on serving if the reader of its log stops reading, or goes away.
    """
    unblock_standard_error(_log_dropped_lines)
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=has_colours(sys.stderr))
            if console
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries may log peers' addresses. Their errors reach us as exceptions and close codes.
    logging.getLogger().addHandler(logging.NullHandler())
