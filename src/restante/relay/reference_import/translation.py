"""The reference relay's rows, and the records that they become. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from restante.common.reference_rows import Counts, DatabaseKind, Row, Seconds, usable_rows
from restante.common.transfer_records import TransferRecord, TransferResult


class ReferenceTransfer(NamedTuple):
    """A row of `usage`."""

    started: Seconds
    total_time: Seconds
    waiting_time: Seconds | None
    total_bytes: Annotated[int, Meta(ge=0, le=2**60)]
    """2**60 bytes take a line of 10 Gbit/s thirty years. Eight such rows can be added up in an integer of SQLite."""
    result: TransferResult


USAGE: Final = DatabaseKind(
    "usage", {"usage": ReferenceTransfer}, {}, versions=(1,), program="reference relay", row_bytes=65_536
)
"""Its longest row has 50 bytes. A file with longer rows or texts is not one that the reference relay has written."""


def translate_rows(rows: Iterable[Row], skipped: Counts) -> list[TransferRecord]:
    """Translate rows of `usage`. Times are not rounded."""
    return [
        TransferRecord(row.started, row.waiting_time, row.total_time, row.total_bytes, row.result)
        for row in usable_rows(rows, ReferenceTransfer, skipped, "transfers")
    ]
