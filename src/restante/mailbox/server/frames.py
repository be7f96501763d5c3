"""What picows leaves to us: frame headers, proxy headers, close reasons, queued bodies, and unacknowledged bytes."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections import deque
from collections.abc import Sequence
from typing import Final

from picows import WSMsgType, WSUpgradeRequest

MAX_CLOSE_REASON_BYTES: Final = 123
"""Bytes of the reason in a close frame (RFC 6455 section 5.5)."""

_FROM_A_PROXY: Final = ("X-Forwarded-For", "X-Real-IP", "X-Real-Port")


def proxy_headers(request: WSUpgradeRequest) -> dict[str, str]:
    """Return the headers in which proxies name the client. Repeated headers are joined with commas."""
    said = request.headers  # the last value comes from the nearest proxy
    return {name: ",".join(said.getall(name)) for name in _FROM_A_PROXY if name in said}


def close_reason(reason: str) -> bytes:
    """Return the reason of a close frame, cut between two characters."""
    return reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore").encode()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that our kernel keeps because the client's has not acknowledged them (man 7 tcp)."""
    try:
        sent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # the connection is closed already
        return 0
    queued: int = struct.unpack("i", sent)[0]
    return queued


def take(bodies: deque[bytes], size: int) -> list[bytes]:
    """Remove and return the first bodies of a queue, until they have at least `size` bytes or none is left."""
    taken: list[bytes] = []
    while bodies and size > 0:
        taken.append(bodies.popleft())
        size -= len(taken[-1])
    return taken


def framed(bodies: Sequence[bytes], stamp: bytes, first: int) -> bytes:
    """Return a frame for each body, with the stamp at its end. `first` is the first byte of each frame."""
    parts: list[bytes] = []
    for body in bodies:
        parts += (frame_header(first, len(body) + len(stamp)), body, stamp)
    return b"".join(parts)


def first_byte(kind: WSMsgType) -> int:
    """Return the first byte of a whole message in one frame: FIN and the opcode."""
    return 0x80 | int(kind.value)


def frame_header(first: int, size: int) -> bytes:
    """Return the header of an unmasked frame (RFC 6455 section 5.2)."""
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return _HEADER_16(first, 126, size)
    return _HEADER_64(first, 127, size)


_HEADER_16: Final = struct.Struct(">BBH").pack
_HEADER_64: Final = struct.Struct(">BBQ").pack
