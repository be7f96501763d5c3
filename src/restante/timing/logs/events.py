"""Cuts a client's timing log into its events. The log is a JSON list, and may be damaged or cut off.

The list is cut at its commas, and each piece is parsed by itself, so that a bad event does not affect the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from restante.timing.logs.records import NOT_A_LOG

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A string (RFC 8259 section 7), a string that does not end, or a structural character."""

_SPACE: Final = b" \t\n\r"
"""The whitespace of JSON (RFC 8259 section 2)."""


class EventItem(NamedTuple):
    """An event, or the bytes in the place of one."""

    at: int
    """Offset in the file."""
    raw: bytes
    fault: str | None = None


def items(log: bytes) -> Iterator[EventItem]:
    """Yield the events of a log, and the bytes that cannot be one, to its end. Events are not parsed."""
    start = len(log) - len(log.lstrip(_SPACE))
    if log[start : start + 1] != b"[":
        yield EventItem(start, log[start:], NOT_A_LOG)
        return
    depth, start, first = 0, start + 1, True
    for token in _TOKEN.finditer(log, start - 1):
        match token[0]:
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}" if depth > 1:
                depth -= 1
            case b"]":
                if not first or log[start : token.start()].strip(_SPACE):
                    yield _cut(log, start, token.start())
                rest = _cut(log, token.end(), len(log))
                if rest.raw:
                    yield rest._replace(fault=NOT_A_LOG)
                return
            case b"," if depth == 1:
                yield _cut(log, start, token.start())
                start, first = token.end(), False
            case b'"' | b"}":
                break
    yield _cut(log, start, len(log))._replace(fault=NOT_A_LOG)


def _cut(log: bytes, start: int, stop: int) -> EventItem:
    raw = log[start:stop]
    return EventItem(start + len(raw) - len(raw.lstrip(_SPACE)), raw.strip(_SPACE))
