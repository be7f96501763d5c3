"""Logs: one line an event, for people or for machines. Never an address, nameplate, mailbox id, side or body."""

from __future__ import annotations

import logging
import sys

import structlog


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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries may name peers in what they log; what they report reaches us as exceptions and close codes.
    logging.getLogger().addHandler(logging.NullHandler())
