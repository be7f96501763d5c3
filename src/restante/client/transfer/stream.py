"""The bytes of a transfer, sent and received in a thread beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from restante.client.errors import ConnectionLostError, PeerMessageError, PeerStalledError, TransferError
from restante.client.events import Awaited, PeerSilent
from restante.client.tasks import in_thread
from restante.client.timing_log import span
from restante.client.transfer.messages import (
    ARRIVED,
    NOT_STORED,
    STORED,
    UNCONFIRMED,
    Acknowledgement,
    encode,
    parse_acknowledgement,
    refusal,
)
from restante.client.transit.pipe import MIN_BYTES_PER_SECOND, RECEIVER_STALLS, RecordPipe
from restante.client.transit.records import Role
from restante.client.wormhole import Wormhole
from restante.common.texts import counted

PROGRESS_SECONDS: Final = 0.1
"""Seconds between two calls of a function for progress. People read no faster."""

MAX_BYTES_SECONDS: Final = 24 * 3600.0
"""Seconds by which a sender waits longer for the confirmation of many bytes, at most. A peer that never confirms
would keep it for twelve days after a gigabyte."""

CONFIRMED_DIRECTORY_BYTES: Final = 100
"""As how many of these bytes a directory counts. A file takes as many in an archive, besides its contents."""

OnProgress = Callable[[int], None]
"""Called on the event loop with the number of bytes that were sent or received so far."""


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """The task that waits for the thread was cancelled."""


class Stream:
    """The bytes of one transfer. `run` is called on the event loop, and calls the other methods in a thread."""

    def __init__(
        self,
        pipe: RecordPipe,
        role: Role,
        size: int,
        wormhole: Wormhole,
        on_progress: OnProgress | None = None,
        directories: int = 0,
        remainder: str = "nothing was kept",
    ) -> None:
        """Use a connection.

        `size` is the number of bytes that were offered, and `directories` how many directories a receiver makes.
        `wormhole` reports a silent peer. `remainder` says what a receiver has of a transfer that ended early.
        """
        self._remainder = remainder
        self._pipe, self._role, self._size, self._wormhole = pipe, role, size, wormhole
        self._confirmed_bytes = size + directories * CONFIRMED_DIRECTORY_BYTES
        self._timing = wormhole.timing
        self._awaited: Awaited = "bytes"
        self._silences: set[Awaited] = set()
        pipe.warn_after(wormhole.silence_seconds, self._report_silence)
        self._loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._next_progress = 0.0
        self._stopped = self._complete = False
        self._uses_pipe = True
        self._callback_error: Exception | None = None
        self._digest = hashlib.sha256()
        self._done = 0

    async def run(self, work: Callable[[], None], given_up: asyncio.Future[TransferError]) -> None:
        """Run a function in a thread, then close the connection. A cancellation ends the connection first.

        So does a peer that has given up, as `given_up` says. What it says is raised, unless the work is done anyway.
        An error of the function for progress ends the connection, too, and is raised.

        What the receiver has is in the text of a TransferError, and in a note of a CancelledError.
        """
        given_up.add_done_callback(self._stop)
        try:
            await in_thread(work, self._stop)
        except asyncio.CancelledError as error:
            error.add_note(self._outcome)
            raise
        except (ConnectionLostError, Stopped) as error:
            self._check_callback()
            if given_up.done():
                outcome = self._outcome
                raise given_up.result().with_outcome(NOT_STORED if outcome == UNCONFIRMED else outcome) from error
            if isinstance(error, Stopped):
                raise
            if isinstance(error, PeerStalledError):
                raise error.with_outcome(self._outcome) from error
            lost = ConnectionLostError(f"{error} {self._outcome}")
            lost.outcome = self._outcome
            raise lost from error
        else:
            self._check_callback()
        finally:
            given_up.remove_done_callback(self._stop)
            self._pipe.close()

    def _stop(self, _given_up: object = None) -> None:
        self._stopped = True
        if self._uses_pipe:
            self._pipe.end()

    def _check_callback(self) -> None:
        """Raise the error of the function for progress, if it has raised one. A note says what the receiver has."""
        if self._callback_error is not None:
            self._callback_error.add_note(self._outcome)
            raise self._callback_error

    @property
    def _outcome(self) -> str:
        """How much was transferred, and what the receiver has."""
        amount = f"{self._done:,} of {counted(self._size, 'byte')}"
        if self._complete:
            return STORED
        if self._role is Role.RECEIVER:
            return f"after receiving {amount}: {self._remainder}"
        if self._done < self._size:
            return f"after sending {amount}: the receiver does not have everything"
        return UNCONFIRMED

    def send(self, chunks: Iterable[bytes]) -> None:
        """Send bytes, as many as were offered, and wait until the receiver has acknowledged them.

        Raises:
            ConnectionLostError: the connection was lost before.
            PeerStalledError: the receiver is silent for too long.
            TransferError: the receiver did not, or has other bytes.
            PeerMessageError: it answered what no receiver answers.

        """
        with span(self._timing, "tx file"):
            for chunk in chunks:
                self._pipe.send(chunk)
                self._count(chunk)
            self._report_progress()
        with span(self._timing, "get ack"):
            self._awaited = "confirmation"
            extra_seconds = min(self._confirmed_bytes / MIN_BYTES_PER_SECOND, MAX_BYTES_SECONDS)
            record = self._pipe.receive(RECEIVER_STALLS * self._pipe.stall_seconds + extra_seconds)
        acknowledgement = parse_acknowledgement(record)
        if acknowledgement.ack != ARRIVED:
            raise TransferError(f"the receiver refused it: {refusal(acknowledgement.ack)}")
        if acknowledgement.sha256 is None:
            raise TransferError("the receiver does not say what it has: it sent no SHA-256")
        if acknowledgement.sha256.lower() != self._digest.hexdigest():
            raise TransferError("the receiver has other bytes than were sent: send them again")
        self._complete = True

    def receive(self, write: Callable[[memoryview], None]) -> None:
        """Call a function with all bytes that the sender offered.

        Raises:
            ConnectionLostError: the connection was lost before.
            PeerStalledError: the sender is silent for too long.
            PeerMessageError: the sender sent more than it offered.
            StoreError: they cannot be written.

        """
        with span(self._timing, "rx file"):
            while self._done < self._size:
                record = self._pipe.receive()
                if not record or self._done + len(record) > self._size:
                    offered = counted(self._size, "byte")
                    raise PeerMessageError(f"the sender does not send the {offered} that it offered")
                write(record)
                self._count(record)
            self._report_progress()
        self._uses_pipe = False  # a stop is noticed between two files, and the sender waits for the reason

    def acknowledge(self) -> None:
        """Send the last record, which says that everything is stored. If the sender is gone, it is stored, too."""
        self._complete = self._uses_pipe = True
        with contextlib.suppress(ConnectionLostError), span(self._timing, "send ack"):
            self._pipe.send(encode(Acknowledgement(ARRIVED, self._digest.hexdigest())))

    def check(self) -> None:
        """Raise Stopped if the thread has to end. Work that uses no connection calls it now and then."""
        if self._stopped:
            raise Stopped

    @contextlib.contextmanager
    def counting(self, on_progress: OnProgress | None) -> Iterator[Callable[[int], None]]:
        """Yield what is called now and then with the number of bytes that other work has done since.

        It raises Stopped, as `check` does, and reports the sum to another function for progress.
        """
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            self._report_now_and_then(on_progress, done)

        yield count
        self._report(on_progress, done)

    def _report_silence(self, waited: float, limit: float) -> None:
        """Report that the peer is silent, once for what it owes now. It is called in the thread."""
        if self._awaited in self._silences:
            return
        self._silences.add(self._awaited)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wormhole._handle, PeerSilent(waited, self._awaited, limit))

    def _count(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._done += len(data)
        self._report_now_and_then(self._on_progress, self._done)

    def _report_now_and_then(self, on_progress: OnProgress | None, done: int) -> None:
        self.check()
        if (now := time.monotonic()) >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            self._report(on_progress, done)

    def _report_progress(self) -> None:
        self.check()
        self._report(self._on_progress, self._done)

    def _report(self, on_progress: OnProgress | None, done: int) -> None:
        if on_progress is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call, on_progress, done)

    def _call(self, on_progress: OnProgress, done: int) -> None:
        """Call the function for progress, unless it has raised an error before."""
        if self._callback_error is None:
            try:
                on_progress(done)
            except Exception as error:  # noqa: BLE001 - `run` raises it
                self._callback_error = error
                self._stop()
