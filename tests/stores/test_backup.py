"""A backup is the database between two commits. It gets its name when it is complete, and can be restored."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common import database_copy
from restante.common.disk_probe import FILE as PROBE
from restante.common.errors import Misuse, StoreDamaged, StoreError
from restante.mailbox.store.backup import back_up, restore
from restante.mailbox.store.schema import FILE, migrations
from restante.mailbox.store.sqlite import Store, open_store
from stores.engine import USAGE, Engine
from stores.test_schema import DAMAGE, thaw
from support.disk import no_file_beyond
from support.effort import examples, rounds
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.processes import run
from support.rows import every

Picture = dict[str, Any]


def quietly(_pages: int) -> None:
    """Show no progress."""


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def taken(store: Store) -> Picture:
    """Return all that a store has: what is live, and how many usage records."""
    usage = {table: store.database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in USAGE}
    return {"live": picture(await store.view(), touches=False), **usage}


async def restored(backup: Path, data: Path) -> Picture:
    """Restore a backup, and return what a server finds there."""
    restore(backup, data, quietly)
    store = open_store(data)
    try:
        return await taken(store)
    finally:
        await store.close()


# ── one moment ───────────────────────────────────────────────────────────────────────────────────

sides = st.sampled_from("ab")
boxes = st.sampled_from(("box1", "box2", "box3"))
commands = st.one_of(
    st.tuples(st.just("add"), sides, boxes, st.integers(0, 9000)),
    st.tuples(st.sampled_from(("open", "open", "close")), sides, boxes),
    st.tuples(st.sampled_from(("claim", "release")), sides, st.sampled_from("12")),
)


async def commit(store: Store, ledger: Ledger, batch: list[tuple[Any, ...]]) -> None:
    for kind, side, *arguments in batch:
        if kind == "add":
            ledger.open(side, arguments[0])
            ledger.add(side, arguments[0], b'"' + b"0" * arguments[1] + b'"')
        else:
            getattr(ledger, kind)(side, *arguments)
    await ledger.commit(store)


@examples(15)
@given(st.lists(st.lists(commands, max_size=6), max_size=5), st.lists(st.lists(commands, max_size=6), max_size=20))
def test_a_backup_has_the_batches_that_were_committed_when_it_began(
    before: list[list[tuple[Any, ...]]], during: list[list[tuple[Any, ...]]]
) -> None:
    """A batch is committed after each page that is copied, and no commit waits."""

    async def play() -> None:
        loop, left = asyncio.get_running_loop(), list(during)
        async with Engine() as engine:
            ledger = await Ledger.begin(engine.store)
            for batch in before:
                await commit(engine.store, ledger, batch)
            wanted = await taken(engine.store)
            backup, data = engine.data.with_name("backup"), engine.data.with_name("restored")

            def advance(_pages: int) -> None:
                if left:
                    asyncio.run_coroutine_threadsafe(commit(engine.store, ledger, left.pop(0)), loop).result(60)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(database_copy, "PAGES_PER_STEP", 1)
                await asyncio.to_thread(back_up, engine.data, backup, advance)
            assert await restored(backup, data) == wanted
            assert (await taken(engine.store))["live"] == picture(ledger.state, touches=False)

    asyncio.run(play())


async def test_each_backup_amid_commits_is_a_prefix_of_the_batches(tmp_path: Path) -> None:
    async with Engine() as engine:
        ledger = await Ledger.begin(engine.store)
        pictures = [await taken(engine.store)]
        making = asyncio.Event()

        async def commits() -> None:
            while making.is_set():
                number = len(pictures)
                box = f"box{number % 5}"
                ledger.open("a", box)
                for _ in range(3):  # all of a batch or none of it
                    ledger.add("a", box, b'"%d"' % number + b" " * (number % 7 * 900))
                if number % 4 == 0:
                    ledger.close("a", box)
                await ledger.commit(engine.store)
                await engine.store.tend()
                pictures.append(await taken(engine.store))

        making.set()
        committing = asyncio.create_task(commits())
        found = []
        for number in range(rounds(4, 40)):
            began = len(pictures) - 1
            await asyncio.to_thread(back_up, engine.data, tmp_path / f"{number}", quietly)
            found.append((began, len(pictures)))
        making.clear()
        await committing
        assert len(pictures) > len(found)
        for number, (began, ended) in enumerate(found):
            has = await restored(tmp_path / f"{number}", tmp_path / f"data-{number}")
            assert has in pictures[began : ended + 1], f"backup {number}, commits {began} to {ended}"


# ── its file ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A data directory with some messages, which no server uses."""
    store = open_store(tmp_path / "data")
    ledger = await Ledger.begin(store)
    await commit(store, ledger, [("claim", "a", "1"), *(("add", "a", f"box{n}", 9000) for n in range(30))])
    await store.close()
    return tmp_path / "data"


