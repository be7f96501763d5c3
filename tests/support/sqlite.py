"""A database as another program finds it: what a server itself would not do to it, and what is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

LOCK = "BEGIN IMMEDIATE"


@contextmanager
def beside(file: Path, *statements: str) -> Iterator[None]:
    """Let another program do this, and go when the block ends; what it began is undone then."""
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement).fetchall()
        yield


def alter(file: Path, *statements: str) -> None:
    with beside(file, *statements):
        pass


def select(file: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()
