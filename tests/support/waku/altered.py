"""The Waku node with one thing altered. Most break the promise "commit, then confirm", to show that the tests notice.

python -m support.waku.altered HOW ARGS...    is    restante ARGS...    with this altered
"""

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from restante.cli.main import main
from restante.waku.archive import sqlite
from restante.waku.connection import peer_connection
from restante.waku.devp2p import session
from restante.waku.envelope.envelope import Envelope
from restante.waku.node import node
from restante.waku.node.archiving import Archiving
from restante.waku.node.mailserver import Batch
from support.mailbox.altered import HANG_FILE, HangsAtCommit, NeverFlushes, connecting


class ConfirmsFirst(Archiving):
    """Confirms, then commits."""

    async def _save(self, batch: Batch) -> None:
        self._confirm(self.mailserver.confirm(batch))
        await self.archive.save(batch.envelopes, self.now())


class ConfirmsMeanwhile(Archiving):
    """Forgets to wait for the commit before it confirms."""

    async def _save(self, batch: Batch) -> None:
        saving = asyncio.create_task(self.archive.save(batch.envelopes, self.now()))
        await asyncio.sleep(0)
        self._confirm(self.mailserver.confirm(batch))
        await saving


class CommitsLate(sqlite.Archive):
    """Keeps back the last batches, as a write-behind cache would. Killed, it has always confirmed what is lost."""

    _kept: tuple[tuple[Sequence[Envelope], int], ...] = ()

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        batches = (*self._kept, (batch, arrived))
        self._kept = batches[-2:]
        for each in batches[:-2]:
            await super().save(*each)


class HangsWithAFile(node.Node):
    """Its event loop hangs from when a file is there."""

    def tick(self) -> None:
        if Path(os.environ[HANG_FILE]).exists():
            threading.Event().wait()
        super().tick()


WAYS: Final[dict[str, tuple[AbstractContextManager[object], ...]]] = {
    "confirms-first": (patch.object(node, "Archiving", ConfirmsFirst),),
    "confirms-meanwhile": (patch.object(node, "Archiving", ConfirmsMeanwhile),),
    "commits-late": (patch.object(sqlite, "Archive", CommitsLate),),
    "hangs-at-commit": (connecting(HangsAtCommit),),
    "hangs-with-a-file": (patch("restante.waku.node.main.Node", HangsWithAFile),),
    "never-flushes": (connecting(NeverFlushes),),
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
