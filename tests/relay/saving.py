"""Relay records to save; as a program: a relay that saves until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from restante.common.transfer_records import CurrentTransfers, TransferRecord
from restante.relay.core.quotas import SavedTraffic
from restante.relay.store.sqlite import Store

NOW = 1_795_827_200.0
"""2026-11-28 00:53:20 UTC."""
DAY = int(NOW // 86400)
KEY = bytes(range(32))
CURRENT = CurrentTransfers(rebooted=NOW - 100, updated=NOW, connected=4, waiting=1, incomplete_bytes=5000)


def traffic(day: int = DAY, day_bytes: int = 0, month_bytes: int = 0, **address_bytes: int) -> SavedTraffic:
    return SavedTraffic(
        day=day, day_bytes=day_bytes, month="2026-11", month_bytes=month_bytes, address_bytes=address_bytes
    )


def record(size: int = 1000, started: float = NOW) -> TransferRecord:
    return TransferRecord(started, 0.5, 2.5, size, "happy", "a1", 0.0)


async def save_until_killed(data: Path) -> None:
    """Count the bytes of each record in the month. Print how many records are on disk."""
    store = Store.open(data)
    for number in range(1, 1_000_000):
        await store.save([record(7), record(3)], traffic(month_bytes=10 * number, a=number), KEY, CURRENT)
        sys.stdout.write(f"{2 * number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(save_until_killed(Path(sys.argv[1])))
