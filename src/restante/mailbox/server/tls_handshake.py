"""The TLS handshake of a connection, before its request.

It begins when the first bytes have come. So a connection that says nothing takes no memory for TLS, and the read
budget limits how many handshakes begin in a turn of the loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, Protocol, cast

from restante.common.proxy_header import Peer
from restante.mailbox.core.admission import PendingRequest
from restante.mailbox.core.limits import KIB
from restante.mailbox.server.first_request import MAX_REQUEST_BYTES, FirstBytes, RequestContext
from restante.mailbox.server.newcomer import Newcomer
from restante.mailbox.server.read_budget import ReadBudget

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection (RFC 8446 section 5.1)."""

NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 28\r\nConnection: close\r\n\r\nthis port needs TLS: wss://\n"
)
"""Answer to a request that is not encrypted."""

HELLO_READ_BYTES: Final = 1024
"""Bytes read before the handshake. A ClientHello has some 500."""

TLS_BYTES: Final = 50 * KIB
"""Bytes of memory that a connection takes during the handshake, in addition to PENDING_BYTES: 60 KiB together. After
the handshake, it takes 27 KiB more than one without TLS."""

TLS_FRAMES: Final = 300
"""Frames that take as long as a handshake with a P-256 key: 0.5 ms (read_budget.py). With an RSA key of 2048 bits it
takes 0.9 ms, and with 4096 bits 5 ms. At most two begin in a turn of the loop."""

SHUTDOWN_SECONDS: Final = 2.0
"""Seconds within which a client must answer our close_notify."""


class TlsContext(RequestContext, Protocol):
    """The part of the server that a TLS handshake uses."""

    def admit_handshake(self, pending: PendingRequest) -> bool:
        """Charge a handshake to the address of a connection, and return whether it may begin."""

    def count_failed_handshake(self) -> None:
        """Count a connection whose handshake failed."""


class TlsHandshake(asyncio.BufferedProtocol):
    """Does the handshake of a connection, and passes what follows to FirstBytes."""

    def __init__(self, context: TlsContext, tls: ssl.SSLContext, peer: Peer | None) -> None:
        self._context = context
        self._tls = tls
        self._peer = peer
        self._newcomer = Newcomer(context)
        self._room = memoryview(bytearray(HELLO_READ_BYTES))
        self._read = bytearray()
        """What has come: before the handshake its beginning, afterwards the beginning of the request."""
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it
        if self._newcomer.admit(raw, self._peer, self._abort):
            self._transport = raw
            loop, seconds = asyncio.get_running_loop(), self._context.limits.handshake
            self._deadline = loop.time() + seconds
            self._timer = loop.call_later(seconds, self._abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()

    def get_buffer(self, _size: int) -> memoryview:
        return self._room

    def buffer_updated(self, size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._read += self._room[:size]
        if self._handshake is not None:  # the request follows at once
            if len(self._read) > MAX_REQUEST_BYTES:
                self._abort()
        elif self._read[0] != HANDSHAKE_RECORD:
            transport.write(NO_TLS)
            transport.close()
        else:
            transport.pause_reading()
            if self._budget.exhausted:
                self._budget.wait(self._begin)
            else:
                self._begin()

    @property
    def _budget(self) -> ReadBudget:
        return self._context.read_budget

    def _begin(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._newcomer.pending is None or not self._context.admit_handshake(self._newcomer.pending):
            transport.abort()
            return
        self._budget.frames += TLS_FRAMES
        self._budget.renew_soon()
        self._newcomer.count(TLS_BYTES)
        if transport.is_closing():  # this connection was closed to make room
            return
        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        hello, self._read = self._read, bytearray()
        starting = loop.create_task(
            loop.start_tls(transport, self, self._tls, server_side=True, ssl_shutdown_timeout=SHUTDOWN_SECONDS)
        )
        # start_tls lets the transport read again in the turn after it has begun. What was read comes before that.
        loop.call_soon(loop.call_soon, _pass_on, transport, self, hello)
        try:
            tls = await starting
        except (OSError, asyncio.CancelledError):  # ssl.SSLError, a lost connection, or `_abort`
            self._context.count_failed_handshake()
            transport.abort()
            self._end()
            return
        assert tls is not None
        self._cancel_timer()
        first = FirstBytes(self._context, self._peer, self._newcomer, self._deadline)
        tls.set_protocol(first)
        first.connection_made(tls)
        first.receive(self._read)

    def _abort(self) -> None:
        """Close the connection. start_tls would not notice if only its transport were closed (uvloop 0.23)."""
        if self._transport is not None:
            self._transport.abort()
        if self._handshake is not None:
            self._handshake.cancel()

    def _end(self) -> None:
        self._cancel_timer()
        self._newcomer.end()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _pass_on(transport: asyncio.Transport, before: TlsHandshake, data: bytearray) -> None:
    """Pass what was read to the protocol that start_tls has given the transport."""
    protocol = cast("asyncio.BufferedProtocol", transport.get_protocol())
    if protocol is not before and not transport.is_closing():
        memoryview(protocol.get_buffer(len(data)))[: len(data)] = data
        protocol.buffer_updated(len(data))
