"""The bytes of a transfer, sent and received in a thread beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from restante.client.errors import ConnectionLostError, PeerMessageError, TransferError
from restante.client.files.draft import OpenDraft
from restante.client.tasks import in_thread
from restante.client.timing_log import TimingLog, span
from restante.client.transfer.messages import ARRIVED, Acknowledgement, acknowledgement_of, encode, refusal
from restante.client.transit.pipe import RecordPipe
from restante.common.plural import counted

PROGRESS_SECONDS: Final = 0.1
"""Seconds between two calls of a function for progress. People read no faster."""

OnProgress = Callable[[int], None]
"""Called on the event loop with the number of bytes that were sent or received so far."""

Returned = TypeVar("Returned")


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """The task that waits for the thread was cancelled."""


class Stream:
    """The bytes of one transfer. `run` is called on the event loop, and calls the other methods in a thread."""

    def __init__(
        self, pipe: RecordPipe, on_progress: OnProgress | None = None, timing: TimingLog | None = None
    ) -> None:
        self._pipe, self._timing = pipe, timing
        self._loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._next_progress = 0.0
        self._stopped = False
        self._digest = hashlib.sha256()
        self._done = 0

    async def run(self, work: Callable[[], Returned], given_up: asyncio.Future[TransferError]) -> Returned:
        """Run a function in a thread, then close the connection. A cancellation ends the connection first.

        So does a peer that has given up, as `given_up` says. What it says is raised, unless the work is done anyway.
        """
        given_up.add_done_callback(self._stop)
        try:
            return await in_thread(work, self._stop)
        except (ConnectionLostError, Stopped) as error:
            if given_up.done():
                raise given_up.result() from error
            raise
        finally:
            given_up.remove_done_callback(self._stop)
            self._pipe.close()

    def _stop(self, _given_up: object = None) -> None:
        self._stopped = True
        self._pipe.end()

    def send(self, size: int, chunks: Iterable[bytes]) -> None:
        """Send bytes, as many as were offered, and wait until the receiver has acknowledged them.

        Raises:
            ConnectionLostError: the text says what the receiver may have.
            TransferError: the receiver did not, or has other bytes.
            PeerMessageError: it answered what no receiver answers.

        """
        with span(self._timing, "tx file"):
            for chunk in chunks:
                try:
                    self._pipe.send(chunk)
                except ConnectionLostError as error:
                    after = f"after {self._done:,} of {counted(size, 'byte')}"
                    raise ConnectionLostError(f"{error} {after}: it does not have all") from error
                self._count(chunk)
            self._tell()
        try:
            with span(self._timing, "get ack"):
                record = self._pipe.receive()
        except ConnectionLostError as error:
            raise ConnectionLostError(f"{error} before it confirmed: it may have everything") from error
        said = acknowledgement_of(record)
        if said.ack != ARRIVED:
            raise TransferError(f"the receiver did not take it: {refusal(said.ack)}")
        if said.sha256 is not None and said.sha256.lower() != self._digest.hexdigest():
            raise TransferError("the receiver has other bytes than were sent: send them again")

    def receive(self, size: int, draft: OpenDraft) -> None:
        """Write all bytes that the sender offered.

        Raises:
            ConnectionLostError: the connection was lost before.
            PeerMessageError: the sender sent more than it offered.
            StoreError: they cannot be written.

        """
        with span(self._timing, "rx file"):
            while self._done < size:
                try:
                    record = self._pipe.receive()
                except ConnectionLostError as error:
                    of = counted(size, "byte")
                    raise ConnectionLostError(f"{error} after {self._done:,} of {of}: nothing was kept") from error
                if not record or self._done + len(record) > size:
                    raise PeerMessageError(f"the sender does not send the {counted(size, 'byte')} that it offered")
                draft.write(record)
                self._count(record)
            self._tell()

    def acknowledge(self) -> None:
        """Send the last record, which says that everything is stored. If the sender is gone, it is stored, too."""
        with contextlib.suppress(ConnectionLostError), span(self._timing, "send ack"):
            self._pipe.send(encode(Acknowledgement(ARRIVED, self._digest.hexdigest())))

    def check(self, _bytes: int = 0) -> None:
        """Raise Stopped if the thread has to end. Work that uses no connection calls it now and then."""
        if self._stopped:
            raise Stopped

    def _count(self, some: bytes | memoryview) -> None:
        self._digest.update(some)
        self._done += len(some)
        if (now := time.monotonic()) >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            self._tell()

    def _tell(self) -> None:
        self.check()
        if self._on_progress is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_progress, self._done)
