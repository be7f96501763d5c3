"""The first bytes of a connection, until there is a request.

HEAD_PREFIX requests, which monitors send, are answered here: picows reads GET alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, cast

from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from restante.common.logs import log, where
from restante.mailbox.server.receive_buffer import ReceiveBuffer

HEAD_PREFIX: Final = b"HEAD "
END_OF_REQUEST: Final = b"\r\n\r\n"
MAX_REQUEST_BYTES: Final = 16 * 1024
"""Bytes of a request, as in picows."""

READ_BYTES: Final = 2048
"""Bytes that are read at once: a request has some 300."""

Answer = tuple[HTTPStatus, int | None]
"""What a GET of the same path is answered: its status, and the bytes of its body, if we know them."""

Upgrade = Callable[[WSUpgradeRequest], WSListener | WSUpgradeResponseWithListener | None]


class QuietLogger:
    """Stands in for picows' logger, which would write addresses and make one logger per connection.

    What it keeps is that a callback of ours raised: picows catches that, and closes the connection.
    """

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802 - logging's name
        return False

    def _drop(self, *_args: object, **_kwargs: object) -> None:
        pass

    def exception(self, *_args: object) -> None:
        log.error("a callback failed; its connection is closed", fault=where(sys.exception()))

    debug = info = warning = error = log = _drop


QUIET_LOGGER: Final = QuietLogger()


def websocket_protocol(
    upgrade: Upgrade, *, handshake_timeout: float, max_frame_size: int, read_buffer_size: int
) -> WSProtocol:
    """Make what `picows.ws_create_server` makes for each connection, without its pings and pongs.

    A flood of pings must cost no more than its frames. picows 2.3.1: api.py:402.
    """
    no_pings = (False, 0.0, 0.0, WSAutoPingStrategy.PING_WHEN_IDLE)
    return WSProtocol(
        *(None, None, False, upgrade, QUIET_LOGGER, True, handshake_timeout),
        *no_pings,
        *(False, max_frame_size, None, read_buffer_size),
    )


class FirstBytes(asyncio.BufferedProtocol):
    """Reads a request until its end; whatever is no HEAD is for `websocket`.

    `websocket` has been told of the connection from its beginning, so its time limit of a handshake holds here, too.
    `begin_request` tells whether a connection from this peer may stay, and what to call when its request has come or
    when it is gone.
    """

    def __init__(
        self,
        websocket: WSProtocol,
        answer: Callable[[bytes], Answer],
        begin_request: Callable[[Sequence[Any]], Callable[[], None] | None],
    ) -> None:
        self._websocket = websocket
        self._answer = answer
        self._begin_request = begin_request
        self._asked: Callable[[], None] | None = None
        self._read = bytearray()
        self._room = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self._asked = peer and self._begin_request(peer)
        if self._asked is None:
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._websocket.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._has_asked()
            self._websocket.connection_lost(error)

    def get_buffer(self, _size: int) -> memoryview:
        return self._room

    def buffer_updated(self, size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        seen = max(0, len(self._read) - len(END_OF_REQUEST))
        self._read += self._room[:size]
        if self._read.find(END_OF_REQUEST, seen) < 0 and len(self._read) <= MAX_REQUEST_BYTES:
            return
        if self._read.startswith(HEAD_PREFIX):
            transport.write(self._head())
            transport.close()
        else:
            self._has_asked()
            self._hand_over(transport)

    def _has_asked(self) -> None:
        if self._asked is not None:
            self._asked()
            self._asked = None

    def _hand_over(self, transport: asyncio.Transport) -> None:
        transport.set_protocol(ReceiveBuffer(self._websocket))
        left = memoryview(self._read)
        while left and not transport.is_closing():
            room = self._websocket.get_buffer(len(left))
            size = min(len(left), len(room))
            room[:size] = left[:size]
            self._websocket.buffer_updated(size)
            left = left[size:]

    def _head(self) -> bytes:
        words = bytes(self._read).partition(b"\r\n")[0].split(b" ")
        whole = len(words) == 3 and words[2] == b"HTTP/1.1" and END_OF_REQUEST in self._read
        status, size = self._answer(words[1]) if whole else (HTTPStatus.BAD_REQUEST, None)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: text/plain; charset=utf-8",
            *([] if size is None else [f"Content-Length: {size}"]),
            "Connection: close",
        ]
        return "\r\n".join(lines).encode() + END_OF_REQUEST
