"""How far a long command is: a bar on a terminal, a line now and then elsewhere. Both on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LINES: Final = 10
"""Lines that are written elsewhere, of what has a known end."""

EVERY: Final = 100_000
"""Items to a line, of what has none."""

Advance = Callable[[int], None]
"""To be told how many more items are done."""


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advance]:
    """Show how far `what` is, of a total if that is known."""
    if sys.stderr.isatty():
        with _bar(what, total) as advance:
            yield advance
    else:
        yield _lines(what, total)


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda items: shown.advance(task, items)


def _lines(what: str, total: int | None) -> Advance:
    step = EVERY if total is None else max(total // LINES, 1)
    done = 0

    def advance(items: int) -> None:
        nonlocal done
        before, done = done, done + items
        if done // step > before // step:
            end = "" if total is None else f" of {total:,}"
            sys.stderr.write(f"{what}: {done:,}{end}\n")

    return advance
