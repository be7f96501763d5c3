"""What transit relays leave behind, made by their own code."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from restante.common.transfer_records import TransferRecord
from support.pipeline.servers import T0


def transfer(number: float, **fields: Any) -> TransferRecord:
    return replace(TransferRecord(T0 + number, 1.5, 4.25, 1_000, "happy", "canary", 0.0), **fields)
