"""Connections that have had their last answer, and are not closed by their clients yet."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

CLOSE_SECONDS: Final = 2.0
"""Seconds that a client has to read the last answer and to close."""

MAX_CLOSING: Final = 200
"""Such connections at a time. They have given up their places among the waiting ones, so no limit of an address
counts them."""


class ClosingConnections:
    """Aborts them after CLOSE_SECONDS, and the earliest at once if there are more than MAX_CLOSING."""

    def __init__(self) -> None:
        self._aborts: OrderedDict[Hashable, tuple[asyncio.TimerHandle, Callable[[], None]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._aborts)

    def add(self, connection: Hashable, abort: Callable[[], None]) -> None:
        """Abort a connection soon, unless it is discarded before."""
        timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, abort)
        self._aborts[connection] = timer, abort
        if len(self._aborts) > MAX_CLOSING:
            _, (timer, abort) = self._aborts.popitem(last=False)
            timer.cancel()
            abort()

    def discard(self, connection: Hashable) -> None:
        """Forget a connection that is closed."""
        if connection in self._aborts:
            timer, _ = self._aborts.pop(connection)
            timer.cancel()  # it holds the transport, which holds buffers
