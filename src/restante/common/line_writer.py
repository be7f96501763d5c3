"""Lines that a thread writes: a reader that stops reading, or a disk that hangs, blocks nobody else."""

from __future__ import annotations

import atexit
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

CAPACITY_BYTES: Final = 4 << 20
"""Bytes that wait to be written. Lines beyond that are dropped and counted."""

LAST_LINES_SECONDS: Final = 1.0
"""How long `end` waits until what is queued was written. A server has two writers: of its log, and of its trace."""

Notice = Callable[[str, int], None]
"""Is called in the writer's thread: with an error when lines begin to be lost to it, and with "" and the number of
lines that were dropped when lines can be written again."""


class LineWriter(io.RawIOBase):
    """A file to which a thread writes. Any thread may call `write` and `end`.

    `write` never waits: it drops lines while CAPACITY_BYTES are waiting, and while nothing can be written. What the
    notice writes to this file is never dropped. It comes in the place of the dropped lines, also after `end`.
    """

    def __init__(self, descriptor: int, notice: Notice, *, owns: bool = False) -> None:
        """Write to a descriptor, which is closed at the end if the writer `owns` it."""
        super().__init__()
        self._descriptor, self._notice, self._owns = descriptor, notice, owns
        self._queue: list[bytes] = []
        self._bytes = 0
        """Bytes in the queue, and those that the thread is writing."""
        self._dropped = 0
        self._gap = 0
        """Where in the queue lines were last dropped."""
        self._failing = False
        self._cut = False
        """Whether what is written ends within a line that an error cut off."""
        self._ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        # Other code waits for signals in a thread of its own (signals.py). This one must not receive any.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def write(self, lines: Any) -> int:
        """Queue whole lines. Return their size, also if they were dropped."""
        data = bytes(lines)
        is_notice = threading.current_thread() is self._thread
        with self._changed:
            if not is_notice and (self._bytes + len(data) > CAPACITY_BYTES or self._ending):
                self._dropped += data.count(b"\n")
                self._gap = len(self._queue)
            else:
                self._queue.insert(self._gap if is_notice else len(self._queue), data)
                self._bytes += len(data)
                self._changed.notify_all()
        return len(data)

    def writable(self) -> bool:
        """Return True: it is for writing only."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def wait(self, seconds: float = LAST_LINES_SECONDS) -> bool:
        """Wait until what is queued was written, at most for `seconds`, and return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def end(self, seconds: float = LAST_LINES_SECONDS) -> None:
        """Wait until what is queued was written, at most for `seconds`. Only the notice can write after this call."""
        with self._changed:
            was_ending, self._ending = self._ending, True
            self._changed.notify()
        if not was_ending:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while data := self._next():
                self._write(data)
        finally:
            if self._owns:
                os.close(self._descriptor)

    def _next(self) -> bytes:
        """Wait for lines and return them; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ending)
            data = b"".join(self._queue)
            self._queue.clear()
            self._gap = 0
            return data

    def _write(self, data: bytes) -> None:
        unwritten = memoryview(data)
        try:
            while self._cut:
                self._cut = not self._write_some(memoryview(b"\n"))
            while unwritten:
                unwritten = unwritten[self._write_some(unwritten) :]
        except OSError as error:
            if written := len(data) - len(unwritten):
                self._cut = data[written - 1] != ord("\n")
            with self._changed:
                self._bytes -= len(data)
                self._dropped += bytes(unwritten).count(b"\n")
                self._changed.notify_all()
            if not self._failing:
                self._failing = True
                self._notice(error.strerror or str(error), 0)
            return
        self._failing = False
        with self._changed:
            self._bytes -= len(data)
            dropped, self._dropped = self._dropped, 0
            self._changed.notify_all()
        if dropped:
            self._notice("", dropped)

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # another process that has the same pipe or terminal may set O_NONBLOCK
            room = select.poll()
            room.register(self._descriptor, select.POLLOUT)
            room.poll()
            return 0


def _print_dropped(error: str, dropped: int) -> None:
    if dropped and not error:
        sys.stderr.write(f"restante: {dropped} lines were dropped, because nobody read them\n")


def wait_for_standard_error() -> None:
    """Wait until the lines of standard error were written, at most for a second."""
    writer = getattr(sys.stderr, "buffer", None)
    if isinstance(writer, LineWriter):
        writer.wait()


def unblock_standard_error(notice: Notice = _print_dropped) -> None:
    """Let a thread write to standard error from now on. The last lines are written when the process ends.

    If standard error was closed, what is written to it is discarded.
    """
    if isinstance(getattr(sys.stderr, "buffer", None), LineWriter):
        return
    if sys.stderr.closed:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the process ends
        return
    try:
        writer = LineWriter(sys.stderr.fileno(), notice)
    except OSError:  # the program that runs this one has replaced it by an object
        return
    sys.stderr = io.TextIOWrapper(writer, "utf-8", "backslashreplace", line_buffering=True)
    atexit.register(writer.end)
