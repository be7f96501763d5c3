"""A backup is the database between two commits. It gets its name when it is complete, and can be restored."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common import sqlite
from restante.common.disk_probe import PROBE_FILE
from restante.common.errors import Misuse, StoreDamaged, StoreError
from restante.mailbox.store.backup import back_up, restore
from restante.mailbox.store.schema import FILE, migrations
from restante.mailbox.store.sqlite import SqliteStore
from stores.conftest import USAGE, MailboxData
from stores.test_schema import DAMAGE, thaw
from support.disk import no_file_beyond
from support.effort import examples
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.sqlite import alter, select


def quietly(_pages: int) -> None:
    """Show no progress."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def taken(store: SqliteStore) -> dict[str, Any]:
    usage = {table: store.database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in USAGE}
    return {"live": picture(await store.view(), touches=False), **usage}


async def restored(backup: Path, data: Path) -> dict[str, Any]:
    restore(backup, data, quietly)
    store = SqliteStore.open(data)
    try:
        return await taken(store)
    finally:
        await store.close()


sides = st.sampled_from("ab")
boxes = st.sampled_from(("box1", "box2", "box3"))
commands = st.one_of(
    st.tuples(st.just("add"), sides, boxes, st.integers(0, 9000)),
    st.tuples(st.sampled_from(("open", "open", "close")), sides, boxes),
    st.tuples(st.sampled_from(("claim", "release")), sides, st.sampled_from("12")),
)


async def commit(store: SqliteStore, ledger: Ledger, batch: list[tuple[Any, ...]]) -> None:
    for kind, side, *arguments in batch:
        if kind == "add":
            ledger.open(side, arguments[0])
            ledger.add(side, arguments[0], b'"' + b"0" * arguments[1] + b'"')
        else:
            getattr(ledger, kind)(side, *arguments)
    await ledger.commit(store)


