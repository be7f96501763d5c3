"""A connection to the peer that carries encrypted records. Its methods block: they are called in a thread."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from restante.client.errors import ConnectionLostError
from restante.client.transit.records import LENGTH_BYTES, RecordOpener, RecordSealer, TransitKeys, length_of
from restante.common.errors import plain

RECORD_BYTES: Final = 128 * 1024
"""Bytes of a file that are sent in a record. Other clients send 16 KiB and limit nothing that they receive. Each
record costs system calls, and one that is too large for the processor's caches costs more than it saves."""

SOCKET_READ_BYTES: Final = 32 * 1024
"""Bytes that are read from the connection at once, so that short records do not cost a system call each."""

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 120_000}
"""When a silent peer counts as gone (tcp(7)): 90 s after its last answer, and 120 s if there is something unsent. The
records have no word for a peer that only waits for its disk or its user."""

CLOSED: Final = "the connection to the other side was closed"
"""What a user is told whichever system call finds it. A relay may have closed it, so that it is not said who did."""


class RecordPipe:
    """Records in both directions. Each call blocks until it is done, or until `end` is called."""

    def __init__(self, connected: socket.socket, keys: TransitKeys) -> None:
        """Use a connection on which both sides have said their lines. `close` closes it."""
        self._socket = connected
        self._sealer = RecordSealer(keys.sealing)
        self._opener = RecordOpener(keys.opening)
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._reader = connected.makefile("rb", buffering=SOCKET_READ_BYTES)
        self._buffer = bytearray(LENGTH_BYTES)

    def send(self, plaintext: bytes) -> None:
        """Send a record. Raises ConnectionLostError."""
        try:
            self._socket.sendall(self._sealer.seal(plaintext))
        except OSError as error:
            raise _lost(error) from error

    def receive(self) -> memoryview:
        """Wait for a record. The next call overwrites it.

        Raises ConnectionLostError, or PeerMessageError if it is not the next one.
        """
        return self._opener.open(self._read(length_of(bytes(self._read(LENGTH_BYTES)))))

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = bytearray(count)
        into = memoryview(self._buffer)[:count]
        try:
            read = self._reader.readinto(into)  # type: ignore[attr-defined]  # makefile returns a BufferedReader
        except OSError as error:
            raise _lost(error) from error
        if read < count:
            raise ConnectionLostError(CLOSED)
        return into

    def end(self) -> None:
        """End the connection, also for a thread that waits for it. May be called from any thread, at any time."""
        with contextlib.suppress(OSError):  # the peer has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. No thread uses it any more."""
        self._reader.close()
        self._socket.close()


def _lost(error: OSError) -> ConnectionLostError:
    """Return what is raised for a connection that failed."""
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return ConnectionLostError(CLOSED)
    return ConnectionLostError(f"the connection to the other side was lost ({plain(error)})")
