"""The transport that encrypts and decrypts, between the transport of a socket and the protocol that reads it."""

from __future__ import annotations

import asyncio
import enum
import ssl
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from restante.common.read_budget import MAX_FRAMES_PER_TURN, ReadBudget

# OpenSSL reads from one buffer in memory and writes to another. They keep their largest size as long as the
# connection lives. So everything passes through them in pieces of PIECE_BYTES. uvloop's `start_tls` passes a write on
# as a whole: a message of 2 MiB left a buffer of 2.2 MB (uvloop 0.23, sslproto.pyx: _do_write).


PIECE_BYTES: Final = 8 * 1024
"""Bytes that pass through a buffer of OpenSSL at once."""

HEADER_BYTES: Final = 5
"""Bytes of a record before its content (RFC 8446 section 5.1). The last two are the length of the content."""

RECORDS_AT_ONCE: Final = 16
"""Records that OpenSSL is given at once. It reads all that have no data before it returns."""

FRAMES_WITHOUT_DATA: Final = 10
"""Frames that take as long as a record without data, such as a KeyUpdate (RFC 8446 section 4.6.3): 15 µs."""

MAX_RECORDS_WITHOUT_DATA: Final = 200
"""Records without data after which a connection is closed: 3 ms of KeyUpdates. A handshake has three, a client that
leaves sends one, and a KeyUpdate is needed after 2^24 records (RFC 8446 section 5.5)."""

HANDSHAKE_FRAMES: Final = MAX_FRAMES_PER_TURN
"""Frames for which the server's part of a handshake counts. A turn of the loop has so many, so one is done in a turn.
It takes 0.5 ms with a P-256 key, 0.9 ms with RSA of 2048 bits, and 5 ms with 4096 bits."""

HANDSHAKE_END_FRAMES: Final = 60
"""Frames that take as long as the end of a handshake (read_budget.py): 0.1 ms."""

CLOSE_SECONDS: Final = 2.0
"""Seconds within which a client must read what was sent before the connection is closed."""

_ROOM: Final = memoryview(bytearray(PIECE_BYTES))
"""Where all sockets are read to. What was read is copied before the loop reads another one."""


class HandshakeListener(Protocol):
    """What a TlsTransport calls during the handshake, which each server counts in its own way."""

    def handshake_sent(self, records: bytes) -> None:
        """Record what the server says during the handshake."""

    def handshake_done(self) -> asyncio.BufferedProtocol:
        """Return the protocol that reads the connection from now on."""

    def handshake_failed(self) -> None:
        """Record that the connection is closed before the end of the handshake."""


class Eof(enum.Enum):
    """Whether the client was told that nothing follows (`TlsTransport.write_eof`)."""

    NONE = enum.auto()
    WAITS = enum.auto()
    """Not before the backlog is sent."""
    SENT = enum.auto()


