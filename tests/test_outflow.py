"""No more than a slice is written in one turn of the loop, and whoever waits is next in its turn."""

from __future__ import annotations

import asyncio

from restante.mailbox.server.send_budget import SLICE, Outflow


class Writer:
    """Has so many bytes to write, a quarter of a slice at a time."""

    def __init__(self, outflow: Outflow, left: int, log: list[Writer]) -> None:
        self.outflow = outflow
        self.left = left
        self.log = log

    def catch_up(self) -> None:
        while self.left and self.outflow.open:
            self.left -= SLICE // 4
            self.log.append(self)
            self.outflow.wrote(SLICE // 4)
        if self.left:
            self.outflow.wait(self)


async def test_those_who_wait_write_a_slice_each_one_after_the_other() -> None:
    outflow, log = Outflow(), list[Writer]()
    writers = [Writer(outflow, 2 * SLICE, log) for _ in range(3)]
    for writer in writers:
        writer.catch_up()
    assert log == [writers[0]] * 4
    turns = []
    while any(writer.left for writer in writers):
        before = len(log)
        await asyncio.sleep(0)
        turns.append(log[before:])
    assert turns == [[each] * 4 for each in (writers[0], *writers[1:], *writers[1:])]


async def test_what_was_written_is_forgotten_with_the_turn() -> None:
    outflow = Outflow()
    outflow.wrote(SLICE)
    assert not outflow.open
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert outflow.open
