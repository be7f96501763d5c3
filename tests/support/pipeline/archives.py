"""Waku archives, made by the Mailserver's own code."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from restante.waku.archive.sqlite import Archive
from restante.waku.envelope.envelope import Envelope
from support.waku.envelopes import T0

CAME = T0 + 100


class Keeping:
    def __init__(self, data: Path, *batch: Envelope) -> None:
        self.data = data
        self._archive = Archive.open(data)
        if batch:
            self.save(*batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self._archive.close())

    def save(self, *batch: Envelope, arrived: int = CAME) -> None:
        asyncio.run(self._archive.save(batch, arrived))

    def prune(self, before: int) -> None:
        asyncio.run(self._archive.prune(T0 + before, 1_000))
