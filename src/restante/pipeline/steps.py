"""Shows the progress of a run on standard error: its steps and their time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from restante.common.terminal import can_rewrite

if TYPE_CHECKING:
    from rich.progress import Progress


class Step:
    """A step that is running."""

    def __init__(
        self, name: str, say: Callable[[str], None], clock: Callable[[], float], show: Callable[[str], None]
    ) -> None:
        """`say` writes a line, and `show` replaces the live line."""
        self._name, self._say, self._clock, self._show = name, say, clock, show
        self._started = clock()

    def so_far(self, text: str) -> None:
        """Write a line about the progress, and show it in the live line from now on."""
        self._show(f"{self._name} · {text}")
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
    def step(self, name: str) -> Iterator[Step]:
        """Show a step while it is running."""
        if not self._live:
            yield Step(name, self.say, self._clock, lambda _: None)
            return
        with self._shared_display() as progress:
            line = progress.add_task(name, total=None)
            try:
                yield Step(name, self.say, self._clock, lambda text: progress.update(line, description=text))
            finally:
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
