"""Any order, any split, prunes and ends in between: an archive holds what a plain list would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from restante.waku.archive.records import Counts
from restante.waku.envelope.envelope import Envelope
from support.effort import examples
from support.waku.envelopes import T0, alike, envelope, everything, topics_of
from waku.archive.engine import Engine

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

batches = st.lists(st.sampled_from(POOL), max_size=12)
slices = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("save"), batches, st.integers(0, 9)),
    st.tuples(st.just("prune"), st.integers(T0 - 1, T0 + SECONDS), slices),
    st.tuples(st.just("prune_bytes"), st.integers(0, 400), slices),
    st.tuples(st.sampled_from(["restart", "crash"])),
)


class Model:
    """A list of envelopes with the time of their arrival, in the order of arrival."""

    def __init__(self) -> None:
        self.rows: list[tuple[Envelope, int]] = []
        self.highest = 0

    def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        for each in batch:
            if each not in [row for row, _ in self.rows]:
                self.rows.append((each, arrived))

    async def check(self, engine: Engine) -> None:
        rows = [row for row, _ in self.rows]
        found = await everything(engine.archive)
        assert [(each.raw, each.arrived) for each in found] == [(row.raw, at) for row, at in self.rows]
        arrivals = [each.arrival for each in found]
        assert arrivals == sorted(set(arrivals))
        counted = await engine.archive.counts()
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
        assert {each.topic: each for each in await engine.archive.topics()} == topics_of(rows)

    async def take_out(self, engine: Engine, wanted: Any, number: int) -> None:
        """Remove what the archive deleted, if it was the oldest; which ones of a second is the archive's choice."""
        left = {each.raw for each in await everything(engine.archive)}
        gone = [row for row, _ in self.rows if row.raw not in left]
        assert len(gone) == number
        self.rows = [(row, at) for row, at in self.rows if row.raw in left]
        if gone and self.rows:
            assert max(row.sent for row in gone) <= min(row.sent for row, _ in self.rows)
        wanted(gone)


async def step(engine: Engine, model: Model, what: str, *arguments: Any) -> None:
    if what in ("restart", "crash"):
        await getattr(engine, what)()
    elif what == "save":
        await engine.archive.save(*arguments)
        model.save(*arguments)
    elif what == "prune":
        before, most = arguments
        due = sum(row.sent < before for row, _ in model.rows)

        def only_old(gone: list[Envelope]) -> None:
            assert all(row.sent < before for row in gone)
            assert len(gone) == min(due, most)

        await model.take_out(engine, only_old, await engine.archive.prune(before, most))
    else:
        limit, most = arguments
        before_bytes = sum(len(row.raw) for row, _ in model.rows)

        def no_more_than_needed(gone: list[Envelope]) -> None:
            assert len(gone) <= most
            left = before_bytes - sum(len(row.raw) for row in gone)
            if len(gone) < most:
                assert left <= limit
            if gone:
                last = max(row.sent for row in gone)
                assert left + max(len(row.raw) for row in gone if row.sent == last) > limit
            else:
                assert before_bytes <= limit

        await model.take_out(engine, no_more_than_needed, await engine.archive.prune_bytes(limit, most))


@examples(30)
@given(steps=st.lists(STEPS, max_size=12))
async def test_an_archive_holds_what_a_list_would(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    async with Engine() as engine:
        for each in steps:
            await step(engine, model, *each)
            await model.check(engine)
