"""What an archive promises; that one which refuses leaves everything as it was; and its write-ahead log."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from restante.common.errors import StoreBusy, StoreError, StoreFull
from restante.waku.archive.records import Counts
from restante.waku.archive.schema import FILE
from restante.waku.archive.sqlite import Archive, open_archive
from support.waku.envelopes import T0, alike, envelope, everything, held, topics_of
from waku.archive.engine import Engine

A, B, C = envelope(0, 1), envelope(1, 2), envelope(2, 3, topic=b"\xff\xee\xdd\xcc")


async def test_what_is_archived_has_its_bytes_and_the_time_at_which_it_first_came(engine: Engine) -> None:
    assert await engine.archive.counts() == Counts(0, 0, 0, None, None, 1)
    await engine.archive.save([], 1)
    await engine.archive.save([C, A, A], 111)
    await engine.restart()
    await engine.archive.save([A, B, A], 222)
    rows = await everything(engine.archive)
    assert [(row.raw, row.arrived, row.envelope()) for row in rows] == [
        (C.raw, 111, C),
        (A.raw, 111, A),
        (B.raw, 222, B),
    ]
    sizes = len(A.raw) + len(B.raw) + len(C.raw)
    assert await engine.archive.counts() == Counts(3, sizes, 2, T0, T0 + 2, rows[-1].arrival + 1)
    assert {topic.topic: topic for topic in await engine.archive.topics()} == topics_of([A, B, C])


async def test_envelopes_whose_hashes_begin_alike_are_each_archived_once(engine: Engine) -> None:
    crowd = [alike(envelope(0, number)) for number in range(6)]
    elsewhere = alike(envelope(1, 7))
    await engine.archive.save(crowd[:2], 1)
    await engine.archive.save([*crowd[1:5], elsewhere], 1)
    await engine.crash()
    await engine.archive.save([crowd[5], *crowd], 1)
    assert await held(engine.archive) == [row.raw for row in (*crowd[:5], elsewhere, crowd[5])]
    assert await engine.archive.prune(T0 + 1, 2) == 2
    await engine.archive.save(crowd, 1)
    assert sorted(await held(engine.archive)) == sorted(row.raw for row in (*crowd, elsewhere))


async def test_every_second_of_32_bits_can_be_archived(engine: Engine) -> None:
    first, last = envelope(-T0), envelope(0xFFFFFFFF - T0)
    assert (first.sent, last.sent) == (0, 0xFFFFFFFF)
    edges = [
        first,
        last,
        alike(envelope(0xFFFFFFFF - T0, 1), b"\xff\xff\xff\xff"),
        alike(envelope(-T0, 1), b"\0\0\0\0"),
    ]
    await engine.archive.save(edges, 1)
    counted = await engine.archive.counts()
    assert (counted.oldest, counted.newest, counted.envelopes) == (0, 0xFFFFFFFF, 4)
    assert await engine.archive.prune(0xFFFFFFFF, 10) == 2
    assert await engine.archive.prune(1 << 32, 10) == 2


async def test_envelopes_sent_before_a_time_are_counted_as_prune_counts_them(engine: Engine) -> None:
    await engine.archive.save([A, B, C], 1)
    for before, count in ((T0, 0), (T0 + 1, 1), (T0 + 2, 2), (T0 + 3, 3), (1 << 40, 3), (-5, 0)):
        assert await engine.archive.older(before) == count
    assert await engine.archive.prune(T0 + 2, 10) == 2


async def test_prunes_delete_the_oldest_first_in_slices(engine: Engine) -> None:
    rows = [envelope(number, number, size=100 * (number + 1)) for number in range(5)]
    await engine.archive.save(rows[::-1], 1)
    assert [await engine.archive.prune(T0 + 3, 2) for _ in range(3)] == [2, 1, 0]
    await engine.archive.save(rows[:3], 2)
    limit = len(rows[3].raw) + len(rows[4].raw)
    assert await engine.archive.prune_bytes(limit + 1_000_000, 2) == 0
    assert [await engine.archive.prune_bytes(limit, 2) for _ in range(3)] == [2, 1, 0]
    assert await held(engine.archive) == [rows[4].raw, rows[3].raw]
    assert await engine.archive.prune_bytes(0, 99) == 2
    assert await engine.archive.topics() == []


async def test_large_envelopes_are_read_a_few_at_a_time_and_none_is_left_out(engine: Engine) -> None:
    large = [envelope(0, number, size=3 << 20) for number in range(4)]
    await engine.archive.save([*large, A], 1)
    first = await engine.archive.after(0, 100)
    assert [each.raw for each in first] == [each.raw for each in large[:3]]
    assert await held(engine.archive) == [each.raw for each in (*large, A)]


async def test_a_batch_that_does_not_fit_one_statement_is_one_batch(engine: Engine) -> None:
    many = [envelope(number % 7, number, topic=(number % 300).to_bytes(4, "big")) for number in range(2500)]
    await engine.archive.save(many, 1)
    found = await engine.archive.after(0, 9999)
    assert [each.raw for each in found] == [each.raw for each in many]
    assert {each.topic: each for each in await engine.archive.topics()} == topics_of(many)


async def test_a_writer_does_not_wait_for_a_reader(engine: Engine) -> None:
    await engine.archive.save([A], 1)
    with engine.read_on():
        await engine.archive.save([B], 1)
        assert await engine.archive.prune(T0 + 1, 9) == 1
        assert await held(engine.archive) == [B.raw]


async def test_a_reader_does_not_wait_for_a_writer_and_does_not_see_its_rows(engine: Engine) -> None:
    await engine.archive.save([A], 1)
    before = await engine.archive.counts()
    with engine.refusing():
        assert await engine.archive.counts() == before
        assert await held(engine.archive) == [A.raw]


async def test_a_batch_waits_for_another_writer_that_ends_soon(engine: Engine) -> None:
    with engine.refusing():
        saving = asyncio.create_task(engine.archive.save([A], 1))
        assert (await engine.archive.counts()).envelopes == 0  # the loop turns meanwhile
        assert not saving.done()
    await saving
    assert await held(engine.archive) == [A.raw]


impatient = pytest.mark.usefixtures("impatient")

OLD = [envelope(number, number, topic=bytes([number % 2] * 4)) for number in range(10)]
NEW = [envelope(number, number, topic=bytes([number % 3] * 4), size=3000) for number in range(5, 100)]

Refusal = Callable[[Engine], AbstractContextManager[None]]

REFUSALS: dict[str, Refusal] = {
    "another writer": lambda engine: engine.refusing(),
    "no room": lambda engine: engine.full(),
    "no room at the commit": lambda engine: engine.failing_at_commit(sqlite3.SQLITE_FULL),
}


@impatient
@pytest.mark.parametrize("why", REFUSALS)
async def test_a_batch_that_is_refused_changes_nothing_and_may_be_tried_again(engine: Engine, why: str) -> None:
    await engine.archive.save(OLD, 1)
    before = await everything(engine.archive), await engine.archive.counts(), await engine.archive.topics()
    with REFUSALS[why](engine), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z") as refusal:
        await engine.archive.save([OLD[0], *NEW], 2)
    assert isinstance(refusal.value, StoreFull) == why.startswith("no room")
    assert before == (await everything(engine.archive), await engine.archive.counts(), await engine.archive.topics())
    await engine.archive.save(NEW, 3)
    await engine.crash()
    assert await held(engine.archive) == [each.raw for each in OLD + NEW]


@impatient
async def test_a_prune_that_is_refused_drops_nothing(engine: Engine) -> None:
    await engine.archive.save(OLD, 1)
    prunes: list[Callable[[], Awaitable[int]]] = [
        lambda: engine.archive.prune(T0 + 100, 100),
        lambda: engine.archive.prune_bytes(0, 100),
    ]
    for prune in prunes:
        for why in ("another writer", "no room at the commit"):
            with REFUSALS[why](engine), pytest.raises(StoreBusy):
                await prune()
    assert await held(engine.archive) == [each.raw for each in OLD]


@impatient
async def test_after_a_failed_commit_nothing_more_is_written(engine: Engine) -> None:
    await engine.archive.save(OLD, 1)
    with engine.failing_at_commit(), pytest.raises(StoreError, match="commit failed") as failure:
        await engine.archive.save(NEW, 2)
    assert not isinstance(failure.value, StoreBusy)
    for write in (engine.archive.save(NEW, 2), engine.archive.prune(T0 + 100, 9)):
        with pytest.raises(StoreError, match="an earlier commit failed") as refusal:
            await write
        assert not isinstance(refusal.value, StoreBusy)
    await engine.restart()
    assert await held(engine.archive) == [each.raw for each in OLD]
    await engine.archive.save(NEW, 2)
    assert (await engine.archive.counts()).envelopes == len(OLD) + len(NEW)


async def test_an_invalid_envelope_fails_its_batch_and_not_the_archive(engine: Engine) -> None:
    with pytest.raises(AttributeError):
        await engine.archive.save([OLD[0], None], 1)  # type: ignore[list-item]
    await engine.archive.save(OLD, 1)
    assert await held(engine.archive) == [each.raw for each in OLD]


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
