"""The reference server's databases, our directory, importing, and looking at what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from restante.common.errors import StoreError
from restante.common.reference_database import ImportReport
from restante.mailbox.core.state import State
from restante.mailbox.reference_import.importing import import_databases
from restante.mailbox.store.rows import load_state
from restante.mailbox.store.schema import FILE, connect
from support.mailbox.reference_sources import Their

# Channel v2 is what the reference server's unreleased head writes: the same post, and tables of connections. A file
# that it made has other columns than one that it brought up from v1.
_CONNECTIONS = (
    """CREATE TABLE connections (id INTEGER PRIMARY KEY, addrid_generation INTEGER, addrid_counter INTEGER,
        connected INTEGER, side VARCHAR, implementation VARCHAR, version VARCHAR, active BOOLEAN)""",
    'CREATE TABLE connection_messages (id INTEGER REFERENCES connections (id), "when" INTEGER, name VARCHAR)',
    "INSERT INTO connections VALUES (1, 1, 1, 1600000000, 'a', 'python', '0.24.0', 1)",
    "INSERT INTO connection_messages VALUES (1, 1600000000, 'bind')",
    "UPDATE version SET version = 2",
)
CHANNEL_V2 = {
    "fresh": ("CREATE TABLE addrid_generation (generation INTEGER, started INTEGER)", *_CONNECTIONS),
    "upgraded": ("CREATE TABLE addrid_generation (generation INTEGER, started INTEGER, ends INTEGER)", *_CONNECTIONS),
}


@pytest.fixture
def their(tmp_path: Path) -> Iterator[Their]:
    """The reference server, with databases in which nothing is."""
    server = Their(tmp_path / "their")
    yield server
    server.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def take(data: Path, channel: Path | None = None, usage: Path | None = None, *, merge: bool = False) -> ImportReport:
    return import_databases(data, channel, usage, merge=merge)


def refused(data: Path, channel: Path | None = None, usage: Path | None = None, *, merge: bool = False) -> str:
    """Import, and be refused: with one sentence, with nothing changed. Gives the sentence."""
    before = content(data)
    with pytest.raises(StoreError, match=r"\A[^\n]+\Z") as refusal:
        import_databases(data, channel, usage, merge=merge)
    assert type(refusal.value) is StoreError
    assert content(data) == before
    assert not data.exists() or {file.name for file in data.iterdir()} <= {"lock", FILE}
    return str(refusal.value)


def content(data: Path) -> list[str]:
    """Everything in a data directory, as SQL; nothing where nothing was ever written."""
    if not (data / FILE).exists():
        return []
    with closing(connect(str(data / FILE))) as database, closing(connect(":memory:")) as empty:
        dump = list(database.iterdump())
        return [] if dump == list(empty.iterdump()) else dump


def state(data: Path) -> State:
    with closing(connect(str(data / FILE))) as database:
        return load_state(database)


def rows(data: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(connect(str(data / FILE))) as database:
        return database.execute(query).fetchall()
