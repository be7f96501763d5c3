"""What a store promises: a view shows what was applied, a refused batch leaves nothing; and records, which stay."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from restante.common.data_directory import LOCK_FILE, is_running, lock_data_directory
from restante.common.errors import InUse, StoreBusy, StoreError
from restante.mailbox.store import sqlite
from stores.conftest import LIVE, USAGE, MailboxData, assert_shown
from support.mailbox.ledger import APP, Ledger
from support.mailbox.picture import picture
from support.sqlite import beside


async def test_what_is_gone_at_the_end_of_a_batch_is_not_written_and_the_rest_once(engine: MailboxData) -> None:
    statements: list[str] = []

    def written() -> Counter[str]:
        """Return how many rows of each table were written since this was asked last."""
        matches = [re.match(r"(?:INSERT .*INTO|DELETE FROM) (\w+)", statement) for statement in statements]
        statements.clear()
        return Counter(match[1] for match in matches if match)

    engine.store.database.set_trace_callback(statements.append)
    ledger = await Ledger.begin(engine.store)
    ledger.bind("a")
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    assert written() == {"mailboxes": 1, "usage_client_versions": 1}
    mailbox = ledger.claim("a", "4")
    ledger.add("a", mailbox, b'"00"')
    ledger.release("a", "4")
    ledger.close("a", mailbox)
    ledger.open("a", "another")
    ledger.close("a", "another")
    await ledger.commit(engine.store)
    assert written() == {"usage_nameplates": 1, "usage_mailboxes": 2}
    ledger.pass_(1.0)
    ledger.open("b", "m")  # joins
    ledger.close("b", "m", "errory")
    ledger.open("b", "m")  # is back
    ledger.add("a", "m", b'"00"')
    ledger.add("b", "m", b'"01"')
    ledger.open("c", "m")  # is turned away
    ledger.pass_(1.0)
    ledger.close("b", "m", "scary")
    await ledger.commit(engine.store)
    assert written() == {"mailboxes": 1, "messages": 2}
    box = (await assert_shown(engine.store, ledger)).app(APP).mailboxes["m"]
    assert [(row.side, row.opened, row.mood) for row in box.sides] == [("a", True, None), ("b", False, "scary")]
    assert (box.crowded, box.touched) == (True, 1.0)


async def test_what_takes_long_is_written_and_dropped_off_the_loop_and_the_rest_on_it(engine: MailboxData) -> None:
    """SQLite takes 25 ms to drop 16 MiB, and 17 ms for 400 long names; a thread and back costs more than a row."""
    ledger = await Ledger.begin(engine.store)
    loop, on_the_loop = threading.get_ident(), dict[str, bool]()

    def note(statement: str) -> None:
        on_the_loop[" ".join(statement.split()[:3])] = threading.get_ident() == loop

    engine.store.database.set_trace_callback(note)
    small, large = b'"00"', b'"' + b"0" * 2_000_000 + b'"'
    for names, body, wanted in (
        (["m"], small, (True, True, True, True)),
        (["m"], large, (True, False, False, False)),
        ([str(number).ljust(500, "x") for number in range(400)], small, (False, True, False, False)),
    ):
        on_the_loop.clear()
        for name in names:
            ledger.open(name, name, name)
        ledger.add(names[0], names[0], body, app=names[0])
        await ledger.commit(engine.store)
        for name in names:
            ledger.close(name, name, app=name)
        await ledger.commit(engine.store)
        kinds = ("INSERT OR REPLACE", "INSERT INTO messages", "DELETE FROM messages", "DELETE FROM mailboxes")
        assert tuple(map(on_the_loop.get, kinds)) == wanted
    engine.store.database.set_trace_callback(None)


def bytes_read() -> int:
    """Return how much this process has read from files (man 5 proc, /proc/pid/io)."""
    return int(Path("/proc/self/io").read_text().split()[1])


async def test_small_messages_are_written_without_reading_large_ones(engine: MailboxData) -> None:
    """With the messages in an index (schema 4) each insert read several of them."""
    ledger = await Ledger.begin(engine.store)
    names = [f"m{number}" for number in range(8)]
    for name in names:
        ledger.open("a", name)
        ledger.add("a", name, b'"' + b"0" * 1_000_000 + b'"')
        await ledger.commit(engine.store)
    before = bytes_read()
    for _ in range(5):
        for name in names:
            ledger.add("a", name, b'"00"')
        await ledger.commit(engine.store)
    assert bytes_read() - before < 1_000_000


REFUSALS: dict[str, tuple[Callable[[MailboxData], AbstractContextManager[None]], type[StoreError], str]] = {
    "another writer": (MailboxData.refusing, StoreBusy, r"\A\S[^\n]+\Z"),
    "no room": (MailboxData.full, StoreBusy, "full"),
    "for good, halfway": (MailboxData.failing, StoreError, "not this"),  # it is of no use to try again
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_a_refused_batch_leaves_nothing(engine: MailboxData, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIMEOUT_SECONDS", 0.01)  # the other writer does not end
    ledger = await Ledger.begin(engine.store)
    ledger.bind("a")
    ledger.claim("a", "4")
    ledger.open("b", "m")
    await ledger.commit(engine.store)
    before, rows = picture(await engine.store.view()), engine.count(*LIVE, *USAGE)

    ledger.pass_(5.0)
    ledger.bind("b")
    ledger.add("b", "m", b'"' + b"0" * 200_000 + b'"')
    ledger.claim("b", "4")
    ledger.allocate("c")
    refusing, error, text = REFUSALS[why]
    with refusing(engine), pytest.raises(error, match=text) as refusal:
        await ledger.commit(engine.store)
    assert isinstance(refusal.value, StoreBusy) is (error is StoreBusy)
    assert picture(await engine.store.view()) == before
    assert engine.count(*LIVE, *USAGE) == rows
    assert engine.rows("SELECT seconds FROM service") == [(0.0,)]
    if error is StoreError:
        await engine.crash()
    again = Ledger(await engine.store.view(), service=10.0)
    assert picture(again.state) == before
    again.bind("b")
    again.claim("b", "4")
    await again.commit(engine.store)
    await assert_shown(engine.store, again)
    await engine.restart()
    await assert_shown(engine.store, again)
    assert engine.store.service == 10.0
    with engine.refusing(), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z"):
        await engine.store.forget_usage(1e12, 100)
    assert await engine.store.forget_usage(1e12, 100) == 2


async def test_the_log_shrinks_after_a_reader_grew_it(engine: MailboxData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "ROWS_PER_CHECKPOINT", 1)
    monkeypatch.setattr(sqlite, "LOG_BYTES", 1 << 20)
    await engine.restart()
    log = engine.file.with_name(f"{engine.file.name}-wal")
    ledger = await Ledger.begin(engine.store)
    ledger.open("a", "m")

    async def add(size: int) -> None:
        ledger.add("a", "m", b"0" * size)
        await ledger.commit(engine.store)
        await engine.store.tend()

    await add(1)
    with beside(engine.file, "BEGIN", "SELECT * FROM messages"):
        await add(3 << 20)
    assert log.stat().st_size > 3 << 20
    await add(1)
    await add(1)
    assert log.stat().st_size == 1 << 20


def test_a_data_directory_stays_locked_when_its_lock_file_is_removed(tmp_path: Path) -> None:
    with lock_data_directory(tmp_path):
        for _ in range(2):  # a process that is refused leaves a new file, which it has not locked
            (tmp_path / LOCK_FILE).unlink()
            assert is_running(tmp_path)
            with pytest.raises(InUse, match=r"another process is using the data directory"):
                lock_data_directory(tmp_path)
            (tmp_path / LOCK_FILE).touch()
    assert not is_running(tmp_path)
    lock_data_directory(tmp_path).close()


def test_a_process_of_an_earlier_version_locks_only_the_file(tmp_path: Path) -> None:
    lock_data_directory(tmp_path).close()
    with (tmp_path / LOCK_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_running(tmp_path)
        with pytest.raises(InUse, match=r"another process is using the data directory"):
            lock_data_directory(tmp_path)


def test_a_lock_file_that_is_a_named_pipe_lets_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK_FILE)
    assert not is_running(tmp_path)
    with lock_data_directory(tmp_path):
        assert is_running(tmp_path)


def test_if_directories_cannot_be_locked_the_lock_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def flock_of_nfs(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    assert not is_running(tmp_path)
    with lock_data_directory(tmp_path):
        assert is_running(tmp_path)
        with pytest.raises(InUse, match=r"another process is using the data directory"):
            lock_data_directory(tmp_path)
