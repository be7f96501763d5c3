"""Logs: one line per event, for people or for programs. Never an address, nameplate, mailbox id, side or body."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO, cast

UNWANTED: Final = ("rich", "twisted")
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


with _without(UNWANTED):
    import structlog


class _Output:
    """A stream whose reader may go away. A server that cannot log goes on serving."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


log: structlog.stdlib.BoundLogger = structlog.get_logger()


def where(fault: BaseException | None) -> str:
    """Return an exception's type and the lines it passed through. Its text is left out: it may contain a secret."""
    if fault is None:
        return "unknown"
    frames = traceback.extract_tb(fault.__traceback__)
    return " < ".join([type(fault).__name__, *(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))])


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Log exceptions of the loop's callbacks, which nothing else reports."""

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("unhandled exception in a background task", fault=where(context.get("exception")))

    loop.set_exception_handler(report)


def configured() -> bool:
    """Return whether `start` was called."""
    return structlog.is_configured()


def start(form: str) -> None:
    """Configure logging to standard error. `auto` is `console` on a terminal and `json` elsewhere."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Output(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    # Libraries may log peers' addresses. Their errors reach us as exceptions and close codes.
    logging.getLogger().addHandler(logging.NullHandler())
