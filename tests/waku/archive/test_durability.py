"""Saved means on disk: flushed before `save` returns, and there after any kill, once."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from restante.common.errors import StoreBusy
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import Archive, open_archive
from support.bounds import BOUND
from support.effort import is_thorough
from support.processes import environment
from support.tracer import WAL, Call, read_notes
from support.waku.engines import Sqlite
from support.waku.envelopes import envelope, held
from waku.archive.saving import SIZE, batch

TESTS: Final = Path(__file__).parents[2]

UNFLUSHED: Final = "said between a write to the log and its flush"
UNWRITTEN: Final = "said before it was on disk"
UNNAMED: Final = "said before the log's name was on disk"


@contextmanager
def saving(
    how: str, data: Path, first: int, last: int, *before: str
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Run the program; gives it and the socket on which it says what it has saved. Nothing stays behind."""
    ours, its = socket.socketpair()
    ours.settimeout(BOUND)
    command = [sys.executable, "-m", "waku.archive.saving", how, str(data), str(first), str(last)]
    with ours, subprocess.Popen([*before, *command], stdout=its.fileno(), env=environment()) as process:
        its.close()
        try:
            yield process, ours
        finally:
            if process.poll() is None:
                process.kill()


def told(conversation: socket.socket) -> Iterator[int]:
    """Yield the numbers of the batches as they are said to be saved."""
    with conversation.makefile() as lines:
        for line in lines:
            yield int(line.removeprefix("saved "))


# ── the kernel's order ───────────────────────────────────────────────────────────────────────────


def audit(calls: list[Call]) -> tuple[list[int], set[str]]:
    """Return the batches that were said to be saved, and what was wrong about it."""
    said, wrong = [], set()
    unflushed: list[Call] = []
    on_disk: set[bytes] = set()
    log, named = "", False
    for _, ends, call in sorted(
        [(call.begin, False, call) for call in calls] + [(call.end, True, call) for call in calls]
    ):
        if call.kind == "write" and call.file.endswith(WAL) and not ends:
            log = call.file
            unflushed.append(call)
        elif call.kind == "sync" and ends and call.file == log:
            flushed = [write for write in unflushed if write.end < call.begin]
            unflushed = unflushed[len(flushed) :]
            on_disk.update(token for write in flushed for token in re.findall(rb"token-\d+-\d+-", write.data))
        elif call.kind == "sync" and ends and log.startswith(f"{call.file}/"):
            named = True
        elif call.kind == "send" and not ends and (found := re.fullmatch(rb"saved (\d+)\n", call.data)):
            number = int(found[1])
            said.append(number)
            tokens = {f"token-{number}-{each}-".encode() for each in range(SIZE)}
            wrong |= {UNFLUSHED} if unflushed else set()
            wrong |= set() if tokens <= on_disk else {UNWRITTEN}
            wrong |= set() if named else {UNNAMED}
    return said, wrong


def traced(folder: Path, how: str) -> tuple[list[int], set[str]]:
    notes = folder / "notes"
    tracer = (sys.executable, "-m", "support.tracer", str(notes))
    with saving(how, folder / "data", 1, 20, *tracer) as (process, conversation):
        heard = list(told(conversation))
        assert process.wait(BOUND) == 0
    said, wrong = audit(read_notes(notes))
    assert said == heard == list(range(1, 21))
    return said, wrong


def test_save_returns_when_its_batch_is_flushed(tmp_path: Path) -> None:
    _, wrong = traced(tmp_path, "as-it-is")
    assert wrong == set()


@pytest.mark.parametrize(
    ("how", "rules"),
    [
        ("never-flushes", {UNWRITTEN, UNFLUSHED, UNNAMED}),
        pytest.param("forgets-to-wait", {UNWRITTEN}, marks=pytest.mark.thorough),
    ],
)
def test_the_test_notices_a_save_that_returns_too_early(tmp_path: Path, how: str, rules: set[str]) -> None:
    _, wrong = traced(tmp_path, how)
    assert wrong >= rules


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


# ── kill -9 ──────────────────────────────────────────────────────────────────────────────────────


def kept(data: Path) -> Counter[bytes]:
    async def read() -> Counter[bytes]:
        archive = open_archive(data)
        try:
            return Counter(await held(archive))
        finally:
            await archive.close()

    return asyncio.run(read())


def killed_after(how: str, data: Path, first: int, count: int) -> int:
    """Save from batch `first`, and kill the program when it has said so of `count`; gives the last it said."""
    with saving(how, data, first, 1_000_000) as (process, conversation):
        for number in told(conversation):
            if number == first + count - 1:
                process.kill()
        assert process.wait(BOUND) == -signal.SIGKILL
        return number


def test_saved_envelopes_are_archived_once_after_every_kill(tmp_path: Path) -> None:
    last = 0
    for count in (1, 7, 40) if is_thorough() else (7, 40):
        last = killed_after("as-it-is", tmp_path, max(last - 3, 1), count)  # some are saved again
        found = kept(tmp_path)
        assert set(found.values()) == {1}
        assert all(each.raw in found for number in range(1, last + 1) for each in batch(number))
        assert len(found) % SIZE == 0, "a batch is there as a whole or not at all"
        with closing(sqlite3.connect(tmp_path / FILE)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_test_notices_an_archive_that_returns_before_it_saves(tmp_path: Path) -> None:
    last = killed_after("keeps-back", tmp_path, 1, 10)
    assert not {each.raw for each in batch(last)} <= set(kept(tmp_path))


# ── the log ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_refused_batch_causes_a_checkpoint_so_that_the_next_needs_no_more_room() -> None:
    async with Sqlite() as engine:
        await engine.archive.save(batch(1), 1)
        with engine.full_at_commit(), pytest.raises(StoreBusy):
            await engine.archive.save(batch(2), 2)
        await engine.archive.prune(0, 1)  # waits for its turn behind it
        with closing(sqlite3.connect(f"file:{engine.data / FILE}?immutable=1", uri=True)) as without_log:
            assert without_log.execute("SELECT count(*) FROM envelopes").fetchone() == (SIZE,)
        log = (engine.data / f"{FILE}-wal").stat().st_size
        await engine.archive.save(batch(2), 2)
        assert (engine.data / f"{FILE}-wal").stat().st_size == log


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_a_long_write_ahead_log_causes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.archive.sqlite.CHECKPOINT_BYTES", 1 << 20)
    archive = open_archive(tmp_path)
    for number in range(30):
        await archive.save([envelope(number, each, size=4000) for each in range(100)], 1)
    log = (tmp_path / f"{FILE}-wal").stat().st_size
    await archive.close()
    assert log < 6 << 20 < (tmp_path / FILE).stat().st_size
    assert files(tmp_path) == [FILE, "lock"]
