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
        self._started = clock()
        self.text = name
        """The text of the live line."""

    def so_far(self, text: str) -> None:
        """Write a line about the progress, and show it in the live line from now on."""
        self.text = f"{self._name} · {text}"
        self.done(text)

    def done(self, text: str) -> None:
        """Write a line about the result, with the time since the step began."""
        self._say(f"{self._name}: {text}, {self._clock() - self._started:.1f} s")


class Steps:
    """The steps of a run: a line for each that is done, and live lines on a terminal. Threads may share it."""

    def __init__(self, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._prefix, self._clock = prefix, clock
        self._live = can_rewrite(sys.stderr)
        self._lock = threading.Lock()
        self._display: Progress | None = None
        self._running_steps = 0

    def say(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(f"{self._prefix}: {text}\n")
        sys.stderr.flush()

    @contextmanager
    def step(self, name: str, tasks: TaskProgress = lambda: None) -> Iterator[Step]:
        """Show a step while it is running."""
        step = Step(name, self.say, self._clock)
        if not self._live:
            yield step
            return
        with self._shared_display() as progress:
            line = progress.add_task(step.text, total=None)
            step_ended = threading.Event()

            def poll() -> None:
                while not step_ended.wait(POLL_SECONDS):
                    counts = tasks()
                    count = f" · task {counts[0]} of {counts[1]}" if counts and counts[1] else ""
                    progress.update(line, description=f"{step.text}{count}")

            watcher = threading.Thread(target=poll, daemon=True)
            watcher.start()
            try:
                yield step
            finally:
                step_ended.set()
                watcher.join()
                progress.remove_task(line)

    @contextmanager
    def _shared_display(self) -> Iterator[Progress]:
        """Yield the live display, which all running steps share: a terminal can show only one."""
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._display is None:
                columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
                self._display = Progress(*columns, console=Console(stderr=True), transient=True)
                self._display.start()
            self._running_steps += 1
            display = self._display
        try:
            yield display
        finally:
            with self._lock:
                self._running_steps -= 1
                if not self._running_steps:
                    display.stop()
                    self._display = None
