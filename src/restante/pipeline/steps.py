"""Shows the progress of a run on standard error: its steps, Spark's tasks and the time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from restante.common.terminal import can_rewrite

if TYPE_CHECKING:
    from rich.progress import Progress

TaskProgress = Callable[[], tuple[int, int] | None]
"""Returns how many of Spark's tasks are done and how many there are, or None if that is not known."""

POLL_SECONDS: Final = 0.3
"""Seconds between two queries of the number of tasks."""


class Step:
    """A step that is running."""

    def __init__(self, name: str, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._name, self._say, self._clock = name, say, clock
        self._began = clock()
        self.words = name
        """The text of the live line."""

    def so_far(self, words: str) -> None:
        """Write a line about the progress, and show it in the live line from now on."""
        self.words = f"{self._name} · {words}"
        self.done(words)

    def done(self, words: str) -> None:
        """Write a line about the result, with the time since the step began."""
        self._say(f"{self._name}: {words}, {self._clock() - self._began:.1f} s")


class Steps:
    """The steps of a run: a line for each that is done, and live lines on a terminal. Threads may share it."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._live = can_rewrite(sys.stderr)
        self._lock = threading.Lock()
        self._shown: Progress | None = None
        self._going = 0

    def say(self, words: str) -> None:
        """Write a line."""
        sys.stderr.write(f"{self._what}: {words}\n")
        sys.stderr.flush()

    @contextmanager
    def step(self, name: str, tasks: TaskProgress = lambda: None) -> Iterator[Step]:
        """Show a step while it is running."""
        step = Step(name, self.say, self._clock)
        if not self._live:
            yield step
            return
        with self._progress() as progress:
            line = progress.add_task(step.words, total=None)
            over = threading.Event()

            def poll() -> None:
                while not over.wait(POLL_SECONDS):
                    found = tasks()
                    count = f" · task {found[0]} of {found[1]}" if found and found[1] else ""
                    progress.update(line, description=f"{step.words}{count}")

            watcher = threading.Thread(target=poll, daemon=True)
            watcher.start()
            try:
                yield step
            finally:
                over.set()
                watcher.join()
                progress.remove_task(line)

    @contextmanager
    def _progress(self) -> Iterator[Progress]:
        """Yield the live display, which all running steps share: a terminal can show only one."""
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._shown is None:
                columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
                self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
                self._shown.start()
            self._going += 1
            shown = self._shown
        try:
            yield shown
        finally:
            with self._lock:
                self._going -= 1
                if not self._going:
                    shown.stop()
                    self._shown = None
