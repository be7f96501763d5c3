"""A backup: a data directory with the archive as it was, made while the server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from restante.common import database_copy
from restante.common.errors import Misuse, StoreError
from restante.waku.archive import backup, checking
from restante.waku.archive.schema import FILE, SCHEMA
from restante.waku.archive.sqlite import open_archive
from support.disk import no_file_beyond
from support.waku.envelopes import envelope, held

ROWS = [envelope(number, number, size=2000) for number in range(300)]


async def test_a_node_can_serve_a_backup(tmp_path: Path) -> None:
    archive = open_archive(tmp_path / "data")
    await archive.save(ROWS, 1)
    backup.backup(tmp_path / "data", tmp_path / "copy", lambda _: None)
    await archive.close()
    copy = open_archive(tmp_path / "copy")
    assert await held(copy) == [each.raw for each in ROWS]
    await copy.save([envelope(1000, 1000)], 2)
    await copy.close()
    with SCHEMA.reading(tmp_path / "copy") as database:
        assert list(checking.check(database, lambda _: None)) == []


async def test_a_backup_is_of_one_moment_and_a_writer_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_copy, "PAGES_PER_STEP", 5)
    archive = open_archive(tmp_path / "data")
    await archive.save(ROWS, 1)
    steps: list[int] = []
    loop = asyncio.get_running_loop()

    def write(pages: int) -> None:
        steps.append(pages)
        if len(steps) <= 10:  # the next step waits until this is on disk
            more = [envelope(1000 + len(steps), number) for number in range(50)]
            asyncio.run_coroutine_threadsafe(archive.save(more, 2), loop).result(30)

    await asyncio.to_thread(backup.backup, tmp_path / "data", tmp_path / "copy", write)
    assert len(steps) > 30
    assert (await archive.counts()).envelopes == len(ROWS) + 500
    await archive.close()
    copy = open_archive(tmp_path / "copy")
    assert await held(copy) == [each.raw for each in ROWS]
    await copy.close()


def test_a_backup_goes_to_a_new_directory(tmp_path: Path) -> None:
    SCHEMA.connect(str(tmp_path / FILE)).close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    for target in ("full", "file"):
        with pytest.raises(Misuse, match="is not an empty directory: name another"):
            backup.backup(tmp_path, tmp_path / target, lambda _: None)
    with pytest.raises(Misuse, match="there is no Waku mailserver's data"):
        backup.backup(tmp_path / "full", tmp_path / "new", lambda _: None)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    backup.backup(tmp_path, tmp_path / "empty", lambda _: None)


async def test_a_backup_without_room_is_reported_in_one_sentence_and_leaves_no_archive(tmp_path: Path) -> None:
    archive = open_archive(tmp_path / "data")
    await archive.save(ROWS, 1)
    await archive.close()
    with no_file_beyond(100_000), pytest.raises(StoreError, match=r"\Acannot copy the database: [^\n]+\Z"):
        backup.backup(tmp_path / "data", tmp_path / "copy", lambda _: None)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["lock"]
    backup.backup(tmp_path / "data", tmp_path / "another", lambda _: None)