class TlsTransport(asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of another protocol, which sees no TLS."""

    __slots__ = (
        "_backlog",
        "_budget",
        "_charged",
        "_closing",
        "_eof",
        "_handshake",
        "_header",
        "_incoming",
        "_outgoing",
        "_paused",
        "_protocol",
        "_protocol_paused",
        "_received",
        "_records",
        "_stuck",
        "_tls",
        "_transport",
        "_unread",
        "_waiting",
    )

    def __init__(
        self, transport: asyncio.Transport, context: ssl.SSLContext, budget: ReadBudget, handshake: HandshakeListener
    ) -> None:
        self._transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._budget = budget
        self._handshake: HandshakeListener | None = handshake
        """None: the handshake is over."""
        self._protocol: asyncio.BufferedProtocol | None = None
        """None during the handshake."""
        self._received = b""
        """What has come and was not given to OpenSSL yet."""
        self._unread = 0
        """Bytes of the current record that were not given to OpenSSL yet."""
        self._header = b""
        """The beginning of a record's header, if the rest has not come yet."""
        self._records = 0
        """Records that OpenSSL was given, less those that had data."""
        self._charged = 0
        """How many of those were charged to the read budget."""
        self._paused = False
        """Whether the protocol does not want to read."""
        self._waiting = False
        """Whether the read budget is exhausted."""
        self._backlog: list[memoryview] = []
        """What is not encrypted yet, because the socket takes no more."""
        self._stuck = False
        """Whether the socket takes no more."""
        self._protocol_paused = False
        """Whether the protocol was told so."""
        self._closing = False
        self._eof = Eof.NONE

    # ── the protocol of the socket's transport ────────────────────────────────────────────────────

    def get_buffer(self, _size: int) -> memoryview:
        return _ROOM[: self._budget.read_bytes]

    def buffer_updated(self, size: int) -> None:
        self.receive(_ROOM[:size])

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Read what has come from the socket."""
        if self._eof is Eof.NONE:
            self._received += data
            self._go_on()

    def eof_received(self) -> None:
        """Let the connection be closed, as if the client had ended TLS first: WebSocket has an end of its own."""
        if self._protocol is not None:
            self._protocol.eof_received()
        self._abort_later()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._received, self._backlog = b"", []
        if self._handshake is not None:
            self._end_handshake().handshake_failed()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._stuck = True  # `_write_on`, in which this is called, tells the protocol

    def resume_writing(self) -> None:
        self._stuck = False
        self._write_on()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def _go_on(self) -> None:
        """Decrypt what has come and pass it on, as far as the protocol and the read budget allow."""
        try:
            while not (self._paused or self._waiting or self.is_closing()):
                if self._pass_on():
                    continue
                if not self._received:
                    break
                if self._budget.exhausted:
                    self._waiting = True
                    self._budget.wait(self._wait_over)
                    break
                self._give()
        except ssl.SSLError:
            self._close_with_alert()
        self._pause_or_resume()

    def _pass_on(self) -> bool:
        """Pass on the data of a record, or take a step of the handshake. Return whether there may be more to do."""
        protocol = self._protocol
        if protocol is None:
            return self._shake_hands()
        if not (self._incoming.pending or self._tls.pending()):
            return self._all_read()  # OpenSSL would say so by an error, which takes longer than to decrypt
        room = cast("memoryview", protocol.get_buffer(PIECE_BYTES))
        try:
            size = cast("int", self._tls.read(len(room), room))
        except ssl.SSLWantReadError:
            return self._all_read()
        if not size:  # the client has ended TLS
            protocol.eof_received()
            self.close()
            return False
        if not self._tls.pending():
            self._records -= 1
        protocol.buffer_updated(size)
        return True

    def _all_read(self) -> bool:
        """Send the answers to KeyUpdates, and charge them. Return False, because there is no more to do."""
        self._send()
        self._charge_records()
        return False

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._send():  # it has computed a signature or the like
                self._budget.charge(HANDSHAKE_FRAMES)
            return False
        self._send()
        self._budget.charge(HANDSHAKE_END_FRAMES)
        self._protocol = self._end_handshake().handshake_done()
        self._protocol.connection_made(cast("asyncio.Transport", self))  # it has what the protocols here call
        return True

    def _end_handshake(self) -> HandshakeListener:
        handshake, self._handshake = self._handshake, None
        assert handshake is not None
        return handshake

    def _give(self) -> None:
        """Pass the beginning of what has come to OpenSSL, up to RECORDS_AT_ONCE records."""
        received, at, begun = self._received, 0, 0
        while at < len(received):
            if self._unread:
                step = min(self._unread, len(received) - at)
                self._unread -= step
            else:
                if begun == RECORDS_AT_ONCE:
                    break
                step = min(HEADER_BYTES - len(self._header), len(received) - at)
                self._header += received[at : at + step]
                if len(self._header) == HEADER_BYTES:
                    self._unread, self._header = int.from_bytes(self._header[3:]), b""
                    begun += 1
            at += step
        self._records += begun
        if self._records > MAX_RECORDS_WITHOUT_DATA:
            self.abort()
            return
        self._budget.charge(1)
        self._incoming.write(memoryview(received)[:at])
        self._received = received[at:]

    def _charge_records(self) -> None:
        """Charge the records without data that OpenSSL has read."""
        read = self._records - (self._unread > 0 or self._header != b"")  # without one whose end has not come
        if read > self._charged:
            self._budget.charge(FRAMES_WITHOUT_DATA * (read - self._charged))
            self._charged = read

    def _wait_over(self) -> None:
        self._waiting = False
        self._go_on()

    def _pause_or_resume(self) -> None:
        """Read the socket if there is no reason not to."""
        if self._transport.is_closing():
            return
        if self._closing or (self._eof is Eof.NONE and (self._paused or self._waiting)):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _close_with_alert(self) -> None:
        """Close the connection after an error of TLS. OpenSSL has written what the client is told."""
        self._closing = True
        self._backlog = []
        self._send()
        self._transport.close()
        self._abort_later()

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _send(self) -> bool:
        """Write what OpenSSL has written, and return whether it has."""
        records = self._outgoing.read()
        if records and not self._transport.is_closing():
            if self._handshake is not None:
                self._handshake.handshake_sent(records)
            self._transport.write(records)
        return bool(records)

    def _write_on(self) -> None:
        """Encrypt and write the backlog as far as the socket takes it."""
        while self._backlog and not self._stuck:
            piece = self._backlog[0]
            try:
                self._tls.write(piece[:PIECE_BYTES])
            except ssl.SSLError:
                self._close_with_alert()
                return
            if len(piece) > PIECE_BYTES:
                self._backlog[0] = piece[PIECE_BYTES:]
            else:
                del self._backlog[0]
            self._send()
        stuck = self._stuck or bool(self._backlog)
        if stuck != self._protocol_paused and self._protocol is not None:
            self._protocol_paused = stuck
            (self._protocol.pause_writing if stuck else self._protocol.resume_writing)()
        if self._backlog or self._transport.is_closing():
            return
        if self._eof is Eof.WAITS:
            self._eof = Eof.SENT
            self._end_tls()
            self._transport.write_eof()
        if self._closing:
            self._end()

    def _end(self) -> None:
        """Say that nothing more follows, and close the socket when all is sent."""
        self._end_tls()
        self._transport.close()

    def _end_tls(self) -> None:
        with suppress(ssl.SSLError):
            self._tls.unwrap()  # it raises SSLWantReadError: the client has not answered
        self._send()

    # ── the transport of the protocol ─────────────────────────────────────────────────────────────

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt data and send it, as far as the socket takes it. The rest follows when the socket takes more."""
        if data and self._eof is Eof.NONE and not self.is_closing():
            self._backlog.append(memoryview(data))
            if len(self._backlog) == 1:
                self._write_on()

    def writelines(self, parts: list[bytes]) -> None:
        """Write the parts together."""
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def write_eof(self) -> None:
        """Say that nothing follows what was written. The socket is read on, but what comes is dropped.

        OpenSSL cannot read on when data comes between its close_notify and the client's.
        """
        if self._eof is Eof.NONE and not self.is_closing():
            self._eof, self._received = Eof.WAITS, b""
            self._pause_or_resume()
            self._write_on()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the socket has not taken."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._backlog))

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the bytes from which on the protocol is told that the socket takes no more."""
        self._transport.set_write_buffer_limits(high)

    def pause_reading(self) -> None:
        """Do not call the protocol for now."""
        self._paused = True
        self._pause_or_resume()

    def resume_reading(self) -> None:
        """Call the protocol again, from the next turn of the loop on."""
        self._paused = False
        asyncio.get_running_loop().call_soon(self._go_on)

    def set_protocol(self, protocol: asyncio.BufferedProtocol) -> None:
        """Let another protocol read."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether the connection is closed or being closed."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection after everything that was written."""
        if not self.is_closing():
            self._closing = True
            self._pause_or_resume()
            self._write_on()
            self._abort_later()

    def _abort_later(self) -> None:
        """Abort the connection after a time if the client does not read what was sent."""
        if self.get_write_buffer_size():
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self._transport.abort()
