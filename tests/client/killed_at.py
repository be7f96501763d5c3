"""A program that SIGKILL ends at a moment of its files and frames: killed_at NUMBER SCRIPT ARGS... (0: it lives)."""

from __future__ import annotations

import itertools
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


def main() -> None:
    last, passed = int(sys.argv[1]), itertools.count(1)
    sys.argv[:] = sys.argv[2:]

    def moment() -> None:
        if next(passed) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def mortal(call: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            moment()
            result = call(*arguments, **named)
            if after:
                moment()
            return result

        return called

    def write_bytes(path: Path, content: bytes) -> None:
        with path.open("wb", buffering=0) as file:
            file.write(content[: len(content) // 2])
            moment()
            file.write(content[len(content) // 2 :])

    with (
        patch.object(os, "fsync", mortal(os.fsync)),
        patch.object(os, "rename", mortal(os.rename)),
        patch.object(tempfile, "mkstemp", mortal(tempfile.mkstemp)),
        patch.object(Path, "write_bytes", write_bytes),
        patch.object(Connection, "send", mortal(Connection.send, after=True)),
        patch.object(Connection, "on_ws_frame", mortal(Connection.on_ws_frame)),
    ):
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
