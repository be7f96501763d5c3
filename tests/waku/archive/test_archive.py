"""An archive has what a plain list would; one that refuses changes nothing; its log, schema, `check` and backups."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common import sqlite
from restante.common.errors import StoreBusy, StoreDamaged, StoreError, StoreFull
from restante.waku.archive import checking
from restante.waku.archive.records import Counts, TopicCount
from restante.waku.archive.schema import APPLICATION_ID, ARCHIVE_FILE, SCHEMA, backup
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import Envelope
from stores.test_schema import schema, version
from support.disk import no_file_beyond
from support.effort import examples
from support.sqlite import alter, beside
from support.waku.archives import archive_of, raws_of, thaw
from support.waku.envelopes import T0, envelope, everything
from waku.archive.conftest import Engine, alike, loop, query, stored

SECONDS = 4
POOL = [
    made
    for number in range(6)
    for second in range(SECONDS)
    for made in (
        envelope(second, number, topic=bytes([0, 0, 0, number % 2]), size=8 + number),
        alike(envelope(second, number + 100, topic=b"\xff\0\0\0")),
    )
]


def topics_of(rows: list[Envelope]) -> dict[bytes, TopicCount]:
    sent: dict[bytes, list[int]] = defaultdict(list)
    for row in rows:
        sent[row.topic].append(row.sent)
    return {topic: TopicCount(topic, len(times), min(times), max(times)) for topic, times in sent.items()}


batches = st.lists(st.sampled_from(POOL), max_size=12)
slices = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("save"), batches, st.integers(0, 9)),
    st.tuples(st.just("prune"), st.integers(T0 - 1, T0 + SECONDS), slices),
    st.tuples(st.just("prune_bytes"), st.integers(0, 400), slices),
    st.tuples(st.sampled_from(["restart", "crash"])),
)


class Model:
    def __init__(self) -> None:
        self.rows: list[tuple[Envelope, int]] = []
        self.highest = 0

    def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        for new in batch:
            if new not in [row for row, _ in self.rows]:
                self.rows.append((new, arrived))

    async def check(self, engine: Engine) -> None:
        rows = [row for row, _ in self.rows]
        archived = await everything(engine.store)
        assert [(row.raw, row.arrived) for row in archived] == [(row.raw, at) for row, at in self.rows]
        arrivals = [row.arrival for row in archived]
        assert arrivals == sorted(set(arrivals))
        counted = await engine.store.counts()
        sent = [row.sent for row in rows]
        assert counted == Counts(
            len(rows),
            sum(len(row.raw) for row in rows),
            len({row.topic for row in rows}),
            min(sent, default=None),
            max(sent, default=None),
            counted.next_arrival,
        )
        assert counted.next_arrival > max([self.highest, *arrivals])
        self.highest = counted.next_arrival - 1
        assert {topic.topic: topic for topic in await engine.store.topics()} == topics_of(rows)
        for before in range(T0, T0 + SECONDS + 1):
            assert await engine.store.older(before) == sum(time < before for time in sent)

    async def take_out(self, engine: Engine, number: int) -> list[Envelope]:
        """Remove what the archive deleted, if it was the oldest; which ones of a second is the archive's choice."""
        left = set(await stored(engine.store))
        gone = [row for row, _ in self.rows if row.raw not in left]
        assert len(gone) == number
        self.rows = [(row, at) for row, at in self.rows if row.raw in left]
        if gone and self.rows:
            assert max(row.sent for row in gone) <= min(row.sent for row, _ in self.rows)
        return gone


