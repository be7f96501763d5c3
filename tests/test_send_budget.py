"""No more than a slice is written in one turn of the loop, and whoever waits is next in its turn."""

from __future__ import annotations

import asyncio

from restante.mailbox.server.send_budget import BYTES_PER_WRITE, MAX_BYTES_PER_TURN, SendBudget


class Writer:
    """Has so many bytes to write, a quarter of a slice at a time."""

    def __init__(self, send_budget: SendBudget, left: int, log: list[Writer]) -> None:
        self.send_budget = send_budget
        self.left = left
        self.log = log

    def catch_up(self) -> None:
        while self.left and self.send_budget.open:
            self.left -= MAX_BYTES_PER_TURN // 4
            self.log.append(self)
            self.send_budget.wrote(MAX_BYTES_PER_TURN // 4)
        if self.left:
            self.send_budget.wait(self)


async def test_waiting_connections_write_a_slice_each_in_turn() -> None:
    send_budget, log = SendBudget(), list[Writer]()
    writers = [Writer(send_budget, 2 * MAX_BYTES_PER_TURN, log) for _ in range(3)]
    for writer in writers:
        writer.catch_up()
    assert log == [writers[0]] * 4
    turns = []
    while any(writer.left for writer in writers):
        before = len(log)
        await asyncio.sleep(0)
        turns.append(log[before:])
    assert turns == [[each] * 4 for each in (writers[0], *writers[1:], *writers[1:])]


async def test_the_send_budget_opens_again_in_the_next_turn() -> None:
    send_budget = SendBudget()
    send_budget.wrote(MAX_BYTES_PER_TURN)
    assert not send_budget.open
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert send_budget.open


async def test_a_write_counts_whatever_its_size() -> None:
    """A batch of forty commands was sent to 1,280 subscribers in one turn of the loop: 24 ms."""
    send_budget = SendBudget()
    writes = 0
    while send_budget.open:
        send_budget.wrote(100)
        writes += 1
    assert 200 < writes <= MAX_BYTES_PER_TURN // BYTES_PER_WRITE


async def test_in_a_reserved_turn_nobody_writes() -> None:
    send_budget, log = SendBudget(), list[Writer]()
    writer = Writer(send_budget, MAX_BYTES_PER_TURN, log)
    send_budget.wait(writer)
    send_budget.reserve()
    await asyncio.sleep(0)
    assert (log, send_budget.open) == ([], False)
    await asyncio.sleep(0)
    assert log == [writer] * 4
