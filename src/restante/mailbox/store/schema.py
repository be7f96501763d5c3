"""A data directory: its lock, its database, and how the schema of that grows."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from importlib import resources
from pathlib import Path
from typing import Final

from restante.errors import StoreError

FILE: Final = "restante.sqlite"
LOCK: Final = "lock"

APPLICATION_ID: Final = 0x52657374
"""Marks the file as ours ("Rest"; sqlite.org/pragma.html#pragma_application_id)."""


def migrations() -> list[str]:
    """Give the numbered migrations; a database's version is how many of them it has had."""
    folder = resources.files("restante.mailbox.store") / "sql"
    files = sorted(file.name for file in folder.iterdir() if file.name.startswith("sqlite-"))
    return [(folder / name).read_text() for name in files]


def lock(data: Path) -> int:
    """Take a data directory for this process, making it if need be; the lock goes with the descriptor."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)  # sides and mailbox ids are nobody else's business
        held = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error
    for patience in (0.2, 0.2, 0.2, None):  # `restante status` has it for an instant
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if patience is None:
                os.close(held)
                raise StoreError(
                    f"another process is using the data directory {data}: stop it, or name another with --data"
                ) from None
            time.sleep(patience)
        else:
            break
    return held


def connect(path: str) -> sqlite3.Connection:
    """Open the database of a data directory, bringing its schema up to date. `:memory:` is for tests."""
    try:
        database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open {path}: {error}") from error
    try:
        _prepare(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        raise StoreError(f"cannot open {path}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: str) -> None:
    def pragma(name: str) -> int:
        value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    scripts = migrations()
    version = pragma("user_version")
    if pragma("schema_version") and pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is not a database of this mailbox server; it was left as it is")
    if version > len(scripts):
        raise StoreError(
            f"{path} has schema {version}, this program knows up to {len(scripts)}: use the newer restante"
        )
    mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal" and path != ":memory:":
        raise StoreError(f"{path} is on a file system without WAL (shared memory): use a local disk")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA wal_autocheckpoint = 0")  # the engine does it, when everything is said
    for number, script in enumerate(scripts[version:], version + 1):
        database.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA application_id = {APPLICATION_ID};"
            f" PRAGMA user_version = {number}; COMMIT;"
        )
