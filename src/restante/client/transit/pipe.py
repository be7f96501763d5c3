"""A connection to the peer that carries encrypted records. Its methods block: they are called in a thread."""

from __future__ import annotations

import contextlib
import io
import math
import socket
from collections.abc import Callable
from typing import Any, Final

from restante.client.errors import ConnectionLostError, PeerStalledError
from restante.client.transit.records import LENGTH_BYTES, RecordOpener, RecordSealer, TransitKeys, length_of
from restante.common.errors import plain

RECORD_BYTES: Final = 128 * 1024
"""Bytes of a file that are sent in a record. Other clients send 16 KiB and limit nothing that they receive. Each
record costs system calls, and one that is too large for the processor's caches costs more than it saves."""

SOCKET_READ_BYTES: Final = 32 * 1024
"""Bytes that are read from the connection at once, so that short records do not cost a system call each."""

STALL_SECONDS: Final = 120.0
"""Seconds without a byte after which a peer that is connected counts as gone. A network or a disk that works delays
by less. The records have no word for a peer that only waits for its disk."""

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10}
"""When the system asks whether the peer's system is there (tcp(7))."""

GONE_SECONDS: Final = 60
"""Seconds by which the system ends a connection later than this class, if the peer's system does not answer. A wait
for the confirmation has no such limit."""

MAX_CALL_SECONDS: Final = 24 * 3600.0
"""Seconds of one call of the system. `settimeout` takes no more than 24 days."""

CLOSED: Final = "the connection to the other side was closed"
"""What a user is told whichever system call finds it. A relay may have closed it, so that it is not said who did."""


class RecordPipe:
    """Records in both directions. Each call blocks until it is done, or until `end` is called.

    It raises PeerStalledError if the peer sends or takes no byte for too long, while it is called.
    """

    def __init__(self, connected: socket.socket, keys: TransitKeys, stall_seconds: float = STALL_SECONDS) -> None:
        """Use a connection on which both sides have said their lines. `close` closes it."""
        self._socket = connected
        self.stall_seconds = self._limit = stall_seconds
        self._sealer = RecordSealer(keys.sealing)
        self._opener = RecordOpener(keys.opening)
        self.warn_after(math.inf, lambda _waited, _limit: None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        gone = min((stall_seconds + GONE_SECONDS) * 1000, MAX_CALL_SECONDS * 1000)
        self._set(**KEEP_ALIVE, TCP_USER_TIMEOUT=int(gone))
        self._reader = io.BufferedReader(_Unbuffered(self._read_some), SOCKET_READ_BYTES)
        self._buffer = bytearray(LENGTH_BYTES)

    def _set(self, **options: int) -> None:
        """Set those options of the connection that the system has."""
        for name, value in options.items():
            if (option := getattr(socket, name, None)) is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def warn_after(self, seconds: float, on_silence: Callable[[float, float], None]) -> None:
        """Call a function when the peer has been silent for so many seconds, and go on.

        It gets these seconds, and those after which PeerStalledError is raised. It is called in the thread.
        """
        self._warn_seconds, self._on_silence = seconds, on_silence
        self._first_wait = min(seconds, self.stall_seconds, MAX_CALL_SECONDS)
        self._socket.settimeout(self._first_wait)

    def send(self, plaintext: bytes) -> None:
        """Send a record. Raises ConnectionLostError."""
        record = self._sealer.seal(plaintext)
        sent = 0
        while sent < len(record):
            sent += self._wait(self._socket.send, record[sent:], self.stall_seconds)

    def receive(self, stall_seconds: float | None = None) -> memoryview:
        """Wait for a record. The next call overwrites it. `stall_seconds` is another limit for this one.

        Raises ConnectionLostError, or PeerMessageError if it is not the next one.
        """
        if stall_seconds is not None:
            self._set(TCP_USER_TIMEOUT=0)  # it counts a peer that takes nothing for a while, too (tcp(7))
        self._limit = self.stall_seconds if stall_seconds is None else stall_seconds
        return self._opener.open(self._read(length_of(bytes(self._read(LENGTH_BYTES)))))

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = bytearray(count)
        into = memoryview(self._buffer)[:count]
        if self._reader.readinto(into) < count:
            raise ConnectionLostError(CLOSED)
        return into

    def _read_some(self, into: Any) -> int:
        return self._wait(self._socket.recv_into, into, self._limit)

    def _wait(self, call: Callable[[Any], int], buffer: Any, limit: float) -> int:
        """Send or receive some bytes. Return how many."""
        waited, wait = 0.0, self._first_wait
        while True:
            try:
                count = call(buffer)
            except TimeoutError as error:
                if error.errno is not None:  # ETIMEDOUT, of the connection
                    raise _lost(error) from error
                waited += wait
            except OSError as error:
                raise _lost(error) from error
            else:
                if waited:
                    self._socket.settimeout(self._first_wait)
                return count
            if waited >= limit:
                stalled = PeerStalledError(f"the other side has not answered for {waited:.0f} s")
                raise stalled.with_peer_words(f"no answer for {waited:.0f} s")
            warned = waited >= self._warn_seconds
            if warned:
                self._on_silence(waited, limit)
            wait = min((limit if warned else min(self._warn_seconds, limit)) - waited, MAX_CALL_SECONDS)
            self._socket.settimeout(wait)

    def end(self) -> None:
        """End the connection, also for a thread that waits for it. May be called from any thread, at any time."""
        with contextlib.suppress(OSError):  # the peer has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. No thread uses it any more."""
        self._reader.close()
        self._socket.close()


class _Unbuffered(io.RawIOBase):
    """What a BufferedReader reads from."""

    def __init__(self, read_some: Callable[[Any], int]) -> None:
        self._read_some = read_some

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._read_some(buffer)


def _lost(error: OSError) -> ConnectionLostError:
    """Return what is raised for a connection that failed."""
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return ConnectionLostError(CLOSED)
    return ConnectionLostError(f"the connection to the other side was lost ({plain(error)})")
