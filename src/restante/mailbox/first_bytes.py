"""The first bytes of a connection. HEAD requests, which monitors send, are answered here: picows reads GET alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

HEAD: Final = b"HEAD "
END: Final = b"\r\n\r\n"
LONGEST: Final = 16 * 1024
"""Bytes of a request, as in picows."""

Answer = tuple[HTTPStatus, int | None]
"""What a GET of the same path is answered: its status, and the bytes of its body, if we know them."""

Upgrade = Callable[[WSUpgradeRequest], WSListener | WSUpgradeResponseWithListener | None]


def websocket_protocol(
    upgrade: Upgrade, logger: object, *, handshake_timeout: float, max_frame_size: int, read_buffer_size: int
) -> WSProtocol:
    """Make what `picows.ws_create_server` makes for each connection, without its pings and pongs.

    A flood of pings must cost no more than its frames. picows 2.3.1: api.py:402.
    """
    no_pings = (False, 0.0, 0.0, WSAutoPingStrategy.PING_WHEN_IDLE)
    return WSProtocol(
        *(None, None, False, upgrade, logger, True, handshake_timeout),
        *no_pings,
        *(False, max_frame_size, None, read_buffer_size),
    )


class FirstBytes(asyncio.Protocol):
    """Reads until it is clear whether the request is a HEAD; everything else is for `websocket`.

    `websocket` has been told of the connection from its beginning, so its time limit of a handshake holds here, too.
    """

    def __init__(self, websocket: WSProtocol, answer: Callable[[bytes], Answer]) -> None:
        self._websocket = websocket
        self._answer = answer
        self._read = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._websocket.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._websocket.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._read += data
        if not self._read.startswith(HEAD):
            if not HEAD.startswith(self._read):
                self._hand_over(transport)
        elif END in self._read or len(self._read) > LONGEST:
            transport.write(self._head())
            transport.close()

    def _hand_over(self, transport: asyncio.Transport) -> None:
        transport.pause_reading()  # uvloop reads as the new protocol wants it from when it begins to read
        transport.set_protocol(self._websocket)
        transport.resume_reading()  # before it is told anything: it may pause
        left = memoryview(self._read)
        while left and not transport.is_closing():
            room = self._websocket.get_buffer(len(left))
            size = min(len(left), len(room))
            room[:size] = left[:size]
            self._websocket.buffer_updated(size)
            left = left[size:]

    def _head(self) -> bytes:
        words = self._read.partition(b"\r\n")[0].split(b" ")
        whole = len(words) == 3 and words[2] == b"HTTP/1.1" and END in self._read
        status, size = self._answer(words[1]) if whole else (HTTPStatus.BAD_REQUEST, None)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: text/plain; charset=utf-8",
            *([] if size is None else [f"Content-Length: {size}"]),
            "Connection: close",
        ]
        return "\r\n".join(lines).encode() + END
