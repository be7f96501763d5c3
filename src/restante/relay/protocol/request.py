"""The request that a connection begins with, and the answers of the relay.

Source: magic-wormhole-transit-relay 0.5.0, transit_server.py:73 (the line of TCP) and :226 (the message of a
WebSocket).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

OK: Final = b"ok\n"
"""Both sides of a pair get it; what follows it is from the other side."""

BAD_HANDSHAKE: Final = b"bad handshake\n"
"""The answer to a malformed request, and to one that is refused. Then the connection is closed."""

IMPATIENT: Final = b"impatient\n"
"""The answer to bytes that come before OK. Then the connection is closed."""

MAX_LINE_BYTES: Final = 1024
"""Maximum size of the line, without its newline. A longer one is closed without an answer (`MAX_LENGTH`,
transit_server.py:29)."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """Whom a connection wants to be paired with."""

    token: bytes
    """64 letters, digits or underscores, which both sides derive from their key."""
    side: bytes | None = None
    """16 such characters, which tell the two sides apart. None: the first form of the request, which has no side and
    matches any."""


class RequestLine(msgspec.Struct, frozen=True, gc=False):
    """The first line of a TCP connection."""

    request: Request | None
    """None: the line is malformed or too long."""
    size: int
    """Its bytes with the newline. What the client sent after them is for the other side."""
    too_long: bool = False
    """Whether it has more than MAX_LINE_BYTES. Then it may not have ended yet."""


def read_line(received: bytes | bytearray) -> RequestLine | None:
    """Return the line that these bytes begin with, or None if more bytes must come first."""
    size = received.find(b"\n", 0, MAX_LINE_BYTES + 1) + 1
    if size:
        return RequestLine(_parse(bytes(received[: size - 1])), size)
    if len(received) > MAX_LINE_BYTES:
        return RequestLine(None, len(received), too_long=True)
    return None


def parse_message(payload: bytes) -> Request | None:
    """Return the request that is the first message of a WebSocket, or None if it is malformed.

    It may end with a newline (`$` of the reference's pattern matches before it).
    """
    return _parse(payload.removesuffix(b"\n"))


_REQUEST: Final = re.compile(rb"please relay (\w{64})(?: for side (\w{16}))?")


def _parse(text: bytes) -> Request | None:
    match = _REQUEST.fullmatch(text)
    return None if match is None else Request(match[1], match[2])
