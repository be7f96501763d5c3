"""What transit relays leave behind, made by their own code."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from wormhole_transit_relay.database import get_db
from wormhole_transit_relay.usage import create_usage_tracker

from restante.common.transfer_records import CurrentTransfers, TransferRecord
from restante.relay.core.quotas import SavedTraffic
from restante.relay.store.schema import FILE
from restante.relay.store.sqlite import Store
from support.pipeline.servers import T0

TRAFFIC = SavedTraffic(day=19_675, day_bytes=1, month="2023-11", month_bytes=1, address_bytes={"canary": 1})


def transfer(number: float, **fields: Any) -> TransferRecord:
    return replace(TransferRecord(T0 + number, 1.5, 4.25, 1_000, "happy", "canary", 0.0), **fields)


def our_relay(data: Path, *records: TransferRecord, forget: float | None = None) -> Path:
    """Write records into the database of our relay, and delete those that started before a time."""

    async def write() -> None:
        store = Store.open(data)
        await store.save(records, TRAFFIC, b"canary", CurrentTransfers(T0, T0, 0, 0, 0))
        if forget is not None:
            await store.forget_records(forget, 1_000)
        await store.close()

    asyncio.run(write())
    return data / FILE


def reference_relay(path: Path, *, blur: int | None = None, start: float = T0 + 0.25) -> Path:
    """Let the reference relay record a pair, a side without another one, and one that it did not understand."""
    with closing(get_db(str(path))) as database, patch("time.time", lambda: start + 60):
        tracker = create_usage_tracker(blur, None, database)
        tracker.record(start + 2.5, start, "happy", 1_234_567, 89)
        tracker.record(start + 5, None, "lonely", 0, 0)
        tracker.record(start + 6, None, "errory", 0, 0)
        tracker.update_stats(rebooted=start, updated=start + 60, connected=1, waiting=2, incomplete_bytes=3)
        database.commit()
    return path
