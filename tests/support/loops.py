"""The event loop of the servers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on uvloop, as the servers run. uvloop has transports and a TLS of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        uvloop.run(test(*arguments, **named))

    return run