@examples(15)
@given(st.lists(st.lists(commands, max_size=6), max_size=5), st.lists(st.lists(commands, max_size=6), max_size=20))
def test_a_backup_contains_what_was_committed_when_it_began(
    before: list[list[tuple[Any, ...]]], during: list[list[tuple[Any, ...]]]
) -> None:
    """A batch is committed after each page that is copied, and no commit waits."""

    async def play() -> None:
        loop, left = asyncio.get_running_loop(), list(during)
        async with MailboxData() as engine:
            ledger = await Ledger.begin(engine.store)
            for batch in before:
                await commit(engine.store, ledger, batch)
            wanted = await taken(engine.store)
            backup, data = engine.data.with_name("backup"), engine.data.with_name("restored")

            def advance(_pages: int) -> None:
                if left:
                    asyncio.run_coroutine_threadsafe(commit(engine.store, ledger, left.pop(0)), loop).result(60)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sqlite, "PAGES_PER_STEP", 1)
                await asyncio.to_thread(back_up, engine.data, backup, advance)
            assert await restored(backup, data) == wanted
            assert (await taken(engine.store))["live"] == picture(ledger.state, touches=False)

    asyncio.run(play())


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A data directory with some messages, which no server uses."""
    store = SqliteStore.open(tmp_path / "data")
    ledger = await Ledger.begin(store)
    await commit(store, ledger, [("claim", "a", "1"), *(("add", "a", f"box{n}", 9000) for n in range(30))])
    await store.close()
    return tmp_path / "data"


def test_a_backup_is_one_file_that_only_its_owner_can_read_from_the_first_byte_on(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    seen: list[tuple[str, int]] = []

    def look(_pages: int = 0) -> None:
        seen.extend((file.name, stat.S_IMODE(file.stat().st_mode)) for file in folder.iterdir())

    before = os.umask(0)
    try:
        back_up(data, folder / "b.sqlite", look)
    finally:
        os.umask(before)
    assert seen
    assert "b.sqlite" not in dict(seen), "it has its name before it is complete"
    look()
    assert {mode for _, mode in seen} == {0o600}
    assert names(folder) == ["b.sqlite"]
    assert select(folder / "b.sqlite", "PRAGMA journal_mode") == [("delete",)]


def test_a_copy_is_flushed_before_it_has_a_name(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    flush, link = os.fsync, os.link

    def flushed(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        flush(descriptor)

    def linked(draft: Path, file: Path) -> None:
        steps.append(file.name)
        link(draft, file)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "link", linked)
    back_up(data, tmp_path / "b.sqlite", quietly)
    restore(tmp_path / "b.sqlite", tmp_path / "new", quietly)
    assert steps == ["file", "b.sqlite", "directory", "file", FILE, "directory"]


def test_a_backup_or_restore_that_is_interrupted_leaves_no_database(data: Path, tmp_path: Path) -> None:
    def interrupt(_pages: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(data, tmp_path / "b.sqlite", interrupt)
    assert names(tmp_path) == ["data"]
    back_up(data, tmp_path / "b.sqlite", quietly)
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "b.sqlite", tmp_path / "new", interrupt)
    assert names(tmp_path / "new") == ["lock"]
    (tmp_path / "new" / PROBE_FILE).touch()  # a block that tested the disk, of a server that was killed, is no data
    restore(tmp_path / "b.sqlite", tmp_path / "new", quietly)
    assert (tmp_path / "new" / FILE).exists()


@pytest.mark.parametrize("moment", ["before", "while it is copied", "while it is flushed", "a link to nothing"])
def test_no_backup_replaces_a_file(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    file = tmp_path / "b.sqlite"

    def appear(*_: object) -> None:
        file.write_text("somebody else's")

    if moment == "before":
        appear()
    elif moment == "while it is flushed":
        monkeypatch.setattr(os, "fsync", appear)
    elif moment == "a link to nothing":
        file.symlink_to("unmounted/b.sqlite")
    with pytest.raises(Misuse, match=r"b\.sqlite exists already: name another file"):
        back_up(data, file, appear if moment == "while it is copied" else quietly)
    assert file.is_symlink() or file.read_text() == "somebody else's"
    assert names(tmp_path) == ["b.sqlite", "data"]


def test_a_backup_is_made_without_hard_links(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links = PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    monkeypatch.setattr(os, "link", Mock(side_effect=no_links))
    assert back_up(data, tmp_path / "b.sqlite", quietly).messages == 30
    assert names(tmp_path) == ["b.sqlite", "data"]


async def test_a_backup_after_a_crash_has_what_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = tmp_path / "crashed"
    async with MailboxData() as engine:
        ledger = await Ledger.begin(engine.store)
        await commit(engine.store, ledger, [("add", "a", "box1", 5000)])
        wanted = await taken(engine.store)
        shutil.copytree(engine.data, crashed, ignore=shutil.ignore_patterns("*-shm"))
    assert (crashed / f"{FILE}-wal").stat().st_size > 0
    back_up(crashed, tmp_path / "b.sqlite", quietly)
    (tmp_path / "link").symlink_to(crashed / FILE)
    # Whoever has copied the files by hand restores them in the same way.
    for number, file in enumerate((tmp_path / "b.sqlite", crashed / FILE, tmp_path / "link")):
        assert await restored(file, tmp_path / f"new-{number}") == wanted
    # If a directory is read-only, the file is read alone, unless there is a log.
    monkeypatch.setattr(os, "access", lambda *_: False)
    back_up(crashed, tmp_path / "read-only", quietly)
    assert await restored(tmp_path / "read-only", tmp_path / "last") == wanted


def test_a_backup_without_room_is_one_sentence_and_leaves_no_file(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "whole", quietly)
    for size in (0, 4096, 100_000):
        with no_file_beyond(size), pytest.raises(StoreError, match=r"\Acannot [^\n]+\Z"):
            back_up(data, tmp_path / "b", quietly)
        with no_file_beyond(size), pytest.raises(StoreError, match=r"\Acannot [^\n]+\Z"):
            restore(tmp_path / "whole", tmp_path / "new", quietly)
        assert names(tmp_path) == ["data", "new", "whole"]
        assert names(tmp_path / "new") == ["lock"]
    restore(tmp_path / "whole", tmp_path / "new", quietly)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_data_is_neither_backed_up_nor_restored(damage: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with closing(thaw(len(migrations()), tmp_path / "data" / FILE)) as database:
        database.execute(damage)
    with pytest.raises(StoreDamaged, match=r"\Ano backup was made, because .* is damaged \([^\n]+\Z"):
        back_up(tmp_path / "data", tmp_path / "b", quietly)
    with pytest.raises(StoreDamaged, match=r"\Anothing was restored, because .* is damaged \([^\n]+\Z"):
        restore(tmp_path / "data" / FILE, tmp_path / "new", quietly)
    assert names(tmp_path) == ["data", "new"]
    assert names(tmp_path / "new") == ["lock"]


def lose_index_rows(file: Path) -> None:
    """Each row can be read, but the dashboard would not find all records of a day."""
    alter(
        file,
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema"
        " WHERE name = 'usage_mailboxes_started') WHERE name = 'usage_nameplates_started'",
    )


def overwrite_a_page(file: Path) -> None:
    content = bytearray(file.read_bytes())
    page = len(content) // 4096 // 2 * 4096
    content[page : page + 4096] = b"\xff" * 4096
    file.write_bytes(content)


def test_a_damaged_index_or_page_or_a_part_of_a_file_is_noticed(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "b", quietly)
    whole = (tmp_path / "b").read_bytes()
    for part in (whole[: len(whole) // 2], b"", b"Dear Sir, " * 500):
        (tmp_path / "b").write_bytes(part)
        with pytest.raises(StoreError, match=r"\A[^\n]*(is damaged|not a database|is malformed)[^\n]*\Z"):
            restore(tmp_path / "b", tmp_path / "new", quietly)
        assert not (tmp_path / "new" / FILE).exists()
    for damage in (lose_index_rows, overwrite_a_page):
        (data / FILE).write_bytes(whole)
        damage(data / FILE)
        with pytest.raises(StoreDamaged, match="no backup was made"):
            back_up(data, tmp_path / "another", quietly)
        assert not (tmp_path / "another").exists()
