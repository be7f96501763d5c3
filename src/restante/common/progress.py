"""Progress of a long command on standard error: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from restante.common.terminal import can_rewrite

LINES: Final = 10
"""Lines that are written elsewhere if the total is known."""

EVERY: Final = 100_000
"""Items between two lines if it is not."""

Advance = Callable[[int], None]
"""Call it with the number of items done since the last call."""


@contextmanager
def progress(task: str, total: int | None = None) -> Iterator[Advance]:
    """Show the progress of a task, of `total` items if that is known."""
    if not can_rewrite(sys.stderr):
        yield _lines(task, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        number = bar.add_task(task, total=total)
        yield lambda items: bar.advance(number, items)


def _lines(name: str, total: int | None) -> Advance:
    step = EVERY if total is None else max(total // LINES, 1)
    done = 0

    def advance(items: int) -> None:
        nonlocal done
        before, done = done, done + items
        if done // step > before // step:
            end = "" if total is None else f" of {total:,}"
            sys.stderr.write(f"{name}: {done:,}{end}\n")

    return advance