async def step(engine: Engine, model: Model, what: str, *arguments: Any) -> None:
    if what in ("restart", "crash"):
        await getattr(engine, what)()
    elif what == "save":
        await engine.store.save(*arguments)
        model.save(*arguments)
    elif what == "prune":
        before, most = arguments
        due = sum(row.sent < before for row, _ in model.rows)
        gone = await model.take_out(engine, await engine.store.prune(before, most))
        assert all(row.sent < before for row in gone)
        assert len(gone) == min(due, most)
    else:
        limit, most = arguments
        bytes_before = sum(len(row.raw) for row, _ in model.rows)
        gone = await model.take_out(engine, await engine.store.prune_bytes(limit, most))
        assert len(gone) <= most
        left = bytes_before - sum(len(row.raw) for row in gone)
        if len(gone) < most:
            assert left <= limit
        if gone:
            last = max(row.sent for row in gone)
            assert left + max(len(row.raw) for row in gone if row.sent == last) > limit
        else:
            assert bytes_before <= limit


@examples(30)
@given(steps=st.lists(STEPS, max_size=12))
async def test_an_archive_has_what_a_list_would(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    async with Engine() as engine:
        for taken in steps:
            await step(engine, model, *taken)
            await model.check(engine)


A, B = envelope(0, 1), envelope(1, 2)


async def test_every_second_of_32_bits_can_be_archived(engine: Engine) -> None:
    first, last = envelope(-T0), envelope(0xFFFFFFFF - T0)
    assert (first.sent, last.sent) == (0, 0xFFFFFFFF)
    highest = alike(envelope(0xFFFFFFFF - T0, 1), b"\xff\xff\xff\xff")
    await engine.store.save([first, last, highest, alike(envelope(-T0, 1), b"\0\0\0\0")], 1)
    counted = await engine.store.counts()
    assert (counted.oldest, counted.newest, counted.envelopes) == (0, 0xFFFFFFFF, 4)
    assert [await engine.store.older(before) for before in (-5, 0xFFFFFFFF, 1 << 40)] == [0, 2, 4]
    assert len(await loop(engine.store, query(-T0 - 5, 1 << 33, limit=1))) == 4
    assert await engine.store.prune(0xFFFFFFFF, 10) == 2
    assert await engine.store.prune(1 << 32, 10) == 2


async def test_large_envelopes_are_read_a_few_at_a_time_and_none_is_left_out(engine: Engine) -> None:
    large = [envelope(0, number, size=3 << 20) for number in range(4)]
    await engine.store.save([*large, A], 1)
    assert [row.raw for row in await engine.store.after(0, 100)] == [row.raw for row in large[:3]]
    assert await stored(engine.store) == [row.raw for row in (*large, A)]


async def test_a_batch_that_does_not_fit_one_statement_is_one_batch(engine: Engine) -> None:
    many = [envelope(number % 7, number, topic=(number % 300).to_bytes(4, "big")) for number in range(2500)]
    await engine.store.save(many, 1)
    assert [row.raw for row in await engine.store.after(0, 9999)] == [row.raw for row in many]
    assert {topic.topic: topic for topic in await engine.store.topics()} == topics_of(many)


async def test_readers_and_a_writer_do_not_wait_for_each_other(engine: Engine) -> None:
    await engine.store.save([A], 1)
    with beside(engine.file, "BEGIN", "SELECT * FROM totals"):
        await engine.store.save([B], 1)
        assert await engine.store.prune(T0 + 1, 9) == 1
        assert await stored(engine.store) == [B.raw]
    before = await engine.store.counts()
    with engine.refusing():  # rows that are not committed are not seen
        assert await engine.store.counts() == before
        assert await stored(engine.store) == [B.raw]


async def test_a_batch_waits_for_another_writer_that_ends_soon(engine: Engine) -> None:
    with engine.refusing():
        saving = asyncio.create_task(engine.store.save([A], 1))
        assert (await engine.store.counts()).envelopes == 0  # the loop turns meanwhile
        assert not saving.done()
    await saving
    assert await stored(engine.store) == [A.raw]


OLD = [envelope(number, number, topic=bytes([number % 2] * 4)) for number in range(10)]
NEW = [envelope(number, number, topic=bytes([number % 3] * 4), size=3000) for number in range(5, 100)]

REFUSALS: dict[str, Callable[[Engine], AbstractContextManager[object]]] = {
    "another writer": Engine.refusing,
    "no room": Engine.full,
    "no room at the commit": lambda engine: engine.failing_at_commit(sqlite3.SQLITE_FULL),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("why", REFUSALS)
async def test_what_is_refused_changes_nothing_and_may_be_tried_again(engine: Engine, why: str) -> None:
    await engine.store.save(OLD, 1)
    before = await everything(engine.store), await engine.store.counts(), await engine.store.topics()
    writes: list[Callable[[], Awaitable[object]]] = [lambda: engine.store.save([OLD[0], *NEW], 2)]
    if why != "no room":  # a prune needs none
        writes += [lambda: engine.store.prune(T0 + 100, 100), lambda: engine.store.prune_bytes(0, 100)]
    for write in writes:
        with REFUSALS[why](engine), pytest.raises(StoreBusy, match=r"\A\S[^\n]+\Z") as refusal:
            await write()
        assert isinstance(refusal.value, StoreFull) == why.startswith("no room")
    assert before == (await everything(engine.store), await engine.store.counts(), await engine.store.topics())
    await engine.store.save(NEW, 3)
    await engine.crash()
    assert await stored(engine.store) == [row.raw for row in OLD + NEW]


@pytest.mark.usefixtures("impatient")
async def test_after_a_failed_commit_nothing_more_is_written(engine: Engine) -> None:
    with pytest.raises(AttributeError):  # an invalid envelope fails its batch, and not the archive
        await engine.store.save([OLD[0], None], 1)  # type: ignore[list-item]
    await engine.store.save(OLD, 1)
    with engine.failing_at_commit(), pytest.raises(StoreError, match="commit failed") as failure:
        await engine.store.save(NEW, 2)
    assert not isinstance(failure.value, StoreBusy)
    for write in (engine.store.save(NEW, 2), engine.store.prune(T0 + 100, 9)):
        with pytest.raises(StoreError, match="an earlier commit failed") as refusal:
            await write
        assert not isinstance(refusal.value, StoreBusy)
    await engine.restart()
    assert await stored(engine.store) == [row.raw for row in OLD]
    await engine.store.save(NEW, 2)
    assert (await engine.store.counts()).envelopes == len(OLD) + len(NEW)


async def test_after_a_failed_write_before_the_commit_the_next_batch_is_written(engine: Engine) -> None:
    await engine.store.save(OLD, 1)
    engine.store.database.execute("PRAGMA cache_size = 1")  # pages of the batch are written before the COMMIT
    log = (engine.data / f"{ARCHIVE_FILE}-wal").stat().st_size
    with no_file_beyond(log), pytest.raises(StoreError, match="disk I/O error") as failure:
        await engine.store.save(NEW, 2)
    assert not isinstance(failure.value, StoreBusy)
    assert await stored(engine.store) == [row.raw for row in OLD]
    await engine.store.save(NEW, 3)
    await engine.crash()
    assert await stored(engine.store) == [row.raw for row in OLD + NEW]


async def test_a_refused_batch_causes_a_checkpoint_so_that_the_next_needs_no_more_room(engine: Engine) -> None:
    first, second = ([envelope(sent, number, size=200) for number in range(25)] for sent in (0, 1))
    await engine.store.save(first, 1)
    with engine.failing_at_commit(sqlite3.SQLITE_FULL), pytest.raises(StoreBusy):
        await engine.store.save(second, 2)
    await engine.store.prune(0, 1)  # waits for its turn behind it
    with closing(sqlite3.connect(f"file:{engine.file}?immutable=1", uri=True)) as without_log:
        assert without_log.execute("SELECT count(*) FROM envelopes").fetchone() == (len(first),)
    log = (engine.data / f"{ARCHIVE_FILE}-wal").stat().st_size
    await engine.store.save(second, 2)
    assert (engine.data / f"{ARCHIVE_FILE}-wal").stat().st_size == log


async def test_a_long_write_ahead_log_causes_a_checkpoint(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.archive.sqlite.CHECKPOINT_BYTES", 1 << 20)
    for second in range(30):
        await engine.store.save([envelope(second, number, size=4000) for number in range(100)], 1)
    log = (engine.data / f"{ARCHIVE_FILE}-wal").stat().st_size
    assert log < 6 << 20 < (engine.file).stat().st_size


VERSIONS = range(1, len(SCHEMA.migrations()) + 1)


@pytest.mark.parametrize("old", VERSIONS)
async def test_every_old_archive_opens_with_all_rows_and_the_schema_of_a_new_one(old: int, tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    thaw(old, tmp_path / "old" / ARCHIVE_FILE)
    upgraded, new = open_archive(tmp_path / "old"), open_archive(tmp_path / "new")
    try:
        assert schema(upgraded.database) == schema(new.database)
        assert version(upgraded.database) == version(new.database) == [APPLICATION_ID, len(VERSIONS)]
        assert [(row.arrival, row.arrived, row.raw) for row in await everything(upgraded)] == [
            (2, T0 + 100, envelope(5, 2, topic=b"\xff\xee\xdd\xcc").raw),
            (3, T0 + 200, envelope(3, 3).raw),
        ]
        assert await upgraded.counts() == Counts(2, 44, 2, T0 + 3, T0 + 5, 4)
        await upgraded.save([envelope(3, 3), envelope(0, 1)], T0)
        assert [row.arrival for row in await everything(upgraded)] == [2, 3, 4]
        pragmas = ("journal_mode", "synchronous", "locking_mode", "busy_timeout", "wal_autocheckpoint")
        settings = [new.database.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
        assert settings == ["wal", 2, "normal", 5000, 0]  # 2: FULL (sqlite.org/pragma.html#pragma_synchronous)
    finally:
        await upgraded.close()
        await new.close()


async def test_damage_is_reported_in_one_sentence(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    await archive.save([envelope(number, number, size=500) for number in range(100)], 1)
    await archive.close()
    archive = open_archive(tmp_path)
    with (tmp_path / ARCHIVE_FILE).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 4096 * 12)
    archive.database.execute("PRAGMA shrink_memory")
    with pytest.raises(StoreDamaged, match=r"\A[^\n]*malformed[^\n]*\Z"):
        await stored(archive)
    with pytest.raises(StoreError, match=r"\A[^\n]*malformed[^\n]*\Z") as refusal:
        await archive.save([envelope(1000, 1000)], 1)
    assert not isinstance(refusal.value, StoreBusy)
    await archive.close()
    with pytest.raises(StoreError, match=r"\Athe archive is damaged \([^\n]*malformed\): restore a backup[^\n]*\Z"):
        open_archive(tmp_path)


ROWS = [envelope(number // 3, number, topic=bytes([255 - number % 4] * 4)) for number in range(30)]


def problems(data: Path, advance: Callable[[int], None] = lambda _: None) -> list[str]:
    with SCHEMA.reading(data) as database:
        return list(checking.check(database, advance))


async def test_check_finds_nothing_after_prunes_and_reads_every_row_beside_a_running_server(tmp_path: Path) -> None:
    archive = open_archive(tmp_path)
    await archive.save(ROWS, 1)
    assert await archive.prune(ROWS[9].sent, 5) == 5
    assert await archive.prune_bytes((await archive.counts()).bytes - 50, 5) == 3
    await archive.save(ROWS, 2)
    await archive.prune(ROWS[15].sent, 100)
    await archive.save([envelope(100, number) for number in range(1500 - 15)], 3)
    looked: list[int] = []
    assert problems(tmp_path, looked.append) == []
    assert looked == [1000, 500]
    await archive.close()


DAMAGE = {
    "UPDATE envelopes SET raw = CAST(x'00' || substr(raw, 2) AS BLOB) WHERE arrival = 5": "bytes follow the envelope",
    "UPDATE envelopes SET id = id + 1 WHERE arrival = 5": "belong to",
    "UPDATE envelopes SET topic = 7 WHERE arrival = 5": "its topic is",
    "DELETE FROM envelopes WHERE arrival = 5": "the count of envelopes is 30, but there are 29",
    "UPDATE totals SET bytes = bytes + 1": "the count of bytes is",
    "UPDATE totals SET next_arrival = 30": "the next arrival number, 30, was given already",
    "UPDATE topics SET count = count - 1 WHERE topic = -1": "the counts of topic ffffffff are wrong",
    "INSERT INTO topics VALUES (7, 1, 1, 1)": "the counts of topic 00000007 are wrong",
    "DELETE FROM arrivals WHERE arrival = 5": "has no arrival",
    "INSERT INTO arrivals VALUES (29000, 5, 1)": "arrival 29000 has no envelope",
    # The index is written as if it had no rows, which only integrity_check can tell.
    "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = replace(sql, '(topic)', '(arrival)')"
    " WHERE type = 'index'": "the database is damaged",
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.items())
def test_damage_is_found_and_named(tmp_path: Path, damage: str, sentence: str) -> None:
    archive_of(tmp_path, ROWS)
    with closing(sqlite3.connect(tmp_path / ARCHIVE_FILE)) as database:
        database.executescript(damage)
    lines = problems(tmp_path)
    assert any(sentence in line for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_an_envelope_with_a_moved_id_is_in_its_place_while_the_collision_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has two envelopes with hashes that begin alike: here ids are made of three bits of the hash."""
    monkeypatch.setattr("restante.waku.archive.ids.home", lambda kind: kind.sent << 31 | 8 + kind.hash[0] % 8)
    archive_of(tmp_path, [envelope(0, number) for number in range(12)])
    assert problems(tmp_path) == []
    alter(tmp_path / ARCHIVE_FILE, "DELETE FROM envelopes WHERE id = (SELECT max(id) FROM envelopes)")
    assert any("belong to" in sentence for sentence in problems(tmp_path))


LARGE = [envelope(number, number, size=2000) for number in range(300)]


async def test_a_backup_is_of_one_moment_and_delays_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PAGES_PER_STEP", 5)
    archive = open_archive(tmp_path / "data")
    await archive.save(LARGE, 1)
    loop = asyncio.get_running_loop()
    more = [[envelope(1000 + step, number) for number in range(50)] for step in range(10)]

    def write(_pages: int) -> None:
        if more:  # the next step waits until this is on disk
            asyncio.run_coroutine_threadsafe(archive.save(more.pop(), 2), loop).result(30)

    await asyncio.to_thread(backup, tmp_path / "data", tmp_path / "copy", write)
    await archive.close()
    assert not more
    assert await asyncio.to_thread(raws_of, tmp_path / "copy") == [row.raw for row in LARGE]
    assert problems(tmp_path / "copy") == []
    used = open_archive(tmp_path / "copy")
    await used.save([LARGE[0], A], 3)
    assert (await stored(used))[len(LARGE) :] == [A.raw]
    await used.close()


def test_a_backup_without_room_is_reported_in_one_sentence_and_leaves_no_archive(tmp_path: Path) -> None:
    archive_of(tmp_path / "data", LARGE)
    with no_file_beyond(100_000), pytest.raises(StoreError, match=r"\Acannot copy the database: [^\n]+\Z"):
        backup(tmp_path / "data", tmp_path / "copy", lambda _: None)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["lock"]
    (tmp_path / "empty").mkdir()
    backup(tmp_path / "data", tmp_path / "empty", lambda _: None)
    assert raws_of(tmp_path / "empty") == [row.raw for row in LARGE]
