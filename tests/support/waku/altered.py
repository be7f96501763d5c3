"""The Waku node with one thing altered.

python -m support.waku.altered HOW ARGS...    is    restante ARGS...    with this altered
"""

import os
import sys
import threading
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from restante.cli.main import main
from restante.waku.connection import peer_connection
from restante.waku.devp2p import session
from restante.waku.node import node
from support.mailbox.altered import HANG_FILE, HangsAtCommit, connecting


class HangsWithAFile(node.Node):
    """Its event loop hangs from when a file is there."""

    def tick(self) -> None:
        if Path(os.environ[HANG_FILE]).exists():
            threading.Event().wait()
        super().tick()


WAYS: Final[dict[str, tuple[AbstractContextManager[object], ...]]] = {
    "hangs-at-commit": (connecting(HangsAtCommit),),
    "hangs-with-a-file": (patch("restante.waku.node.main.Node", HangsWithAFile),),
    "no-timeouts": (
        patch.object(peer_connection, "WRITE_STALL_TIMEOUT", 1e6),
        patch.object(session, "SessionLimits", partial(session.SessionLimits, silence=1e6)),
    ),
}

if __name__ == "__main__":
    with ExitStack() as stack:
        for change in WAYS[sys.argv.pop(1)]:
            stack.enter_context(change)
        main()
