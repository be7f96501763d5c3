"""Shows the progress of a run on standard error: its steps and their time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
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
        with self._lock:
            progress = self._display
            line = progress.add_task(name, total=None)
            progress.start()
        try:
            yield Step(name, self.say, self._clock, lambda text: progress.update(line, description=text))
        finally:
            with self._lock:
                progress.remove_task(line)
                if not progress.tasks:
                    progress.stop()

    @cached_property
    def _display(self) -> Progress:
        """The live display, which all running steps share: a terminal can show only one."""
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        return Progress(*columns, console=Console(stderr=True), transient=True)
