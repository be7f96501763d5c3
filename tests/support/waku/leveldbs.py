"""LevelDB archives as status-go makes them (mailserver/db_key.go:46-53, mailserver_db_leveldb.go:207-226)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from restante.waku.envelope.envelope import Envelope


def key(envelope: Envelope, *, old: bool = False) -> bytes:
    """Make a key as status-go does, or did before May 2019."""
    return envelope.sent.to_bytes(4, "big") + envelope.hash + (b"" if old else envelope.topic)


def write(folder: Path, entries: Iterable[tuple[bytes, bytes]]) -> Path:
    """Make a database, a part of which is in a table and a part still in the log."""
    import plyvel  # where there is none, tests marked `leveldb` are left out

    rows = list(entries)
    with closing(plyvel.DB(str(folder), create_if_missing=True)) as database:
        for number, (name, value) in enumerate(rows):
            database.put(name, value)
            if number == len(rows) // 2:
                database.compact_range()
    return folder


def of(folder: Path, envelopes: Iterable[Envelope]) -> Path:
    return write(folder, ((key(row, old=n % 3 == 0), row.raw) for n, row in enumerate(envelopes)))
