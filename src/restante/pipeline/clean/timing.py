"""Converts a line of a server's trace, or an event of a client's log, to the lake's values or its fault. Pure.

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
    Fault,
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


def clean_command(line: bytes, within: TimeLimits) -> CleanValues | Fault:
    """Return the columns of `server_commands` from `connection` on, and the day, or the line's fault."""
    try:
        read = read_line(line)
        received = clean_time(read.server_rx, within)
    except Faulty as error:
        return Fault(error.args[0])
    except READ_ERRORS as error:
        return Fault(fault_of(error))
    if not 0 <= read.connection < _BIGINT_LIMIT:
        return Fault(OUT_OF_RANGE)
    return [
        read.connection,
        read.command,
        _id(read.id),
        read.server_rx,
        read.commit_began,
        read.commit,
        read.server_tx,
        received // MICROSECONDS_PER_DAY,
    ]


def clean_event(item: bytes, within: TimeLimits) -> CleanValues | Fault:
    """Return the columns of `client_events` from `name` on, and the day, or the event's fault."""
    try:
        read = read_event(item)
        began = clean_time(read.start, within)
    except Faulty as error:
        return Fault(error.args[0])
    except READ_ERRORS as error:
        return Fault(fault_of(error))
    return [
        read.name,
        read.start,
        read.stop,
        read.waiting,
        read.command,
        _id(read.id),
        read.phase,
        read.own,
        read.server_rx,
        read.server_tx,
        began // MICROSECONDS_PER_DAY,
    ]


def _id(read: str | None) -> str | None:
    return None if read is None else clean_text(read)
