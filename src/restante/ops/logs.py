"""Logs: one line an event, for people or for machines. Never an address, nameplate, mailbox id, side or body."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


class _Output:
    """A stream whose reader may go away: a server that cannot log goes on serving, and can be stopped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def start(form: str) -> None:
    """Log to standard error: `console`, `json`, or `auto`: console on a terminal, JSON elsewhere."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if console else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Output(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    # Libraries may name peers in what they log; what they report reaches us as exceptions and close codes.
    logging.getLogger().addHandler(logging.NullHandler())
