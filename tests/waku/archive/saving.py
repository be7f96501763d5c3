"""A program that saves batches and says so, to be traced and killed.

python -m waku.archive.saving HOW DATA FIRST LAST      says `saved N` on standard output, a socket, when batch N is
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from unittest.mock import patch

from restante.waku.archive.sqlite import Archive, open_archive
from restante.waku.envelope.envelope import Envelope, make
from support.mailbox.altered import WAYS

SIZE: Final = 25


def batch(number: int) -> list[Envelope]:
    """Return the envelopes of a batch; each has a token that is found again in the pages of a log."""
    return [make(1_700_000_000 + number, 50, b"\1\2\3\4", token(number, each)) for each in range(SIZE)]


def token(number: int, each: int) -> bytes:
    return f"token-{number}-{each}-".encode().ljust(200, b".")


class KeepsBack(Archive):
    """Keeps back the last batches, as a write-behind cache would."""

    _kept: tuple[tuple[Sequence[Envelope], int], ...] = ()

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        batches = (*self._kept, (batch, arrived))
        self._kept = batches[-2:]
        for each in batches[:-2]:
            await super().save(*each)


class ForgetsToWait(Archive):
    """Returns while the transaction is being written."""

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        self.saving = asyncio.create_task(super().save(batch, arrived))
        await asyncio.sleep(0)


HOW: Final = {
    "as-it-is": (),
    "never-flushes": WAYS["never-flushes"],
    "keeps-back": (patch("restante.waku.archive.sqlite.Archive", KeepsBack),),
    "forgets-to-wait": (patch("restante.waku.archive.sqlite.Archive", ForgetsToWait),),
}


async def save(data: Path, first: int, last: int) -> None:
    archive = open_archive(data)
    for number in range(first, last + 1):
        await archive.save(batch(number), number)
        os.write(1, f"saved {number}\n".encode())
    await archive.close()


if __name__ == "__main__":
    how, folder, *numbers = sys.argv[1:]
    with ExitStack() as stack:
        for change in HOW[how]:
            stack.enter_context(change)
        asyncio.run(save(Path(folder), *map(int, numbers)))
