"""`restante` that SIGKILL ends before it runs a statement. python -m reference_import.killed_at STATEMENT ARGS..."""

import os
import signal
import sqlite3
import sys
from contextlib import AbstractContextManager
from unittest.mock import patch

from restante.cli.main import main
from restante.mailbox.reference_import import importing
from restante.mailbox.store.schema import connect


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def connecting(statement: str) -> AbstractContextManager[object]:
    def connect_mortally(path: str) -> sqlite3.Connection:
        database = connect(path)
        database.set_trace_callback(lambda sql: die() if sql.startswith(statement) else None)
        return database

    return patch.object(importing, "connect", connect_mortally)


if __name__ == "__main__":
    statement, *sys.argv[1:] = sys.argv[1:]
    with connecting(statement):
        try:
            main()
        finally:
            die()
