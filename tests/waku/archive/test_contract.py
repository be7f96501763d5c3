"""What every archive promises, whatever it keeps envelopes in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from restante.waku.archive.records import Counts
from support.waku.engines import Engine
from support.waku.envelopes import T0, alike, envelope, everything, held, topics_of

A, B, C = envelope(0, 1), envelope(1, 2), envelope(2, 3, topic=b"\xff\xee\xdd\xcc")


async def test_a_new_archive_is_empty(engine: Engine) -> None:
    assert await engine.archive.counts() == Counts(0, 0, 0, None, None, 1)
    assert await engine.archive.topics() == []
    assert await engine.archive.after(0, 10) == []
    assert await engine.archive.prune(1 << 32, 10) == 0
    assert await engine.archive.prune_bytes(0, 10) == 0


async def test_a_saved_envelope_has_its_bytes_and_its_time(engine: Engine) -> None:
    await engine.archive.save([C, A], 111)
    await engine.archive.save([B], 222)
    found = await everything(engine.archive)
    assert [(each.raw, each.arrived, each.envelope()) for each in found] == [
        (C.raw, 111, C),
        (A.raw, 111, A),
        (B.raw, 222, B),
    ]
    sizes = len(A.raw) + len(B.raw) + len(C.raw)
    assert await engine.archive.counts() == Counts(3, sizes, 2, T0, T0 + 2, found[-1].arrival + 1)
    assert {each.topic: each for each in await engine.archive.topics()} == topics_of([A, B, C])


async def test_an_empty_batch_saves_nothing(engine: Engine) -> None:
    await engine.archive.save([], 1)
    assert await engine.archive.counts() == Counts(0, 0, 0, None, None, 1)


async def test_the_same_envelope_is_archived_once_as_it_first_came(engine: Engine) -> None:
    await engine.archive.save([A, A], 1)
    await engine.archive.save([A, B, A], 2)
    await engine.restart()
    await engine.archive.save([B, A], 3)
    found = await everything(engine.archive)
    assert [(each.raw, each.arrived) for each in found] == [(A.raw, 1), (B.raw, 2)]
    assert (await engine.archive.counts()).envelopes == 2


async def test_envelopes_whose_hashes_begin_alike_are_each_archived_once(engine: Engine) -> None:
    crowd = [alike(envelope(0, number)) for number in range(6)]
    elsewhere = alike(envelope(1, 7))
    await engine.archive.save(crowd[:2], 1)
    await engine.archive.save([*crowd[1:5], elsewhere], 1)
    await engine.crash()
    await engine.archive.save([crowd[5], *crowd], 1)
    assert await held(engine.archive) == [each.raw for each in (*crowd[:5], elsewhere, crowd[5])]


async def test_envelopes_whose_hashes_begin_alike_are_returned_once_after_a_prune(engine: Engine) -> None:
    crowd = [alike(envelope(0, number)) for number in range(5)]
    await engine.archive.save(crowd, 1)
    assert await engine.archive.prune(T0 + 1, 2) == 2
    await engine.archive.save(crowd, 1)
    assert sorted(await held(engine.archive)) == sorted(each.raw for each in crowd)


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


async def test_prune_deletes_envelopes_sent_before_a_time_oldest_first_in_slices(engine: Engine) -> None:
    rows = [envelope(number, number) for number in (5, 1, 4, 2, 3)]
    await engine.archive.save(rows, 1)
    assert await engine.archive.prune(T0 + 4, 2) == 2
    assert await held(engine.archive) == [rows[0].raw, rows[2].raw, rows[4].raw]
    assert await engine.archive.prune(T0 + 4, 2) == 1
    assert await engine.archive.prune(T0 + 4, 2) == 0
    assert await held(engine.archive) == [rows[0].raw, rows[2].raw]
    assert (await engine.archive.counts()).bytes == len(rows[0].raw) * 2


async def test_prune_bytes_deletes_the_oldest_until_the_rest_fits(engine: Engine) -> None:
    rows = [envelope(number, number, size=100 * (number + 1)) for number in range(5)]
    await engine.archive.save(rows[::-1], 1)
    limit = len(rows[3].raw) + len(rows[4].raw)
    assert await engine.archive.prune_bytes(limit + 1_000_000, 2) == 0
    assert await engine.archive.prune_bytes(limit, 2) == 2
    assert await engine.archive.prune_bytes(limit, 2) == 1
    assert await engine.archive.prune_bytes(limit, 2) == 0
    assert await held(engine.archive) == [rows[4].raw, rows[3].raw]
    assert await engine.archive.prune_bytes(0, 99) == 2
    assert await engine.archive.topics() == []


async def test_an_arrival_number_is_never_given_twice(engine: Engine) -> None:
    await engine.archive.save([A, B], 1)
    last = (await engine.archive.after(0, 9))[-1].arrival
    await engine.archive.prune(1 << 32, 9)
    await engine.restart()
    await engine.archive.save([A, C], 2)
    again = await engine.archive.after(0, 9)
    assert [each.raw for each in again] == [A.raw, C.raw]
    assert last < again[0].arrival < again[1].arrival
    assert await engine.archive.after(again[0].arrival, 9) == again[1:]


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


@dataclass
class Batches:
    """What `save` was given, for the tests that follow one another."""

    seen: list[bytes] = field(default_factory=list)


@pytest.mark.parametrize("end", ["restart", "crash"])
async def test_everything_is_in_the_archive_after_it_is_closed(engine: Engine, end: str) -> None:
    batches = Batches()
    for number in range(5):
        batch = [envelope(number, number * 10 + each) for each in range(3)]
        await engine.archive.save(batch, number)
        batches.seen += [each.raw for each in batch]
        before = await everything(engine.archive)
        await getattr(engine, end)()
        assert await everything(engine.archive) == before
        assert [each.raw for each in before] == batches.seen
