"""The store: the server saves usage records and counts every few seconds, in one transaction in a thread.

The relay passes on bytes without it: if a save fails, the server goes on.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import astuple

from restante.common.data_directory import lock_data_directory
from restante.common.errors import StoreError
from restante.common.sqlite import checkpoint, transaction
from restante.common.transfer_records import CurrentTransfers, TransferRecord
from restante.common.worker import Worker
from restante.relay.core.quotas import SavedTraffic
from restante.relay.store.schema import FILE, SCHEMA

BUSY_TIMEOUT_SECONDS: Final = 5.0
"""How long a save waits for another program that holds the write lock."""

ROWS_PER_CHECKPOINT: Final = 1000
"""Rows between checkpoints, which move the write-ahead log into the database: at most 4 MiB of log if each row is on
another page."""

LOG_BYTES: Final = 4 << 20
"""Size to which the log (`-wal`) is truncated after a reader has made it grow."""

_FIELDS: Final = ("origin", *TransferRecord.__struct_fields__)
_INSERT_RECORD: Final = f"INSERT INTO transfers ({', '.join(_FIELDS)}) VALUES ({', '.join('?' * len(_FIELDS))})"  # noqa: S608
_DELETE_RECORDS: Final = "DELETE FROM transfers WHERE id IN (SELECT id FROM transfers WHERE started < ? LIMIT ?)"
_REPLACE_TRAFFIC: Final = "INSERT OR REPLACE INTO traffic VALUES (1, ?, ?, ?, ?, ?)"
_REPLACE_CURRENT: Final = "INSERT OR REPLACE INTO current VALUES (1, ?, ?, ?, ?, ?)"


class Store:
    """The database of one data directory, which one process uses at a time.

    `save` and `forget_records` raise StoreBusy, or StoreFull, if nothing was written and the same may be tried again.
    After another StoreError it is unknown whether the records were written. No error prevents a later save.
    """

    def __init__(self, database: sqlite3.Connection, directory_lock: ExitStack) -> None:
        self.database = database
        self._directory_lock = directory_lock
        self._writing = Worker("relay-write")
        self._rows_since_checkpoint = 0
        self.traffic, self.day_key = _read_traffic(database)
        """What was saved last, also by an earlier process; None: nothing was. The day and the month may be over. The
        key is that of the address ids of this day; empty: it is not known."""

    @classmethod
    def open(cls, data: Path) -> Store:
        """Lock the data directory and open its database. Create both if they do not exist.

        Raises StoreError if another process uses the directory, or the database is another program's, newer than
        this program, or damaged.
        """
        with ExitStack() as stack:
            directory_lock = stack.enter_context(lock_data_directory(data))
            database = stack.enter_context(closing(SCHEMA.connect(str(data / FILE))))
            database.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
            database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            database.execute("PRAGMA secure_delete = ON")  # the file has no key that was deleted
            try:
                store = cls(database, directory_lock)
            except sqlite3.Error as error:
                raise StoreError(f"cannot read {data / FILE}: {error}; restore a backup") from error
            stack.pop_all()
        return store

    async def save(
        self, records: Sequence[TransferRecord], traffic: SavedTraffic, day_key: bytes, current: CurrentTransfers
    ) -> None:
        """Save new records, all counts and the state of the relay, all or nothing. Returns when they are on disk.

        `day_key` is the key of the address ids of `traffic.day`. Nobody may change the arguments meanwhile.
        """
        await self._writing.do(partial(self._save, records, traffic, day_key, current))

    def _save(
        self, records: Sequence[TransferRecord], traffic: SavedTraffic, day_key: bytes, current: CurrentTransfers
    ) -> None:
        ends_key = day_key != self.day_key
        saved_bytes = {} if ends_key or self.traffic is None else self.traffic.address_bytes
        changed_bytes = [item for item in traffic.address_bytes.items() if saved_bytes.get(item[0]) != item[1]]
        gone_addresses = [(address_id,) for address_id in saved_bytes.keys() - traffic.address_bytes.keys()]
        with transaction(self.database):
            insert_records(self.database, records)
            if ends_key:
                self.database.execute("DELETE FROM address_bytes")
            self.database.executemany("DELETE FROM address_bytes WHERE address_id = ?", gone_addresses)
            self.database.executemany("INSERT OR REPLACE INTO address_bytes VALUES (?, ?)", changed_bytes)
            counts = traffic.day, traffic.day_bytes, traffic.month, traffic.month_bytes
            self.database.execute(_REPLACE_TRAFFIC, (*counts, day_key))
            self.database.execute(_REPLACE_CURRENT, astuple(current))
        self.traffic, self.day_key = traffic, day_key
        if ends_key:
            checkpoint(self.database, "TRUNCATE")  # the log has the key of the day before
        self._count_rows(len(records) + len(changed_bytes) + len(gone_addresses))

    async def forget_records(self, before: float, limit: int) -> int:
        """Delete records that started before a wall time, `limit` at most. Return the number deleted."""
        return await self._writing.do(partial(self._forget_records, before, limit))

    def _forget_records(self, before: float, limit: int) -> int:
        with transaction(self.database):
            deleted = self.database.execute(_DELETE_RECORDS, (before, limit)).rowcount
        self._count_rows(deleted)
        return deleted

    def _count_rows(self, count: int) -> None:
        """Count the rows of a transaction, with those that each save writes. Make a checkpoint if one is due."""
        self._rows_since_checkpoint += count + 2
        if self._rows_since_checkpoint >= ROWS_PER_CHECKPOINT:
            self._rows_since_checkpoint = 0
            checkpoint(self.database)

    async def close(self) -> None:
        """Close the database after the saves that were begun, and release the data directory."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._writing.end()
        checkpoint(self.database, "TRUNCATE")
        self.database.close()
        self._directory_lock.close()


def insert_records(database: sqlite3.Connection, records: Sequence[TransferRecord], origin: str = "") -> None:
    """Insert records. The origin is '' for this relay's own, else the name of the imported file."""
    database.executemany(_INSERT_RECORD, [(origin, *astuple(record)) for record in records])


def _read_traffic(database: sqlite3.Connection) -> tuple[SavedTraffic | None, bytes]:
    row = database.execute("SELECT day, day_bytes, month, month_bytes, day_key FROM traffic").fetchone()
    if row is None:
        return None, b""
    day, day_bytes, month, month_bytes, day_key = row
    address_bytes = dict(database.execute("SELECT address_id, bytes FROM address_bytes"))
    return SavedTraffic(
        day=day, day_bytes=day_bytes, month=month, month_bytes=month_bytes, address_bytes=address_bytes
    ), day_key
