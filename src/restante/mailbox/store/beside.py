"""Reading a data directory's database beside a running server, without disturbing it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from restante.errors import Misuse, StoreError
from restante.mailbox.store.schema import APPLICATION_ID, FILE, LOCK, migrations


@contextmanager
def reading(data: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for reading.

    Raises Misuse where there is none, StoreError where it is not ours or cannot be read.
    """
    path = data / FILE
    if not path.exists():
        raise Misuse(f"there is no mailbox server's data in {data} (--data names another directory)")
    try:
        # Nobody writes and there is no log: then SQLite need make no files beside it, where it may not.
        still = not running(data) and not path.with_name(f"{FILE}-wal").exists()
        mode = "immutable=1" if still else "mode=ro"
        uri = f"{path.absolute().as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)) as database:
            if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreError(f"{path} is not a database of this mailbox server")
            if database.execute("PRAGMA user_version").fetchone()[0] > len(migrations()):
                raise StoreError(f"{path} is newer than this program: use the newer restante")
            yield database
    except sqlite3.DatabaseError as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def running(data: Path) -> bool:
    """Tell whether somebody holds the lock; ours, if we get it, is gone with the descriptor."""
    try:
        held = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(held)
