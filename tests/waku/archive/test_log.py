"""The archive's write-ahead log: flushed at each commit, and moved into the database before it grows long."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from restante.common.errors import StoreBusy
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import Archive, open_archive
from support.waku.envelopes import envelope
from waku.archive.engine import Engine

BATCHES = [[envelope(second, number, size=200) for number in range(25)] for second in range(2)]


async def test_the_connection_reports_synchronous_full(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path)

    def asked(pragma: str) -> object:
        return archive.database.execute(f"PRAGMA {pragma}").fetchone()[0]

    assert asked("journal_mode") == "wal"
    assert asked("synchronous") == 2  # FULL: sqlite.org/pragma.html#pragma_synchronous
    assert asked("locking_mode") == "normal"
    assert asked("busy_timeout") == 5000
    assert asked("wal_autocheckpoint") == 0
    await archive.close()


async def test_a_refused_batch_causes_a_checkpoint_so_that_the_next_needs_no_more_room(engine: Engine) -> None:
    await engine.archive.save(BATCHES[0], 1)
    with engine.failing_at_commit(sqlite3.SQLITE_FULL), pytest.raises(StoreBusy):
        await engine.archive.save(BATCHES[1], 2)
    await engine.archive.prune(0, 1)  # waits for its turn behind it
    with closing(sqlite3.connect(f"file:{engine.data / FILE}?immutable=1", uri=True)) as without_log:
        assert without_log.execute("SELECT count(*) FROM envelopes").fetchone() == (len(BATCHES[0]),)
    log = (engine.data / f"{FILE}-wal").stat().st_size
    await engine.archive.save(BATCHES[1], 2)
    assert (engine.data / f"{FILE}-wal").stat().st_size == log


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_long_write_ahead_log_causes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.archive.sqlite.CHECKPOINT_BYTES", 1 << 20)
    archive = open_archive(tmp_path)
    for second in range(30):
        await archive.save([envelope(second, number, size=4000) for number in range(100)], 1)
    log = (tmp_path / f"{FILE}-wal").stat().st_size
    await archive.close()
    assert log < 6 << 20 < (tmp_path / FILE).stat().st_size
    assert names(tmp_path) == [FILE, "lock"]