def test_a_backup_is_one_file_that_only_its_owner_can_read_from_the_first_byte_on(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    seen: list[tuple[str, int]] = []
    before = os.umask(0)
    try:
        back_up(
            data,
            folder / "b.sqlite",
            lambda _: seen.extend((each.name, each.stat().st_mode) for each in folder.iterdir()),
        )
    finally:
        os.umask(before)
    assert seen
    assert "b.sqlite" not in dict(seen), "it has its name before it is complete"
    seen += [(each.name, each.stat().st_mode) for each in folder.iterdir()]
    assert {stat.S_IMODE(mode) for _, mode in seen} == {0o600}
    assert names(folder) == ["b.sqlite"]
    with closing(sqlite3.connect(folder / "b.sqlite")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_backup_and_a_restore_are_flushed_before_they_get_their_names(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def ended_by(number: signal.Signals, *words: str | Path) -> int:
    """Run a command of a process that gets a signal while it copies. Return its exit code."""
    code = (
        "import os, sys\n"
        "from contextlib import contextmanager\n"
        "from restante.cli.main import main\n"
        "from restante.common import progress\n"
        f"progress.progress = contextmanager(lambda *_: (yield lambda _: os.kill(os.getpid(), {number:d})))\n"
        "main()"
    )
    return run(sys.executable, "-c", code, *words).returncode


def test_a_backup_that_is_killed_leaves_nothing_under_its_name(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    assert ended_by(signal.SIGTERM, "backup", folder / "b.sqlite", "--data", data) == 130
    assert names(folder) == []
    assert ended_by(signal.SIGKILL, "backup", folder / "b.sqlite", "--data", data) == -signal.SIGKILL
    [left] = names(folder)
    assert left.startswith("b.sqlite.")
    back_up(data, folder / "b.sqlite", quietly)
    assert names(folder) == ["b.sqlite", left]


def test_a_restore_that_is_killed_leaves_no_database(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "b.sqlite", quietly)
    assert ended_by(signal.SIGTERM, "restore", tmp_path / "b.sqlite", "--data", tmp_path / "new") == 130
    assert names(tmp_path / "new") == ["lock"]
    assert ended_by(signal.SIGKILL, "restore", tmp_path / "b.sqlite", "--data", tmp_path / "new") == -signal.SIGKILL
    assert FILE not in names(tmp_path / "new")
    with pytest.raises(Misuse, match="new is not empty: move its files away"):
        restore(tmp_path / "b.sqlite", tmp_path / "new", quietly)


def test_a_backup_never_replaces_a_file_even_one_that_appears_meanwhile(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.sqlite"

    def advance(_pages: int) -> None:
        file.write_text("somebody else's")

    with pytest.raises(Misuse, match=r"b\.sqlite exists already: name another file"):
        back_up(data, file, advance)
    with pytest.raises(Misuse, match=r"b\.sqlite exists already: name another file"):
        back_up(data, file, quietly)
    assert file.read_text() == "somebody else's"
    assert names(tmp_path) == ["b.sqlite", "data"]


def test_a_backup_does_not_replace_a_file_that_appears_while_it_is_flushed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.sqlite"
    monkeypatch.setattr(os, "fsync", lambda _: file.write_text("somebody else's"))
    with pytest.raises(Misuse, match=r"b\.sqlite exists already: name another file"):
        back_up(data, file, quietly)
    assert file.read_text() == "somebody else's"
    assert names(tmp_path) == ["b.sqlite", "data"]


def test_a_backup_does_not_replace_a_link_to_nothing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "b.sqlite").symlink_to("unmounted/b.sqlite")
    with pytest.raises(Misuse, match=r"b\.sqlite exists already: name another file"):
        back_up(data, tmp_path / "b.sqlite", quietly)
    assert (tmp_path / "b.sqlite").is_symlink()


def test_a_backup_is_made_on_a_file_system_without_hard_links(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    assert back_up(data, tmp_path / "b.sqlite", quietly).messages == 30
    assert names(tmp_path) == ["b.sqlite", "data"]
    assert (tmp_path / "b.sqlite").stat().st_size > 0


async def test_a_backup_after_a_crash_has_what_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Engine() as engine:
        ledger = await Ledger.begin(engine.store)
        await commit(engine.store, ledger, [("add", "a", "box1", 5000)])
        wanted = await taken(engine.store)
        files = {each.name: each.read_bytes() for each in engine.data.iterdir() if not each.name.endswith("-shm")}
    (tmp_path / "crashed").mkdir()
    for name, content in files.items():
        (tmp_path / "crashed" / name).write_bytes(content)
    assert files[f"{FILE}-wal"]
    back_up(tmp_path / "crashed", tmp_path / "b.sqlite", quietly)
    assert await restored(tmp_path / "b.sqlite", tmp_path / "new") == wanted
    # Whoever has copied these files by hand restores them in the same way.
    (tmp_path / "crashed" / FILE).rename(tmp_path / "by-hand")
    (tmp_path / "crashed" / f"{FILE}-wal").rename(tmp_path / "by-hand-wal")
    assert await restored(tmp_path / "by-hand", tmp_path / "newer") == wanted
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / FILE).symlink_to(tmp_path / "by-hand")
    assert await restored(tmp_path / "links" / FILE, tmp_path / "newest") == wanted
    # If a directory is read-only, the file is read alone, unless there is a log.
    monkeypatch.setattr(os, "access", lambda *_: False)
    back_up(tmp_path / "links", tmp_path / "linked", quietly)
    assert await restored(tmp_path / "linked", tmp_path / "last") == wanted


def test_a_backup_by_sqlite_itself_is_restored_and_left_as_it_is(data: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data / FILE)) as ours, closing(sqlite3.connect(tmp_path / "b")) as theirs:
        ours.backup(theirs)
    before, content = names(tmp_path), (tmp_path / "b").read_bytes()
    found = restore(tmp_path / "b", tmp_path / "new", quietly)
    assert (found.nameplates, found.messages) == (1, 30)
    assert names(tmp_path) == sorted([*before, "new"])
    assert (tmp_path / "b").read_bytes() == content


# ── what cannot be done ──────────────────────────────────────────────────────────────────────────


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


@every("damage", DAMAGE.values())
def test_damaged_data_is_neither_backed_up_nor_restored(
    damage: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "data").mkdir()
    with closing(thaw(len(migrations()), folder / "data" / FILE)) as database:
        database.execute(damage)
    with pytest.raises(StoreDamaged, match=r"\Ano backup was made, because .* is damaged \([^\n]+\Z"):
        back_up(folder / "data", folder / "b", quietly)
    with pytest.raises(StoreDamaged, match=r"\Anothing was restored, because .* is damaged \([^\n]+\Z"):
        restore(folder / "data" / FILE, folder / "new", quietly)
    assert names(folder) == ["data", "new"]
    assert names(folder / "new") == ["lock"]


def test_an_index_that_lacks_rows_is_noticed(data: Path, tmp_path: Path) -> None:
    """Each row can be read, but the server would not find all messages of a mailbox that ends."""
    with closing(sqlite3.connect(data / FILE)) as database:
        database.execute("PRAGMA writable_schema = 1")
        database.execute(
            "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema"
            " WHERE name = 'usage_mailboxes_started') WHERE name = 'messages_mailbox'"
        )
        database.commit()
    with pytest.raises(StoreDamaged, match="no backup was made"):
        back_up(data, tmp_path / "b", quietly)


def test_a_page_that_was_overwritten_is_noticed(data: Path, tmp_path: Path) -> None:
    content = bytearray((data / FILE).read_bytes())
    page = len(content) // 4096 // 2 * 4096
    content[page : page + 4096] = b"\xff" * 4096
    (data / FILE).write_bytes(content)
    with pytest.raises(StoreDamaged, match="no backup was made"):
        back_up(data, tmp_path / "b", quietly)
    assert names(tmp_path) == ["data"]


def cut_in_half(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def replace_by_a_letter(file: Path) -> None:
    file.write_text("Dear Sir or Madam,\n" * 500)


@every("change", [cut_in_half, empty, replace_by_a_letter])
def test_a_part_of_a_backup_is_not_restored(
    change: Callable[[Path], object], data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("part")
    back_up(data, folder / "b", quietly)
    change(folder / "b")
    with pytest.raises(StoreError, match=r"\A[^\n]*(is damaged|not a database|is malformed)[^\n]*\Z"):
        restore(folder / "b", folder / "new", quietly)
    assert not (folder / "new" / FILE).exists()


def test_a_block_that_tested_the_disk_is_no_data(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "b", quietly)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / PROBE).touch()  # of a server that was killed
    restore(tmp_path / "b", tmp_path / "new", quietly)
    assert (tmp_path / "new" / FILE).exists()


async def test_a_restore_needs_an_empty_directory_that_no_server_uses(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "b", quietly)
    with pytest.raises(Misuse, match="data is not empty: move its files away, or name another directory"):
        restore(tmp_path / "b", data, quietly)
    store = open_store(data)
    with pytest.raises(StoreError, match="another process is using the data directory"):
        restore(tmp_path / "b", data, quietly)
    await store.close()
    with pytest.raises(Misuse, match=r"\Acannot use the data directory .*: Not a directory"):
        restore(tmp_path / "b", tmp_path / "b", quietly)
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "b", tmp_path / "empty", quietly)


# ── older versions ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("old", range(1, len(migrations()) + 1))
async def test_a_backup_of_every_older_version_is_made_restored_and_converted_by_the_server(
    old: int, tmp_path: Path
) -> None:
    for name in ("old", "direct"):
        (tmp_path / name).mkdir()
        thaw(old, tmp_path / name / FILE).close()
    made = back_up(tmp_path / "old", tmp_path / "b", quietly)
    found = restore(tmp_path / "b", tmp_path / "new", quietly)
    assert (made.db_schema, found.db_schema) == (old, old)
    store, direct = open_store(tmp_path / "new"), open_store(tmp_path / "direct")
    try:
        assert await taken(store) == await taken(direct)
        assert list(store.database.iterdump()) == list(direct.database.iterdump())
    finally:
        await store.close()
        await direct.close()
