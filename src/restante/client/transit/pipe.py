"""A connection to the peer that carries encrypted records. Its methods block: they are called in a thread."""

from __future__ import annotations

import contextlib
import io
import math
import socket
import struct
import sys
import time
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

RECEIVER_STALLS: Final = 5
"""How many times as long a sender waits for a receiver whose system answers. A slow one reads first what lies in
buffers. Linux reports room only when a third of a send buffer or a sixteenth of a receive buffer is free: with the
usual limits up to 2 MB (tcp_wmem, tcp_rmem), in a relay, too. Nor may it confirm sooner: it flushes a disk that other
programs may keep busy, and removes what it replaces."""

MIN_BYTES_PER_SECOND: Final = 1000
"""The rate behind which a peer may fall only by `RECEIVER_STALLS`: one that sends or takes a byte now and then would
keep this side for years. For the confirmation a sender waits a second longer for so many bytes: some are still on
their way, perhaps in a relay, and the receiver unpacks them. A thousand small files on a disk of the network take ten
seconds and 100 kB."""

LAST_ACK_RECEIVED: Final = 56
"""Where `tcpi_last_ack_recv`, in milliseconds, is in the `struct tcp_info` of linux/tcp.h."""

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10}
"""When the system asks whether the peer's system is there (tcp(7))."""

GONE_SECONDS: Final = 60
"""Seconds by which the system ends a connection later than this class, if the peer's system does not answer. A wait
for the confirmation has no such limit."""

MAX_CALL_SECONDS: Final = 24 * 3600.0
"""Seconds of one call of the system. `settimeout` takes no more than 24 days."""

TOO_SLOW: Final = f"sends or takes less than {MIN_BYTES_PER_SECOND:,} bytes a second"

CLOSED: Final = "the connection to the other side was closed"
"""The text of the error, whichever system call reports it. It does not say who closed it: a relay may have."""


class RecordPipe:
    """Records in both directions. Each call blocks until it is done, or until `end` is called.

    It raises PeerStalledError if the peer sends or takes no byte for too long, or too few, while it is called.
    """

    def __init__(
        self,
        connected: socket.socket,
        keys: TransitKeys,
        stall_seconds: float = STALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a connection on which both sides have sent their lines. `close` closes it."""
        self._socket, self._clock = connected, clock
        self.stall_seconds = self._limit = stall_seconds
        self._behind = 0.0  # seconds by which the peer is behind the least rate
        self._sealer = RecordSealer(keys.sealing)
        self._opener = RecordOpener(keys.opening)
        self.warn_after(math.inf, lambda _waited, _limit: None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        timeout = min((RECEIVER_STALLS * stall_seconds + GONE_SECONDS) * 1000, MAX_CALL_SECONDS * 1000)
        self._set_options(**KEEP_ALIVE, TCP_USER_TIMEOUT=int(timeout))
        self._reader = io.BufferedReader(_Unbuffered(self._read_some), SOCKET_READ_BYTES)
        self._buffer = bytearray(LENGTH_BYTES)

    def _set_options(self, **options: int) -> None:
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
            sent += self._wait(self._socket.send, record[sent:], self._sending_limit)

    def _sending_limit(self, waited: float) -> float:
        """Return for how many seconds the peer may take nothing, when so many are over."""
        return self.stall_seconds * (RECEIVER_STALLS if self._is_answered(waited) else 1)

    def _is_answered(self, waited: float) -> bool:
        """Return whether the peer's system, or the relay's, has answered lately in a wait of so many seconds.

        A system without room is asked again after about twice the time, and at least every two minutes (Linux,
        TCP_RTO_MAX). Others than Linux do not say when it answered.
        """
        if sys.platform != "linux":
            return True
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_ACK_RECEIVED + 4)
        (milliseconds,) = struct.unpack_from("=I", info, LAST_ACK_RECEIVED)
        return bool(milliseconds <= max(600 * waited, 1000))

    def receive(self, stall_seconds: float | None = None) -> memoryview:
        """Wait for a record. The next call overwrites it. `stall_seconds` is another limit for this one.

        Raises ConnectionLostError, or PeerMessageError if it is not the next one.
        """
        if stall_seconds is not None:
            self._set_options(TCP_USER_TIMEOUT=0)  # it counts a peer that takes nothing for a while, too (tcp(7))
        self._limit = self.stall_seconds if stall_seconds is None else stall_seconds
        return self._opener.open(self._read(length_of(bytes(self._read(LENGTH_BYTES)))))

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = bytearray(count)
        record = memoryview(self._buffer)[:count]
        if self._reader.readinto(record) < count:
            raise ConnectionLostError(CLOSED)
        return record

    def _read_some(self, buffer: Any) -> int:
        return self._wait(self._socket.recv_into, buffer, lambda _waited: self._limit)

    def _wait(self, call: Callable[[Any], int], buffer: Any, limit_after: Callable[[float], float]) -> int:
        """Send or receive some bytes. Return how many."""
        waited, wait, start = 0.0, self._first_wait, self._clock()
        next_check = self.stall_seconds
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
                # While this process is stopped, its clock goes on: no more than was waited for counts.
                self._check_rate(count, min(self._clock() - start, waited + wait))
                return count
            limit = limit_after(waited)
            if waited >= limit:
                stalled = PeerStalledError(f"the other side has not answered for {waited:.0f} s")
                raise stalled.with_peer_text(f"no answer for {waited:.0f} s")
            warned = waited >= self._warn_seconds
            if warned:
                self._on_silence(waited, limit)
            next_check += self.stall_seconds if waited >= next_check else 0
            deadline = min(limit if warned else min(self._warn_seconds, limit), next_check)
            wait = min(deadline - waited, MAX_CALL_SECONDS)
            self._socket.settimeout(wait)

    def _check_rate(self, count: int, seconds: float) -> None:
        """Raise PeerStalledError if the peer is too far behind the least rate, after so many bytes and seconds."""
        self._behind = max(self._behind + seconds - count / MIN_BYTES_PER_SECOND, 0)
        if self._behind > max(RECEIVER_STALLS * self.stall_seconds, self._limit):
            raise PeerStalledError(f"the other side {TOO_SLOW}").with_peer_text(TOO_SLOW)

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
