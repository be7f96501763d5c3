"""What a store promises: a view shows what was applied, a refused batch leaves nothing; and records, which stay."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
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
from restante.common.usage_records import RESULTS, ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core import model
from restante.mailbox.core.state import State
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.store import sqlite, status
from restante.mailbox.store.interface import Store
from stores.conftest import LIVE, USAGE, MailboxData
from support.bounds import BOUND
from support.dice import FakeDice
from support.mailbox.givens import FakeClock
from support.mailbox.ledger import APP, Ledger
from support.mailbox.picture import picture
from support.sqlite import beside


async def assert_shown(store: Store, ledger: Ledger) -> State:
    """A view shows what was applied, and nothing else; gives it."""
    view, state = await store.view(), ledger.state
    assert picture(view, touches=False) == picture(state, touches=False)
    for mailbox in view.mailboxes():
        assert mailbox.touched <= ledger.mailbox(mailbox.mailbox_id, mailbox.app_id).touched
    keys = [mailbox.key for mailbox in view.mailboxes()]
    keys += [nameplate.key for app in view.apps.values() for nameplate in app.nameplates.values()]
    assert len(keys) == len(set(keys))
    assert max(keys, default=0) < view.next_key <= state.next_key
    sequences = [message.sequence for mailbox in view.mailboxes() for message in mailbox.messages]
    assert max(sequences, default=0) < view.next_sequence <= state.next_sequence
    assert view.stored == state.stored
    assert not view.unsaved
    return view


async def test_odd_names_and_values_are_kept_apart_and_as_they_were(engine: MailboxData) -> None:
    """Any batches of usual ones are for the machine (tests/machine), which looks into a store after each step."""
    boxes = ("m", "", "a\x00", "a\x00b", "é", "e\u0301", "'; DROP TABLE mailboxes; --")
    bodies = (b'"00"', b"12.50", b'{"a": [1,\n 2]}', b'"\\u00e9 \\n"', '"é😀\x7f"'.encode())
    ledger = await Ledger.begin(engine.store)
    for app in ("x", "X", ""):
        for side in ("a", "A", "é"):
            ledger.bind(side, app)
        for number, box in enumerate(boxes):
            for side in ("a", "A"):
                ledger.open(side, box, app)
            body, phase, msg_id = (bodies[(number + shift) % len(bodies)] for shift in range(3))
            ledger.add("a", box, body, phase, msg_id, app)
        for side, nameplate in (("a", "1"), ("é", "007")):
            ledger.claim(side, nameplate, app)
            ledger.allocate(side, app)
    await ledger.commit(engine.store)
    await engine.restart()
    ledger.state = await assert_shown(engine.store, ledger)
    assert len(list(ledger.state.mailboxes())) == 3 * (len(boxes) + 4)
    for app in ("x", ""):
        for box in boxes:
            ledger.prune(box, app)
    await ledger.commit(engine.store)
    await assert_shown(engine.store, ledger)


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


async def test_a_touch_is_not_written_and_a_saved_one_is(engine: MailboxData) -> None:
    ledger = await Ledger.begin(engine.store)
    ledger.open("a", "m")
    await ledger.commit(engine.store)
    ledger.pass_(50.0)
    ledger.open("a", "m")  # a touch, and nothing else
    assert ledger.changes == []
    await engine.store.apply([model.MailboxTouched(ledger.mailbox("m"), 50.0)], ledger.now)
    assert engine.rows("SELECT touched FROM mailboxes") == [(0.0,)]
    ledger.note(model.MailboxSaved(ledger.mailbox("m")))
    await ledger.commit(engine.store)
    assert engine.rows("SELECT touched FROM mailboxes") == [(50.0,)]
    assert (await assert_shown(engine.store, ledger)).app(APP).mailboxes["m"].touched == 50.0


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


async def test_an_id_of_a_usage_row_is_never_used_again(engine: MailboxData) -> None:
    """Not after it was forgotten, not after all were, not after a restart in between."""
    highest = dict.fromkeys(USAGE, 0)
    for turn in range(4):
        ledger = Ledger(await engine.store.view(), 1000.0 * turn)
        ledger.bind("a")
        ledger.open("a", "m")
        ledger.close("a", "m")
        ledger.claim("a", "4")
        ledger.release("a", "4")
        await ledger.commit(engine.store)
        for table in USAGE:
            ids = [number for (number,) in engine.rows(f"SELECT id FROM {table}")]
            assert min(ids) > highest[table]
            highest[table] = max(ids)
        assert await engine.store.forget_usage(1e12, 100) == 3
        assert engine.count(*USAGE) == {}
        await (engine.restart() if turn % 2 else engine.crash())


async def test_forgetting_deletes_old_records_up_to_the_maximum(engine: MailboxData) -> None:
    records = [
        record
        for started in (10.0, 50.0, 20.0, 40.0, 30.0)
        for record in (
            NameplateUsage("x", started, None, 1000.0, "lonely"),
            MailboxUsage("x", False, started, None, 1000.0, "lonely"),
        )
    ]
    await engine.store.apply([*records, CurrentUsage(0.0, 0.0, None, 0)], model.Now(60.0, 1.0))
    ledger = await Ledger.begin(engine.store)
    ledger.wall = 25.0
    ledger.bind("a")
    ledger.open("a", "m")
    await ledger.commit(engine.store)

    assert await engine.store.forget_usage(10.0, 10) == 0  # as old as that is not older
    assert await engine.store.forget_usage(40.0, 2) == 2 + 2 + 1
    assert engine.count(*USAGE) == {"usage_nameplates": 3, "usage_mailboxes": 3}
    assert await engine.store.forget_usage(40.0, 2) == 1 + 1
    assert await engine.store.forget_usage(40.0, 2) == 0
    for table in ("usage_nameplates", "usage_mailboxes"):
        assert engine.rows(f"SELECT started FROM {table} ORDER BY started") == [(40.0,), (50.0,)]
    assert engine.count("usage_current", *LIVE) == {"usage_current": 1, "mailboxes": 1}
    await assert_shown(engine.store, ledger)


NOW = 1_000_000_000.0


async def test_results_are_counted_for_an_hour_a_day_and_a_week_and_the_waits_of_a_day_have_percentiles(
    engine: MailboxData, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = status.recent_usage(engine.data, NOW)
    assert (empty["as_of"], empty["clients"], empty["last_backup"]) == (NOW, [], None)
    assert empty["waiting_seconds"] == {"mailboxes": 0, "latest": 0, "p50": None, "p90": None, "p99": None}
    dice = random.Random(7)
    records = [
        (NOW - dice.uniform(-100, 8 * 86400), dice.choice([None, dice.uniform(0, 90)]), dice.choice(RESULTS))
        for _ in range(2000)
    ]
    changes = [MailboxUsage("app", True, started, waiting, 99.0, result) for started, waiting, result in records]
    await engine.store.apply(changes, model.Now(NOW, 0.0))
    usage = status.recent_usage(engine.data, NOW)
    for span, seconds in (("hour", 3600), ("day", 86400), ("week", 7 * 86400)):
        within = [result for started, _, result in records if NOW - seconds <= started <= NOW]
        assert usage["results"][span] == {result: within.count(result) for result in RESULTS}
    today = [result for started, _, result in records if NOW - NOW % 86400 <= started <= NOW]
    assert usage["transfers"] == {"hour": usage["results"]["hour"]["happy"], "today": today.count("happy")}
    waits = sorted(wait for started, wait, _ in records if NOW - 86400 <= started <= NOW and wait is not None)
    waiting = usage["waiting_seconds"]
    assert (waiting["mailboxes"], waiting["latest"]) == (len(waits), len(waits))
    for share in (50, 90, 99):
        assert sum(wait <= waiting[f"p{share}"] for wait in waits) >= len(waits) * share / 100
        assert sum(wait < waiting[f"p{share}"] for wait in waits) < len(waits) * share / 100
    monkeypatch.setattr(status, "MAX_WAITS", 10)
    later = NOW + 8 * 86400
    changes = [MailboxUsage("app", True, later - age, float(age), 99.0, "happy") for age in range(1, 101)]
    await engine.store.apply(changes, model.Now(later, 1.0))
    waiting = status.recent_usage(engine.data, later)["waiting_seconds"]
    assert waiting == {"mailboxes": 100, "latest": 10, "p50": 5.0, "p90": 9.0, "p99": 10.0}


async def test_clients_are_counted_by_version_and_the_rest_together(engine: MailboxData) -> None:
    binds = [("python", str(version)) for version in range(12) for _ in range(version + 1)] + [(None, None)] * 20
    changes = [ClientVersion("app", "a", NOW - 1, name, version) for name, version in binds]
    await engine.store.apply([*changes, ClientVersion("app", "a", NOW - 90_000, "old", "1")], model.Now(NOW, 0.0))
    clients = status.recent_usage(engine.data, NOW)["clients"]
    assert [tuple(row.values()) for row in clients] == [
        ("not named", "", 20),
        *(("python", str(version), version + 1) for version in range(11, 2, -1)),
        ("others", "", 1 + 2 + 3),
    ]


async def test_service_time_is_saved_with_a_commit(engine: MailboxData) -> None:
    """A second of it may be lost, never more, and none is invented."""
    service = 0.0
    for step in (1.5, 0.25, 0.5, 0.0, 100.0, 0.75, 0.5, 0.75, 10.0):
        service += step
        await engine.store.apply([model.Pruned(0.0)], model.Now(5.0 + service, service))
        [(seconds, saved)] = engine.rows("SELECT seconds, saved FROM service")
        assert service - 1.0 < seconds <= service
        assert saved == 5.0 + seconds
        if step >= 10.0:
            await engine.restart()
            assert engine.store.service == service


async def test_service_time_never_decreases_across_restarts_and_clock_changes(engine: MailboxData) -> None:
    """The machine boots and counts from 0, somebody sets the wall clock back, the server crashes or ends in order."""
    served = [0.0]
    for wall, uptime in ((1e9, 5000.0), (2e9, 0.0), (5e8, 10.0), (1e9, 0.0)):
        clock = FakeClock(wall, uptime)
        commit_loop = await CommitLoop.open(engine.store, clock, FakeDice(), model.Policy(), Retention(660.0))
        assert commit_loop.now() == model.Now(wall, served[-1])
        running = asyncio.create_task(commit_loop.run())
        clock.now += 100.0
        clock.skew -= 150.0
        commit_loop.start_pruning()
        async with asyncio.timeout(BOUND):
            await commit_loop.idle.wait()
        commit_loop.stop()
        await running
        served.append(engine.rows("SELECT seconds FROM service")[0][0])
        await (engine.crash() if len(served) % 2 else engine.restart())
        assert engine.store.service == served[-1]
    assert served == [0.0, 100.0, 200.0, 300.0, 400.0]


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
