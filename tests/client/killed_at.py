"""A program that SIGKILL ends at one of its moments: killed_at NUMBER SCRIPT ARGS...

A moment is before a file is made, flushed or renamed, before and after a frame is sent, before one is handled, and in
the middle of a write. With the number 0 the program lives.
"""

from __future__ import annotations

import functools
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from restante.client.connection.websocket import Connection


class Moments:
    """The moments of this process, and the one at which it ends."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.passed = 0

    def pass_one(self) -> None:
        self.passed += 1
        if self.passed == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, call: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
        @functools.wraps(call)
        def mortal(*arguments: Any, **named: Any) -> Any:
            self.pass_one()
            result = call(*arguments, **named)
            if after:
                self.pass_one()
            return result

        return mortal

    def write_bytes(self) -> Callable[[Path, bytes], None]:
        def mortal(path: Path, content: bytes) -> None:
            with path.open("wb", buffering=0) as file:
                file.write(content[: len(content) // 2])
                self.pass_one()
                file.write(content[len(content) // 2 :])

        return mortal


def main() -> None:
    moments = Moments(int(sys.argv[1]))
    sys.argv[:] = sys.argv[2:]
    with (
        patch.object(os, "fsync", moments.before(os.fsync)),
        patch.object(os, "rename", moments.before(os.rename)),
        patch.object(tempfile, "mkstemp", moments.before(tempfile.mkstemp)),
        patch.object(Path, "write_bytes", moments.write_bytes()),
        patch.object(Connection, "send", moments.before(Connection.send, after=True)),
        patch.object(Connection, "on_ws_frame", moments.before(Connection.on_ws_frame)),
    ):
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
