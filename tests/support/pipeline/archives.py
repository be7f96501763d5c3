"""Archives of Mailservers, written by the Mailserver's own code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from restante.waku.archive.sqlite import Archive
from restante.waku.envelope.envelope import Envelope
from support.waku.envelopes import T0

CAME = T0 + 100


class Keeping:
    """An archive that is open, as it is while its server runs."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._archive = Archive.open(data)

    def save(self, *batch: Envelope, arrived: int = CAME) -> None:
        asyncio.run(self._archive.save(batch, arrived))

    def prune(self, before: int) -> None:
        asyncio.run(self._archive.prune(T0 + before, 1_000))

    def close(self) -> None:
        asyncio.run(self._archive.close())


@contextmanager
def keeping(data: Path, *batch: Envelope) -> Iterator[Keeping]:
    found = Keeping(data)
    try:
        if batch:
            found.save(*batch)
        yield found
    finally:
        found.close()
