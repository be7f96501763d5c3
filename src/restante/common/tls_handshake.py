"""The TLS handshake of a connection, before its request.

It begins when the header of the ClientHello has come. So a connection that says nothing takes no memory for TLS, and
the read budget limits how many handshakes begin in a turn of the loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, Protocol, cast

from restante.common.address_registry import PendingRequest
from restante.common.newcomers import Newcomer, NewcomerContext
from restante.common.proxy_header import SocketPeer
from restante.common.read_budget import ReadBudget
from restante.common.tls_transport import TlsTransport

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection (RFC 8446 section 5.1)."""

NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 28\r\nConnection: close\r\n\r\nthis port needs TLS: wss://\n"
)
"""Answer to a request that is not encrypted."""

HELLO_READ_BYTES: Final = 1024
"""Bytes read at once before the handshake. A ClientHello has 500 to 2,000."""

HELLO_HEADER_BYTES: Final = 9
"""Bytes up to the end of the length of a ClientHello: the header of a record has five, and that of the message a type
and a length of three bytes (RFC 8446 sections 4 and 5.1)."""

MESSAGE_HEADER_BYTES: Final = 4
"""Bytes of the type and the length of a message. The first record must have them, though a message may be split over
records (section 5.1): none of the clients that are tested sends them apart."""

MAX_HELLO_BYTES: Final = 16 * 1024
"""Bytes of a ClientHello. OpenSSL allocates what its length says, up to 128 KiB, when the first bytes have come."""

RETRY_RANDOM: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another ClientHello (RFC 8446 section 4.1.3)."""

RETRY_BYTES: Final = 128 * 1024
"""Bytes of memory that the second ClientHello may take. A client sends one if it has guessed a key exchange that the
server does not have."""

TLS_BYTES: Final = 65 * 1024
"""Bytes of memory that a connection takes during the handshake, in addition to PENDING_BYTES."""

IDLE_TLS_BYTES: Final = 20 * 1024
"""Bytes of memory that a connection takes after the handshake, in addition to one without TLS."""


class TlsContext(NewcomerContext, Protocol):
    """The part of a server that a TLS handshake uses."""

    def admit_handshake(self, pending: PendingRequest) -> bool:
        """Charge a TLS handshake to the address of a connection, and return whether it may begin."""

    def count_failed_handshake(self) -> None:
        """Count a connection whose TLS handshake failed."""

    def first_bytes(self, peer: SocketPeer | None, newcomer: Newcomer, deadline: float) -> asyncio.BufferedProtocol:
        """Return the protocol that reads the request.

        `peer` is the client if the socket does not know it. `deadline`: the time of the loop at which the request
        must be complete.
        """


class TlsHandshake(asyncio.BufferedProtocol):
    """Reads the beginning of a ClientHello, does the handshake, and passes on what follows (`first_bytes`)."""

    def __init__(self, context: TlsContext, tls: ssl.SSLContext, peer: SocketPeer | None) -> None:
        self._context = context
        self._tls = tls
        self._peer = peer
        self._newcomer = Newcomer(context)
        self._room = memoryview(bytearray(HELLO_READ_BYTES))
        self._read = bytearray()
        """The beginning of the ClientHello."""
        self._transport: asyncio.Transport | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it
        if self._newcomer.admit(raw, self._peer):
            self._transport = raw
            loop, seconds = asyncio.get_running_loop(), self._context.handshake_seconds
            self._deadline = loop.time() + seconds
            self._timer = loop.call_later(seconds, self._time_out, raw)

    def _time_out(self, transport: asyncio.Transport) -> None:
        if self._newcomer.pending is not None:
            self._context.count_late_request(self._newcomer.pending)
        transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._read:
            self._context.count_failed_handshake()
        self._end()

    def get_buffer(self, _size: int) -> memoryview:
        return self._room

    def buffer_updated(self, size: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._read += self._room[:size]
        if self._read[0] != HANDSHAKE_RECORD:
            self._read.clear()
            transport.write(NO_TLS)
            transport.close()
        elif len(self._read) >= HELLO_HEADER_BYTES:
            fragment, hello = int.from_bytes(self._read[3:5]), int.from_bytes(self._read[6:9])
            if fragment < MESSAGE_HEADER_BYTES or hello > MAX_HELLO_BYTES:
                transport.abort()
                return
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
            self._read.clear()  # it is counted already
            transport.abort()
            return
        self._newcomer.count(TLS_BYTES)
        if transport.is_closing():  # this connection was closed to make room
            return
        tls = TlsTransport(transport, self._tls, self._budget, self)
        transport.set_protocol(tls)
        hello, self._read = self._read, bytearray()
        tls.receive(hello)

    def handshake_sent(self, records: bytes) -> None:
        """Count the memory for a second ClientHello if we ask for one."""
        if records.startswith(RETRY_RANDOM, HELLO_HEADER_BYTES + 2):  # after the version
            self._newcomer.count(TLS_BYTES + RETRY_BYTES)

    def handshake_done(self) -> asyncio.BufferedProtocol:
        """Return what reads the request."""
        self._cancel_timer()
        self._newcomer.tls_bytes = IDLE_TLS_BYTES
        return self._context.first_bytes(self._peer, self._newcomer, self._deadline)

    def handshake_failed(self) -> None:
        """Count the failure."""
        self._context.count_failed_handshake()
        self._end()

    def _end(self) -> None:
        self._cancel_timer()
        self._newcomer.end()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
