"""Limits the rows that concurrent jobs read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Final


class RowBudget:
    """The number of rows that concurrent jobs may read together."""

    def __init__(self, rows: int) -> None:
        self._limit: Final = rows
        self._reserved = 0
        self._closed = False
        self._changed: Final = threading.Condition()

    @contextmanager
    def reserve(self, rows: int) -> Iterator[None]:
        """Wait until the rows fit into the budget, or no other job has a reservation; release them at the end.

        Raises CancelledError if no more jobs may start.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._reserved or self._reserved + rows <= self._limit)
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
        """Refuse all further reservations, including those that are waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
