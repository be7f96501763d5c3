"""Converts a line of a server's trace, or an event of a client's log, to the lake's values. Pure.

restante.timing.logs reads only times, ids of commands and listed words; nothing else passes into the lake.
"""

from __future__ import annotations

from typing import Final

from restante.pipeline.clean.rules import (
    MICROSECONDS_PER_DAY,
    MISSING_VALUE,
    OUT_OF_RANGE,
    WRONG_TYPE,
    CleanValues,
    Faulty,
    TimeLimits,
    clean_text,
    clean_time,
)
from restante.timing.logs import NOT_A_LOG, NOT_JSON, READ_ERRORS, fault_of, read_event, read_line

TIMING_FAULTS: Final = (NOT_JSON, NOT_A_LOG, MISSING_VALUE, WRONG_TYPE, OUT_OF_RANGE)
"""All faults of timing. NOT_A_LOG is the fault of a whole file, or of the rest of one."""

_BIGINT_LIMIT: Final = 1 << 63
"""A BIGINT is less than this."""


def clean_command(line: bytes, limits: TimeLimits) -> CleanValues:
    """Return the columns of `server_commands` from `connection` on, and the day. Raises Faulty."""
    try:
        command = read_line(line)
    except READ_ERRORS as error:
        raise Faulty(fault_of(error)) from error
    received_us = clean_time(command.server_rx, limits)
    if not 0 <= command.connection < _BIGINT_LIMIT:
        raise Faulty(OUT_OF_RANGE)
    return [
        command.connection,
        command.command,
        _id(command.id),
        command.server_rx,
        command.commit_began,
        command.commit,
        command.server_tx,
        received_us // MICROSECONDS_PER_DAY,
    ]


def clean_event(item: bytes, limits: TimeLimits) -> CleanValues:
    """Return the columns of `client_events` from `name` on, and the day. Raises Faulty."""
    try:
        event = read_event(item)
    except READ_ERRORS as error:
        raise Faulty(fault_of(error)) from error
    start_us = clean_time(event.start, limits)
    return [
        event.name,
        event.start,
        event.stop,
        event.waiting,
        event.command,
        _id(event.id),
        event.phase,
        event.own,
        event.server_rx,
        event.server_tx,
        start_us // MICROSECONDS_PER_DAY,
    ]


def _id(text: str | None) -> str | None:
    return None if text is None else clean_text(text)
