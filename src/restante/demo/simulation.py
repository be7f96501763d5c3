"""Virtual time: processes that wait, and a clock that jumps from one event to the next. Pure.

A process is a generator. It yields a `Pause` for each wait, and goes on when that is over.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator
from typing import NamedTuple


class Pause(NamedTuple):
    """How long a process waits."""

    seconds: float
    until_woken: bool = False
    """Whether `Simulation.wake` ends the wait early."""


Process = Generator[Pause, None, None]


class SimulatedTask:
    """A process that has been started."""

    __slots__ = ("process", "step", "wakeable")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.step = 0
        """How many of its parts have run. Entries of the queue for an earlier step are out of date."""
        self.wakeable = False


class Simulation:
    """The clock, and a queue of the processes that wait."""

    def __init__(self, now: float) -> None:
        self.now = now
        """Seconds since 1970."""
        self.current: SimulatedTask | None = None
        """The task that runs now."""
        self._queue: list[tuple[float, int, int, SimulatedTask]] = []
        self._numbers = itertools.count()

    def start(self, process: Process, at: float | None = None) -> SimulatedTask:
        """Start a process, now or later."""
        task = SimulatedTask(process)
        self._put(self.now if at is None else at, task)
        return task

    def wake(self, task: SimulatedTask, after: float) -> None:
        """End the wait of a task after some seconds, if it can be woken."""
        if task.wakeable:
            self._put(self.now + after, task)

    def run(self, until: float) -> None:
        """Run the processes until a time. What is due then or later stays in the queue."""
        queue = self._queue
        while queue and queue[0][0] < until:
            at, _, step, task = heapq.heappop(queue)
            if step != task.step:
                continue
            self.now, self.current = at, task
            task.step += 1
            task.wakeable = False
            pause = next(task.process, None)
            if pause is not None:
                task.wakeable = pause.until_woken
                self._put(at + pause.seconds, task)
        self.now = until

    def _put(self, at: float, task: SimulatedTask) -> None:
        # Entries of the same time are handled in the order in which they were put there.
        heapq.heappush(self._queue, (at, next(self._numbers), task.step, task))
