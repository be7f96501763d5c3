"""`python -m support.mailbox.altered HOW ARGS...` is `restante ARGS...` with one thing altered."""

import errno
import math
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final
from unittest.mock import patch

from restante.cli.main import main
from restante.mailbox.server import handover, restart
from restante.mailbox.server import main as mailbox_main
from restante.mailbox.server.server import Server
from restante.mailbox.store import sqlite

HANG_FILE: Final = "HANG_FILE"
"""The variable that names the file of "hangs-with-a-file" and "checks-with-a-file"."""


class HangsWithAFile(Server):
    """Its event loop hangs from when a file is there."""

    def tick(self) -> None:
        if Path(os.environ[HANG_FILE]).exists():
            threading.Event().wait()
        super().tick()


def wait_for_file(_data: Path) -> None:
    while not Path(os.environ[HANG_FILE]).exists():
        time.sleep(0.01)


def quick(seconds: float) -> AbstractContextManager[object]:
    """Set what a fast flush is: only after one is a small batch committed on the loop, not in the thread."""
    return patch.object(sqlite, "FAST_FLUSH_SECONDS", seconds)


WAYS: Final[dict[str, tuple[AbstractContextManager[object], ...]]] = {
    # All commits are in the thread, or all small ones on the loop.
    "slow-disk": (quick(0.0),),
    "fast-disk": (quick(math.inf),),
    "cannot-be-replaced": (patch.object(restart, "replace_process", side_effect=OSError(errno.ENOMEM, "no room")),),
    "checks-with-a-file": (patch.object(mailbox_main, "check_database", wait_for_file),),
    "hands-over-in-another-format": (patch.object(restart, "FORMAT", 0),),
    "cannot-enter": (patch.object(handover, "enter", side_effect=LookupError),),
    "hangs-with-a-file": (patch.object(mailbox_main, "Server", HangsWithAFile),),
}

if __name__ == "__main__":
    with ExitStack() as stack:
        for change in WAYS[sys.argv.pop(1)]:
            stack.enter_context(change)
        main()
