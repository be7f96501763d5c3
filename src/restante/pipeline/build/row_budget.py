"""A bound on the rows that jobs read which go on beside one another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Final


class RowBudget:
    """How many rows jobs that go on beside one another may read."""

    def __init__(self, rows: int) -> None:
        self._all: Final = rows
        self._reserved = 0
        self._closed = False
        self._changed: Final = threading.Condition()

    @contextmanager
    def reserve(self, rows: int) -> Iterator[None]:
        """Wait until there is room for so many, or nobody else has any; give it back at the end.

        Raises CancelledError where no job is to be begun any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._reserved or self._reserved + rows <= self._all)
            if self._closed:
                raise CancelledError
            self._reserved += rows
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= rows
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
